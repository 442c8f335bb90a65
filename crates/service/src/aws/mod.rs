//! AWS as tasks and handlers see it: every outgoing call passes the limiter of its operation and is counted,
//! page by page. The ports define what a call means; the domain decides what to do next.
//!
//! The absence of a job is believed only for the account that owns this installation's jobs: see
//! [`Aws::confirm_account`].

mod jobs;
mod model_packages;
mod objects;
mod operation;
mod schedules;
pub mod sns;

pub use operation::{JobOperations, Operation};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bakeoff_domain::doctor::questions::{Decision, Question, RoleFound};
use bakeoff_domain::ports::{
    CallerReply, Endpoints, Identity, Images, IterationMetrics, IterationPoint, IterationQuery,
    JobMetrics, Jobs, LogPage, LogRequest, LogSearch, Logs, ModelRegistry, Objects, Page,
    Permissions, PriceList, Products, Quotas, Schedules, Window,
};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::image::EcrImage;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::limiter::Limiter;
use bakeoff_domain::sagemaker::log::LogLine;
use bakeoff_domain::sagemaker::metrics::{MetricQuery, Series};
use bakeoff_domain::sagemaker::quota::Quota;
use chrono::{DateTime, TimeDelta, Utc};

use bakeoff_process::clock::Clock;
use bakeoff_store::calls::Tally;

/// Maximum number of waits of a paced call, and of each wait (domain clock), before the call is put
/// off.
const WAITS_MAX: u32 = 50;
const WAIT_MAX: TimeDelta = TimeDelta::seconds(5);
/// Maximum number of pages of one answer. SageMaker has some thousands of quotas and products;
/// checkpoint names do not sort by time, so all are listed.
const LIST_PAGES_MAX: u32 = 200;
/// How long (domain clock) a confirmed account is trusted: less than the time between two polls of
/// a job.
const ACCOUNT_TRUSTED: TimeDelta = TimeDelta::seconds(15);

/// The ports to AWS.
#[derive(Clone)]
pub struct Ports {
    pub jobs: Arc<dyn Jobs>,
    pub endpoints: Arc<dyn Endpoints>,
    pub metrics: Arc<dyn JobMetrics>,
    pub quotas: Arc<dyn Quotas>,
    pub objects: Arc<dyn Objects>,
    pub prices: Arc<dyn PriceList>,
    pub iterations: Arc<dyn IterationMetrics>,
    pub logs: Arc<dyn Logs>,
    pub identity: Arc<dyn Identity>,
    pub permissions: Arc<dyn Permissions>,
    pub images: Arc<dyn Images>,
    pub registry: Arc<dyn ModelRegistry>,
    pub schedules: Arc<dyn Schedules>,
}

#[derive(Debug)]
struct Paced {
    limiter: Limiter,
    /// Calls since the last flush.
    fresh: Tally,
}

/// The account that owns the installation's jobs, and when the credentials were last confirmed to
/// belong to it.
#[derive(Debug, Default)]
struct Account {
    expected: Option<String>,
    confirmed_at: Option<DateTime<Utc>>,
}

/// The outcome of requesting a page of metrics.
#[derive(Debug)]
pub struct MetricsPage {
    /// Whether AWS bills it, or may: a lost reply counts, a refusal does not.
    pub is_billed: bool,
    /// This page's part of each query's series.
    pub reply: Result<Page<Series>, AwsError>,
}

/// AWS, counted and paced. Shared by all tasks.
pub struct Aws {
    ports: Ports,
    clock: Clock,
    paced: Mutex<BTreeMap<Operation, Paced>>,
    account: Mutex<Account>,
}

impl Aws {
    /// `calls_per_second`: the starting rate for learning; 1 outside tests.
    pub fn new(ports: Ports, clock: Clock, calls_per_second: f64) -> Self {
        let paced = Operation::ALL.iter().map(|&operation| {
            let fresh = Tally {
                operation: operation.as_str().to_owned(),
                ..Tally::default()
            };
            (
                operation,
                Paced {
                    limiter: operation.limiter(calls_per_second),
                    fresh,
                },
            )
        });
        Self {
            ports,
            clock,
            paced: Mutex::new(paced.collect()),
            account: Mutex::default(),
        }
    }

    /// Binds it to the account that owns the installation's jobs.
    pub fn expect_account(&self, account: &str) {
        let mut known = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Account {
            expected: Some(account.to_owned()),
            confirmed_at: None,
        };
    }

    /// Whether an account is bound.
    pub fn knows_account(&self) -> bool {
        self.account
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .expected
            .is_some()
    }

    /// Whether jobs of an account may be the installation's: those of another one never are,
    /// whatever their names.
    pub fn may_own(&self, account: &str) -> bool {
        let known = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        known.expected.as_deref().is_none_or(|own| own == account)
    }

    fn with<T>(
        &self,
        operation: Operation,
        act: impl FnOnce(&mut Paced, DateTime<Utc>) -> T,
    ) -> Option<T> {
        let now = self.clock.now();
        let mut paced = self.paced.lock().unwrap_or_else(PoisonError::into_inner);
        paced.get_mut(&operation).map(|paced| act(paced, now))
    }

    /// Number of jobs that may be created now without being throttled.
    pub fn creates_available(&self) -> usize {
        self.with(Operation::CreateTrainingJob, |paced, now| {
            paced.limiter.available(now)
        })
        .unwrap_or(0)
    }

    /// How long until another job may be created.
    pub fn creates_after(&self) -> TimeDelta {
        let wait = self.with(Operation::CreateTrainingJob, |paced, now| {
            paced.limiter.wait(now)
        });
        wait.unwrap_or(TimeDelta::zero())
    }

    /// Takes a permit for an operation, or returns how long to wait for one.
    pub fn take(&self, operation: Operation) -> Result<(), TimeDelta> {
        self.with(operation, |paced, now| paced.limiter.take(now))
            .unwrap_or(Ok(()))
    }

    /// Waits for a permit for an operation, but only briefly: the caller may hold a lease.
    pub async fn wait_for(&self, operation: Operation) -> Result<(), AwsError> {
        for _ in 0..WAITS_MAX {
            match self.take(operation) {
                Ok(()) => return Ok(()),
                Err(wait) if wait > WAIT_MAX => break,
                Err(wait) => self.clock.sleep(wait).await,
            }
        }
        Err(AwsError::Throttled(format!(
            "{} is paced, and no permit was free in time",
            operation.as_str()
        )))
    }

    /// The current rate of each operation, in calls per second.
    pub fn rates(&self) -> Vec<(&'static str, f64)> {
        let paced = self.paced.lock().unwrap_or_else(PoisonError::into_inner);
        paced
            .iter()
            .map(|(operation, paced)| (operation.as_str(), paced.limiter.rate()))
            .collect()
    }

    /// Takes the tallies of calls since the last time.
    pub fn take_tallies(&self) -> Vec<Tally> {
        let mut paced = self.paced.lock().unwrap_or_else(PoisonError::into_inner);
        let called = paced.values_mut().filter(|paced| paced.fresh.calls > 0);
        called
            .map(|paced| {
                let empty = Tally {
                    operation: paced.fresh.operation.clone(),
                    ..Tally::default()
                };
                std::mem::replace(&mut paced.fresh, empty)
            })
            .collect()
    }

    fn count<T>(
        &self,
        operation: Operation,
        reply: Result<T, AwsError>,
        metrics: usize,
    ) -> Result<T, AwsError> {
        let outcome = match &reply {
            Err(AwsError::Throttled(_)) => "throttled",
            Err(AwsError::Unknown(_)) => "failed",
            Ok(_) | Err(_) => "answered",
        };
        metrics::counter!("bakeoff_aws_calls_total", "operation" => operation.as_str(), "outcome" => outcome)
            .increment(1);
        self.with(operation, |paced, now| {
            paced.fresh.calls += 1;
            paced.fresh.throttled += i64::from(outcome == "throttled");
            paced.fresh.failed += i64::from(outcome == "failed");
            paced.fresh.metrics += i64::try_from(metrics).unwrap_or(i64::MAX);
            if outcome != "failed" {
                paced.limiter.heard(outcome == "throttled", now);
            }
        });
        reply
    }

    /// Reads all pages of an answer, each paced and counted; an error if there are more than
    /// `pages_max`.
    async fn pages<T, F>(
        &self,
        operation: Operation,
        pages_max: u32,
        mut ask: impl FnMut(Option<String>) -> F,
    ) -> Result<Vec<T>, AwsError>
    where
        F: Future<Output = Result<Page<T>, AwsError>>,
    {
        let (mut items, mut token) = (Vec::new(), None);
        for _ in 0..pages_max {
            self.wait_for(operation).await?;
            let page = self.count(operation, ask(token).await, 0)?;
            items.extend(page.items);
            token = page.next;
            if token.is_none() {
                return Ok(items);
            }
        }
        Err(AwsError::Unknown(format!(
            "{} returned more than {pages_max} pages",
            operation.as_str()
        )))
    }

    /// The account that the credentials belong to.
    pub async fn caller_account(&self) -> Result<String, AwsError> {
        Ok(self.caller().await?.caller?.account)
    }

    /// Who the credentials belong to, and the time at AWS.
    pub async fn caller(&self) -> Result<CallerReply, AwsError> {
        self.wait_for(Operation::GetCallerIdentity).await?;
        let reply = self.ports.identity.caller().await;
        Ok(CallerReply {
            caller: self.count(Operation::GetCallerIdentity, reply.caller, 0),
            ..reply
        })
    }

    /// The account that the installation's jobs are in, once it is known.
    pub fn account(&self) -> Option<String> {
        let known = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        known.expected.clone()
    }

    pub async fn role(&self, name: &str) -> Result<RoleFound, AwsError> {
        self.wait_for(Operation::GetRole).await?;
        self.count(
            Operation::GetRole,
            self.ports.permissions.role(name).await,
            0,
        )
    }

    /// Whether a principal's policies allow something.
    pub async fn simulate(
        &self,
        principal_arn: &str,
        question: &Question,
    ) -> Result<Vec<Decision>, AwsError> {
        self.wait_for(Operation::SimulatePrincipalPolicy).await?;
        let reply = self.ports.permissions.simulate(principal_arn, question);
        self.count(Operation::SimulatePrincipalPolicy, reply.await, 0)
    }

    /// The digest of an image; `None` if its repository has none of that name.
    pub async fn image_digest(&self, image: &EcrImage<'_>) -> Result<Option<String>, AwsError> {
        self.wait_for(Operation::BatchGetImage).await?;
        let reply = self.ports.images.digest(image).await;
        self.count(Operation::BatchGetImage, reply, 0)
    }

    /// Whether the price list may be read: its first page.
    pub async fn try_price_list(&self, region: &str) -> Result<(), AwsError> {
        self.wait_for(Operation::GetProducts).await?;
        let reply = self
            .ports
            .prices
            .products(region, Products::TrainingInstances, None);
        self.count(Operation::GetProducts, reply.await, 0).map(drop)
    }

    /// Drops the confirmation of the account, however recent, because something suggests that the
    /// credentials have changed.
    pub fn doubt_account(&self) {
        self.account
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .confirmed_at = None;
    }

    /// Confirms that the credentials belong to the account that owns the installation's jobs. With
    /// another account, every job of ours would seem to have vanished, and new ones would run where
    /// nobody looks.
    pub async fn confirm_account(&self) -> Result<(), AwsError> {
        let now = self.clock.now();
        let expected = {
            let known = self.account.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(expected) = known.expected.clone() else {
                return Err(AwsError::Unknown(
                    "the AWS account of this installation's jobs is not known yet".to_owned(),
                ));
            };
            if known
                .confirmed_at
                .is_some_and(|at| (now - at).abs() < ACCOUNT_TRUSTED)
            {
                return Ok(());
            }
            expected
        };
        let account = self.caller_account().await?;
        if account != expected {
            let why = format!(
                "the credentials belong to account {account}, but this installation's jobs are in {expected}; start \
                 the service with credentials for {expected}"
            );
            tracing::error!(why, "the credentials belong to another AWS account");
            return Err(AwsError::Denied(why));
        }
        self.account
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .confirmed_at = Some(now);
        Ok(())
    }

    /// Reads one page of some series. The caller has waited for its permit and counted the request:
    /// AWS bills it whatever happens to the reply.
    pub async fn metrics_page(
        &self,
        queries: &[MetricQuery],
        window: Window,
        token: Option<String>,
    ) -> MetricsPage {
        let reply = self.ports.metrics.read(queries, window, token).await;
        let is_billed = matches!(reply, Ok(_) | Err(AwsError::Unknown(_)));
        let metrics = if is_billed { queries.len() } else { 0 };
        MetricsPage {
            is_billed,
            reply: self.count(Operation::GetMetricData, reply, metrics),
        }
    }

    pub async fn read_iterations(
        &self,
        queries: &[IterationQuery],
    ) -> Result<Vec<Vec<IterationPoint>>, AwsError> {
        self.wait_for(Operation::BatchGetMetrics).await?;
        self.count(
            Operation::BatchGetMetrics,
            self.ports.iterations.read(queries).await,
            0,
        )
    }

    /// All products in SageMaker's price list for a region that may concern our jobs.
    pub async fn list_prices(&self, region: &str) -> Result<Vec<String>, AwsError> {
        let mut products = Vec::new();
        for kind in [
            Products::TrainingInstances,
            Products::ProcessingInstances,
            Products::HostingInstances,
            Products::TransformInstances,
            Products::Volumes,
        ] {
            let ask = |token| self.ports.prices.products(region, kind, token);
            products.extend(
                self.pages(Operation::GetProducts, LIST_PAGES_MAX, ask)
                    .await?,
            );
        }
        Ok(products)
    }

    pub async fn instance_quotas(&self) -> Result<Vec<Quota>, AwsError> {
        self.pages(Operation::ListServiceQuotas, LIST_PAGES_MAX, |token| {
            self.ports.quotas.instances(token)
        })
        .await
    }

    /// The log streams of a job, by name; a restart begins new ones.
    pub async fn log_streams(
        &self,
        kind: JobKind,
        job_name: &str,
    ) -> Result<Vec<String>, AwsError> {
        let prefix = streams_of(job_name);
        let ask = |token| self.ports.logs.streams(kind, &prefix, token);
        self.pages(Operation::DescribeLogStreams, LIST_PAGES_MAX, ask)
            .await
    }

    /// A page of the lines in all streams of a job that contain one of some words.
    pub async fn log_search(
        &self,
        kind: JobKind,
        job_name: &str,
        words: &[&str],
        token: Option<String>,
    ) -> Result<Page<LogLine>, AwsError> {
        let search = LogSearch {
            kind,
            prefix: &streams_of(job_name),
            words,
            token,
        };
        self.wait_for(Operation::FilterLogEvents).await?;
        let found = self.ports.logs.search(&search).await;
        self.count(Operation::FilterLogEvents, found, 0)
    }

    /// A page of a log stream.
    pub async fn log_page(&self, request: &LogRequest) -> Result<LogPage, AwsError> {
        self.wait_for(Operation::GetLogEvents).await?;
        self.count(
            Operation::GetLogEvents,
            self.ports.logs.lines(request).await,
            0,
        )
    }
}

/// How the names of a job's log streams begin. Without the slash, job-1 would have the streams of job-10.
fn streams_of(job_name: &str) -> String {
    format!("{job_name}/")
}

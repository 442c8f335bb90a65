//! AWS as the tasks see it: every call passes the limiter of its operation and is counted. What a call means is the ports'
//! business, what to do next is the domain's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bakeoff_domain::job::{ObservedJob, TrainingJobRequest};
use bakeoff_domain::limiter::Limiter;
use bakeoff_domain::ports::{
    AwsError, IterationMetrics, IterationPoint, IterationQuery, JobMetrics, JobPage, MetricQuery, Objects, PageRequest,
    PriceList, Quotas, Series, TrainingJobs,
};
use bakeoff_domain::quota::Quota;
use chrono::{DateTime, TimeDelta, Utc};

use crate::clock::Clock;
use crate::crash;
use crate::store::calls::Tally;

/// A call that is paced waits so often, and so long (domain clock), before it is put off.
const WAITS_MAX: u32 = 50;
const WAIT_MAX: TimeDelta = TimeDelta::seconds(5);

/// The ports to AWS.
#[derive(Clone)]
pub struct Ports {
    pub jobs: Arc<dyn TrainingJobs>,
    pub metrics: Arc<dyn JobMetrics>,
    pub quotas: Arc<dyn Quotas>,
    pub objects: Arc<dyn Objects>,
    pub prices: Arc<dyn PriceList>,
    pub iterations: Arc<dyn IterationMetrics>,
}

/// An operation with a limiter and a tally of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    CreateTrainingJob,
    DescribeTrainingJob,
    StopTrainingJob,
    UpdateTrainingJob,
    ListTrainingJobs,
    ListTags,
    GetMetricData,
    ListServiceQuotas,
    ListObjectsV2,
    GetProducts,
    BatchGetMetrics,
}

impl Operation {
    const ALL: [Self; 11] = [
        Self::CreateTrainingJob,
        Self::DescribeTrainingJob,
        Self::StopTrainingJob,
        Self::UpdateTrainingJob,
        Self::ListTrainingJobs,
        Self::ListTags,
        Self::GetMetricData,
        Self::ListServiceQuotas,
        Self::ListObjectsV2,
        Self::GetProducts,
        Self::BatchGetMetrics,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreateTrainingJob => "CreateTrainingJob",
            Self::DescribeTrainingJob => "DescribeTrainingJob",
            Self::StopTrainingJob => "StopTrainingJob",
            Self::UpdateTrainingJob => "UpdateTrainingJob",
            Self::ListTrainingJobs => "ListTrainingJobs",
            Self::ListTags => "ListTags",
            Self::GetMetricData => "GetMetricData",
            Self::ListServiceQuotas => "ListServiceQuotas",
            Self::ListObjectsV2 => "ListObjectsV2",
            Self::GetProducts => "GetProducts",
            Self::BatchGetMetrics => "BatchGetMetrics",
        }
    }

    /// Only two request quotas are known: ListTrainingJobs 2/s (we use half of it, for others in the account), GetMetricData
    /// 50/s. The others are learnt, from a modest beginning: CreateTrainingJob is throttled with five callers at once.
    fn limiter(self, start: f64) -> Limiter {
        match self {
            Self::ListTrainingJobs => Limiter::at_most(start),
            Self::GetMetricData => Limiter::at_most(40.0 * start),
            Self::CreateTrainingJob => Limiter::learning(start),
            Self::DescribeTrainingJob
            | Self::StopTrainingJob
            | Self::UpdateTrainingJob
            | Self::ListTags
            | Self::ListServiceQuotas
            | Self::ListObjectsV2
            | Self::GetProducts
            | Self::BatchGetMetrics => Limiter::learning(10.0 * start),
        }
    }
}

#[derive(Debug)]
struct Lane {
    limiter: Limiter,
    /// Since the last flush.
    fresh: Tally,
}

/// AWS, counted and paced. Shared by all tasks.
pub struct Aws {
    ports: Ports,
    clock: Clock,
    lanes: Mutex<BTreeMap<Operation, Lane>>,
}

impl Aws {
    /// `calls_per_second`: where learning begins; 1 outside tests.
    pub fn new(ports: Ports, clock: Clock, calls_per_second: f64) -> Self {
        let lanes = Operation::ALL.map(|operation| {
            let fresh = Tally { operation: operation.as_str().to_owned(), ..Tally::default() };
            (operation, Lane { limiter: operation.limiter(calls_per_second), fresh })
        });
        Self { ports, clock, lanes: Mutex::new(lanes.into_iter().collect()) }
    }

    fn with<T>(&self, operation: Operation, act: impl FnOnce(&mut Lane, DateTime<Utc>) -> T) -> Option<T> {
        let now = self.clock.now();
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.get_mut(&operation).map(|lane| act(lane, now))
    }

    /// Jobs that may be created now without being throttled.
    pub fn creates_available(&self) -> usize {
        self.with(Operation::CreateTrainingJob, |lane, now| lane.limiter.available(now)).unwrap_or(0)
    }

    /// How long until another job may be created.
    pub fn creates_after(&self) -> TimeDelta {
        let wait = self.with(Operation::CreateTrainingJob, |lane, now| lane.limiter.wait(now));
        wait.unwrap_or(TimeDelta::zero())
    }

    /// Takes a call of an operation, or says how long until there is one.
    pub fn take(&self, operation: Operation) -> Result<(), TimeDelta> {
        self.with(operation, |lane, now| lane.limiter.take(now)).unwrap_or(Ok(()))
    }

    /// Waits for a call of an operation, but not for long: whoever waits may hold a lease.
    pub async fn wait_for(&self, operation: Operation) -> Result<(), AwsError> {
        for _ in 0..WAITS_MAX {
            match self.take(operation) {
                Ok(()) => return Ok(()),
                Err(wait) if wait > WAIT_MAX => break,
                Err(wait) => self.clock.sleep(wait).await,
            }
        }
        Err(AwsError::Throttled(format!("{} is paced, and its turn has not come", operation.as_str())))
    }

    /// Calls per second that an operation is paced at.
    pub fn rates(&self) -> Vec<(&'static str, f64)> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().map(|(operation, lane)| (operation.as_str(), lane.limiter.rate())).collect()
    }

    /// What was called since the last time.
    pub fn take_tallies(&self) -> Vec<Tally> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let called = lanes.values_mut().filter(|lane| lane.fresh.calls > 0);
        called
            .map(|lane| {
                let empty = Tally { operation: lane.fresh.operation.clone(), ..Tally::default() };
                std::mem::replace(&mut lane.fresh, empty)
            })
            .collect()
    }

    fn count<T>(&self, operation: Operation, reply: Result<T, AwsError>, metrics: usize) -> Result<T, AwsError> {
        let outcome = match &reply {
            Err(AwsError::Throttled(_)) => "throttled",
            Err(AwsError::Unknown(_)) => "failed",
            Ok(_) | Err(_) => "answered",
        };
        metrics::counter!("bakeoff_aws_calls_total", "operation" => operation.as_str(), "outcome" => outcome)
            .increment(1);
        self.with(operation, |lane, now| {
            lane.fresh.calls += 1;
            lane.fresh.throttled += i64::from(outcome == "throttled");
            lane.fresh.failed += i64::from(outcome == "failed");
            lane.fresh.metrics += i64::try_from(metrics).unwrap_or_default();
            if outcome != "failed" {
                lane.limiter.heard(outcome == "throttled", now);
            }
        });
        reply
    }

    /// The caller has taken the call: between that and this, nothing may wait.
    pub async fn create(&self, request: &TrainingJobRequest) -> Result<(), AwsError> {
        crash::point("before_create");
        let reply = self.ports.jobs.create(request).await;
        crash::point("after_create");
        self.count(Operation::CreateTrainingJob, reply, 0)
    }

    pub async fn describe(&self, job_name: &str) -> Result<ObservedJob, AwsError> {
        self.wait_for(Operation::DescribeTrainingJob).await?;
        self.count(Operation::DescribeTrainingJob, self.ports.jobs.describe(job_name).await, 0)
    }

    pub async fn stop(&self, job_name: &str) -> Result<(), AwsError> {
        self.wait_for(Operation::StopTrainingJob).await?;
        crash::point("before_stop");
        let reply = self.ports.jobs.stop(job_name).await;
        crash::point("after_stop");
        self.count(Operation::StopTrainingJob, reply, 0)
    }

    pub async fn end_pool(&self, job_name: &str) -> Result<(), AwsError> {
        self.wait_for(Operation::UpdateTrainingJob).await?;
        crash::point("before_end_pool");
        let reply = self.ports.jobs.end_pool(job_name).await;
        crash::point("after_end_pool");
        self.count(Operation::UpdateTrainingJob, reply, 0)
    }

    /// The caller has waited for the call, see [`Aws::wait_for`].
    pub async fn list(&self, page: &PageRequest) -> Result<JobPage, AwsError> {
        self.count(Operation::ListTrainingJobs, self.ports.jobs.list(page).await, 0)
    }

    pub async fn tags(&self, arn: &str) -> Result<BTreeMap<String, String>, AwsError> {
        self.wait_for(Operation::ListTags).await?;
        self.count(Operation::ListTags, self.ports.jobs.tags(arn).await, 0)
    }

    pub async fn read_metrics(
        &self,
        queries: &[MetricQuery],
        period: TimeDelta,
        start: DateTime<Utc>,
        end: DateTime<Utc>,
    ) -> Result<Vec<Series>, AwsError> {
        self.wait_for(Operation::GetMetricData).await?;
        self.count(Operation::GetMetricData, self.ports.metrics.read(queries, period, start, end).await, queries.len())
    }

    pub async fn read_iterations(&self, queries: &[IterationQuery]) -> Result<Vec<Vec<IterationPoint>>, AwsError> {
        self.wait_for(Operation::BatchGetMetrics).await?;
        self.count(Operation::BatchGetMetrics, self.ports.iterations.read(queries).await, 0)
    }

    pub async fn list_prices(&self, region: &str) -> Result<Vec<String>, AwsError> {
        self.wait_for(Operation::GetProducts).await?;
        self.count(Operation::GetProducts, self.ports.prices.products(region).await, 0)
    }

    pub async fn training_quotas(&self) -> Result<Vec<Quota>, AwsError> {
        self.wait_for(Operation::ListServiceQuotas).await?;
        self.count(Operation::ListServiceQuotas, self.ports.quotas.training().await, 0)
    }

    pub async fn newest_object(&self, s3_uri: &str) -> Result<Option<DateTime<Utc>>, AwsError> {
        self.wait_for(Operation::ListObjectsV2).await?;
        self.count(Operation::ListObjectsV2, self.ports.objects.newest(s3_uri).await, 0)
    }
}

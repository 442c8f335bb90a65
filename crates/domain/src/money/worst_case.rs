//! The most that one attempt can cost, reserved before its job is created. The actual cost is
//! computed in [`super::bill`].

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::price::{self, Price, Rate};
use super::{Usd, bill, cost};
use crate::sagemaker::job::Job;
use crate::sagemaker::metrics::HOST_METRICS;
use crate::sagemaker::request::TrainingJobRequest;

/// Instance prices and the other rates, each with its history.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tariff<'a> {
    pub prices: &'a [Price],
    pub rates: &'a [Rate],
}

/// The most one attempt can cost, by component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstCase {
    /// Its instances and their volumes.
    pub training_usd: Usd,
    /// Reading its metrics from CloudWatch.
    pub metrics_usd: Usd,
    /// Its instances and volumes kept warm after the job, until the end of the keep-alive.
    #[serde(default)]
    pub pool_usd: Usd,
    pub total_usd: Usd,
    /// The longest time that one instance of the job can be billed; 0 in plans stored before this
    /// field existed.
    #[serde(default)]
    pub billed_seconds: u64,
    /// The part of it needed to transfer weights and data of known size, beyond the usual
    /// allowance.
    #[serde(default)]
    pub transfer_seconds: u64,
}

/// Computes the most that one attempt can cost: its longest life and that of its warm pool, at the
/// highest price in force over both, plus metric reads.
pub fn worst_case(
    job: &Job,
    transfer_seconds: u64,
    tariff: Tariff<'_>,
    price: &Price,
    metrics_interval: TimeDelta,
    now: DateTime<Utc>,
) -> WorstCase {
    let count = job.instance_count();
    // Only training jobs of our own have a warm pool, and metrics that are read.
    let (span, keep_alive, series) = job.training().map_or((0, 0, 0), |training| {
        let wait = training.max_wait_seconds;
        (
            wait.unwrap_or(training.max_runtime_seconds),
            u64::from(training.keep_alive_seconds.unwrap_or(0)),
            metric_series(training),
        )
    });
    let billed_seconds = job.billed_seconds_max(transfer_seconds);
    let last = billed_seconds + job.waits_seconds_max() + keep_alive;
    let last = now + TimeDelta::seconds(i64::try_from(last).unwrap_or(i64::from(u32::MAX)));
    let ceiling = price::ceiling_over(tariff.prices, price, now, last);
    let interval = u64::try_from(metrics_interval.num_seconds()).unwrap_or(1);
    let gb = bill::billed_gb(job.instance_type(), job.volume_size_gb());
    let gb_month = price::storage_ceiling(tariff.rates, &price.region);
    let volumes = |seconds: u64| bill::worst_case_storage(gb, count, seconds, gb_month);
    let training_usd = cost::training(billed_seconds, count, ceiling) + volumes(billed_seconds);
    let metrics_usd = cost::worst_case_metrics(series, u64::from(span), interval);
    let pool_usd = cost::training(keep_alive, count, ceiling) + volumes(keep_alive);
    let total_usd = training_usd + metrics_usd + pool_usd;
    WorstCase {
        training_usd,
        metrics_usd,
        pool_usd,
        total_usd,
        billed_seconds,
        transfer_seconds,
    }
}

/// Series that CloudWatch has for the job: those of each host, and those that the request defines.
fn metric_series(request: &TrainingJobRequest) -> u64 {
    u64::from(request.instance_count) * HOST_METRICS.len() as u64 + request.metrics.len() as u64
}

impl Job {
    /// The longest time that its instances can be billed, seconds of one instance; of a tuning job, those of all
    /// trials together. `transfer_seconds`: to move what is known to be large.
    pub fn billed_seconds_max(&self, transfer_seconds: u64) -> u64 {
        let longest = |runtime| cost::longest_billed_seconds(runtime, transfer_seconds);
        match self {
            Self::Training(request) => longest(request.max_runtime_seconds),
            Self::Processing(request) => longest(request.max_runtime_seconds),
            Self::Tuning(request) => {
                u64::from(request.trials_max) * longest(request.training.max_runtime_seconds)
            }
            Self::Transform(request) => longest(request.max_runtime_seconds),
            Self::Endpoint(request) => {
                u64::from(request.time_to_live_seconds) + ENDPOINT_AROUND_SECONDS
            }
        }
    }
}

/// What an endpoint may be billed beside its time to live: one that is being created or updated cannot be
/// deleted, and it takes about an hour until SageMaker gives up one whose model is missing
/// (aws/amazon-sagemaker-examples#3432); a quarter of an hour to delete it.
pub const ENDPOINT_AROUND_SECONDS: u64 = 75 * 60;

//! What the service found when it looked: at its database, at its clock, and at AWS. Nothing is judged here.

use super::questions::{Answered, Caller, RoleFound};
use super::wanted::S3Place;
use crate::money::Usd;
use crate::money::price::PriceStatus;
use crate::sagemaker::error::AwsError;
use crate::sagemaker::quota::Quota;

/// The database, as found.
#[derive(Debug, Clone)]
pub struct DatabaseFound {
    /// `18.4`.
    pub version: String,
    pub schema_applied: i64,
    pub schema_known: i64,
    pub answered_in_ms: f64,
    /// Its clock minus this machine's, seconds.
    pub clock_off_seconds: f64,
}

/// A bucket, as found.
#[derive(Debug, Clone)]
pub struct BucketFound {
    pub bucket: String,
    pub region: Result<Option<String>, AwsError>,
    /// Each of its prefixes, and whether anything lies below it.
    pub listed: Vec<(S3Place, Result<bool, AwsError>)>,
}

/// The price in force of a type.
#[derive(Debug, Clone)]
pub struct PriceFound {
    pub instance_type: String,
    /// `None` where there is no price.
    pub status: Option<PriceStatus>,
    /// Per instance, on demand.
    pub usd_per_hour: Option<Usd>,
}

/// Everything that was looked at.
#[derive(Debug, Clone)]
pub struct Observations {
    pub database: DatabaseFound,
    /// Tasks that fail.
    pub failing_tasks: Vec<String>,
    /// How long the oldest due work that nobody does has waited.
    pub lag_seconds: f64,
    /// This machine's clock minus AWS's, seconds, from the `Date` of an answer.
    pub clock_off_seconds: Option<f64>,
    pub caller: Result<Caller, AwsError>,
    /// The account that the installation's jobs are in.
    pub account: Option<String>,
    /// Absent when AWS does not accept the credentials.
    pub at_aws: Option<AwsFound>,
    pub prices: Vec<PriceFound>,
    /// Whether the installation creates nothing that has no end at AWS.
    pub requires_scheduled_end: bool,
}

/// The ends that AWS itself sets, as found.
#[derive(Debug, Clone)]
pub struct SchedulesFound {
    pub role_arn: String,
    pub role: Result<RoleFound, AwsError>,
    /// What IAM says the service may do.
    pub rights: Answered,
    /// What IAM says the role may do.
    pub role_permissions: Answered,
}

/// What AWS said.
#[derive(Debug, Clone)]
pub struct AwsFound {
    /// What IAM says the service may do with its own jobs.
    pub own_jobs: Answered,
    pub job_list: Result<(), AwsError>,
    pub role: Option<Result<RoleFound, AwsError>>,
    pub pass_role: Option<Answered>,
    pub role_permissions: Option<Answered>,
    /// Absent where the service has no role that schedules may use.
    pub schedules: Option<SchedulesFound>,
    pub buckets: Vec<BucketFound>,
    /// The image's digest; `None` inside when its repository has no such tag.
    pub image: Option<Result<Option<String>, AwsError>>,
    pub quotas: Result<Vec<Quota>, AwsError>,
    pub logs: Result<(), AwsError>,
    pub metrics: Result<(), AwsError>,
    pub price_list: Result<(), AwsError>,
}

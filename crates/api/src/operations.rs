//! API views for operators: health, background tasks, calls to AWS.

use bakeoff_domain::money::Usd;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Liveness of the process.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Health {
    pub status: String,
    pub version: String,
    /// With `verbose=true`: the state of each background task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskHealth>,
}

/// State of one background task of this process, in real time.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskHealth {
    pub task: String,
    /// The region whose work it does. Tasks that concern no region are listed with the first one.
    pub region: String,
    /// Completed ticks.
    pub runs: u64,
    /// Whether the last tick failed or timed out; the log says why.
    pub failing: bool,
    pub last_started_at: Option<DateTime<Utc>>,
    pub last_ended_at: Option<DateTime<Utc>>,
    pub last_success_at: Option<DateTime<Utc>>,
    /// How long the oldest due work that no replica holds has been waiting, in seconds of the
    /// domain clock. Absent for tasks without a queue. Failed work is due again after its hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<f64>,
}

impl TaskHealth {
    /// In one line, for people.
    pub fn in_words(&self) -> String {
        let Self { task, runs, .. } = self;
        match self.last_success_at {
            Some(at) => format!("{task}: {runs} runs, last succeeded at {}", at.to_rfc3339()),
            None => format!("{task}: {runs} runs, never succeeded"),
        }
    }
}

/// This installation's calls to one AWS operation in one region.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OperationUsage {
    pub operation: String,
    pub region: String,
    pub calls: i64,
    /// Calls that AWS throttled.
    pub throttled: i64,
    /// Calls that ended without a definite answer.
    pub failed: i64,
    /// Calls per hour of watching a job; empty if no job was watched.
    pub calls_per_job_hour: Option<f64>,
    /// This replica's rate limit there, in calls per second: learnt from throttling, or known in advance.
    pub paced_at_calls_per_second: Option<f64>,
}

/// Calls to AWS and their cost over a period.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AwsUsage {
    pub since: DateTime<Utc>,
    pub until: DateTime<Utc>,
    /// Hours of job watching, over all projects.
    pub job_hours: f64,
    pub operations: Vec<OperationUsage>,
    /// Calls to SageMaker and CloudWatch. S3 calls are listed but not counted here.
    pub calls_per_job_hour: Option<f64>,
    /// Metrics requested, the unit that CloudWatch bills.
    pub metrics_requested: i64,
    /// Measured cost, at $0.01 per 1,000 metrics requested.
    pub metrics_usd: Usd,
    pub metrics_usd_per_job_hour: Option<f64>,
}

/// What this is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Version {
    #[schema(example = "0.8.0")]
    pub version: String,
    pub dashboard: DashboardBuild,
    /// Time on the service's clock, which times jobs, prices and events.
    pub now: DateTime<Utc>,
    /// Seconds of that clock in a real second: 1, but in a simulation.
    pub clock_factor: f64,
    /// Regions that experiments may run in.
    pub regions: Vec<String>,
}

/// Whether the dashboard is a part of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DashboardBuild {
    Built,
    /// It was built without (`cargo xtask dashboard`).
    Missing,
}

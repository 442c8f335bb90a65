//! A job as SageMaker reports it: status, transitions, bill and warm pool. Requests are in
//! [`super::request`].

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::kind::JobKind;
use super::phase::JobPhase;
use super::tuning::TunedTrials;

/// TrainingJobStatus. A value AWS adds later is kept as text and counts as not finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    InProgress,
    Completed,
    Failed,
    Stopping,
    Stopped,
    /// It is over, and its record is being removed. SageMaker deletes only what is over.
    Deleting,
    Unknown(String),
}

impl JobStatus {
    pub fn parse(text: &str) -> Self {
        match text {
            "InProgress" => Self::InProgress,
            "Completed" => Self::Completed,
            "Failed" => Self::Failed,
            "Stopping" => Self::Stopping,
            "Stopped" => Self::Stopped,
            "Deleting" | "DeleteFailed" => Self::Deleting,
            other => Self::Unknown(other.to_owned()),
        }
    }

    /// Whether the job is over: no other status follows.
    pub fn is_over(&self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Stopped | Self::Deleting
        )
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::InProgress => "InProgress",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Stopping => "Stopping",
            Self::Stopped => "Stopped",
            Self::Deleting => "Deleting",
            Self::Unknown(text) => text,
        }
    }
}

/// One entry of ListTrainingJobs or ListProcessingJobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSummary {
    pub kind: JobKind,
    pub job_name: String,
    pub status: JobStatus,
    pub secondary_status: String,
    pub created_at: Option<DateTime<Utc>>,
    pub modified_at: Option<DateTime<Utc>>,
    pub warm_pool: Option<WarmPool>,
}

/// One entry of SecondaryStatusTransitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    pub status: String,
    pub started_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    pub message: String,
}

/// The final value of one of the job's own metrics, as DescribeTrainingJob reports it (in 32 bits).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinalMetric {
    pub name: String,
    pub at: DateTime<Utc>,
    pub value: f64,
}

/// A job as DescribeTrainingJob or DescribeProcessingJob reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObservedJob {
    pub job_name: String,
    pub arn: String,
    /// The value of our [`MARKER`], when the job carries one.
    pub marker: Option<String>,
    pub status: JobStatus,
    /// SecondaryStatus as text, for display; [`JobPhase`] is what it means.
    pub secondary_status: String,
    pub failure_reason: Option<String>,
    pub created_at: Option<DateTime<Utc>>,
    /// LastModifiedTime.
    pub modified_at: Option<DateTime<Utc>>,
    /// TrainingStartTime: billing begins.
    pub started_at: Option<DateTime<Utc>>,
    /// TrainingEndTime: billing ends.
    pub ended_at: Option<DateTime<Utc>>,
    pub training_seconds: Option<u64>,
    /// BillableTimeInSeconds: with managed spot, less than the training time.
    pub billable_seconds: Option<u64>,
    pub transitions: Vec<Transition>,
    pub warm_pool: Option<WarmPool>,
    /// FinalMetricDataList; empty until the job is over.
    pub final_metrics: Vec<FinalMetric>,
    /// The settings it runs with.
    pub actual: Actual,
    /// S3ModelArtifacts: where the model is, once it was uploaded.
    pub model_s3_uri: Option<String>,
    /// Results of the rules of the debugger and the profiler, if it has any.
    pub rules: Vec<RuleEvaluation>,
    /// ExitMessage of a processing job: what its container left in `/opt/ml/output/message`, at most 1 KB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_message: Option<String>,
    /// The trials of a tuning job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuned: Option<TunedTrials>,
}

/// The result of a rule of the debugger or profiler (DebugRuleEvaluationStatuses and
/// ProfilerRuleEvaluationStatuses).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleEvaluation {
    /// RuleConfigurationName.
    pub name: String,
    /// InProgress, NoIssuesFound, IssuesFound, Error, Stopping or Stopped, as SageMaker reports it.
    pub status: String,
    /// StatusDetails: at which step a condition was met.
    pub details: String,
    pub modified_at: Option<DateTime<Utc>>,
}

impl RuleEvaluation {
    /// Whether it will not change any more.
    pub fn is_final(&self) -> bool {
        !matches!(self.status.as_str(), "InProgress" | "Stopping")
    }

    pub fn has_found_issues(&self) -> bool {
        self.status == "IssuesFound"
    }
}

impl Transition {
    pub fn phase(&self) -> JobPhase {
        JobPhase::of(&self.status)
    }
}

impl ObservedJob {
    pub fn phase(&self) -> JobPhase {
        JobPhase::of(&self.secondary_status)
    }

    /// How it ended, if it did: of a job that is being deleted, its secondary status still tells.
    pub fn outcome(&self) -> JobStatus {
        let ended = JobStatus::parse(&self.secondary_status);
        if self.status == JobStatus::Deleting && ended.is_over() {
            ended
        } else {
            self.status.clone()
        }
    }

    /// A job of which nothing is known but its name and status.
    pub fn named(job_name: &str, status: JobStatus) -> Self {
        Self {
            job_name: job_name.to_owned(),
            arn: String::new(),
            marker: None,
            secondary_status: status.as_str().to_owned(),
            status,
            failure_reason: None,
            created_at: None,
            modified_at: None,
            started_at: None,
            ended_at: None,
            training_seconds: None,
            billable_seconds: None,
            transitions: Vec::new(),
            warm_pool: None,
            final_metrics: Vec::new(),
            actual: Actual::default(),
            model_s3_uri: None,
            rules: Vec::new(),
            exit_message: None,
            tuned: None,
        }
    }

    /// An endpoint that was deleted: SageMaker keeps nothing of it.
    pub fn deleted(name: &str, start: DateTime<Utc>, end: DateTime<Utc>) -> Self {
        let seconds = Some(seconds_between(start, end));
        Self {
            secondary_status: "Deleted".to_owned(),
            created_at: Some(start),
            modified_at: Some(end),
            started_at: Some(start),
            ended_at: Some(end),
            training_seconds: seconds,
            billable_seconds: seconds,
            ..Self::named(name, JobStatus::Stopped)
        }
    }

    /// A job whose billing began at `start`, for tests.
    #[cfg(test)]
    pub(crate) fn sample(
        marker: &str,
        status: JobStatus,
        secondary_status: &str,
        start: DateTime<Utc>,
    ) -> Self {
        Self {
            marker: Some(marker.into()),
            secondary_status: secondary_status.into(),
            created_at: Some(start),
            modified_at: Some(start),
            started_at: Some(start),
            ..Self::named("bakeoff-x-1", status)
        }
    }

    /// Whether the job is over but SageMaker may still report its bill: just after the end,
    /// TrainingTimeInSeconds and BillableTimeInSeconds can be absent, or less than the time from
    /// TrainingStartTime to TrainingEndTime. Describing the job again soon avoids an estimate.
    pub fn awaits_bill(&self, now: DateTime<Utc>) -> bool {
        let Some((start, end)) = self.started_at.zip(self.ended_at) else {
            return false;
        };
        let ran = || ran(start, end, &waits(&self.transitions));
        let is_low = |trained: u64| trained + BILL_ROUNDING_SECONDS < ran();
        let is_told = self.billable_seconds.is_some() && !self.training_seconds.is_some_and(is_low);
        !is_told && (now - end).abs() < BILL_TOLD_WITHIN
    }

    /// The billed time as SageMaker reports it, or else an estimate: the time with instances, until
    /// its end or now, at most `longest_seconds`.
    pub fn billing(&self, longest_seconds: u64, now: DateTime<Utc>) -> Billing {
        let waits = waits(&self.transitions);
        let since = |start| ran(start, self.ended_at.unwrap_or(now), &waits).min(longest_seconds);
        Billing {
            seconds: self
                .billable_seconds
                .unwrap_or_else(|| self.started_at.map_or(0, since)),
            // A job that never started is certainly billed nothing.
            estimated: self.billable_seconds.is_none() && self.started_at.is_some(),
        }
    }
}

/// The billed time of one job, reported or estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Billing {
    pub seconds: u64,
    /// Our own estimate: SageMaker has not reported it.
    pub estimated: bool,
}

/// How long after the end to wait for SageMaker's own figure. After that, whatever it reports is
/// accepted, or the bill is estimated.
const BILL_TOLD_WITHIN: TimeDelta = TimeDelta::minutes(10);

/// Tolerance: the times of several phases are rounded one by one.
const BILL_ROUNDING_SECONDS: u64 = 10;

/// Whole seconds from `start` to `end`; 0 if `end` is earlier.
pub fn seconds_between(start: DateTime<Utc>, end: DateTime<Utc>) -> u64 {
    (end - start).num_seconds().max(0).unsigned_abs()
}

/// When a job waited for instances, according to SageMaker's transitions. Time outside such phases
/// counts as running.
pub fn waits(transitions: &[Transition]) -> Vec<(DateTime<Utc>, DateTime<Utc>)> {
    let open = DateTime::<Utc>::MAX_UTC;
    transitions
        .iter()
        .filter(|transition| transition.phase().is_wait())
        .map(|wait| (wait.started_at, wait.ended_at.unwrap_or(open)))
        .collect()
}

/// Seconds with instances between two moments.
pub fn ran(
    from: DateTime<Utc>,
    until: DateTime<Utc>,
    waits: &[(DateTime<Utc>, DateTime<Utc>)],
) -> u64 {
    let until = until.max(from);
    let within = |(begin, end): &(DateTime<Utc>, DateTime<Utc>)| {
        seconds_between((*begin).clamp(from, until), (*end).clamp(from, until))
    };
    seconds_between(from, until).saturating_sub(waits.iter().map(within).sum())
}

/// WarmPoolStatus of a job. A value AWS adds later is kept as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmPoolStatus {
    /// The job still runs on it.
    InUse,
    /// It waits for a matching job, and is billed.
    Available,
    /// A matching job has taken it over.
    Reused,
    Terminated,
    Unknown(String),
}

impl WarmPoolStatus {
    pub fn parse(text: &str) -> Self {
        match text {
            "InUse" => Self::InUse,
            "Available" => Self::Available,
            "Reused" => Self::Reused,
            "Terminated" => Self::Terminated,
            other => Self::Unknown(other.to_owned()),
        }
    }
}

/// A job's warm pool as SageMaker reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmPool {
    pub status: WarmPoolStatus,
    /// ResourceRetainedBillableTimeInSeconds: known once reused or terminated.
    pub retained_seconds: Option<u64>,
    pub reused_by: Option<String>,
}

impl WarmPool {
    /// Whether it waits for a job, and is billed.
    pub fn is_idle(&self) -> bool {
        self.status == WarmPoolStatus::Available
    }
}

/// The settings of a job as SageMaker reports them. `None` means not reported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actual {
    pub instance_type: Option<String>,
    pub instance_count: Option<u32>,
    pub spot: Option<bool>,
    pub keep_alive_seconds: Option<u32>,
    pub checkpoint_s3_uri: Option<String>,
    pub metric_names: Vec<String>,
    /// EndpointConfigName of an endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_name: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_whose_record_is_being_deleted_ended_as_its_secondary_status_says() {
        let at = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let outcome = |status: &str, secondary: &str| {
            ObservedJob::sample("job_1", JobStatus::parse(status), secondary, at).outcome()
        };
        assert_eq!(outcome("Deleting", "Completed"), JobStatus::Completed);
        assert_eq!(outcome("DeleteFailed", "Failed"), JobStatus::Failed);
        assert!(outcome("Deleting", "Gone").is_over());
        assert_eq!(outcome("InProgress", "Completed"), JobStatus::InProgress);
    }
}

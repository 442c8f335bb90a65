//! A one-time schedule at AWS (Amazon EventBridge Scheduler) that ends a job without any process of ours: of a kind
//! that SageMaker itself never ends.

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};

use super::kind::JobKind;

/// From the call that deletes an endpoint until its instances are billed no more; what is reserved includes it.
const DELETION_TAKES: TimeDelta = TimeDelta::minutes(15);
/// The same of a batch transform that is stopped.
const STOP_TAKES: TimeDelta = TimeDelta::seconds(150);

/// What a schedule does to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduledAction {
    DeleteEndpoint,
    StopTransformJob,
}

impl ScheduledAction {
    const ALL: [Self; 2] = [Self::DeleteEndpoint, Self::StopTransformJob];

    /// What ends a job of a kind; nothing for one that SageMaker ends itself, at its maximum run time.
    pub fn of(kind: JobKind) -> Option<Self> {
        match kind {
            JobKind::Training | JobKind::Processing | JobKind::Tuning => None,
            JobKind::Transform => Some(Self::StopTransformJob),
            JobKind::Endpoint => Some(Self::DeleteEndpoint),
        }
    }

    /// From the call until the instances are billed no more; what is reserved includes it.
    pub fn takes(self) -> TimeDelta {
        match self {
            Self::DeleteEndpoint => DELETION_TAKES,
            Self::StopTransformJob => STOP_TAKES,
        }
    }

    /// The operation, as the scheduler's universal targets spell it.
    fn operation(self) -> &'static str {
        match self {
            Self::DeleteEndpoint => "deleteEndpoint",
            Self::StopTransformJob => "stopTransformJob",
        }
    }

    /// The member of the operation's input that names the job.
    pub fn member(self) -> &'static str {
        match self {
            Self::DeleteEndpoint => "EndpointName",
            Self::StopTransformJob => "TransformJobName",
        }
    }

    /// The universal target that performs it.
    pub fn target_arn(self, partition: &str) -> String {
        let operation = self.operation();
        format!("arn:{partition}:scheduler:::aws-sdk:sagemaker:{operation}")
    }

    /// What a target performs, if it is one of these.
    pub fn of_target(arn: &str) -> Option<Self> {
        let operation = arn.rsplit(':').next()?;
        let is_universal = arn.contains(":scheduler:::aws-sdk:sagemaker:");
        let mut all = Self::ALL.into_iter().filter(|_| is_universal);
        all.find(|action| action.operation() == operation)
    }
}

/// The end of a job, as it is scheduled. The schedule has the job's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledEnd {
    pub action: ScheduledAction,
    pub job_name: String,
    /// In whole seconds.
    pub at: DateTime<Utc>,
    /// The role that ends it.
    pub role_arn: String,
}

impl ScheduledEnd {
    /// Whether another schedule ends the same job.
    pub fn is_of_same_job(&self, other: &Self) -> bool {
        self.action == other.action && self.job_name == other.job_name
    }

    /// `aws`, `aws-cn`, `aws-us-gov`.
    pub fn partition(&self) -> &str {
        self.role_arn.split(':').nth(1).unwrap_or("aws")
    }
}

/// The latest end of a job that has not been created yet: what is reserved for it is enough, however soon it starts
/// to be billed.
pub fn first_end(
    action: ScheduledAction,
    planned_at: DateTime<Utc>,
    billed_seconds_max: u64,
) -> DateTime<Utc> {
    let seconds = i64::try_from(billed_seconds_max).unwrap_or(i64::from(u32::MAX));
    (planned_at + TimeDelta::seconds(seconds) - action.takes()).trunc_subsecs(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_back_as_their_actions() {
        for action in ScheduledAction::ALL {
            let arn = action.target_arn("aws");
            assert_eq!(ScheduledAction::of_target(&arn), Some(action));
        }
        let other = "arn:aws:lambda:us-east-1:1:function:deleteEndpoint";
        assert_eq!(ScheduledAction::of_target(other), None);
    }

    #[test]
    fn the_first_end_leaves_time_to_delete() {
        let action = ScheduledAction::DeleteEndpoint;
        let end = first_end(action, DateTime::UNIX_EPOCH, 3600 + 75 * 60);
        assert_eq!(end, DateTime::UNIX_EPOCH + TimeDelta::hours(2));
    }
}

//! The phases of a training job: its secondary statuses, grouped by what they mean for time, money
//! and work at risk. The text itself is only stored and displayed.

named! {
    /// The phase of a job: its secondary statuses
    /// ([DescribeTrainingJob](https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html)),
    /// grouped
    JobPhase {
        /// Nothing has been reported yet.
        Unreported = "unreported",
        /// It waits for its instances; nothing is billed.
        Starting = "starting",
        PullingImage = "pulling_image",
        DownloadingData = "downloading_data",
        Training = "training",
        /// A processing job is under way; SageMaker tells no more of it.
        Processing = "processing",
        /// Spot capacity was taken away: it waits for instances again.
        Interrupted = "interrupted",
        UploadingModel = "uploading_model",
        Stopping = "stopping",
        /// Stopped because it reached its maximum runtime.
        RuntimeLimit = "runtime_limit",
        /// Stopped because it waited too long for spot capacity.
        WaitLimit = "wait_limit",
        /// Completed, failed or stopped.
        Over = "over",
        /// A status that this version does not know.
        Other = "other",
    }
}

impl JobPhase {
    /// The phase that a secondary status belongs to.
    pub fn of(secondary_status: &str) -> Self {
        match secondary_status {
            "" => Self::Unreported,
            "Starting" | "Pending" | "LaunchingMLInstances" | "PreparingTrainingStack" => {
                Self::Starting
            }
            "DownloadingTrainingImage" => Self::PullingImage,
            "Downloading" => Self::DownloadingData,
            "Training" => Self::Training,
            "InProgress" => Self::Processing,
            "Interrupted" => Self::Interrupted,
            "Uploading" => Self::UploadingModel,
            "Stopping" => Self::Stopping,
            "MaxRuntimeExceeded" => Self::RuntimeLimit,
            "MaxWaitTimeExceeded" => Self::WaitLimit,
            "Completed" | "Failed" | "Stopped" => Self::Over,
            _ => Self::Other,
        }
    }

    /// Whether the job waits for instances: such time is not billed.
    pub fn is_wait(self) -> bool {
        matches!(self, Self::Starting | Self::Interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every value that the API documents has a phase of its own group, and one that it does not
    /// document is none of them.
    #[test]
    fn every_documented_status_has_a_phase() {
        let documented = [
            "Starting",
            "LaunchingMLInstances",
            "PreparingTrainingStack",
            "Pending",
            "Downloading",
            "DownloadingTrainingImage",
            "Training",
            "Interrupted",
            "Uploading",
            "Stopping",
            "Stopped",
            "MaxRuntimeExceeded",
            "MaxWaitTimeExceeded",
            "Completed",
            "Failed",
        ];
        for status in documented {
            assert!(
                !matches!(JobPhase::of(status), JobPhase::Other | JobPhase::Unreported),
                "{status}"
            );
        }
        // Documented, and part of none: the job has instances and does not train.
        for status in ["Restarting", "Updating", "AddedLater", "training"] {
            assert_eq!(JobPhase::of(status), JobPhase::Other, "{status}");
        }
    }

    #[test]
    fn only_time_without_instances_is_a_wait() {
        let waits = ["Starting", "Pending", "LaunchingMLInstances", "Interrupted"];
        assert!(waits.iter().all(|status| JobPhase::of(status).is_wait()));
        for status in ["", "Downloading", "Training", "Stopping", "AddedLater"] {
            assert!(!JobPhase::of(status).is_wait(), "{status}");
        }
    }
}

//! Metric definitions and the metrics of a host: names, meanings, units. Reading them from CloudWatch is the
//! ingester's work; turning them into one figure is [`crate::steady`]'s.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a metric of the training script means to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// Tokens trained per second over all accelerators of the job.
    TokensPerSecond,
    TrainLoss,
    ValidationLoss,
    /// Optimiser steps done so far.
    Step,
    Other,
}

/// A SageMaker metric definition: a name and the regular expression that finds its value in the job's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MetricDefinition {
    pub name: String,
    /// One capture group around the number.
    pub regex: String,
    pub meaning: Meaning,
}

/// Host metrics of `/aws/sagemaker/TrainingJobs`, one-minute, dimension Host.
pub const HOST_METRICS: [&str; 5] =
    ["CPUUtilization", "MemoryUtilization", "GPUUtilization", "GPUMemoryUtilization", "DiskUtilization"];

/// SageMaker reports CPU as a sum over cores and GPU percentages as a sum over GPUs (800 on eight);
/// memory and disk are 0 to 100 already. Returns a share of one device, 0 to 100.
pub fn normalised(metric: &str, value: f64, vcpus: u32, accelerators: u32) -> f64 {
    let devices = match metric {
        "CPUUtilization" => vcpus,
        "GPUUtilization" | "GPUMemoryUtilization" => accelerators,
        _ => 1,
    };
    value / f64::from(devices.max(1))
}

#[cfg(test)]
mod tests {
    use super::normalised;

    #[test]
    fn gpu_percentages_are_divided_by_the_gpus_and_memory_is_not() {
        assert!((normalised("GPUUtilization", 760.0, 96, 8) - 95.0).abs() < 1e-9);
        assert!((normalised("MemoryUtilization", 40.0, 96, 8) - 40.0).abs() < 1e-9);
        assert!((normalised("CPUUtilization", 960.0, 96, 8) - 10.0).abs() < 1e-9);
    }
}

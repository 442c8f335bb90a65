//! Metrics: standard names and units, where they come from, and which source takes precedence. The
//! ingester reads them from CloudWatch; [`crate::measure::steady`] turns them into one figure.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

pub use crate::sagemaker::metrics::{Meaning, MetricDefinition};

use crate::ids::{RunId, TrialId};

/// What metrics belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    Trial(TrialId),
    Run(RunId),
}

impl Subject {
    pub fn uuid(self) -> Uuid {
        match self {
            Self::Trial(TrialId(id)) | Self::Run(RunId(id)) => id,
        }
    }
}

impl Meaning {
    /// Whether a speed follows from it.
    pub fn is_speed(self) -> bool {
        match self {
            Self::TokensPerSecond
            | Self::SamplesPerSecond
            | Self::StepsPerSecond
            | Self::TokensPerSecondPerDevice
            | Self::TokensSeen
            | Self::Step => true,
            // Samples seen are not read as a speed: see `figures`.
            Self::SamplesSeen | Self::TrainLoss | Self::ValidationLoss | Self::Other => false,
        }
    }

    /// The corresponding standard name.
    pub fn standard(self) -> Option<&'static str> {
        match self {
            Self::TokensPerSecond => Some(TOKENS_PER_SECOND),
            Self::SamplesPerSecond => Some(SAMPLES_PER_SECOND),
            Self::StepsPerSecond => Some(STEPS_PER_SECOND),
            Self::TokensPerSecondPerDevice => Some(TOKENS_PER_SECOND_PER_DEVICE),
            Self::TokensSeen => Some(TOKENS_SEEN),
            Self::SamplesSeen => Some(SAMPLES_SEEN),
            Self::TrainLoss => Some(TRAIN_LOSS),
            Self::ValidationLoss => Some(VALIDATION_LOSS),
            Self::Step => Some(STEP),
            Self::Other => None,
        }
    }
}

/// Where points come from. The same metric from two sources is one metric: the source listed first
/// here takes precedence.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Sent to us by the training script, or by any other client.
    Pushed,
    /// A log file of a training framework.
    Imported,
    /// SageMaker's per-iteration metrics (BatchGetMetrics).
    SagemakerMetrics,
    /// CloudWatch: host metrics, or values found in the log by metric definitions.
    Cloudwatch,
    /// FinalMetricDataList: only the last value.
    Final,
}

impl Source {
    pub const ALL: [Self; 5] = [
        Self::Pushed,
        Self::Imported,
        Self::SagemakerMetrics,
        Self::Cloudwatch,
        Self::Final,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::Imported => "imported",
            Self::SagemakerMetrics => "sagemaker_metrics",
            Self::Cloudwatch => "cloudwatch",
            Self::Final => "final",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == text)
    }
}

pub const TOKENS_PER_SECOND: &str = "tokens_per_second";
pub const SAMPLES_PER_SECOND: &str = "samples_per_second";
pub const STEPS_PER_SECOND: &str = "steps_per_second";
/// Tokens a second of one accelerator.
pub const TOKENS_PER_SECOND_PER_DEVICE: &str = "tokens_per_second_per_device";
/// Tokens trained since the start.
pub const TOKENS_SEEN: &str = "tokens_seen";
/// Sequences trained since the start.
pub const SAMPLES_SEEN: &str = "samples_seen";
pub const TRAIN_LOSS: &str = "train_loss";
pub const VALIDATION_LOSS: &str = "validation_loss";
pub const STEP: &str = "step";
pub const GPU_UTILIZATION: &str = "gpu_utilization_percent";
pub const GPU_MEMORY_UTILIZATION: &str = "gpu_memory_utilization_percent";
pub const GPU_MEMORY_USED: &str = "gpu_memory_used_mib";
pub const GPU_MEMORY_TOTAL: &str = "gpu_memory_total_mib";

/// A metric with a standard name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Standard {
    pub name: &'static str,
    pub unit: &'static str,
    /// Its names in frameworks, in lower case: CloudWatch, Hugging Face, W&B, PyTorch Lightning,
    /// nvidia-smi.
    #[serde(skip)]
    aliases: &'static [&'static str],
}

/// All standard metrics. Rates are for the whole job, percentages for one device.
pub const STANDARD: &[Standard] = &[
    Standard {
        name: TOKENS_PER_SECOND,
        unit: "tokens/s",
        aliases: &[
            "tokens_per_sec",
            "tokens/s",
            "tokens/sec",
            "train_tokens_per_second",
            "throughput_tokens_per_second",
            "throughput/tokens_per_sec",
            "tok/s",
            "tok_per_sec",
            "tgs_total",
        ],
    },
    Standard {
        name: TOKENS_PER_SECOND_PER_DEVICE,
        unit: "tokens/s per accelerator",
        aliases: &[
            "tokens_per_second_per_gpu",
            "tokens_per_sec_per_gpu",
            "tokens_per_sec_per_device",
            "tokens/s/device",
            "tokens/s/gpu",
            "tokens/sec/gpu",
            "throughput(tps)",
            "throughput/device/tokens_per_sec",
            "tgs",
            "per_device_tokens_per_sec",
            "tokens/train_per_sec_per_gpu",
        ],
    },
    Standard {
        name: TOKENS_SEEN,
        unit: "tokens",
        aliases: &[
            "num_input_tokens_seen",
            "num_tokens_seen",
            "n_tokens_seen",
            "total_tokens",
            "consumed_tokens",
            "consumed tokens",
            "tokens_processed",
            "tokens_trained",
            "trained_tokens",
            "time/token",
            "tokens/total",
        ],
    },
    Standard {
        name: SAMPLES_SEEN,
        unit: "samples",
        aliases: &["consumed_samples", "consumed samples", "time/sample"],
    },
    Standard {
        name: SAMPLES_PER_SECOND,
        unit: "samples/s",
        aliases: &[
            "samples_per_sec",
            "samples/s",
            "samples/sec",
            "train_samples_per_second",
            "throughput/samples_per_sec",
        ],
    },
    Standard {
        name: STEPS_PER_SECOND,
        unit: "steps/s",
        aliases: &[
            "steps_per_sec",
            "steps/s",
            "steps/sec",
            "it/s",
            "train_steps_per_second",
            "throughput/batches_per_sec",
        ],
    },
    Standard {
        name: STEP,
        unit: "steps",
        aliases: &["global_step", "iteration"],
    },
    Standard {
        name: "epoch",
        unit: "epochs",
        aliases: &[],
    },
    Standard {
        name: TRAIN_LOSS,
        unit: "nats",
        aliases: &[
            "loss",
            "train:loss",
            "training_loss",
            "lm_loss",
            "lm loss",
            "reduced_train_loss",
            "train_loss_step",
            "loss/train/total",
            "loss_metrics/global_avg_loss",
            "global_avg_loss",
        ],
    },
    Standard {
        name: VALIDATION_LOSS,
        unit: "nats",
        aliases: &[
            "val_loss",
            "eval_loss",
            "valid_loss",
            "val:loss",
            "eval:loss",
            "validation:loss",
            "loss/eval/total",
            "validation_metrics/loss",
            "lm loss validation",
        ],
    },
    Standard {
        name: "learning_rate",
        unit: "",
        aliases: &["lr", "learning rate", "learning-rate"],
    },
    Standard {
        name: "gradient_norm",
        unit: "",
        aliases: &["grad_norm", "grad norm", "gradient norm", "grad-norm"],
    },
    Standard {
        name: GPU_UTILIZATION,
        unit: "%",
        aliases: &[
            "gpuutilization",
            "gpu_utilization",
            "gpu_util",
            "utilization.gpu",
            "system.gpu.gpu",
            "gpu.utilization",
            "gpu.util",
            "system/gpu_utilization_percentage",
        ],
    },
    Standard {
        name: GPU_MEMORY_UTILIZATION,
        unit: "%",
        aliases: &[
            "gpumemoryutilization",
            "gpu_memory_utilization",
            "gpu_memory_percent",
            "system.gpu.memoryallocated",
            "gpu.memoryallocated",
            "gpu.memory_utilization",
            "gpu.memory_percent",
            "system/gpu_memory_usage_percentage",
        ],
    },
    Standard {
        name: GPU_MEMORY_USED,
        unit: "MiB",
        aliases: &[
            "gpu_memory_used",
            "memory.used",
            "gpu_memory_used_mb",
            "gpu.memory_used",
            "gpu.memory_used_mb",
            "gpus.memory_used",
        ],
    },
    Standard {
        name: GPU_MEMORY_TOTAL,
        unit: "MiB",
        aliases: &[
            "gpu_memory_total",
            "memory.total",
            "gpu_memory_total_mb",
            "gpu.memory_total",
            "gpu.memory_total_mb",
            "gpus.memory_total",
        ],
    },
    Standard {
        name: "gpu_temperature_celsius",
        unit: "°C",
        aliases: &[
            "gpu_temperature",
            "gpu_temp",
            "temperature",
            "temperature.gpu",
            "system.gpu.temp",
            "gpu.temp",
            "gpu.temperature",
        ],
    },
    Standard {
        name: "gpu_power_watts",
        unit: "W",
        aliases: &[
            "gpu_power",
            "power.draw",
            "power_watts",
            "system.gpu.powerwatts",
            "gpu.power",
            "gpu.power_watts",
        ],
    },
    Standard {
        name: "cpu_utilization_percent",
        unit: "%",
        aliases: &[
            "cpuutilization",
            "cpu_percent",
            "cpu_usage",
            "system.cpu",
            "system/cpu_utilization_percentage",
        ],
    },
    Standard {
        name: "memory_utilization_percent",
        unit: "%",
        aliases: &[
            "memoryutilization",
            "memory_percent",
            "ram_percent",
            "ram_usage",
            "system.memory",
            "system.memory_percent",
        ],
    },
    Standard {
        name: "disk_utilization_percent",
        unit: "%",
        aliases: &[
            "diskutilization",
            "disk_percent",
            "disk_usage",
            "system.disk",
        ],
    },
    Standard {
        name: "network_sent_bytes",
        unit: "B",
        aliases: &["system.network.sent", "network_sent"],
    },
    Standard {
        name: "network_received_bytes",
        unit: "B",
        aliases: &["system.network.recv", "network_recv"],
    },
];

/// Finds the standard metric for a reported name. `train/loss` and `train:loss` are the same; a
/// device index (`gpu.3.temp`, `gpu_3_utilization`) is ignored.
pub fn standard(reported: &str) -> Option<&'static Standard> {
    let lower = reported.to_ascii_lowercase();
    let find = |name: &str| {
        STANDARD
            .iter()
            .find(|standard| standard.name == name || standard.aliases.contains(&name))
    };
    find(&lower)
        .or_else(|| find(&lower.replace(['/', '.'], "_")))
        .or_else(|| find(&lower.replace('/', ".")))
        .or_else(|| find(&without_device(&lower)?))
        .or_else(|| find(without_folder(&lower)))
}

/// Folders into which scripts sort what they measure of the training; those of an evaluation are not among them.
const FOLDERS: [&str; 12] = [
    "train",
    "training",
    "trainer",
    "metrics",
    "perf",
    "performance",
    "throughput",
    "speed",
    "stats",
    "timing",
    "learning",
    "runtime",
];

/// A name without the folder that it is sorted into: `perf/tokens_per_second` and `train.grad_norm`.
pub fn without_folder(lower: &str) -> &str {
    match lower.split_once(['/', '.']) {
        Some((folder, name)) if FOLDERS.contains(&folder) => name,
        _ => lower,
    }
}

/// Removes the device index: `system.gpu.3.temp` → `system.gpu.temp`; `None` if there is none.
pub fn without_device(name: &str) -> Option<String> {
    let is_separator = |letter: char| matches!(letter, '.' | '/' | '_');
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    // Each part keeps the separator after it, so that it is removed with the number.
    let parts: Vec<&str> = name.split_inclusive(is_separator).collect();
    let bare = |part: &&str| part.trim_end_matches(is_separator).to_owned();
    let index = parts.iter().position(|part| is_number(&bare(part)))?;
    let before = bare(parts.get(index.checked_sub(1)?)?);
    if !matches!(before.as_str(), "gpu" | "gpus" | "device" | "cuda" | "rank") {
        return None;
    }
    let kept: String = parts
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != index)
        .map(|(_, part)| *part)
        .collect();
    Some(kept.trim_end_matches(is_separator).replace("gpus", "gpu"))
}

/// Converts a host metric to a percentage of one device, 0 to 100. SageMaker reports CPU as a sum
/// over cores and GPU percentages as a sum over GPUs (800 on eight); memory and disk are 0 to 100
/// already.
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
    use super::*;

    #[test]
    fn gpu_percentages_are_divided_by_the_gpus_and_memory_is_not() {
        assert!((normalised("GPUUtilization", 760.0, 96, 8) - 95.0).abs() < 1e-9);
        assert!((normalised("MemoryUtilization", 40.0, 96, 8) - 40.0).abs() < 1e-9);
        assert!((normalised("CPUUtilization", 960.0, 96, 8) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn frameworks_names_lead_to_one_standard_name() {
        let name = |reported: &str| standard(reported).map(|found| found.name);
        for loss in [
            "loss",
            "train/loss",
            "train:loss",
            "Train/Loss",
            "train_loss",
            "training_loss",
        ] {
            assert_eq!(name(loss), Some(TRAIN_LOSS), "{loss}");
        }
        for loss in ["eval_loss", "val/loss", "eval/loss", "valid_loss"] {
            assert_eq!(name(loss), Some(VALIDATION_LOSS), "{loss}");
        }
        for share in [
            "GPUUtilization",
            "gpu_utilization",
            "system.gpu.3.gpu",
            "gpu_3_utilization",
            "utilization.gpu",
        ] {
            assert_eq!(name(share), Some(GPU_UTILIZATION), "{share}");
        }
        assert_eq!(name("system.gpu.0.temp"), Some("gpu_temperature_celsius"));
        assert_eq!(name("my_metric"), None);
        assert_eq!(name("layer_3_loss"), None, "a layer is not a device");
    }

    #[test]
    fn no_name_leads_to_two_metrics() {
        let mut names: Vec<&str> = STANDARD
            .iter()
            .flat_map(|one| one.aliases.iter().copied().chain([one.name]))
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn sources_read_back() {
        for source in Source::ALL {
            assert_eq!(Source::parse(source.as_str()), Some(source));
        }
    }
}

//! Advice about a job that runs: what its utilisation says before anything fails.

use serde::{Deserialize, Serialize};

/// Utilisations of a running job, percent; `None` where nothing was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Vitals {
    /// Of one accelerator, the mean over the steady window.
    pub gpu: Option<f64>,
    pub gpu_memory: Option<f64>,
    /// Of all cores, as last seen.
    pub cpu: Option<f64>,
    pub host_memory: Option<f64>,
    pub disk: Option<f64>,
}

/// One advice, and the figures that it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// Stable id, such as `accelerators-wait-for-data`.
    pub signature: String,
    pub finding: String,
    pub advice: String,
}

/// Below, accelerators wait.
const BUSY: f64 = 60.0;
/// Above, a processor has no room.
const SATURATED: f64 = 85.0;
/// Above, host memory or a disk may not last.
const NEARLY_FULL: f64 = 92.0;
/// Above, accelerator memory may not: what frees up is kept by the framework's allocator, so that healthy
/// runs are near it.
const ACCELERATOR_NEARLY_FULL: f64 = 97.0;
/// Below, a larger micro-batch fits.
const ROOM: f64 = 70.0;

/// What a running job's utilisation says; the most urgent first.
pub fn advise(vitals: &Vitals) -> Vec<Advice> {
    let mut all = Vec::new();
    let mut add = |signature: &str, finding: String, advice: &str| {
        all.push(Advice {
            signature: signature.to_owned(),
            finding,
            advice: advice.to_owned(),
        });
    };
    let above = |value: Option<f64>, limit: f64| value.filter(|value| *value > limit);
    if let Some(memory) = above(vitals.gpu_memory, ACCELERATOR_NEARLY_FULL) {
        add(
            "accelerator-memory-nearly-full",
            format!(
                "Accelerator memory is {memory:.0} % full: a longer batch or an evaluation may not fit"
            ),
            "Lower the micro-batch and raise the accumulation in its place, or recompute activations; lowering the \
             accumulation frees nothing",
        );
    }
    if let Some(memory) = above(vitals.host_memory, NEARLY_FULL) {
        add(
            "host-memory-nearly-full",
            format!("Host memory is {memory:.0} % full: the kernel may kill the script"),
            "Use fewer data-loader workers, offload less, or a type with more host memory",
        );
    }
    if let Some(disk) = above(vitals.disk, NEARLY_FULL) {
        add(
            "disk-nearly-full",
            format!("The disk is {disk:.0} % full"),
            "Keep fewer local checkpoints, or raise volume_size_gb where the type has no local NVMe",
        );
    }
    if let Some(gpu) = vitals.gpu.filter(|gpu| *gpu < BUSY) {
        if let Some(cpu) = above(vitals.cpu, SATURATED) {
            add(
                "accelerators-wait-for-data",
                format!(
                    "Accelerators are {gpu:.0} % busy while the processors are {cpu:.0} % busy: the data come too slowly"
                ),
                "Prepare the data beforehand, decode less per sample, or use a type with more vCPUs per accelerator",
            );
        } else if let Some(memory) = vitals.gpu_memory.filter(|memory| *memory < ROOM) {
            add(
                "micro-batch-small",
                format!("Accelerators are {gpu:.0} % busy and their memory is {memory:.0} % full"),
                "Raise the micro-batch and lower the accumulation in its place; add data-loader workers if that does \
                 not help",
            );
        } else {
            add(
                "accelerators-wait",
                format!(
                    "Accelerators are {gpu:.0} % busy, and neither processors nor memory explain it"
                ),
                "Look for waits on the network (NCCL_DEBUG=INFO), on storage (FastFile mode, larger files), and for \
                 work between steps, such as logging or saving",
            );
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(vitals: Vitals) -> Vec<String> {
        advise(&vitals)
            .into_iter()
            .map(|one| one.signature)
            .collect()
    }

    #[test]
    fn what_waits_and_what_is_full_is_named() {
        let calm = Vitals {
            gpu: Some(95.0),
            gpu_memory: Some(80.0),
            cpu: Some(30.0),
            host_memory: Some(40.0),
            disk: Some(20.0),
        };
        assert_eq!(said(calm), Vec::<String>::new());
        assert_eq!(said(Vitals::default()), Vec::<String>::new());
        let loader = Vitals {
            gpu: Some(35.0),
            cpu: Some(97.0),
            ..calm
        };
        assert_eq!(said(loader), ["accelerators-wait-for-data"]);
        let small = Vitals {
            gpu: Some(35.0),
            gpu_memory: Some(30.0),
            ..calm
        };
        assert_eq!(said(small), ["micro-batch-small"]);
        let network = Vitals {
            gpu: Some(35.0),
            ..calm
        };
        assert_eq!(said(network), ["accelerators-wait"]);
        let full = Vitals {
            gpu_memory: Some(98.0),
            host_memory: Some(95.0),
            disk: Some(99.0),
            ..calm
        };
        assert_eq!(
            said(full),
            [
                "accelerator-memory-nearly-full",
                "host-memory-nearly-full",
                "disk-nearly-full"
            ]
        );
    }
}

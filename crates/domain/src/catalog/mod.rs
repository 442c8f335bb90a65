//! Instance types: every legal `ml.*` training type with its hardware, taken from the catalog,
//! never from the user. Prices are in [`crate::money::price`]: hardware does not change, prices do.

pub mod cluster;
pub mod hugging_face;
pub mod known_models;
pub mod model;
pub mod processing;
pub mod regions;
pub mod serving;

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::embedded;

/// The hardware of one SageMaker instance type. Empty fields are unknown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceType {
    /// SageMaker's name, `ml.p5.48xlarge`.
    pub instance_type: String,
    pub vcpus: Option<u32>,
    pub memory_gib: Option<f64>,
    pub accelerator: Option<String>,
    pub accelerator_count: u32,
    /// Per accelerator, as EC2 reports it (an A10G of 24 GB reports 22.35 GiB).
    pub accelerator_memory_gib: Option<f64>,
    /// Dense BF16 peak per accelerator, TFLOP/s; empty on types without BF16.
    pub bf16_tflops: Option<f64>,
    /// Dense FP16 peak per accelerator, TFLOP/s.
    pub fp16_tflops: Option<f64>,
    /// Memory bandwidth per accelerator, GB/s.
    pub accelerator_bandwidth_gb_s: Option<f64>,
    /// Accelerator-to-accelerator link per accelerator, both ways, GB/s.
    pub accelerator_link_gb_s: Option<f64>,
    /// Network per instance, baseline, Gbit/s.
    pub network_gbps: Option<f64>,
    pub efa_interfaces: Option<u32>,
    /// Local NVMe per instance, GB. On these types it replaces the EBS volume.
    pub nvme_gb: u32,
    /// Source codes; the header of the data file explains them.
    pub source: String,
}

/// Variables that send NCCL's traffic between instances over EFA.
pub const EFA_VARIABLES: [(&str, &str); 2] =
    [("FI_PROVIDER", "efa"), ("FI_EFA_USE_DEVICE_RDMA", "1")];

impl InstanceType {
    /// Whether instances of this type are connected by the Elastic Fabric Adapter.
    pub fn has_efa(&self) -> bool {
        self.efa_interfaces.is_some_and(|count| count > 0)
    }

    /// Whether jobs must set [`EFA_VARIABLES`] themselves: SageMaker's training toolkit sets them by lists
    /// that end with p4 and, for one of the two, p5.48xlarge. p5e was seen to fall back to TCP and to hang
    /// (aws/sagemaker-training-toolkit#240).
    pub fn needs_efa_variables(&self) -> bool {
        let family = self.family();
        (family.starts_with("p5") || family.starts_with("p6")) && self.has_efa()
    }

    /// Peak dense 16-bit TFLOP/s of one accelerator.
    pub fn peak_tflops(&self) -> Option<f64> {
        self.bf16_tflops.or(self.fp16_tflops)
    }

    /// Whether its accelerators multiply 8-bit floating point numbers: NVIDIA's Ada, Hopper and
    /// Blackwell (data sheets).
    pub fn has_fp8(&self) -> bool {
        let chip = self.accelerator.as_deref().unwrap_or_default();
        ["L4", "H100", "H200", "B200", "B300", "RTX PRO"]
            .iter()
            .any(|name| chip.contains(name))
    }

    /// The family: `p4d` for `ml.p4d.24xlarge`.
    pub fn family(&self) -> &str {
        self.instance_type.split('.').nth(1).unwrap_or("")
    }
}

static CATALOG: LazyLock<Vec<InstanceType>> =
    LazyLock::new(|| embedded::csv("instances.csv", include_str!("../../data/instances.csv")));

/// All instance types, in the order of SageMaker's own list.
pub fn all() -> &'static [InstanceType] {
    &CATALOG
}

/// Finds an instance type by name.
pub fn find(name: &str) -> Option<&'static InstanceType> {
    CATALOG
        .iter()
        .find(|candidate| candidate.instance_type == name)
}

/// The generation of a type's accelerators, within which the same code's speeds keep their ratio:
/// data-centre chips that share their cores and differ in memory. Any other chip, and a type without
/// one, is a generation of its own.
pub fn generation(instance_type: &str) -> &str {
    let chip = find(instance_type).and_then(|found| found.accelerator.as_deref());
    match chip {
        Some(chip) if chip.contains("A100") => "A100",
        Some(chip) if chip.contains("H100") || chip.contains("H200") => "Hopper",
        Some(chip) => chip,
        None => instance_type,
    }
}

/// Up to three legal names nearest to a misspelt one, nearest first.
pub fn nearest(name: &str) -> Vec<&'static str> {
    let names = CATALOG
        .iter()
        .map(|candidate| candidate.instance_type.as_str());
    crate::finding::nearest(name, names, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_data_file_is_read() {
        let rows = include_str!("../../data/instances.csv")
            .lines()
            .filter(|line| line.starts_with("ml."))
            .count();
        assert_eq!(all().len(), rows);
        assert!(rows > 200);
    }

    #[test]
    fn the_types_the_documents_get_wrong_are_right_here() {
        let g5 = find("ml.g5.8xlarge").unwrap();
        assert_eq!(
            (g5.accelerator_count, g5.accelerator_memory_gib),
            (1, Some(22.35))
        );
        let p5en = find("ml.p5en.48xlarge").unwrap();
        assert_eq!(
            (p5en.accelerator_memory_gib, p5en.network_gbps),
            (Some(141.0), Some(3200.0))
        );
        assert_eq!(find("ml.p4d.24xlarge").unwrap().nvme_gb, 8000);
    }

    #[test]
    fn a_generation_is_what_shares_its_cores() {
        assert_eq!(
            generation("ml.p4d.24xlarge"),
            generation("ml.p4de.24xlarge")
        );
        assert_eq!(generation("ml.p5.48xlarge"), generation("ml.p5en.48xlarge"));
        assert_ne!(generation("ml.p4d.24xlarge"), generation("ml.p5.48xlarge"));
        // L4 and L40S share a name, and little else.
        assert_ne!(generation("ml.g6.xlarge"), generation("ml.g6e.xlarge"));
        assert_ne!(generation("ml.m5.large"), generation("ml.c5.large"));
    }

    #[test]
    fn a_misspelt_name_finds_its_neighbours() {
        assert_eq!(nearest("ml.p5.48xlrge").first(), Some(&"ml.p5.48xlarge"));
        assert_eq!(nearest("p4d.24xlarge").first(), Some(&"ml.p4d.24xlarge"));
    }
}

//! API views of hardware and prices.

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::ids::PriceId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{Component, Price, PriceStatus, Rate};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

view! {
    /// The hardware of one SageMaker instance type. Empty fields are unknown.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = InstanceType)]
    pub struct InstanceTypeView of InstanceType {
        /// SageMaker's name, such as `ml.p5.48xlarge`.
        pub instance_type: String,
        pub vcpus: Option<u32>,
        pub memory_gib: Option<f64>,
        pub accelerator: Option<String>,
        pub accelerator_count: u32,
        /// Memory per accelerator, as EC2 reports it (a 24 GB A10G reports 22.35 GiB).
        pub accelerator_memory_gib: Option<f64>,
        /// Dense BF16 peak per accelerator, TFLOP/s; empty on types without BF16.
        pub bf16_tflops: Option<f64>,
        /// Dense FP16 peak per accelerator, TFLOP/s.
        pub fp16_tflops: Option<f64>,
        /// Memory bandwidth per accelerator, GB/s.
        pub accelerator_bandwidth_gb_s: Option<f64>,
        /// Bandwidth of the accelerator-to-accelerator link, per accelerator, both directions, GB/s.
        pub accelerator_link_gb_s: Option<f64>,
        /// Baseline network bandwidth per instance, Gbit/s.
        pub network_gbps: Option<f64>,
        pub efa_interfaces: Option<u32>,
        /// Local NVMe per instance, GB. Where present, it replaces the EBS volume.
        pub nvme_gb: u32,
        /// Source codes, explained in the header of the data file.
        pub source: String,
    }
}

view! {
    /// The price of SageMaker training in USD per instance-hour, for one region, from a given date.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Price)]
    pub struct PriceView of Price {
        pub id: PriceId,
        pub instance_type: String,
        pub region: String,
        pub usd_per_hour: Usd,
        /// Upper bound on the price when `usd_per_hour` is an estimate. Reservations use it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub usd_per_hour_max: Option<Usd>,
        pub effective_from: DateTime<Utc>,
        pub source: String,
        pub status: PriceStatus,
        pub note: String,
        /// When the source was last seen to list this price. When empty, use `effective_from`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub confirmed_at: Option<DateTime<Utc>>,
    }
}

view! {
    /// A rate that does not depend on the instance type, such as storage.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Rate)]
    pub struct RateView of Rate {
        pub id: PriceId,
        pub component: Component,
        /// AWS region; `*` means every region.
        pub region: String,
        /// USD per GB-month of storage, or per 1,000 metrics requested.
        pub usd: Usd,
        /// Upper bound when `usd` is an estimate.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub usd_max: Option<Usd>,
        pub effective_from: DateTime<Utc>,
        pub confirmed_at: DateTime<Utc>,
        pub source: String,
        pub status: PriceStatus,
    }
}

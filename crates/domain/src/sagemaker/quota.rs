//! Parses the names of SageMaker's quotas on the instances of jobs in Service Quotas. Quota codes differ by type and
//! are ignored; the names are stable (the first is the one used in ResourceLimitExceeded's own
//! text).

use serde::{Deserialize, Serialize};

use crate::sagemaker::kind::JobKind;
use crate::sagemaker::purchase_option::PurchaseOption;

/// What a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// Instances of on-demand training jobs.
    OnDemand,
    /// Instances of managed spot training jobs.
    Spot,
    /// Instances that warm pools may keep.
    WarmPool,
    /// Instances of processing jobs.
    Processing,
    /// Instances of batch transform jobs.
    Transform,
    /// Instances of endpoints.
    Endpoint,
}

impl Usage {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Spot => "spot",
            Self::WarmPool => "warm_pool",
            Self::Processing => "processing",
            Self::Transform => "transform",
            Self::Endpoint => "endpoint",
        }
    }

    const ALL: [Self; 6] = [
        Self::OnDemand,
        Self::Spot,
        Self::WarmPool,
        Self::Processing,
        Self::Transform,
        Self::Endpoint,
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|usage| usage.as_str() == text)
    }

    /// What a job of a kind counts against.
    pub fn of(kind: JobKind, option: PurchaseOption) -> Self {
        match (kind, option) {
            (JobKind::Processing, _) => Self::Processing,
            (JobKind::Transform, _) => Self::Transform,
            (JobKind::Endpoint, _) => Self::Endpoint,
            (JobKind::Training | JobKind::Tuning, PurchaseOption::OnDemand) => Self::OnDemand,
            (JobKind::Training | JobKind::Tuning, PurchaseOption::Spot) => Self::Spot,
        }
    }

    /// The end of its quota's name: `ml.p5.48xlarge for <this>`.
    pub fn quota_name(self) -> &'static str {
        match self {
            Self::OnDemand => "training job usage",
            Self::Spot => "spot training job usage",
            Self::WarmPool => "training warm pool usage",
            Self::Processing => "processing job usage",
            Self::Transform => "transform job usage",
            Self::Endpoint => "endpoint usage",
        }
    }
}

/// One of the account's quotas for instances of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    pub instance_type: String,
    pub usage: Usage,
    pub instances: u32,
}

impl Quota {
    /// `None` for a quota on anything else.
    pub fn parse(name: &str, value: f64) -> Option<Self> {
        let (instance_type, rest) = name.split_once(" for ")?;
        let usage = Usage::ALL
            .into_iter()
            .find(|usage| usage.quota_name() == rest)?;
        #[expect(
            clippy::as_conversions,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped"
        )]
        let instances = value.clamp(0.0, 1e9) as u32;
        let is_type = instance_type.starts_with("ml.");
        is_type.then(|| Self {
            instance_type: instance_type.to_owned(),
            usage,
            instances,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_read_and_others_are_not_ours() {
        let usage = |name| Quota::parse(name, 8.0).map(|quota| (quota.usage, quota.instances));
        assert_eq!(
            usage("ml.p5.48xlarge for training job usage"),
            Some((Usage::OnDemand, 8))
        );
        assert_eq!(
            usage("ml.p5.48xlarge for spot training job usage"),
            Some((Usage::Spot, 8))
        );
        assert_eq!(
            usage("ml.p5.48xlarge for training warm pool usage"),
            Some((Usage::WarmPool, 8))
        );
        assert_eq!(
            usage("ml.m5.xlarge for processing job usage"),
            Some((Usage::Processing, 8))
        );
        assert_eq!(
            usage("ml.g5.xlarge for transform job usage"),
            Some((Usage::Transform, 8))
        );
        assert_eq!(
            usage("ml.p5.48xlarge for endpoint usage"),
            Some((Usage::Endpoint, 8))
        );
        assert_eq!(usage("ml.m5.xlarge for notebook instance usage"), None);
        assert_eq!(usage("Number of notebooks for training job usage"), None);
    }
}

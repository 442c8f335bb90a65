//! Parses the names of SageMaker training quotas in Service Quotas. Quota codes differ by type and
//! are ignored; the names are stable (the first is the one used in ResourceLimitExceeded's own
//! text).

use serde::{Deserialize, Serialize};

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
}

impl Usage {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Spot => "spot",
            Self::WarmPool => "warm_pool",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::OnDemand, Self::Spot, Self::WarmPool]
            .into_iter()
            .find(|usage| usage.as_str() == text)
    }
}

/// One of the account's quotas for training instances.
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
        let usage = match rest {
            "training job usage" => Usage::OnDemand,
            "spot training job usage" => Usage::Spot,
            "training warm pool usage" => Usage::WarmPool,
            _ => return None,
        };
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
    fn the_three_names_are_read_and_others_are_not_ours() {
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
        assert_eq!(usage("ml.p5.48xlarge for endpoint usage"), None);
        assert_eq!(usage("Number of notebooks for training job usage"), None);
    }
}

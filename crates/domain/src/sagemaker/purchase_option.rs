//! How capacity is bought from SageMaker.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How capacity is bought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PurchaseOption {
    OnDemand,
    /// Managed spot training.
    Spot,
}

impl PurchaseOption {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Spot => "spot",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::OnDemand, Self::Spot]
            .into_iter()
            .find(|option| option.as_str() == text)
    }
}

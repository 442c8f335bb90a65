//! API views of what a pipeline's step asks of a person before it buys.

use bakeoff_domain::event::{DecidedPurchase, WaitingPurchase};
use bakeoff_domain::ids::PipelineId;
use bakeoff_domain::spec::PurchaseOption;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a person lets a waiting step buy
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovePurchase {
    /// A ranked candidate of the answer that the step waits for. `${….winner…}` stands for it from now on.
    pub candidate: String,
    /// Needed only where the candidate is ranked under both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purchase_option: Option<PurchaseOption>,
}

/// Why a person lets a waiting step buy nothing; all of it may be left out
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct RefusePurchase {
    /// At most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

view! {
    /// A step that waits for a person
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = WaitingPurchase)]
    pub struct WaitingPurchaseView of WaitingPurchase {
        pub pipeline_id: PipelineId,
        pub step: String,
        /// The first row of the answer.
        pub candidate: String,
        pub reason: String,
    }
}

view! {
    /// A person's decision on a purchase
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = DecidedPurchase)]
    pub struct DecidedPurchaseView of DecidedPurchase {
        pub pipeline_id: PipelineId,
        pub step: String,
        /// The choice that is bought; empty if none is.
        pub candidate: Option<String>,
        /// The API key.
        pub by: String,
        pub reason: Option<String>,
    }
}

//! What both memory models are made of: named terms, and the fitted coefficients.

use std::sync::LazyLock;

use bakeoff_domain::embedded;
use serde::{Deserialize, Serialize};

pub(super) use bakeoff_domain::number::GIB;

pub(super) const LOGITS: &str = "logits";
pub(super) const SLACK: &str = "allocator slack";
/// FlashAttention never holds the scores; the fitted runs did.
pub(super) const UNFUSED_ATTENTION: &str = "attention scores";

/// One addend of the estimate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Term {
    pub name: String,
    pub gib: f64,
}

pub(super) fn term(name: &str, gib: f64) -> Term {
    Term {
        name: name.to_owned(),
        gib,
    }
}

/// Coefficients of the memory model, positive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Coefficients {
    /// Bytes per parameter that every replica holds in full: 16-bit weights and gradients.
    pub whole: f64,
    /// Bytes per parameter that replicas shard: master weights, two moments, 32-bit gradients.
    pub shared: f64,
    /// Bytes per parameter of unsharded 32-bit gradients, where the layout keeps them whole.
    pub unshared_gradients: f64,
    /// GiB of CUDA context, NCCL and workspaces.
    pub context_gib: f64,
    /// Factor on checkpointed layer inputs, 2sbh each.
    pub checkpoints: f64,
    /// Factor on one layer's working set.
    pub working_set: f64,
    /// Bytes per logit.
    pub logits: f64,
    /// The most that the caching allocator leaves unused, as a share of the card.
    pub slack: f64,
    /// Volume of checkpoints, as a share of the card, at which that slack is used up.
    pub slack_scale: f64,
}

impl Coefficients {
    /// The coefficients that the product ships.
    pub fn shipped() -> Self {
        *SHIPPED
    }

    /// Returns the coefficients in the order of the fit.
    pub fn to_array(self) -> [f64; 9] {
        [
            self.whole,
            self.shared,
            self.unshared_gradients,
            self.context_gib,
            self.checkpoints,
            self.working_set,
            self.logits,
            self.slack,
            self.slack_scale,
        ]
    }

    /// The inverse of [`Self::to_array`].
    pub fn from_array(values: [f64; 9]) -> Self {
        let [
            whole,
            shared,
            unshared_gradients,
            context_gib,
            checkpoints,
            working_set,
            logits,
            slack,
            slack_scale,
        ] = values;
        Self {
            whole,
            shared,
            unshared_gradients,
            context_gib,
            checkpoints,
            working_set,
            logits,
            slack,
            slack_scale,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Shipped {
    pub(super) memory: Coefficients,
}

static SHIPPED: LazyLock<Coefficients> = LazyLock::new(|| {
    let shipped: Shipped = embedded::json(
        "coefficients.json",
        include_str!("../../../data/coefficients.json"),
    );
    shipped.memory
});

pub(super) fn slack(checkpoints_gib: f64, card_gib: f64, fitted: &Coefficients) -> f64 {
    fitted.slack * card_gib * (1.0 - (-checkpoints_gib / (fitted.slack_scale * card_gib)).exp())
}

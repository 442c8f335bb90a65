//! A trial as the product's rules see it, with what a reference table says of it and nothing else.

use bakeoff_domain::ids::{PriceId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{Price, PriceStatus};
use bakeoff_domain::ranking::outcome::{Outcome, Pauses};
use bakeoff_domain::spec::{Minimize, ObjectiveSpec, PurchaseOption};
use chrono::DateTime;
use uuid::Uuid;

/// An on-demand trial of one instance that waits to be started.
pub(crate) fn waiting(name: &str, usd_per_hour: Usd) -> Outcome {
    Outcome {
        trial_id: TrialId(Uuid::nil()),
        candidate: name.to_owned(),
        instance_type: name.to_owned(),
        instance_count: 1,
        purchase_option: PurchaseOption::OnDemand,
        state: TrialState::Queued,
        reason: None,
        released_at: None,
        refusals: Vec::new(),
        incomparable: None,
        price: Some(Price {
            id: PriceId(Uuid::nil()),
            instance_type: name.to_owned(),
            region: "us-east-1".to_owned(),
            usd_per_hour,
            usd_per_hour_max: None,
            effective_from: DateTime::UNIX_EPOCH,
            source: String::new(),
            status: PriceStatus::Listed,
            note: String::new(),
            confirmed_at: None,
        }),
        tokens_per_second: None,
        predicted: None,
        overhead: None,
        tokens_done: None,
        training_seconds: 0,
        billable_seconds: 0,
        wall_seconds: 0,
        checkpoint_at: None,
        reached: None,
        cost_usd: Usd::ZERO,
        pauses: Pauses::Unknown,
        predicted_usd: None,
        expected_wait: None,
        intervals_divided_by: None,
    }
}

/// The least dollars, without limits.
pub(crate) fn cheapest() -> ObjectiveSpec {
    ObjectiveSpec {
        minimize: Minimize::Cost,
        full_run_budget_usd: None,
        full_run_deadline_hours: None,
        target_loss: None,
    }
}

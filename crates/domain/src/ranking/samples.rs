//! Trials of small hand-made experiments, for the tests of what is ranked, stopped and started.

use chrono::{DateTime, TimeDelta};
use rust_decimal::Decimal;
use uuid::Uuid;

use crate::ids::{PriceId, TrialId};
use crate::lifecycle::state::TrialState;
use crate::measure::steady::Steady;
use crate::money::Usd;
use crate::money::price::{Price, PriceStatus};
use crate::ranking::outcome::{Outcome, Pauses, Predicted};
use crate::spec::{Minimize, ObjectiveSpec, PurchaseOption};

fn price(usd: i64) -> Price {
    Price {
        id: PriceId(Uuid::nil()),
        instance_type: "ml.x".into(),
        region: "us-east-1".into(),
        usd_per_hour: Usd(Decimal::from(usd)),
        usd_per_hour_max: None,
        effective_from: DateTime::UNIX_EPOCH,
        source: "test".into(),
        status: PriceStatus::Listed,
        note: String::new(),
        confirmed_at: None,
    }
}

/// A trial that waits, predicted to train at this speed.
pub(super) fn waiting(candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
    Outcome {
        trial_id: TrialId(Uuid::nil()),
        candidate: candidate.into(),
        instance_type: format!("ml.{candidate}"),
        instance_count: 1,
        purchase_option: PurchaseOption::OnDemand,
        state: TrialState::Queued,
        reason: None,
        released_at: None,
        refusals: vec![],
        incomparable: None,
        price: Some(price(usd)),
        tokens_per_second: None,
        pauses: Pauses::Unknown,
        predicted: Some(Predicted {
            tokens_per_second,
            log_sd: 0.18,
            own_log_sd: 0.1,
        }),
        overhead: None,
        tokens_done: None,
        training_seconds: 0,
        billable_seconds: 0,
        wall_seconds: 0,
        checkpoint_at: None,
        reached: None,
        cost_usd: Usd::ZERO,
        predicted_usd: None,
        expected_wait: None,
        intervals_divided_by: None,
    }
}

/// A speed known to 2 %.
pub(super) fn steady(tokens_per_second: f64) -> Steady {
    Steady {
        mean: tokens_per_second,
        half_width: tokens_per_second / 50.0,
        points: 100,
        buckets: 5,
        buckets_dropped: 1,
        from_at: DateTime::UNIX_EPOCH,
        until_at: DateTime::UNIX_EPOCH + TimeDelta::minutes(25),
    }
}

pub(super) fn cheapest() -> ObjectiveSpec {
    ObjectiveSpec {
        minimize: Minimize::Cost,
        full_run_budget_usd: None,
        full_run_deadline_hours: None,
        target_loss: None,
    }
}

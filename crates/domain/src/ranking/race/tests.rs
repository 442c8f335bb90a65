//! Races on small hand-made experiments.

use chrono::{DateTime, TimeDelta};
use rust_decimal::Decimal;
use uuid::Uuid;

use super::*;
use crate::ids::{PriceId, TrialId};
use crate::lifecycle::state::TrialState;
use crate::money::Usd;
use crate::money::price::{Price, PriceStatus};
use crate::ranking::outcome::Predicted;

const TOKENS: Tokens = Tokens {
    trial: 36_000_000,
    total: 3_600_000_000,
};

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
fn waiting(candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
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
        predicted: Some(Predicted {
            tokens_per_second,
            log_sd: 0.18,
            own_log_sd: 0.1,
        }),
        training_seconds: 0,
        billable_seconds: 0,
        wall_seconds: 0,
        checkpoint_at: None,
        cost_usd: Usd::ZERO,
        predicted_usd: None,
    }
}

/// A trial that runs, at a speed known to 2 %.
fn running(candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
    Outcome {
        state: TrialState::Running,
        tokens_per_second: Some(Steady {
            mean: tokens_per_second,
            half_width: tokens_per_second / 50.0,
            points: 100,
            buckets: 5,
            buckets_dropped: 1,
            from_at: DateTime::UNIX_EPOCH,
            until_at: DateTime::UNIX_EPOCH + TimeDelta::minutes(25),
        }),
        wall_seconds: 1800,
        ..waiting(candidate, usd, tokens_per_second)
    }
}

fn cheapest() -> ObjectiveSpec {
    ObjectiveSpec {
        minimize: Minimize::Cost,
        full_run_budget_usd: None,
        full_run_deadline_hours: None,
    }
}

fn stopped(outcomes: &[Outcome], policy: StoppingPolicy) -> Vec<usize> {
    stopped_with(outcomes, policy, false)
}

fn stopped_with(outcomes: &[Outcome], policy: StoppingPolicy, checkpoints: bool) -> Vec<usize> {
    let stops = stops(outcomes, policy, &cheapest(), TOKENS, checkpoints);
    stops.iter().map(|stop| stop.index).collect()
}

/// A trial whose speed is known to 5 % so far.
fn coarse(candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
    let mut outcome = running(candidate, usd, tokens_per_second);
    if let Some(speed) = &mut outcome.tokens_per_second {
        speed.half_width = speed.mean / 20.0;
    }
    outcome
}

#[test]
fn a_measured_loser_stops_and_a_close_one_runs_on() {
    let trials = [
        running("fast", 60, 30_000.0),
        coarse("close", 60, 29_000.0),
        running("slow", 60, 20_000.0),
    ];
    assert_eq!(stopped(&trials, StoppingPolicy::Race), [2]);
    assert_eq!(stopped(&trials, StoppingPolicy::Full), [0; 0]);
    let stops = stops(&trials, StoppingPolicy::Race, &cheapest(), TOKENS, false);
    let reason = &stops[0].reason;
    assert!(
        reason.contains("best with P < 0.005") && reason.ends_with("of fast"),
        "{reason}"
    );
}

/// A prediction may be wrong by a factor: nothing is stopped for it.
#[test]
fn nothing_is_given_up_for_what_has_not_been_measured() {
    let trials = [
        waiting("fast", 60, 300_000.0),
        running("slow", 60, 10_000.0),
    ];
    assert_eq!(stopped(&trials, StoppingPolicy::Race), [0; 0]);
    let losers = |leader| losers(&trials, &cheapest(), TOKENS, leader).len();
    assert_eq!(losers(Leader::Measured), 0);
    assert_eq!(losers(Leader::Predicted), 1);
}

#[test]
fn what_waits_and_cannot_win_any_more_does_not_start() {
    let trials = [running("fast", 60, 30_000.0), waiting("slow", 60, 3_000.0)];
    assert_eq!(stopped(&trials, StoppingPolicy::Race), [1]);
    let trials = [running("fast", 60, 30_000.0), waiting("slow", 60, 23_000.0)];
    assert_eq!(stopped(&trials, StoppingPolicy::Race), [0; 0]);
}

/// Two equal ones: neither loses to the other, and both run until they are measured. More minutes
/// on the same machines then say nothing, and the first alone goes on.
#[test]
fn of_equals_the_first_goes_on_once_both_are_measured() {
    let mut trials = [coarse("a", 60, 30_000.0), coarse("b", 60, 30_000.0)];
    assert_eq!(stopped(&trials, StoppingPolicy::Race), [0; 0]);
    trials = [running("a", 60, 30_000.0), running("b", 60, 30_000.0)];
    assert_eq!(stopped(&trials, StoppingPolicy::Race), [1]);
    let stops = stops(&trials, StoppingPolicy::Race, &cheapest(), TOKENS, false);
    assert_eq!(
        stops[0].reason,
        "measured: 30000 ± 600 tokens/s, which running on would hardly narrow"
    );
    // Its checkpoint is written first, should it be the one to buy.
    let policy = StoppingPolicy::Race;
    assert_eq!(stopped_with(&trials, policy, true), [0; 0]);
}

#[test]
fn what_is_over_is_not_stopped() {
    let mut trials = [running("fast", 60, 30_000.0), running("slow", 60, 20_000.0)];
    trials[1].state = TrialState::Completed;
    assert_eq!(stopped(&trials, StoppingPolicy::Race), [0; 0]);
    trials[0].state = TrialState::Completed;
    trials[1].state = TrialState::Running;
    assert_eq!(stopped(&trials, StoppingPolicy::Race), [1]);
}

/// The dearer one is the only one that can finish in time.
#[test]
fn what_cannot_keep_the_limits_loses_though_it_is_cheaper() {
    let trials = [running("fast", 90, 30_000.0), running("slow", 30, 20_000.0)];
    let objective = ObjectiveSpec {
        full_run_deadline_hours: Some(40.0),
        ..cheapest()
    };
    let stops = stops(&trials, StoppingPolicy::Race, &objective, TOKENS, false);
    assert_eq!(stops.len(), 1);
    assert!(
        stops[0].index == 1 && stops[0].reason.contains("keeps to the limits"),
        "{stops:?}"
    );
}

#[test]
fn a_probe_ends_with_its_figure_and_its_checkpoint() {
    let mut trials = [running("a", 60, 30_000.0), running("b", 60, 30_000.0)];
    assert_eq!(stopped(&trials, StoppingPolicy::Probe), [0, 1]);
    let with_checkpoints = |trials: &[Outcome]| stopped_with(trials, StoppingPolicy::Probe, true);
    assert_eq!(with_checkpoints(&trials), [0; 0]);
    trials[0].checkpoint_at = Some(DateTime::UNIX_EPOCH + TimeDelta::minutes(20));
    trials[1].checkpoint_at = Some(DateTime::UNIX_EPOCH + TimeDelta::minutes(30));
    assert_eq!(with_checkpoints(&trials), [1]);
}

//! Races on small hand-made experiments.

use chrono::{DateTime, TimeDelta};

use super::*;
use crate::lifecycle::state::TrialState;
use crate::ranking::outcome::{Reached, Target};
use crate::ranking::recommendation::Conclusion;
use crate::ranking::samples::{cheapest, steady, waiting};

const TOKENS: Tokens = Tokens {
    trial: 36_000_000,
    total: 3_600_000_000,
    target: None,
};

/// A trial that runs, at a speed known to 2 %.
fn running(candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
    Outcome {
        state: TrialState::Running,
        tokens_per_second: Some(steady(tokens_per_second)),
        wall_seconds: 1800,
        ..waiting(candidate, usd, tokens_per_second)
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

/// While another choice is measured, the first has said what it can; if it stays the first, its
/// checkpoint is where the full run goes on.
#[test]
fn the_first_is_stopped_at_its_figure_while_another_is_measured() {
    let started = |mut outcome: Outcome| {
        outcome.released_at = Some(DateTime::UNIX_EPOCH);
        outcome
    };
    let policy = StoppingPolicy::Race;
    let first = || started(running("fast", 60, 30_000.0));
    let close = started(waiting("close", 60, 29_000.0));
    assert_eq!(stopped(&[first(), close.clone()], policy), [0]);
    assert_eq!(
        stopped_with(&[first(), close.clone()], policy, true),
        [0; 0]
    );
    // What is held back may never start, and what is parked waits for a person.
    assert_eq!(
        stopped(&[first(), waiting("close", 60, 29_000.0)], policy),
        [0; 0]
    );
    let parked = Outcome {
        state: TrialState::Parked,
        ..close
    };
    assert_eq!(stopped(&[first(), parked], policy), [0; 0]);
    // A repeat is not another choice.
    let repeat = started(coarse("fast", 60, 30_000.0));
    assert_eq!(stopped(&[first(), repeat], policy), [0; 0]);
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
        stops[0].index == 1
            && stops[0]
                .reason
                .contains("keeps the deadline with P < 0.005: 48"),
        "{stops:?}"
    );
}

#[test]
fn a_probe_ends_with_its_figure_and_its_checkpoint() {
    let mut trials = [running("a", 60, 30_000.0), running("b", 60, 30_000.0)];
    assert_eq!(stopped(&trials, StoppingPolicy::Probe), [0, 1]);
    let with_checkpoints = |trials: &[Outcome]| stopped_with(trials, StoppingPolicy::Probe, true);
    assert_eq!(with_checkpoints(&trials), [0; 0]);
    // Figures until minute 25: one checkpoint holds nearly all of them, the other too little.
    trials[0].checkpoint_at = Some(DateTime::UNIX_EPOCH + TimeDelta::minutes(14));
    trials[1].checkpoint_at = Some(DateTime::UNIX_EPOCH + TimeDelta::minutes(16));
    assert_eq!(with_checkpoints(&trials), [1]);
}

/// One that will hardly be bought does not run on for a head that nobody needs.
#[test]
fn only_a_likely_one_waits_for_its_checkpoint() {
    let trials = [running("a", 60, 30_000.0), running("b", 60, 28_500.0)];
    let answer = recommend(&trials, &cheapest(), TOKENS);
    let odds = |place: usize| answer.ranked[place].odds.as_ref().unwrap().p_best;
    assert!((OUT..SAVED_FOR).contains(&odds(1)), "{}", odds(1));
    assert_eq!(stopped_with(&trials, StoppingPolicy::Probe, true), [1]);
}

/// The best by prediction is one that the budget keeps from running: nobody is given up for it.
#[test]
fn nothing_is_given_up_for_what_cannot_run() {
    let mut refused = waiting("refused", 60, 90_000.0);
    refused.state = TrialState::Refused;
    let trials = [
        refused,
        waiting("fair", 60, 30_000.0),
        waiting("slow", 60, 20_000.0),
    ];
    let lost = |trials: &[Outcome]| losers(trials, &cheapest(), TOKENS, Leader::Predicted).len();
    assert_eq!(lost(&trials), 0);
    let mut allowed = trials.clone();
    allowed[0].state = TrialState::Queued;
    assert_eq!(lost(&allowed), 2);
}

/// A trial that has reached the target loss, and saved a checkpoint so many minutes after.
fn reached(candidate: &str, saved_after: Option<i64>) -> Outcome {
    let at = DateTime::UNIX_EPOCH + TimeDelta::minutes(40);
    Outcome {
        reached: Some(Reached {
            at,
            tokens: 20e6,
            usd: None,
        }),
        checkpoint_at: saved_after.map(|minutes| at + TimeDelta::minutes(minutes)),
        ..running(candidate, 60, 30_000.0)
    }
}

#[test]
fn a_model_with_the_target_loss_stops_every_trial_and_is_the_answer() {
    let target = Target {
        loss: 2.7,
        is_validation: true,
        trials: 2,
        reached_by: 0,
        least: Some(2.69),
    };
    let tokens = TOKENS.towards(target, &[20e6]);
    let stopped = |first: Outcome, policy: StoppingPolicy| {
        let trials = [first, coarse("b", 60, 29_000.0)];
        let answer = recommend(&trials, &cheapest(), tokens);
        let stops = stops(&trials, policy, &cheapest(), tokens, true);
        let reasons: Vec<String> = stops.into_iter().map(|stop| stop.reason).collect();
        (answer, reasons)
    };
    let (answer, reasons) = stopped(reached("a", Some(5)), StoppingPolicy::Race);
    assert_eq!(answer.conclusion, Conclusion::Reached);
    assert!(
        answer
            .headline
            .contains("Its model is the newest checkpoint of trl_"),
        "{}",
        answer.headline
    );
    assert!(
        reasons.len() == 2
            && reasons[0].starts_with("reached validation loss 2.7")
            && reasons[1].starts_with("a has reached"),
        "{reasons:?}"
    );
    // One that has not saved it goes on.
    for saved in [None, Some(-5)] {
        let (answer, reasons) = stopped(reached("a", saved), StoppingPolicy::Race);
        assert_ne!(answer.conclusion, Conclusion::Reached);
        assert!(reasons.is_empty(), "{reasons:?}");
    }
    let (_, reasons) = stopped(reached("a", Some(5)), StoppingPolicy::Full);
    assert!(reasons.is_empty(), "{reasons:?}");
}

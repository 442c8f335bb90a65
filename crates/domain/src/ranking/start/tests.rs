//! What starts in small hand-made experiments.

use super::*;
use crate::ranking::samples::{cheapest, steady, waiting as held};

/// At 30,000 tokens/s: twenty minutes, and 100 hours.
const TOKENS: Tokens = Tokens {
    trial: 36_000_000,
    total: 10_800_000_000,
    target: None,
};

/// A trial that was allowed to start twenty minutes ago.
fn started(candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
    Outcome {
        state: TrialState::Running,
        released_at: Some(now() - TimeDelta::minutes(20)),
        wall_seconds: 1200,
        ..held(candidate, usd, tokens_per_second)
    }
}

/// The same with a speed known to 2 %.
fn measured(candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
    Outcome {
        tokens_per_second: Some(steady(tokens_per_second)),
        ..started(candidate, usd, tokens_per_second)
    }
}

fn now() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(1)
}

fn decided(outcomes: &[Outcome]) -> Vec<(usize, Start)> {
    let steps = starts(outcomes, &cheapest(), TOKENS, now());
    steps.iter().map(|step| (step.index, step.start)).collect()
}

#[test]
fn the_likeliest_winner_is_measured_first() {
    let trials = [
        held("slow", 60, 20_000.0),
        held("fast", 60, 30_000.0),
        held("dear", 90, 30_000.0),
    ];
    let expected = [(0, Start::Later), (1, Start::Now), (2, Start::Later)];
    assert_eq!(decided(&trials), expected);
}

#[test]
fn the_others_wait_for_its_figure() {
    let trials = [started("fast", 60, 30_000.0), held("close", 60, 29_000.0)];
    assert_eq!(decided(&trials), [(1, Start::Later)]);
    // So they do for a first, coarse one to narrow.
    let mut coarse = measured("fast", 60, 30_000.0);
    if let Some(speed) = &mut coarse.tokens_per_second {
        speed.half_width = speed.mean / 10.0;
    }
    let trials = [coarse, held("close", 60, 29_000.0)];
    assert_eq!(decided(&trials), [(1, Start::Later)]);
}

/// One that was let start two hours ago still waits for its figure: others may start, but which never
/// will is not said before.
#[test]
fn the_last_word_waits_for_every_figure() {
    let mut late = started("late", 60, 29_500.0);
    late.released_at = Some(now() - TimeDelta::hours(2));
    let dear = held("dear", 60, 15_000.0);
    let trials = [measured("fast", 60, 30_000.0), late, dear.clone()];
    assert_eq!(decided(&trials), [(2, Start::Later)]);
    let trials = [measured("fast", 60, 30_000.0), dear];
    assert_eq!(decided(&trials), [(1, Start::Never)]);
}

/// The full run costs $6,000. The close one saves $140 in expectation, for $26; the one that would
/// have to be twice as fast as predicted saves next to nothing.
#[test]
fn what_saves_the_most_for_its_price_is_next_and_the_rest_wait_for_it() {
    let trials = [
        measured("fast", 60, 30_000.0),
        held("close", 60, 29_000.0),
        held("slow", 60, 15_000.0),
        held("near", 60, 28_000.0),
    ];
    let expected = [(1, Start::Now), (2, Start::Later), (3, Start::Later)];
    assert_eq!(decided(&trials), expected);
    let steps = starts(&trials, &cheapest(), TOKENS, now());
    let reason = &steps[0].reason;
    assert!(
        reason.starts_with("measuring it costs about $25.69 and is expected to save $"),
        "{reason}"
    );
    let trials = [
        measured("fast", 60, 30_000.0),
        measured("close", 60, 29_000.0),
        held("slow", 60, 15_000.0),
    ];
    assert_eq!(decided(&trials), [(2, Start::Never)]);
    let steps = starts(&trials, &cheapest(), TOKENS, now());
    let reason = &steps[0].reason;
    assert!(
        reason.starts_with("not started: measuring it costs about $27.20"),
        "{reason}"
    );
}

/// The same two, for a run of an hour: there is hardly anything to save.
#[test]
fn a_short_run_is_not_worth_a_second_figure() {
    let trials = [measured("fast", 60, 30_000.0), held("close", 60, 29_000.0)];
    let short = Tokens {
        total: TOKENS.trial * 3,
        ..TOKENS
    };
    let steps = starts(&trials, &cheapest(), short, now());
    assert_eq!(steps[0].start, Start::Never);
}

/// A figure of $26 is expected to save less, but without it the leader can only be leant towards: that
/// is worth 4 % of the run, and no more.
#[test]
fn a_cheap_figure_settles_whether_the_leader_can_be_bought() {
    let trials = [measured("fast", 60, 30_000.0), held("close", 60, 28_300.0)];
    let of = |usd: u64| {
        let run = Tokens {
            total: usd * 60 * 30_000,
            ..TOKENS
        };
        let step = starts(&trials, &cheapest(), run, now()).remove(0);
        (step.start, step.reason)
    };
    let (start, reason) = of(700);
    assert_eq!(start, Start::Now, "{reason}");
    assert!(
        reason.contains("settles whether fast can be bought"),
        "{reason}"
    );
    assert_eq!(of(600).0, Start::Never);
    let (start, reason) = of(6_000);
    assert!(
        start == Start::Now && reason.contains("expected to save"),
        "{reason}"
    );
}

/// The doubt is about one that was measured: the figure of a third settles nothing.
#[test]
fn a_figure_that_settles_nothing_is_not_taken() {
    let mut wide = measured("wide", 60, 29_500.0);
    if let Some(price) = &mut wide.price {
        price.usd_per_hour_max = Some(Usd(75.into()));
        price.usd_per_hour = Usd(55.into());
    }
    let trials = [
        measured("fast", 60, 30_000.0),
        wide,
        held("third", 60, 24_500.0),
    ];
    let run = Tokens {
        total: 850 * 60 * 30_000,
        ..TOKENS
    };
    let step = starts(&trials, &cheapest(), run, now()).remove(0);
    assert_eq!(step.start, Start::Never, "{}", step.reason);
}

/// The measured one breaks the deadline: the other may keep it, whatever it costs.
#[test]
fn what_may_keep_the_limits_is_worth_its_figure() {
    let trials = [measured("cheap", 30, 30_000.0), held("dear", 240, 60_000.0)];
    let late = ObjectiveSpec {
        full_run_deadline_hours: Some(60.0),
        ..cheapest()
    };
    let start = |objective: &ObjectiveSpec| starts(&trials, objective, TOKENS, now())[0].start;
    assert_eq!(start(&late), Start::Now);
    assert_eq!(start(&cheapest()), Start::Never);
}

#[test]
fn a_leader_that_cannot_run_holds_up_nobody() {
    let close = || held("close", 60, 29_000.0);
    let without = |change: fn(&mut Outcome)| {
        let mut trials = [started("fast", 60, 30_000.0), close()];
        change(&mut trials[0]);
        decided(&trials)
    };
    assert_eq!(
        without(|fast| fast.state = TrialState::Parked),
        [(1, Start::Now)]
    );
    assert_eq!(
        without(|fast| fast.state = TrialState::Failed),
        [(1, Start::Now)]
    );
    // It waits for capacity, for longer than anybody waits for it.
    assert_eq!(
        without(|fast| fast.released_at = Some(now() - TimeDelta::minutes(61))),
        [(1, Start::Now)]
    );
}

/// Where nothing was predicted, only a run can tell.
#[test]
fn what_is_not_predicted_starts() {
    let unknown = Outcome {
        predicted: None,
        ..held("new", 60, 0.0)
    };
    let trials = [held("fast", 60, 30_000.0), unknown];
    assert_eq!(decided(&trials), [(0, Start::Now), (1, Start::Now)]);
}

/// Spot is predicted to save half, but shows it only at its end: on-demand tells the speed first.
#[test]
fn spot_does_not_lead() {
    let spot = Outcome {
        purchase_option: PurchaseOption::Spot,
        ..held("fast", 60, 30_000.0)
    };
    let trials = [spot.clone(), held("fast", 60, 30_000.0)];
    assert_eq!(decided(&trials), [(0, Start::Later), (1, Start::Now)]);
    let trials = [spot, measured("fast", 60, 30_000.0)];
    assert_eq!(decided(&trials), [(0, Start::Now)]);
}

#[test]
fn repeats_start_together() {
    let trials = [
        held("fast", 60, 30_000.0),
        held("fast", 60, 30_000.0),
        held("close", 60, 29_000.0),
    ];
    let expected = [(0, Start::Now), (1, Start::Now), (2, Start::Later)];
    assert_eq!(decided(&trials), expected);
}

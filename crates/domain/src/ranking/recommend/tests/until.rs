//! Until when a full run goes on, and from when: a loss that ends it, and the wait for its start.

use super::*;
use crate::ranking::outcome::{Target, Wait};

/// Comparable trials need the same tokens for a loss. Where one has reached it, hours and dollars are
/// those until then, and no run is known to need exactly as many as the last.
#[test]
fn a_loss_ends_the_full_run_where_trials_reached_it() {
    let trials = [outcome("slow", 30, 10_000.0), outcome("fast", 60, 30_000.0)];
    let towards = |reached: &[f64]| {
        let target = Target {
            loss: 2.5,
            is_validation: true,
            trials: 2,
            reached_by: 0,
            least: Some(2.75),
        };
        recommend(&trials, &cheapest(), TOKENS.towards(target, reached))
    };
    let all = recommend(&trials, &cheapest(), TOKENS);
    let unreached = towards(&[]);
    assert_eq!(unreached.ranked, all.ranked);
    let said =
        |answer: &Recommendation, part: &str| answer.basis.iter().any(|line| line.contains(part));
    assert!(
        said(
            &unreached,
            "validation loss 2.5 was not reached, the least is 2.7500"
        ),
        "{:?}",
        unreached.basis
    );
    assert!(
        unreached
            .headline
            .ends_with("Validation loss 2.5 was not reached, so this is for all tokens."),
        "{}",
        unreached.headline
    );
    let reached = towards(&[1.6e9, 2.025e9]);
    let (whole, part) = (&all.ranked[0], &reached.ranked[0]);
    assert_eq!(part.projected_tokens, Some(1_800_000_000));
    assert!((part.projected_hours / whole.projected_hours - 0.5).abs() < 1e-6);
    assert!(
        said(
            &reached,
            "validation loss 2.5 was reached after 1.80 billion tokens (2 of 2 trials"
        ),
        "{:?}",
        reached.basis
    );
    assert!(
        reached
            .headline
            .contains("cheapest comparable run to validation loss 2.5"),
        "{}",
        reached.headline
    );
    let width = |row: &Ranked| {
        let odds = row.odds.as_ref().unwrap();
        (odds.hours_high / odds.hours_low).ln()
    };
    assert!(
        width(part) > width(whole) + 0.1,
        "{} {}",
        width(part),
        width(whole)
    );
    // They are off together: it does not change which one is bought.
    let best = |row: &Ranked| row.odds.as_ref().unwrap().p_best;
    assert!((best(part) - best(whole)).abs() < 0.01);
    // More tokens than there are is not a shorter run.
    assert_eq!(
        towards(&[1e10]).ranked[0].projected_tokens,
        Some(TOKENS.total)
    );
}

/// Machines that are hard to get start late: that counts in the hours and not in the dollars, also of
/// what has only been predicted.
#[test]
fn the_wait_for_a_start_counts_in_the_hours() {
    let wait = Some(Wait {
        hours: 20.0,
        starts: 7,
    });
    let mut scarce = outcome("scarce", 60, 30_000.0);
    scarce.expected_wait = wait;
    let ready = outcome("ready", 60, 25_000.0);
    let fastest = ObjectiveSpec {
        minimize: Minimize::Time,
        ..cheapest()
    };
    let trials = [scarce.clone(), ready.clone()];
    let by_time = recommend(&trials, &fastest, TOKENS);
    let by_cost = recommend(&trials, &cheapest(), TOKENS);
    let first = |answer: &Recommendation| answer.ranked[0].clone();
    assert_eq!(first(&by_time).candidate, "ready");
    assert_eq!(first(&by_cost).candidate, "scarce");
    assert_eq!(first(&by_cost).projected_cost_usd.to_string(), "$2000.00");
    assert!((first(&by_cost).projected_hours - 53.333).abs() < 0.01);
    let told = by_time
        .basis
        .iter()
        .any(|line| line.contains("ml.scarce 20.0 h (7 starts)"));
    assert!(told, "{:?}", by_time.basis);

    let predicted = |outcome: &Outcome| Outcome {
        state: TrialState::Queued,
        tokens_per_second: None,
        training_seconds: 0,
        predicted: Some(Predicted {
            tokens_per_second: 30_000.0,
            log_sd: 0.3,
            own_log_sd: 0.1,
        }),
        ..outcome.clone()
    };
    let usd = |expected_wait: Option<Wait>| {
        let unmeasured = Outcome {
            expected_wait,
            ..predicted(&scarce)
        };
        let answer = recommend(&[unmeasured, ready.clone()], &cheapest(), TOKENS);
        let odds = answer.not_ranked[0].odds.clone().unwrap();
        (odds.hours_low, odds.cost_usd_low.as_f64())
    };
    let ((late, dear), (soon, cheap)) = (usd(wait), usd(None));
    assert!((late - soon - 20.0).abs() < 1.0, "{late} {soon}");
    assert!((dear / cheap - 1.0).abs() < 0.1, "{dear} {cheap}");
}

/// Half of a trial went to evaluations that come ten times as often as in the full run: the other half of
/// them is not paid again, and none of them once.
#[test]
fn what_a_trial_did_more_often_is_not_paid_once() {
    let mut trial = outcome("a", 36, 10_000.0);
    trial.training_seconds = 7_200;
    trial.billable_seconds = 7_200;
    trial.wall_seconds = 7_200;
    trial.pauses = Pauses::Apart(SteppingShare {
        mean: 0.5,
        sd: 0.02,
    });
    trial.intervals_divided_by = Some(10.0);
    let answer = recommend(&[trial], &cheapest(), TOKENS);
    let row = &answer.ranked[0];
    let share = row.stepping_share.unwrap();
    // 1 / 1.1, pulled a little towards what is assumed.
    assert!((0.905..0.925).contains(&share), "{share}");
    let training = row.projected_hours * 3600.0 * row.tokens_per_second * share;
    assert!((training / 3.6e9 - 1.0).abs() < 1e-3, "{training}");
}

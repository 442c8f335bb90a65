//! What the odds count: retries that wait, limits that none keeps, repeats that differ, spot by the token.

use super::*;

/// A machine was defective, and the retry waits: the choice still counts by its prediction.
#[test]
fn a_failed_trial_whose_retry_may_still_run_is_not_out() {
    let failed = Outcome {
        state: TrialState::Failed,
        tokens_per_second: None,
        ..predicted("cheap", 5, 20_000.0)
    };
    let retry = Outcome {
        state: TrialState::Queued,
        tokens_per_second: None,
        training_seconds: 0,
        billable_seconds: 0,
        wall_seconds: 0,
        ..predicted("cheap", 5, 20_000.0)
    };
    let measured = predicted("dear", 10, 20_000.0);
    let outcomes = [failed.clone(), retry, measured.clone()];
    let answer = recommend(&outcomes, &cheapest(), TOKENS);
    let of = |place: usize| answer.not_ranked[place].odds.as_ref();
    assert!(of(0).is_none(), "{:#?}", answer.not_ranked);
    assert!(of(1).unwrap().p_best > 0.9, "{:#?}", answer.not_ranked);
    assert_ne!(answer.conclusion, Conclusion::Clear);
    // Where nothing of it can run any more, it is out.
    let answer = recommend(&[failed, measured], &cheapest(), TOKENS);
    assert!(answer.not_ranked[0].odds.is_none());
}

/// Neither keeps the deadline of 10 h: one misses it by an hour, the other by 190, and is cheaper.
#[test]
fn the_closest_to_the_limits_is_the_one_that_misses_by_least() {
    let near = outcome("near", 300, 90_909.0);
    let far = outcome("far", 10, 5_000.0);
    let objective = ObjectiveSpec {
        full_run_deadline_hours: Some(10.0),
        ..cheapest()
    };
    let answer = recommend(&[far, near], &objective, TOKENS);
    assert_eq!(answer.conclusion, Conclusion::Infeasible);
    assert!(
        answer.headline.contains("the closest is ml.near on demand"),
        "{}",
        answer.headline
    );
}

/// Two repeats that lie far apart: the interval of their mean says so.
#[test]
fn repeats_that_differ_have_a_wide_interval() {
    let outcomes = [outcome("a", 10, 10_000.0), outcome("a", 10, 20_000.0)];
    let row = &recommend(&outcomes, &cheapest(), TOKENS).ranked[0];
    assert!((row.tokens_per_second - 14_142.0).abs() < 1.0);
    assert!(
        row.tokens_per_second_half_width > 0.15 * row.tokens_per_second,
        "{row:#?}"
    );
}

/// As cheap by the token as on demand, spot is as likely to be the best whichever of the two dollars is asked for.
#[test]
fn spot_is_drawn_alike_by_the_run_and_by_the_token() {
    let spot = Outcome {
        purchase_option: PurchaseOption::Spot,
        billable_seconds: 2000,
        training_seconds: 3600,
        wall_seconds: 3600,
        ..outcome("a", 10, 10_000.0)
    };
    let outcomes = [spot, outcome("b", 6, 10_000.0)];
    let best = |minimize: Minimize| {
        let objective = ObjectiveSpec {
            minimize,
            ..cheapest()
        };
        let answer = recommend(&outcomes, &objective, TOKENS);
        let row = answer.ranked.iter().find(|row| row.candidate == "a");
        row.unwrap().odds.as_ref().unwrap().p_best
    };
    let (by_run, by_token) = (best(Minimize::Cost), best(Minimize::UsdPerMillionTokens));
    assert!((by_run - by_token).abs() < 0.05, "{by_run} {by_token}");
}

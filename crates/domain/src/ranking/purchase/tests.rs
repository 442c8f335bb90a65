//! What may be bought without a person, of hand-made answers.

use proptest::prelude::*;

use super::*;
use crate::lifecycle::state::TrialState;
use crate::money::Usd;
use crate::ranking::outcome::{Outcome, Tokens};
use crate::ranking::recommend::recommend;
use crate::ranking::samples::{cheapest, steady, waiting};

const TOKENS: Tokens = Tokens {
    trial: 3_600_000,
    total: 360_000_000,
    target: None,
};
const FIRST: Conditions<'static> = Conditions {
    wanted: PurchaseChoice::First(None),
    at_least: None,
};

fn finished(candidate: &str, tokens_per_second: f64) -> Outcome {
    Outcome {
        state: TrialState::Completed,
        training_seconds: 3600,
        billable_seconds: 3600,
        wall_seconds: 3900,
        cost_usd: Usd(10.into()),
        tokens_per_second: Some(steady(tokens_per_second)),
        ..waiting(candidate, 10, tokens_per_second)
    }
}

fn answer(outcomes: &[Outcome]) -> Recommendation {
    recommend(outcomes, &cheapest(), TOKENS)
}

/// "fast" is twice as fast as "slow".
fn clear() -> Recommendation {
    answer(&[finished("fast", 2_000.0), finished("slow", 1_000.0)])
}

/// Measured alone, beside one that is predicted to be much faster and waits for a quota.
fn provisional() -> Recommendation {
    let parked = Outcome {
        state: TrialState::Parked,
        ..waiting("p5", 10, 3_000.0)
    };
    answer(&[finished("p5en", 1_000.0), parked])
}

fn name(candidate: &str) -> RowName<'_> {
    RowName {
        candidate,
        purchase_option: None,
    }
}

fn why(purchase: Purchase<'_>) -> String {
    match purchase {
        Purchase::WaitsForPerson { why } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_clear_answer_is_bought_and_a_leading_one_only_with_the_probability_asked_for() {
    let clear = clear();
    let row = |purchase: Purchase<'_>| match purchase {
        Purchase::Bought(row) => row.candidate.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(row(may_buy(&clear, &FIRST)), "fast");
    let cancelled = Outcome {
        state: TrialState::Stopped,
        ..waiting("b", 10, 1_000.0)
    };
    let leading = answer(&[finished("a", 1_100.0), cancelled]);
    assert_eq!(leading.conclusion, Conclusion::Leading);
    assert!(why(may_buy(&leading, &FIRST)).contains("recommends no purchase"));
    let p_best = leading.ranked[0].odds.clone().unwrap().p_best;
    let asked = |at_least: f64| Conditions {
        at_least: Some(at_least),
        ..FIRST
    };
    let first = &leading.ranked[0].candidate;
    assert_eq!(&row(may_buy(&leading, &asked(p_best))), first);
    let short = why(may_buy(&leading, &asked(p_best + 0.01)));
    assert!(short.contains("is the best with P ="), "{short}");
}

#[test]
fn a_provisional_answer_is_bought_by_nobody_but_a_person() {
    let answer = provisional();
    assert!(answer.provisional);
    let any = Conditions {
        wanted: PurchaseChoice::Written(name("p5en")),
        at_least: Some(0.001),
    };
    assert!(why(may_buy(&answer, &any)).contains("provisional"));
    let named = Conditions {
        wanted: PurchaseChoice::Named(name("p5en")),
        at_least: None,
    };
    assert!(matches!(may_buy(&answer, &named), Purchase::Bought(_)));
}

#[test]
fn a_row_that_is_no_longer_first_waits_and_one_that_was_not_measured_is_refused() {
    let answer = clear();
    let written = |candidate| Conditions {
        wanted: PurchaseChoice::Written(name(candidate)),
        at_least: None,
    };
    assert!(matches!(
        may_buy(&answer, &written("fast")),
        Purchase::Bought(_)
    ));
    assert!(why(may_buy(&answer, &written("slow"))).contains("not the first row"));
    let named = Conditions {
        wanted: PurchaseChoice::Named(name("other")),
        at_least: None,
    };
    assert!(matches!(may_buy(&answer, &named), Purchase::Refused { .. }));
    let nothing = super::tests::answer(&[waiting("a", 10, 1_000.0)]);
    assert!(matches!(
        may_buy(&nothing, &FIRST),
        Purchase::Refused { .. }
    ));
}

proptest! {
    /// Without a person, nothing but the first row of a final answer is bought, and below a clear conclusion only with
    /// the probability that was asked for.
    #[test]
    fn whatever_is_bought_was_sure_enough(
        speeds in prop::collection::vec((500.0_f64..3_000.0, any::<bool>()), 1..4),
        at_least in prop::option::of(0.01_f64..1.0),
    ) {
        let names = ["a", "b", "c"];
        let outcomes: Vec<Outcome> = speeds
            .iter()
            .zip(names)
            .map(|((speed, is_over), name)| match is_over {
                true => finished(name, *speed),
                false => waiting(name, 10, *speed),
            })
            .collect();
        let answer = answer(&outcomes);
        let conditions = Conditions { wanted: PurchaseChoice::First(None), at_least };
        if let Purchase::Bought(row) = may_buy(&answer, &conditions) {
            prop_assert!(!answer.provisional);
            prop_assert_eq!(row, &answer.ranked[0]);
            let p_best = row.odds.as_ref().map_or(0.0, |odds| odds.p_best);
            let is_asked = at_least.is_some_and(|least| p_best >= least);
            prop_assert!(answer.conclusion == Conclusion::Clear || is_asked);
        }
    }
}

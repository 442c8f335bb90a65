//! Levels, decided.

use proptest::prelude::*;

use super::*;

fn usd(amount: i64) -> Usd {
    Usd(Decimal::from(amount))
}

fn limit(level: BudgetLevel, budget: Option<i64>, reserved: i64, settled: i64) -> Limit {
    Limit::new(
        level,
        Balance {
            budget_usd: budget.map(usd),
            reserved_usd: usd(reserved),
            settled_usd: usd(settled),
        },
    )
}

fn own(budget: i64, reserved: i64, settled: i64) -> Limit {
    limit(BudgetLevel::Experiment, Some(budget), reserved, settled)
}

fn project(budget: Option<i64>, reserved: i64, settled: i64) -> Limit {
    limit(BudgetLevel::Project, budget, reserved, settled)
}

#[test]
fn a_trial_waits_while_a_reservation_may_be_released() {
    let waits = |limits: &[Limit]| decide(usd(50), limits).is_some_and(|short| !short.is_final);
    assert!(waits(&[own(100, 80, 0), project(None, 80, 0)]));
    assert!(
        waits(&[own(100, 0, 0), project(Some(100), 80, 0)]),
        "another experiment holds the project's money"
    );
    assert_eq!(
        decide(usd(50), &[own(100, 0, 20), project(None, 0, 20)]),
        None
    );
}

#[test]
fn a_refusal_names_the_level_and_the_call_that_raises_it() {
    let why = |limits: &[Limit]| decide(usd(50), limits).unwrap().to_string();
    assert!(
        why(&[own(100, 0, 60), project(None, 0, 60)]).contains("$40.00 is left; raise budget_usd")
    );
    let poor = why(&[own(100, 0, 0), project(Some(70), 0, 60)]);
    assert!(
        poor.contains("raise the project's budget") && poor.contains(r#"{"budget_usd": 110}"#),
        "{poor}"
    );
    for level in BudgetLevel::ALL {
        let short = decide(usd(50), &[limit(*level, Some(0), 0, 0)]).unwrap();
        assert!(short.is_final && !short.fix().is_empty(), "{short}");
    }
}

#[test]
fn a_level_that_can_never_allow_it_is_named_before_one_that_may_later() {
    let short = decide(usd(50), &[own(100, 80, 0), project(Some(40), 30, 0)]).unwrap();
    assert_eq!(short.limit.level, BudgetLevel::Project);
}

#[test]
fn amounts_that_cannot_be_stored_are_no_limits() {
    for text in [
        "1e-9",
        "0",
        "-1",
        "1e12",
        "1e19",
        "1000000000.01",
        "1.0000001",
    ] {
        let amount: Usd = serde_json::from_str(text).unwrap();
        assert!(limit_flaw(amount, least_budget()).is_some(), "{text}");
    }
    for text in ["0.01", "10", "1000000000", "12.345678"] {
        let amount: Usd = serde_json::from_str(text).unwrap();
        assert_eq!(limit_flaw(amount, least_budget()), None, "{text}");
    }
}

#[test]
fn a_forecast_is_a_straight_line_to_the_end_of_the_month() {
    let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
    assert_eq!(forecast(usd(100), at("2026-11-01T23:00:00Z")), None);
    assert_eq!(
        forecast(usd(100), at("2026-11-16T00:00:00Z")),
        Some(usd(200))
    );
    assert_eq!(forecast(usd(0), at("2026-12-31T00:00:00Z")), Some(usd(0)));
}

#[test]
fn shares_are_reached_from_below() {
    let reached = |used: i64| {
        let balance = own(200, used, 0).balance;
        balance.shares_reached().collect::<Vec<_>>()
    };
    assert_eq!(reached(99), Vec::<u32>::new());
    assert_eq!(reached(100), [50]);
    assert_eq!(reached(199), [50, 80]);
    assert_eq!(reached(200), [50, 80, 100]);
}

/// What happens to money.
#[derive(Debug, Clone)]
enum Step {
    Reserve {
        owner: usize,
        usd: i64,
    },
    /// Settles the oldest reservation for a share of it.
    Settle {
        percent: i64,
    },
    NextMonth,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 1..60_i64).prop_map(|(owner, usd)| Step::Reserve { owner, usd }),
        3 => (0..=100_i64).prop_map(|percent| Step::Settle { percent }),
        1 => Just(Step::NextMonth),
    ]
}

proptest! {
    /// Reservations, extensions (a further reservation of the same owner), settlements and releases (0 %) in any order.
    #[test]
    fn no_level_is_ever_above_its_limit(steps in prop::collection::vec(step(), 1..80)) {
        let mut owners = [own(100, 0, 0), own(70, 0, 0), own(40, 0, 0)];
        let mut total = project(Some(300), 0, 0);
        let mut month = limit(BudgetLevel::ProjectMonth, Some(90), 0, 0);
        let mut open: Vec<(usize, Usd)> = Vec::new();
        for step in steps {
            match step {
                Step::Reserve { owner, usd: amount } => {
                    let amount = usd(amount);
                    if decide(amount, &[owners[owner], total, month]).is_none() {
                        for limit in [&mut owners[owner], &mut total, &mut month] {
                            limit.balance.reserved_usd += amount;
                        }
                        open.push((owner, amount));
                    }
                }
                Step::Settle { percent } if !open.is_empty() => {
                    let (owner, amount) = open.remove(0);
                    let cost = Usd(amount.0 * Decimal::new(percent, 2));
                    for limit in [&mut owners[owner], &mut total, &mut month] {
                        limit.balance.reserved_usd = limit.balance.reserved_usd - amount;
                        limit.balance.settled_usd += cost;
                    }
                }
                Step::Settle { .. } => {}
                Step::NextMonth => month.balance.settled_usd = Usd::ZERO,
            }
            for limit in owners.iter().chain([&total, &month]) {
                let left = limit.balance.left().unwrap();
                prop_assert!(left >= Usd::ZERO, "{limit:?}");
            }
        }
    }
}

//! What a reservation that was turned down should do: wait, or give up. The cap itself is held by
//! the store, in the transaction that reserves; this only reads what was left afterwards.

use crate::money::Usd;

/// A budget with what is taken of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purse {
    /// No cap when empty.
    pub budget_usd: Option<Usd>,
    pub reserved_usd: Usd,
    pub settled_usd: Usd,
}

impl Purse {
    fn left(&self) -> Option<Usd> {
        self.budget_usd
            .map(|budget| budget - self.reserved_usd - self.settled_usd)
    }

    /// What is left when this can never hold `amount`: nothing is reserved that could come back.
    fn can_never_hold(&self, amount: Usd) -> Option<Usd> {
        self.left()
            .filter(|left| amount > *left && self.reserved_usd == Usd::ZERO)
    }
}

/// What to do about a reservation that did not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shortfall {
    /// Reservations of others may come back, or money came back meanwhile: try again later.
    Wait { why: String },
    /// It can never fit: refuse, with the way out.
    Never { why: String },
}

/// `worst` was turned down by the experiment's purse or the project's. `held_back` says why nothing
/// is started at all.
pub fn shortfall(
    worst: Usd,
    experiment: &Purse,
    project: &Purse,
    held_back: Option<&str>,
) -> Shortfall {
    if let Some(why) = held_back {
        return Shortfall::Wait {
            why: why.to_owned(),
        };
    }
    let never = |left: Usd, raise: &str| Shortfall::Never {
        why: format!(
            "over budget: it may cost {worst}, and {left} is left; raise {raise} or lower max_runtime_seconds"
        ),
    };
    match (
        experiment.can_never_hold(worst),
        project.can_never_hold(worst),
    ) {
        (Some(left), _) => never(left, "budget_usd"),
        (None, Some(left)) => never(left, "the project's budget"),
        (None, None) => Shortfall::Wait {
            why: format!(
                "waiting for budget: it may cost {worst}, and what is free is less; the rest is reserved"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use rust_decimal::Decimal;

    use super::*;

    fn usd(amount: i64) -> Usd {
        Usd(Decimal::from(amount))
    }

    fn purse(budget: Option<i64>, reserved: i64, settled: i64) -> Purse {
        Purse {
            budget_usd: budget.map(usd),
            reserved_usd: usd(reserved),
            settled_usd: usd(settled),
        }
    }

    #[test]
    fn it_waits_while_a_reservation_may_come_back() {
        let waits = |experiment, project| {
            matches!(
                shortfall(usd(50), &experiment, &project, None),
                Shortfall::Wait { .. }
            )
        };
        assert!(waits(purse(Some(100), 80, 0), purse(None, 80, 0)));
        assert!(
            waits(purse(Some(100), 0, 0), purse(Some(100), 80, 0)),
            "another experiment holds the project's money"
        );
        assert!(
            waits(purse(Some(100), 0, 20), purse(None, 0, 20)),
            "the money came back meanwhile"
        );
    }

    #[test]
    fn it_gives_up_when_nothing_can_come_back_and_names_what_to_raise() {
        let why = |experiment, project| match shortfall(usd(50), &experiment, &project, None) {
            Shortfall::Never { why } => why,
            Shortfall::Wait { why } => panic!("it waits: {why}"),
        };
        assert!(
            why(purse(Some(100), 0, 60), purse(None, 0, 60))
                .contains("$40.00 is left; raise budget_usd")
        );
        assert!(
            why(purse(Some(100), 0, 0), purse(Some(70), 0, 60))
                .contains("raise the project's budget")
        );
    }

    #[test]
    fn a_paused_experiment_is_not_refused() {
        let held = shortfall(
            usd(50),
            &purse(Some(10), 0, 0),
            &purse(None, 0, 0),
            Some("paused"),
        );
        assert_eq!(
            held,
            Shortfall::Wait {
                why: "paused".to_owned()
            }
        );
    }
}

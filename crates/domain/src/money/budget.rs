//! Decides whether a rejected reservation should wait or give up. The store enforces the cap
//! itself, in the transaction that reserves; this module only examines the balance afterwards.

use crate::money::Usd;

/// A budget and how much of it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// No cap when empty.
    pub budget_usd: Option<Usd>,
    pub reserved_usd: Usd,
    pub settled_usd: Usd,
}

impl Balance {
    fn left(&self) -> Option<Usd> {
        self.budget_usd
            .map(|budget| budget - self.reserved_usd - self.settled_usd)
    }

    /// The amount left if `amount` can never fit, because no reservation remains that could be
    /// released.
    fn can_never_hold(&self, amount: Usd) -> Option<Usd> {
        self.left()
            .filter(|left| amount > *left && self.reserved_usd == Usd::ZERO)
    }
}

/// What to do about a reservation that did not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shortfall {
    /// Other reservations may be released, or were released meanwhile: try again later.
    Wait { why: String },
    /// It can never fit: refuse, and say what to change.
    Never { why: String },
}

/// Decides what to do after `worst` did not fit the experiment's or the project's balance.
/// `held_back` is the reason why nothing may start at all, if any.
pub fn shortfall(
    worst: Usd,
    experiment: &Balance,
    project: &Balance,
    held_back: Option<&str>,
) -> Shortfall {
    if let Some(why) = held_back {
        return Shortfall::Wait {
            why: why.to_owned(),
        };
    }
    let never = |left: Usd, raise: &str| Shortfall::Never {
        why: format!(
            "over budget: the trial may cost {worst}, but {left} is left; raise {raise} or lower max_runtime_seconds"
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
                "waiting for budget: the trial may cost {worst}, more than is free; the rest is reserved"
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

    fn balance(budget: Option<i64>, reserved: i64, settled: i64) -> Balance {
        Balance {
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
        assert!(waits(balance(Some(100), 80, 0), balance(None, 80, 0)));
        assert!(
            waits(balance(Some(100), 0, 0), balance(Some(100), 80, 0)),
            "another experiment holds the project's money"
        );
        assert!(
            waits(balance(Some(100), 0, 20), balance(None, 0, 20)),
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
            why(balance(Some(100), 0, 60), balance(None, 0, 60))
                .contains("$40.00 is left; raise budget_usd")
        );
        assert!(
            why(balance(Some(100), 0, 0), balance(Some(70), 0, 60))
                .contains("raise the project's budget")
        );
    }

    #[test]
    fn a_paused_experiment_is_not_refused() {
        let held = shortfall(
            usd(50),
            &balance(Some(10), 0, 0),
            &balance(None, 0, 0),
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

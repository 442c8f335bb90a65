//! What an answer cost: all trials so far, the part that only showed what not to buy, and what
//! running every trial to its end would have cost. Costs come from the ledger; it bills nothing.

use crate::lifecycle::state::TrialState;
use crate::money::Usd;
use crate::number::real;
use crate::ranking::outcome::{Outcome, Tokens};
use crate::ranking::recommendation::{Ranked, Spend};
use crate::spec::PurchaseOption;

/// `first`: what is recommended, or leads; its trials are the head of its full run.
pub(super) fn spend(outcomes: &[Outcome], first: Option<&Ranked>, tokens: Tokens) -> Spend {
    let is_first = |outcome: &Outcome| {
        first.is_some_and(|row| {
            row.candidate == outcome.candidate && row.purchase_option == outcome.purchase_option
        })
    };
    let losers = outcomes.iter().filter(|outcome| !is_first(outcome));
    Spend {
        usd: outcomes.iter().map(|outcome| outcome.cost_usd).sum(),
        losers_usd: losers.map(|outcome| outcome.cost_usd).sum(),
        full_usd: outcomes
            .iter()
            .map(|outcome| to_the_end(outcome, tokens))
            .sum(),
    }
}

/// What a trial costs at its end; `None` if nothing is known of that.
fn to_the_end(outcome: &Outcome, tokens: Tokens) -> Option<Usd> {
    let so_far = outcome.cost_usd;
    if matches!(
        outcome.state,
        TrialState::Refused | TrialState::Completed | TrialState::Failed
    ) {
        return Some(so_far);
    }
    let measured = || {
        let is_on_demand = outcome.purchase_option == PurchaseOption::OnDemand;
        let speed = outcome
            .tokens_per_second
            .as_ref()
            .filter(|_| is_on_demand)?;
        let rate = outcome.price.as_ref()?.usd_per_hour.as_f64();
        let hours = real(tokens.trial) / speed.mean / 3600.0;
        Usd::from_f64(hours * rate * f64::from(outcome.instance_count))
    };
    let whole = measured().or(outcome.predicted_usd)?;
    Some(whole.max(so_far))
}

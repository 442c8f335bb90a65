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

/// What an answer is worth against buying by the predictions alone.
pub(super) struct Worth<'a> {
    /// What would have been bought: the cheapest as predicted.
    pub(super) unmeasured: &'a str,
    /// Dollars of a full run that the answer saves.
    pub(super) saved: Usd,
    /// Tokens of a full run from which it has saved what other choices cost.
    pub(super) break_even_tokens: f64,
}

/// `None` where that cannot be told: the cheapest as predicted has not been measured, or spot's
/// savings, which nobody predicts, are part of the choice.
pub(super) fn worth<'a>(
    outcomes: &'a [Outcome],
    ranked: &[Ranked],
    spend: &Spend,
    tokens: Tokens,
) -> Option<Worth<'a>> {
    let per_token = |outcome: &'a Outcome| {
        let is_known = outcome.incomparable.is_none() && !outcome.is_impossible();
        let (price, predicted) = (
            outcome.price.as_ref()?,
            outcome.predicted.filter(|_| is_known)?,
        );
        let rate = price.usd_per_hour.as_f64() * f64::from(outcome.instance_count);
        Some((outcome, rate / predicted.tokens_per_second))
    };
    if outcomes
        .iter()
        .any(|one| one.purchase_option == PurchaseOption::Spot)
    {
        return None;
    }
    let cheapest = outcomes.iter().filter_map(per_token);
    let (cheapest, _) = cheapest.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let row = ranked
        .iter()
        .find(|row| row.candidate == cheapest.candidate)?;
    let first = ranked.first()?;
    // Ranked by time, the first was not chosen for its cost.
    if ranked
        .iter()
        .any(|row| row.projected_cost_usd < first.projected_cost_usd)
    {
        return None;
    }
    let saved = row.projected_cost_usd - first.projected_cost_usd;
    let per_token = saved.as_f64() / real(tokens.total);
    Some(Worth {
        unmeasured: &cheapest.candidate,
        saved,
        break_even_tokens: spend.losers_usd.as_f64() / per_token,
    })
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
        let share = outcome.stepping().map_or(1.0, |share| share.mean);
        let hours = real(tokens.trial) / (speed.mean * share) / 3600.0;
        Usd::from_f64(hours * rate * f64::from(outcome.instance_count))
    };
    let whole = measured().or(outcome.predicted_usd)?;
    Some(whole.max(so_far))
}

//! What an answer cost: all trials so far, the part that only showed what not to buy, and what
//! running every trial to its end would have cost. Costs come from the ledger; it bills nothing.

use std::f64::consts::SQRT_2;

use crate::lifecycle::state::TrialState;
use crate::money::Usd;
use crate::number::{NORMAL_95, real};
use crate::ranking::outcome::{Outcome, Tokens};
use crate::ranking::recommendation::{Ranked, Spend};
use crate::ranking::repeats::{Pool, Repeats};
use crate::spec::PurchaseOption;

/// Standard deviation, as a share, of what a measured trial still costs.
const MEASURED_SD: f64 = 0.03;

/// `first`: what is recommended, or leads; its trials are the head of its full run.
pub(super) fn spend(repeats: &Repeats<'_>, first: Option<&Ranked>) -> Spend {
    let outcomes = repeats.outcomes();
    let is_first = |outcome: &Outcome| {
        first.is_some_and(|row| {
            row.candidate == outcome.candidate && row.purchase_option == outcome.purchase_option
        })
    };
    let losers = outcomes.iter().filter(|outcome| !is_first(outcome));
    let full = all_to_the_end(repeats);
    Spend {
        usd: outcomes.iter().map(|outcome| outcome.cost_usd).sum(),
        losers_usd: losers.map(|outcome| outcome.cost_usd).sum(),
        full_usd: full.map(|(usd, _)| usd),
        full_usd_90: full.map(|(_, ends)| ends),
    }
}

/// What an answer is worth against buying by the predictions alone.
pub(super) struct AnswerWorth<'a> {
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
) -> Option<AnswerWorth<'a>> {
    let unmeasured = cheapest_as_predicted(outcomes)?;
    let row = ranked.iter().find(|row| row.candidate == unmeasured)?;
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
    Some(AnswerWorth {
        unmeasured,
        saved,
        break_even_tokens: spend.losers_usd.as_f64() / per_token,
    })
}

/// The rows with what each saves against buying by the predictions alone.
pub(super) fn with_returns(
    ranked: impl Iterator<Item = Ranked>,
    outcomes: &[Outcome],
) -> Vec<Ranked> {
    let mut ranked: Vec<Ranked> = ranked.collect();
    let unmeasured = cheapest_as_predicted(outcomes);
    let reference = ranked
        .iter()
        .find(|row| unmeasured == Some(row.candidate.as_str()));
    let Some(reference) = reference.map(|row| row.projected_cost_usd) else {
        return ranked;
    };
    for row in &mut ranked {
        let others = outcomes.iter().filter(|one| {
            one.candidate != row.candidate || one.purchase_option != row.purchase_option
        });
        let paid: Usd = others.map(|one| one.cost_usd).sum();
        let saves = reference - row.projected_cost_usd;
        row.saves_usd = Some(saves);
        row.return_on_trials = (paid > Usd::ZERO).then(|| (saves - paid).as_f64() / paid.as_f64());
    }
    ranked
}

/// The candidate that would have been bought without measuring.
fn cheapest_as_predicted(outcomes: &[Outcome]) -> Option<&str> {
    let per_token = |outcome: &Outcome| {
        let is_known = outcome.incomparable.is_none() && !outcome.is_impossible();
        let (price, predicted) = (
            outcome.price.as_ref()?,
            outcome.predicted.filter(|_| is_known)?,
        );
        let rate = price.usd_per_hour.as_f64() * f64::from(outcome.instance_count);
        Some(rate / predicted.tokens_per_second)
    };
    let has_spot = outcomes
        .iter()
        .any(|one| one.purchase_option == PurchaseOption::Spot);
    let all = outcomes
        .iter()
        .filter_map(|one| Some((one.candidate.as_str(), per_token(one)?)));
    let cheapest = all.min_by(|(_, a), (_, b)| a.total_cmp(b));
    cheapest.filter(|_| !has_spot).map(|(name, _)| name)
}

/// What a trial costs, run to its end.
struct ToTheEnd {
    usd: Usd,
    /// Standard deviations of the dollars that are not spent yet: of its own, and as far as all are off together.
    own_sd: f64,
    shared_sd: f64,
}

/// What all trials cost, each run to its end, with the 90 % interval; `None` if nothing is known of one.
fn all_to_the_end(repeats: &Repeats<'_>) -> Option<(Usd, [Usd; 2])> {
    let pools = repeats.pools.iter();
    let trials = pools.flat_map(|pool| pool.trials.iter().map(move |trial| (pool, *trial)));
    let all: Vec<ToTheEnd> = trials
        .map(|(pool, trial)| to_the_end(repeats, pool, trial))
        .collect::<Option<_>>()?;
    let usd: Usd = all.iter().map(|one| one.usd).sum();
    let own: f64 = all.iter().map(|one| one.own_sd.powi(2)).sum();
    let shared: f64 = all.iter().map(|one| one.shared_sd).sum();
    let half = NORMAL_95 * own.sqrt().hypot(shared);
    let spent: Usd = repeats.outcomes().iter().map(|one| one.cost_usd).sum();
    let low = Usd::from_f64(usd.as_f64() - half)?.max(spent.min(usd));
    Some((usd, [low, Usd::from_f64(usd.as_f64() + half)?]))
}

fn to_the_end(repeats: &Repeats<'_>, pool: &Pool<'_>, outcome: &Outcome) -> Option<ToTheEnd> {
    let so_far = outcome.cost_usd;
    let tokens = repeats.tokens();
    let certain = |usd: Usd| ToTheEnd {
        usd,
        own_sd: 0.0,
        shared_sd: 0.0,
    };
    if matches!(
        outcome.state,
        TrialState::Refused | TrialState::Completed | TrialState::Failed
    ) {
        return Some(certain(so_far));
    }
    let unknown = || Some(certain(outcome.predicted_usd?.max(so_far)));
    if outcome.purchase_option == PurchaseOption::Spot {
        return unknown();
    }
    let rate = outcome.price.as_ref()?.usd_per_hour.as_f64() * f64::from(outcome.instance_count);
    let usd = |seconds: f64| seconds / 3600.0 * rate;
    let all = real(tokens.trial);
    if let Some(goodput) = outcome.own_goodput() {
        // Of one that has ended, all that is not steps has been paid.
        let done = outcome
            .tokens_done
            .filter(|_| outcome.state == TrialState::Stopped);
        let ahead = done.map_or_else(
            || usd(repeats.overhead(pool).seconds + all / goodput) - so_far.as_f64(),
            |done| usd((all - done) / goodput),
        );
        let ahead = ahead.max(0.0);
        return Some(ToTheEnd {
            usd: so_far + Usd::from_f64(ahead)?,
            own_sd: MEASURED_SD * ahead,
            shared_sd: 0.0,
        });
    }
    let Some((seconds, contender)) = repeats.predicted_trial(pool, outcome) else {
        // What is not compared may run all the same.
        return unknown();
    };
    // Predictions err with heavy tails, whose variance is twice the square of their scale.
    let log_sd = (contender.log_sd * SQRT_2).hypot(contender.shared_log_sd);
    let overhead = repeats.overhead(pool);
    // Dollars add up by their means, and a prediction is a median.
    let steps = usd(seconds) * (log_sd.powi(2) / 2.0).exp();
    let once = usd(overhead.seconds);
    let ahead = (once + steps - so_far.as_f64()).max(0.0);
    Some(ToTheEnd {
        usd: so_far + Usd::from_f64(ahead)?,
        own_sd: once * overhead.log_sd,
        // All predictions are of one law, and may be off in the same direction.
        shared_sd: steps * log_sd,
    })
}

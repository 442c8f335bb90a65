//! The recommendation: comparable trials, projected to the full run, ranked by the objective within
//! its limits, and the word that the odds deserve. Repeats count as one candidate; what has not run
//! counts by its prediction; every trial that is not ranked has a reason. "Not enough evidence" is a
//! valid answer. The odds are drawn in [`crate::ranking::posterior`].

use crate::finding::joined;
use crate::lifecycle::state::TrialState;
use crate::measure::overhead::Overhead;
use crate::measure::steady::Steady;
use crate::money::price::Price;
use crate::money::{Usd, cost};
use crate::number::{of_items, real};
use crate::ranking::headline::headline;
use crate::ranking::outcome::{FullRun, Outcome, Tokens};
use crate::ranking::posterior::{
    Beliefs, Contender, DRAWS, FIGURE_HOURS, Odds, WRONG_BUY, WRONG_MAX,
};
use crate::ranking::recommendation::{Conclusion, NotRanked, Ranked, Recommendation, RunOdds};
use crate::ranking::repeats::{self, Pool, Projection};
use crate::ranking::spend::{spend, with_returns};
use crate::ranking::wording;
use crate::ranking::wording::worth;
use crate::spec::{Minimize, ObjectiveSpec, PurchaseOption};

/// Ranks the outcomes of one experiment.
pub fn recommend(
    outcomes: &[Outcome],
    objective: &ObjectiveSpec,
    tokens: Tokens,
) -> Recommendation {
    let repeats = repeats::Repeats::of(outcomes, tokens);
    let mut ranked: Vec<Ranked> = Vec::new();
    let mut not_ranked: Vec<NotRanked> = Vec::new();
    let (mut measured, mut predicted) = (Vec::new(), Vec::new());
    // Of those predicted, their places among what is not ranked.
    let mut places: Vec<usize> = Vec::new();
    for pool in &repeats.pools {
        let (row, left_out) = judge(&repeats, pool, objective, tokens);
        // What did not run may still be the one to buy; a repeat of what ran is not another choice.
        if row.is_none()
            && let Some(contender) = repeats.predicted(pool)
        {
            places.push(not_ranked.len() + pool.standing());
            predicted.push(contender);
        }
        not_ranked.extend(left_out);
        if let Some(projection) = row {
            measured.push(repeats.measured(pool, &projection));
            ranked.push(projection.row);
        }
    }
    let contenders: Vec<Contender> = measured.into_iter().chain(predicted).collect();
    let mut odds = Beliefs::of(&contenders, objective, DRAWS)
        .odds()
        .into_iter();
    let mut choices: Vec<(Ranked, Odds)> = ranked.into_iter().zip(odds.by_ref()).collect();
    let rivals: Vec<(usize, Odds)> = places.into_iter().zip(odds).collect();
    note_odds(&mut not_ranked, &rivals);
    order(&mut choices, objective);
    let reached = reached(outcomes, tokens);
    let conclusion = match &reached {
        Some(_) => Conclusion::Reached,
        None => conclude(&choices, &rivals),
    };
    let ranked = with_returns(choices.into_iter().map(|(row, _)| row), outcomes);
    let spend = spend(&repeats, ranked.first());
    let mut reasons = wording::reasons(conclusion, &ranked, &not_ranked, objective, &spend);
    if conclusion == Conclusion::Clear {
        reasons.extend(worth(outcomes, &ranked, &spend, tokens));
    }
    Recommendation {
        conclusion,
        headline: reached
            .unwrap_or_else(|| headline(conclusion, &ranked, &not_ranked, objective, tokens)),
        reasons,
        basis: wording::basis(outcomes, &ranked, tokens),
        provisional: outcomes.iter().any(|outcome| !outcome.state.is_terminal()),
        ranked,
        not_ranked,
        spend: Some(spend),
        evidence_sha256: None,
    }
}

/// Writes the odds of those that are only predicted, by their places.
fn note_odds(not_ranked: &mut [NotRanked], rivals: &[(usize, Odds)]) {
    for (place, odds) in rivals {
        if let Some(row) = not_ranked.get_mut(*place) {
            row.odds = Some(run_odds(odds));
        }
    }
}

/// What is said where a trial has reached the target loss and left its model: of several, the one that was there for
/// the least.
fn reached(outcomes: &[Outcome], tokens: Tokens) -> Option<String> {
    let target = tokens.target?;
    let with_model = outcomes.iter().filter(|one| one.has_reached_model());
    let reached = with_model.filter_map(|one| Some((one, one.reached?)));
    let (outcome, reached) =
        reached.min_by_key(|(_, reached)| (reached.usd.is_none(), reached.usd, reached.at))?;
    Some(wording::reached(outcome, reached, target))
}

/// What is believed of a choice: as measured, or else as predicted.
pub(super) fn contender(
    repeats: &repeats::Repeats<'_>,
    pool: &Pool<'_>,
    objective: &ObjectiveSpec,
    tokens: Tokens,
) -> Option<Contender> {
    match judge(repeats, pool, objective, tokens).0 {
        Some(projection) => Some(repeats.measured(pool, &projection)),
        None => repeats.predicted(pool),
    }
}

/// The row of a pool's measured trials with its full run, and the trials of it that have none.
fn judge(
    repeats: &repeats::Repeats<'_>,
    pool: &Pool<'_>,
    objective: &ObjectiveSpec,
    tokens: Tokens,
) -> (Option<Projection>, Vec<NotRanked>) {
    let mut left_out: Vec<NotRanked> = Vec::new();
    let mut leave_out = |outcome: &Outcome, (reason, fix): Unranked| {
        left_out.push(NotRanked {
            trial_id: outcome.trial_id,
            candidate: outcome.candidate.clone(),
            instance_type: outcome.instance_type.clone(),
            purchase_option: outcome.purchase_option,
            reason,
            fix,
            odds: None,
        });
    };
    let mut measured: Vec<&Outcome> = Vec::new();
    for outcome in &pool.trials {
        match rankable(outcome) {
            Ok(_) => measured.push(outcome),
            Err(why) => leave_out(outcome, why),
        }
    }
    let Some(pooled) = repeats::pooled(&measured) else {
        return (None, left_out);
    };
    // A spot run's hours are those of its trial, pauses and all.
    let is_on_demand = pooled.purchase_option == PurchaseOption::OnDemand;
    let share = repeats.stepping(pool).filter(|_| is_on_demand);
    let share = share.map(|share| share.mean);
    let beside: Vec<f64> = measured
        .iter()
        .filter_map(|one| one.billed_beside_steps(tokens))
        .collect();
    let around = FullRunOverhead {
        share,
        paid_once: if beside.is_empty() {
            repeats.overhead(pool).seconds
        } else {
            beside.iter().sum::<f64>() / of_items(beside.len())
        },
    };
    let row = rankable(&pooled).and_then(|evidence| project(evidence, around, objective, tokens));
    let row = row.map_err(|why| leave_out(&pooled, why)).ok();
    let projection = row.map(|(row, run)| repeats.projection(row, run, measured.len()));
    (projection, left_out)
}

type Unranked = (String, Option<String>);

/// The evidence behind one ranked candidate.
#[derive(Clone, Copy)]
struct Evidence<'a> {
    outcome: &'a Outcome,
    speed: &'a Steady,
    price: &'a Price,
}

fn reason_of(outcome: &Outcome) -> &str {
    let reason = outcome.reason.as_deref();
    reason.unwrap_or("no reason was recorded")
}

fn rankable(outcome: &Outcome) -> Result<Evidence<'_>, Unranked> {
    if outcome.state == TrialState::Refused {
        let refusals = outcome.refusals.iter();
        let reasons = joined(refusals.clone().map(|finding| finding.message.as_str()));
        let fixes = joined(refusals.map(|finding| finding.fix.as_str()));
        let reason = match reasons.as_str() {
            "" => reason_of(outcome),
            reasons => reasons,
        };
        return Err((
            format!("refused: {reason}"),
            (!fixes.is_empty()).then_some(fixes),
        ));
    }
    if let Some(finding) = &outcome.incomparable {
        return Err((finding.message.clone(), Some(finding.fix.clone())));
    }
    if outcome.state == TrialState::Failed {
        return Err((format!("failed: {}", reason_of(outcome)), None));
    }
    let Some(price) = &outcome.price else {
        let fix = format!("PUT /v1/prices/{} with your rate", outcome.instance_type);
        return Err(("the price is unknown".to_owned(), Some(fix)));
    };
    let Some(speed) = &outcome.tokens_per_second else {
        if outcome.training_seconds == 0 && !outcome.has_started() {
            let why = outcome.reason.as_deref().unwrap_or(outcome.state.as_str());
            let why = why.strip_prefix("not started: ").unwrap_or(why);
            return Err((format!("it has not run: {why}"), None));
        }
        let fix = "let the trial run longer, and check the metric definition for tokens per second";
        let why = match (&outcome.state, &outcome.reason) {
            (TrialState::Stopped, Some(reason)) => format!("; it was stopped: {reason}"),
            (_, _) => String::new(),
        };
        return Err((
            format!("not enough evidence: too few steady-state readings of tokens per second{why}"),
            Some(fix.to_owned()),
        ));
    };
    let is_finished = outcome.state == TrialState::Completed && outcome.training_seconds > 0;
    if outcome.purchase_option == PurchaseOption::Spot && !is_finished {
        let fix = "let the spot trial finish: its savings are measured, never assumed";
        return Err((
            "not enough evidence: no billed spot run yet".to_owned(),
            Some(fix.to_owned()),
        ));
    }
    Ok(Evidence {
        outcome,
        speed,
        price,
    })
}

/// What the full run takes beside its steps.
#[derive(Clone, Copy)]
struct FullRunOverhead {
    /// Of the time that recurs, what its steps take.
    share: Option<f64>,
    /// Billed seconds that are paid once, however long the run is.
    paid_once: f64,
}

/// `goodput`: tokens per second of all the time that recurs, pauses included.
fn full_run(evidence: Evidence<'_>, goodput: f64, paid_once: f64, tokens: Tokens) -> FullRun {
    let outcome = evidence.outcome;
    let full = real(tokens.total) / goodput;
    let wall = real(outcome.wall_seconds);
    let billed = real(outcome.billable_seconds);
    match outcome.purchase_option {
        PurchaseOption::OnDemand => {
            // The next start may wait as long as others have, and not as this one did.
            let wait = outcome.expected_wait.map(|wait| wait.hours * 3600.0);
            let own = || match outcome.state {
                TrialState::Completed if billed > 0.0 => (wall - billed).max(0.0),
                _ => 0.0,
            };
            let once = paid_once + wait.unwrap_or_else(own);
            FullRun {
                hours: (full + once) / 3600.0,
                hours_once: once / 3600.0,
                billed_hours: (full + paid_once) / 3600.0,
                billed_share: 1.0,
            }
        }
        // Interruptions, lost work and waiting recur: they scale with the run, and so does the
        // saving.
        PurchaseOption::Spot => {
            let productive = real(tokens.trial) / goodput;
            FullRun {
                hours: full * (wall / productive).max(1.0) / 3600.0,
                hours_once: 0.0,
                billed_hours: full * (billed / productive) / 3600.0,
                billed_share: billed / productive,
            }
        }
    }
}

fn project(
    evidence: Evidence<'_>,
    around: FullRunOverhead,
    objective: &ObjectiveSpec,
    tokens: Tokens,
) -> Result<(Ranked, FullRun), Unranked> {
    let Evidence {
        outcome,
        speed,
        price,
    } = evidence;
    let unknown = || {
        (
            "not enough evidence: no positive speed was measured".to_owned(),
            None,
        )
    };
    let FullRunOverhead { share, paid_once } = around;
    let goodput = speed.mean * share.unwrap_or(1.0);
    let run = full_run(evidence, goodput, paid_once, tokens);
    let FullRun {
        hours,
        billed_hours,
        billed_share,
        ..
    } = run;
    let count = outcome.instance_count;
    let at = |rate: Usd| Usd::from_f64(rate.as_f64() * f64::from(count) * billed_hours);
    let per_million =
        cost::usd_per_million_tokens(price.usd_per_hour, count, goodput, billed_share);
    let projected = at(price.usd_per_hour).ok_or_else(unknown)?;
    let row = Ranked {
        rank: 0,
        trial_id: outcome.trial_id,
        candidate: outcome.candidate.clone(),
        instance_type: outcome.instance_type.clone(),
        instance_count: count,
        purchase_option: outcome.purchase_option,
        tokens_per_second: speed.mean,
        tokens_per_second_half_width: speed.half_width,
        stepping_share: share,
        usd_per_million_tokens: per_million.ok_or_else(unknown)?,
        projected_tokens: Some(tokens.total),
        projected_hours: hours,
        waiting_hours: match outcome.purchase_option {
            PurchaseOption::OnDemand => Some(hours - billed_hours),
            PurchaseOption::Spot => None,
        },
        projected_cost_usd: projected,
        projected_cost_usd_max: at(price.ceiling()).ok_or_else(unknown)?,
        price: format!(
            "${}/h {}",
            price.usd_per_hour.0.round_dp(4).normalize(),
            price.label()
        ),
        price_status: price.status,
        saves_usd: None,
        return_on_trials: None,
        pareto: false,
        feasible: objective
            .full_run_budget_usd
            .is_none_or(|budget| projected <= budget)
            && objective
                .full_run_deadline_hours
                .is_none_or(|deadline| hours <= deadline),
        odds: None,
    };
    Ok((row, run))
}

/// P(limits hold) that a purchase needs.
const LIMITS_HOLD: f64 = 0.95;
/// Expected regret that a purchase may have, as a share of the cost.
const REGRET_MAX: f64 = 0.01;

/// Those that keep to the limits first, then by the objective as projected; where none can keep to them, the closest
/// first.
fn order(choices: &mut [(Ranked, Odds)], objective: &ObjectiveSpec) {
    let front: Vec<bool> = choices
        .iter()
        .map(|(row, _)| !choices.iter().any(|(other, _)| dominates(other, row)))
        .collect();
    for ((row, odds), pareto) in choices.iter_mut().zip(front) {
        row.pareto = pareto;
        row.odds = Some(run_odds(odds));
    }
    // Where nobody keeps to the limits for certain, the likelier one comes first.
    let limits = |odds: &Odds| odds.within_limits.min(LIMITS_HOLD);
    choices.sort_by(|(a, left), (b, right)| {
        let by_limits = if hopeless(left) && hopeless(right) {
            beyond(a, objective).total_cmp(&beyond(b, objective))
        } else {
            limits(right).total_cmp(&limits(left))
        };
        let by_objective = match objective.minimize {
            Minimize::Cost => a.projected_cost_usd.cmp(&b.projected_cost_usd),
            Minimize::Time => a.projected_hours.total_cmp(&b.projected_hours),
            Minimize::UsdPerMillionTokens => {
                a.usd_per_million_tokens.cmp(&b.usd_per_million_tokens)
            }
        };
        by_limits.then(by_objective)
    });
    for (rank, (row, _)) in (1..).zip(choices.iter_mut()) {
        row.rank = rank;
    }
}

fn run_odds(odds: &Odds) -> RunOdds {
    let usd = |usd: f64| Usd::from_f64(usd).unwrap_or(Usd::ZERO);
    RunOdds {
        hours_low: odds.hours.low,
        hours_high: odds.hours.high,
        cost_usd_low: usd(odds.usd.low),
        cost_usd_high: usd(odds.usd.high),
        p_best: odds.best,
        p_pareto: Some(odds.pareto),
        p_within_budget: odds.within_budget,
        p_within_deadline: odds.within_deadline,
        expected_regret_percent: 100.0 * odds.regret,
        p_worse_by_5_percent: odds.wrong,
    }
}

/// Whether it keeps to the limits only by luck.
fn hopeless(odds: &Odds) -> bool {
    odds.within_limits < 1.0 - LIMITS_HOLD
}

/// How far a full run goes beyond the limits: the larger of its shares of budget and deadline.
fn beyond(row: &Ranked, objective: &ObjectiveSpec) -> f64 {
    let budget = objective.full_run_budget_usd.map(Usd::as_f64);
    let of_budget = budget.map(|budget| row.projected_cost_usd.as_f64() / budget);
    let of_deadline = objective
        .full_run_deadline_hours
        .map(|deadline| row.projected_hours / deadline);
    let shares = [of_budget, of_deadline].into_iter().flatten();
    shares.fold(0.0, f64::max)
}

fn conclude(choices: &[(Ranked, Odds)], rivals: &[(usize, Odds)]) -> Conclusion {
    let Some((first, odds)) = choices.first() else {
        return Conclusion::NotEnoughEvidence;
    };
    if hopeless(odds) {
        // Hopeless ones come last: if the first is, every measured one is.
        let all = rivals.iter().all(|(_, odds)| hopeless(odds));
        return if all {
            Conclusion::Infeasible
        } else {
            Conclusion::NotEnoughEvidence
        };
    }
    let is_compared = choices.len() + rivals.len() > 1;
    // What one spot run saved and how often it was interrupted says little of the next.
    let is_known = first.purchase_option == PurchaseOption::OnDemand;
    // Whoever doubts it can measure once more: what that costs of the run may be lost as well.
    let figure_hours = FIGURE_HOURS + Overhead::assumed(0.0).seconds / 3600.0;
    let next_figure = (figure_hours / first.projected_hours).min(WRONG_BUY);
    let holds = odds.within_limits >= LIMITS_HOLD
        && odds.regret <= REGRET_MAX.max(next_figure)
        && odds.wrong <= WRONG_MAX;
    if is_compared && is_known && holds {
        Conclusion::Clear
    } else {
        Conclusion::Leading
    }
}

fn dominates(a: &Ranked, b: &Ranked) -> bool {
    let cheaper = a.projected_cost_usd.cmp(&b.projected_cost_usd);
    let faster = a.projected_hours.total_cmp(&b.projected_hours);
    cheaper.is_le() && faster.is_le() && (cheaper.is_lt() || faster.is_lt())
}

#[cfg(test)]
mod tests;

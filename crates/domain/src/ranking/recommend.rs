//! The recommendation: comparable trials, projected to the full run, ranked by the objective within
//! its limits. Every figure says whether it is measured or projected; every trial that is not
//! ranked has a reason. "Not enough evidence" is a valid answer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::finding::Finding;
use crate::ids::TrialId;
use crate::lifecycle::state::TrialState;
use crate::measure::steady::Steady;
use crate::money::price::{Price, PriceStatus};
use crate::money::{Usd, cost};
use crate::spec::{Minimize, ObjectiveSpec, PurchaseOption};

/// The outcome of one trial: the row of the comparison table that ranking needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub trial_id: TrialId,
    pub candidate: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    pub state: TrialState,
    pub reason: Option<String>,
    /// Findings that refuse the candidate.
    pub refusals: Vec<Finding>,
    /// Why it may not be ranked with the others.
    pub incomparable: Option<Finding>,
    pub price: Option<Price>,
    pub tokens_per_second: Option<Steady>,
    /// TrainingTimeInSeconds and BillableTimeInSeconds, summed over attempts.
    pub training_seconds: u64,
    pub billable_seconds: u64,
    /// From creation to end over all attempts, including waiting.
    pub wall_seconds: u64,
}

/// The workload's token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    pub trial: u64,
    pub total: u64,
}

/// How conclusive the evidence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// The first is better than the second by more than 2 % beyond their intervals, at any price
    /// the estimates allow.
    Clear,
    /// The first leads, but not by enough: the intervals (of speed, or of an estimated price) plus
    /// 2 % still overlap.
    Leading,
    /// No candidate stays within the full run's budget and deadline.
    Infeasible,
    NotEnoughEvidence,
}

/// One ranked candidate. Projections are for the workload's `total_tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    pub rank: u32,
    pub trial_id: TrialId,
    pub candidate: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    /// Measured.
    pub tokens_per_second: f64,
    /// Measured: half width of the 95 % interval.
    pub tokens_per_second_half_width: f64,
    /// Measured speed × the price named.
    pub usd_per_million_tokens: Usd,
    /// Projected.
    pub projected_hours: f64,
    /// Projected.
    pub projected_cost_usd: Usd,
    /// Projected at the highest price that the estimate allows; equal to `projected_cost_usd` for a
    /// known price.
    pub projected_cost_usd_max: Usd,
    pub price: String,
    pub price_status: PriceStatus,
    /// On the Pareto front of cost against time: no other candidate dominates it.
    pub pareto: bool,
    /// Stays within the full run's budget and deadline.
    pub feasible: bool,
}

/// A trial that is not ranked, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRanked {
    pub trial_id: TrialId,
    pub candidate: String,
    pub instance_type: String,
    pub purchase_option: PurchaseOption,
    pub reason: String,
    /// What to change.
    pub fix: Option<String>,
}

/// Which instance to buy, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    pub conclusion: Conclusion,
    /// One sentence.
    pub headline: String,
    pub reasons: Vec<String>,
    pub ranked: Vec<Ranked>,
    pub not_ranked: Vec<NotRanked>,
    /// What is measured and what is not.
    pub basis: Vec<String>,
    /// True while trials are still running.
    pub provisional: bool,
}

impl Recommendation {
    /// The recommended candidate: only of a clear conclusion.
    pub fn winner(&self) -> Option<&str> {
        let first = self.ranked.first()?;
        (self.conclusion == Conclusion::Clear).then_some(first.candidate.as_str())
    }

    /// Whether another recommendation from the same evidence differs: in its conclusion, its order,
    /// a cost, or the number of trials not ranked.
    pub fn differs(&self, other: &Self) -> bool {
        let key = |one: &Self| {
            let rows = one
                .ranked
                .iter()
                .map(|row| (row.trial_id, row.projected_cost_usd));
            (
                one.conclusion,
                rows.collect::<Vec<_>>(),
                one.not_ranked.len(),
            )
        };
        key(self) != key(other)
    }
}

/// Ranks the outcomes of one experiment.
pub fn recommend(
    outcomes: &[Outcome],
    objective: &ObjectiveSpec,
    tokens: Tokens,
) -> Recommendation {
    let mut ranked: Vec<Ranked> = Vec::new();
    let mut not_ranked: Vec<NotRanked> = Vec::new();
    for outcome in outcomes {
        match rankable(outcome).and_then(|evidence| project(evidence, objective, tokens)) {
            Ok(row) => ranked.push(row),
            Err((reason, fix)) => not_ranked.push(NotRanked {
                trial_id: outcome.trial_id,
                candidate: outcome.candidate.clone(),
                instance_type: outcome.instance_type.clone(),
                purchase_option: outcome.purchase_option,
                reason,
                fix,
            }),
        }
    }
    order(&mut ranked, objective.minimize);
    let conclusion = conclude(&ranked, objective.minimize);
    Recommendation {
        conclusion,
        headline: headline(conclusion, &ranked, objective),
        reasons: reasons(
            &ranked,
            objective.minimize,
            conclusion == Conclusion::Leading,
        ),
        basis: basis(outcomes, &ranked, tokens),
        provisional: outcomes.iter().any(|outcome| !outcome.state.is_terminal()),
        ranked,
        not_ranked,
    }
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
        let reasons: Vec<&str> = outcome
            .refusals
            .iter()
            .map(|finding| finding.message.as_str())
            .collect();
        let fixes: Vec<&str> = outcome
            .refusals
            .iter()
            .map(|finding| finding.fix.as_str())
            .collect();
        let reason = if reasons.is_empty() {
            reason_of(outcome).to_owned()
        } else {
            reasons.join("; ")
        };
        return Err((
            format!("refused: {reason}"),
            (!fixes.is_empty()).then(|| fixes.join("; ")),
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
        let fix = "let the trial run longer, and check the metric definition for tokens per second";
        return Err((
            "not enough evidence: too few steady-state readings of tokens per second".to_owned(),
            Some(fix.to_owned()),
        ));
    };
    Ok(Evidence {
        outcome,
        speed,
        price,
    })
}

/// The full run, projected from the trial.
struct FullRun {
    hours: f64,
    billed_hours: f64,
    /// Billed time over productive time.
    billed_share: f64,
}

#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "token and second counts lie far below 2^53"
)]
fn full_run(evidence: Evidence<'_>, tokens: Tokens) -> Result<FullRun, Unranked> {
    let Evidence { outcome, speed, .. } = evidence;
    let productive = tokens.trial as f64 / speed.mean;
    let full = tokens.total as f64 / speed.mean;
    let training = outcome.training_seconds as f64;
    let wall = outcome.wall_seconds as f64;
    let finished = outcome.state == TrialState::Completed && training > 0.0;
    Ok(match outcome.purchase_option {
        // Start-up, download and upload are paid once, however long the run is.
        PurchaseOption::OnDemand if finished => {
            let paid_once = (training - productive).max(0.0);
            let waited_once = (wall - productive).max(0.0);
            FullRun {
                hours: (full + waited_once) / 3600.0,
                billed_hours: (full + paid_once) / 3600.0,
                billed_share: 1.0,
            }
        }
        // Interruptions, lost work and waiting recur: they scale with the run, and so does the
        // saving.
        PurchaseOption::Spot if finished && productive > 0.0 => {
            let billed = outcome.billable_seconds as f64;
            FullRun {
                hours: full * (wall / productive).max(1.0) / 3600.0,
                billed_hours: full * (billed / productive) / 3600.0,
                billed_share: billed / productive,
            }
        }
        PurchaseOption::Spot => {
            let fix =
                "let the spot trial finish: its savings are measured, never assumed".to_owned();
            return Err((
                "not enough evidence: no billed spot run yet".to_owned(),
                Some(fix),
            ));
        }
        PurchaseOption::OnDemand => FullRun {
            hours: full / 3600.0,
            billed_hours: full / 3600.0,
            billed_share: 1.0,
        },
    })
}

fn project(
    evidence: Evidence<'_>,
    objective: &ObjectiveSpec,
    tokens: Tokens,
) -> Result<Ranked, Unranked> {
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
    let FullRun {
        hours,
        billed_hours,
        billed_share,
    } = full_run(evidence, tokens)?;
    let count = outcome.instance_count;
    let at = |rate: Usd| Usd::from_f64(rate.as_f64() * f64::from(count) * billed_hours);
    let per_million =
        cost::usd_per_million_tokens(price.usd_per_hour, count, speed.mean, billed_share);
    let projected = at(price.usd_per_hour).ok_or_else(unknown)?;
    Ok(Ranked {
        rank: 0,
        trial_id: outcome.trial_id,
        candidate: outcome.candidate.clone(),
        instance_type: outcome.instance_type.clone(),
        instance_count: count,
        purchase_option: outcome.purchase_option,
        tokens_per_second: speed.mean,
        tokens_per_second_half_width: speed.half_width,
        usd_per_million_tokens: per_million.ok_or_else(unknown)?,
        projected_hours: hours,
        projected_cost_usd: projected,
        projected_cost_usd_max: at(price.ceiling()).ok_or_else(unknown)?,
        price: format!(
            "${}/h {}",
            price.usd_per_hour.0.round_dp(4).normalize(),
            price.label()
        ),
        price_status: price.status,
        pareto: false,
        feasible: objective
            .full_run_budget_usd
            .is_none_or(|budget| projected <= budget)
            && objective
                .full_run_deadline_hours
                .is_none_or(|deadline| hours <= deadline),
    })
}

fn order(ranked: &mut [Ranked], minimize: Minimize) {
    ranked.sort_by(|a, b| {
        let by_cost = a.projected_cost_usd.cmp(&b.projected_cost_usd);
        let by_time = a.projected_hours.total_cmp(&b.projected_hours);
        let by_objective = match minimize {
            Minimize::Cost => by_cost.then(by_time),
            Minimize::Time => by_time.then(by_cost),
        };
        b.feasible.cmp(&a.feasible).then(by_objective)
    });
    let front: Vec<bool> = ranked
        .iter()
        .map(|row| !ranked.iter().any(|other| dominates(other, row)))
        .collect();
    for ((rank, row), pareto) in (1..).zip(ranked.iter_mut()).zip(front) {
        row.rank = rank;
        row.pareto = pareto;
    }
}

fn dominates(a: &Ranked, b: &Ranked) -> bool {
    let cheaper = a.projected_cost_usd.cmp(&b.projected_cost_usd);
    let faster = a.projected_hours.total_cmp(&b.projected_hours);
    cheaper.is_le() && faster.is_le() && (cheaper.is_lt() || faster.is_lt())
}

/// Differences below this share do not decide: one trial each cannot tell them from start-up luck.
const INDIFFERENCE: f64 = 0.02;

/// The lowest and highest plausible values of the objective, from the speed interval and the price
/// bounds together.
fn interval(row: &Ranked, minimize: Minimize) -> (f64, f64) {
    let spread = row.tokens_per_second_half_width / row.tokens_per_second;
    match minimize {
        Minimize::Cost => {
            let high = row.projected_cost_usd_max.as_f64() * (1.0 + spread);
            (row.projected_cost_usd.as_f64() * (1.0 - spread), high)
        }
        Minimize::Time => (
            row.projected_hours * (1.0 - spread),
            row.projected_hours * (1.0 + spread),
        ),
    }
}

/// Whether `row` is a different choice, not a repeat of the same one.
fn is_other(first: &Ranked, row: &Ranked) -> bool {
    (&first.candidate, first.purchase_option) != (&row.candidate, row.purchase_option)
}

fn conclude(ranked: &[Ranked], minimize: Minimize) -> Conclusion {
    let first = ranked.iter().find(|row| row.feasible);
    let second = first.and_then(|first| {
        ranked
            .iter()
            .find(|row| row.feasible && is_other(first, row))
    });
    match (ranked.is_empty(), first, second) {
        (true, ..) => Conclusion::NotEnoughEvidence,
        (false, None, _) => Conclusion::Infeasible,
        (false, Some(_), None) => Conclusion::Clear,
        (false, Some(first), Some(second)) => {
            let clear =
                interval(first, minimize).1 * (1.0 + INDIFFERENCE) < interval(second, minimize).0;
            if clear {
                Conclusion::Clear
            } else {
                Conclusion::Leading
            }
        }
    }
}

fn name(row: &Ranked) -> String {
    let purchase = match row.purchase_option {
        PurchaseOption::OnDemand => "on demand",
        PurchaseOption::Spot => "spot",
    };
    format!("{} {purchase} ({})", row.instance_type, row.candidate)
}

fn headline(conclusion: Conclusion, ranked: &[Ranked], objective: &ObjectiveSpec) -> String {
    let what = match objective.minimize {
        Minimize::Cost => "cheapest",
        Minimize::Time => "fastest",
    };
    match (conclusion, ranked.first()) {
        (Conclusion::Clear | Conclusion::Leading, Some(first)) => {
            let verb = if conclusion == Conclusion::Clear {
                "Buy"
            } else {
                "Lean towards"
            };
            format!(
                "{verb} {}: the {what} comparable full run, {} in {:.1} h (projected).",
                name(first),
                first.projected_cost_usd,
                first.projected_hours
            )
        }
        (Conclusion::Infeasible, Some(first)) => format!(
            "No candidate meets the full run's limits; the closest is {}, {} in {:.1} h (projected).",
            name(first),
            first.projected_cost_usd,
            first.projected_hours
        ),
        _ => "Not enough evidence to recommend an instance.".to_owned(),
    }
}

fn reasons(ranked: &[Ranked], minimize: Minimize, close: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    let Some(first) = ranked.first() else {
        return reasons;
    };
    reasons.push(format!(
        "{}: {:.0} ± {:.0} tokens/s measured, {} per million tokens at {}",
        name(first),
        first.tokens_per_second,
        first.tokens_per_second_half_width,
        precise(first.usd_per_million_tokens),
        first.price
    ));
    if let Some(second) = ranked.iter().find(|row| is_other(first, row)) {
        let equal = if close {
            "; too close to call: the intervals overlap or are within 2 %"
        } else {
            ""
        };
        reasons.push(format!(
            "runner-up {}: {:.2} × the cost and {:.2} × the hours{equal}",
            name(second),
            second.projected_cost_usd.as_f64() / first.projected_cost_usd.as_f64(),
            second.projected_hours / first.projected_hours
        ));
    }
    let other = |a: &&Ranked, b: &&Ranked| match minimize {
        Minimize::Cost => a.projected_hours.total_cmp(&b.projected_hours),
        Minimize::Time => a.projected_cost_usd.cmp(&b.projected_cost_usd),
    };
    if let Some(best) = ranked.iter().filter(|row| row.feasible).min_by(other)
        && best.trial_id != first.trial_id
    {
        let what = match minimize {
            Minimize::Cost => "fastest",
            Minimize::Time => "cheapest",
        };
        reasons.push(format!(
            "{what} is {}: {} in {:.1} h (projected)",
            name(best),
            best.projected_cost_usd,
            best.projected_hours
        ));
    }
    for row in ranked.iter().filter(|row| {
        !matches!(
            row.price_status,
            PriceStatus::Listed | PriceStatus::AssumedSameAs
        )
    }) {
        let bound = if row.projected_cost_usd_max > row.projected_cost_usd {
            format!(
                ", up to {} at the estimate's bound",
                row.projected_cost_usd_max
            )
        } else {
            String::new()
        };
        reasons.push(format!(
            "the price of {} is {}{bound}",
            row.instance_type,
            row.price_status.as_str()
        ));
    }
    reasons
}

fn precise(amount: Usd) -> String {
    format!("${:.4}", amount.0)
}

fn basis(outcomes: &[Outcome], ranked: &[Ranked], tokens: Tokens) -> Vec<String> {
    let trials = ranked.len();
    let mut basis = vec![
        format!(
            "measured: tokens per second and billed seconds, from one trial of {} tokens each ({trials} ranked)",
            tokens.trial
        ),
        format!(
            "projected: hours and cost of the full run of {} tokens, at steady speed",
            tokens.total
        ),
    ];
    if outcomes
        .iter()
        .any(|outcome| outcome.purchase_option == PurchaseOption::Spot)
    {
        basis.push(
            "observed once: spot interruptions and savings; another run may differ".to_owned(),
        );
    }
    basis.push("not measured: final loss of the full run".to_owned());
    basis
}

#[cfg(test)]
mod tests;

//! The recommendation in words. It decides nothing.

use crate::lifecycle::state::TrialState;
use crate::money::Usd;
use crate::money::price::PriceStatus;
use crate::number::real;
use crate::ranking::headline::{name, on_spot, percent, superlative};
use crate::ranking::outcome::{Outcome, Reached, Target, Tokens};
use crate::ranking::recommendation::{Conclusion, NotRanked, Ranked, RunOdds, Spend};
use crate::ranking::spend::{self, AnswerWorth};
use crate::spec::{Minimize, ObjectiveSpec, PurchaseOption};

/// The conclusion where a trial has the model already.
pub(super) fn reached(outcome: &Outcome, reached: Reached, target: Target) -> String {
    let Outcome {
        trial_id,
        candidate,
        instance_type,
        ..
    } = outcome;
    let name = target.name();
    let what = if outcome.state == TrialState::Completed {
        "the output"
    } else {
        "the newest checkpoint"
    };
    let cost = reached
        .usd
        .map_or_else(String::new, |usd| format!(" and {usd}"));
    format!(
        "Reached: {name}, on {instance_type} ({candidate}) after {}{cost}. Its model is {what} of {trial_id}. Nothing is left to buy to reach {name}.",
        tokens_told(reached.tokens)
    )
}

/// After the headline: how sure it is, what it cost and what was left out, what is missing for a purchase; then the details
/// that the conclusion rests on.
pub(super) fn reasons(
    conclusion: Conclusion,
    ranked: &[Ranked],
    not_ranked: &[NotRanked],
    objective: &ObjectiveSpec,
    cost: &Spend,
) -> Vec<String> {
    let minimize = objective.minimize;
    let mut reasons = Vec::new();
    let Some(first) = ranked.first() else {
        reasons.extend(spend(cost, ranked, not_ranked));
        let why = not_ranked.iter().take(NAMES);
        reasons.extend(why.map(|row| format!("{}: {}", row.candidate, row.reason)));
        return reasons;
    };
    // Where a trial has the model, no run is left to buy.
    if let (Some(odds), true) = (&first.odds, conclusion != Conclusion::Reached) {
        reasons.push(chances(first, odds, conclusion, minimize));
    }
    reasons.extend(spend(cost, ranked, not_ranked));
    if conclusion == Conclusion::Leading {
        reasons.extend(missing(first, ranked, not_ranked, minimize));
    }
    reasons.push(format!(
        "{}: {:.0} ± {:.0} tokens/s measured, {} per million tokens at {}",
        name(first),
        first.tokens_per_second,
        first.tokens_per_second_half_width,
        precise(first.usd_per_million_tokens),
        first.price
    ));
    if let Some(second) = ranked.get(1) {
        reasons.push(runner_up(first, second, minimize));
    }
    let other = |a: &&Ranked, b: &&Ranked| match minimize {
        Minimize::Cost | Minimize::UsdPerMillionTokens => {
            a.projected_hours.total_cmp(&b.projected_hours)
        }
        Minimize::Time => a.projected_cost_usd.cmp(&b.projected_cost_usd),
    };
    if let Some(best) = ranked.iter().filter(|row| row.feasible).min_by(other)
        && best.trial_id != first.trial_id
    {
        let what = match minimize {
            Minimize::Cost | Minimize::UsdPerMillionTokens => "fastest",
            Minimize::Time => "cheapest",
        };
        // One that breaks a limit may be faster, or cheaper.
        let within = if ranked.iter().all(|row| row.feasible) {
            ""
        } else {
            " within the limits"
        };
        reasons.push(format!(
            "{what}{within} is {}: {} in {:.1} h (projected)",
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

/// The second, and what would have to change for it to be as good as the first.
fn runner_up(first: &Ranked, second: &Ranked, minimize: Minimize) -> String {
    let cost = second.projected_cost_usd.as_f64() / first.projected_cost_usd.as_f64();
    let hours = second.projected_hours / first.projected_hours;
    let (what, worse) = match minimize {
        Minimize::Cost => ("price", cost),
        Minimize::UsdPerMillionTokens => (
            "price",
            second.usd_per_million_tokens.as_f64() / first.usd_per_million_tokens.as_f64(),
        ),
        Minimize::Time => ("time per step", hours),
    };
    // No price mends a limit that is broken.
    let turns = if worse > 1.0 && second.feasible {
        format!(
            "; it would tie only if its {what} fell by {:.0} %, or the first's rose by {:.0} %",
            100.0 * (1.0 - 1.0 / worse),
            100.0 * (worse - 1.0)
        )
    } else {
        String::new()
    };
    format!(
        "runner-up {}: {cost:.2} × the cost and {hours:.2} × the hours{turns}",
        name(second)
    )
}

/// The odds of the first, in words.
fn chances(first: &Ranked, odds: &RunOdds, conclusion: Conclusion, minimize: Minimize) -> String {
    let limits = [
        (odds.p_within_budget, "within the budget"),
        (odds.p_within_deadline, "within the deadline"),
    ];
    let limits = limits
        .into_iter()
        .filter_map(|(p, what)| Some(format!(", {} to stay {what}", percent(p?))));
    let limits = limits.collect::<String>();
    // Of what keeps to no limit, nothing is the best.
    let likely = if conclusion == Conclusion::Infeasible {
        limits.trim_start_matches(", ").to_owned()
    } else {
        format!(
            "{} likely to be the {}, {} to be more than 5 % worse than the best{limits}",
            percent(odds.p_best),
            superlative(minimize),
            percent(odds.p_worse_by_5_percent),
        )
    };
    format!(
        "{}: {likely}; expect {} to {} and {:.1} to {:.1} h (90 %)",
        name(first),
        odds.cost_usd_low,
        odds.cost_usd_high,
        odds.hours_low,
        odds.hours_high
    )
}

/// P below which a rival is not worth a sentence.
const RIVAL: f64 = 0.05;

/// Why the first is only leaned towards, and what would settle it.
fn missing(
    first: &Ranked,
    ranked: &[Ranked],
    not_ranked: &[NotRanked],
    minimize: Minimize,
) -> Vec<String> {
    let best = superlative(minimize);
    let mut all = Vec::new();
    let is_alone = ranked.len() == 1 && not_ranked.iter().all(|row| row.odds.is_none());
    if is_alone {
        all.push("it was compared with no other choice: add a candidate".to_owned());
    }
    if first.purchase_option == PurchaseOption::Spot {
        all.push(
            "one spot run says little of the interruptions and savings of the next: repeat it, or buy on demand"
                .to_owned(),
        );
    }
    let rivals = not_ranked.iter().filter_map(|row| {
        let odds = row.odds.as_ref().filter(|odds| odds.p_best >= RIVAL)?;
        Some(format!(
            "{}{} ({}) has not been measured, and is {} likely to be the {best}: predicted {} to {} in {:.1} to {:.1} h; measure it to settle this",
            row.instance_type,
            on_spot(row.purchase_option),
            row.candidate,
            percent(odds.p_best),
            odds.cost_usd_low,
            odds.cost_usd_high,
            odds.hours_low,
            odds.hours_high
        ))
    });
    all.extend(rivals);
    let close = ranked.iter().skip(1).filter_map(|row| {
        let odds = row.odds.as_ref().filter(|odds| odds.p_best >= RIVAL)?;
        Some(format!(
            "{} is {} likely to be the {best}: repeats of both, or a confirmed price where one is estimated, would narrow this",
            name(row),
            percent(odds.p_best)
        ))
    });
    all.extend(close);
    all
}

/// Names of what was left out that are said; the others are counted.
const NAMES: usize = 4;

/// `; left out: p6 and p5en`, each choice once.
fn left_out(ranked: &[Ranked], not_ranked: &[NotRanked]) -> String {
    let mut names: Vec<String> = Vec::new();
    for row in not_ranked {
        let option = on_spot(row.purchase_option);
        let is_ranked = ranked.iter().any(|one| {
            one.candidate == row.candidate && one.purchase_option == row.purchase_option
        });
        let name = format!("{}{option}", row.candidate);
        if !is_ranked && !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(NAMES);
    names.truncate(NAMES);
    match (names.split_last(), more) {
        (None, _) => String::new(),
        (Some((last, [])), 0) => format!("; left out: {last}"),
        (Some((last, others)), 0) => format!("; left out: {} and {last}", others.join(", ")),
        (Some(_), more) => format!("; left out: {} and {more} more", names.join(", ")),
    }
}

/// What the answer has cost, and what was left out; nothing before anything has been spent.
fn spend(spend: &Spend, ranked: &[Ranked], not_ranked: &[NotRanked]) -> Option<String> {
    if spend.usd <= Usd::ZERO {
        return None;
    }
    let saved = spend.full_usd.filter(|full| *full > spend.usd);
    let full = saved.map_or_else(String::new, |full| {
        let ends = spend.full_usd_90.filter(|[low, high]| low < high);
        let ends = ends.map_or_else(String::new, |[low, high]| {
            format!(", 90 %: {low} to {high}")
        });
        format!("; running every trial to its end would have cost about {full} (estimated{ends})")
    });
    let losers = if ranked.is_empty() || spend.losers_usd <= Usd::ZERO {
        String::new()
    } else {
        format!(", {} of it on other choices", spend.losers_usd)
    };
    let left_out = left_out(ranked, not_ranked);
    Some(format!(
        "this answer has cost {}{losers}{full}{left_out}",
        spend.usd
    ))
}

/// What the answer saves against buying by prediction, where that can be told.
pub(super) fn worth(
    outcomes: &[Outcome],
    ranked: &[Ranked],
    spend: &Spend,
    tokens: Tokens,
) -> Option<String> {
    let AnswerWorth {
        unmeasured,
        saved,
        break_even_tokens,
    } = spend::worth(outcomes, ranked, spend, tokens)?;
    Some(if saved <= Usd::ZERO {
        format!(
            "the predictions already favoured {unmeasured}; measuring confirmed it and did not change the choice"
        )
    } else {
        format!(
            "the predictions alone would have bought {unmeasured}: measuring saves {saved} of a full run (projected), which pays for the other choices from {} on",
            tokens_told(break_even_tokens)
        )
    })
}

/// `3.50 billion tokens`, `40 million tokens`, `1.2 million tokens`, `400 thousand tokens`.
pub(super) fn tokens_told(tokens: f64) -> String {
    if tokens >= 999.5e6 {
        format!("{:.2} billion tokens", tokens / 1e9)
    } else if tokens >= 9.95e6 {
        format!("{:.0} million tokens", tokens / 1e6)
    } else if tokens >= 999.5e3 {
        format!("{:.1} million tokens", tokens / 1e6)
    } else if tokens >= 999.5 {
        format!("{:.0} thousand tokens", tokens / 1e3)
    } else {
        format!("{tokens:.0} tokens")
    }
}

fn precise(amount: Usd) -> String {
    format!("${:.4}", amount.0)
}

/// What the projection of the first row counts of the time between steps.
fn pauses(ranked: &[Ranked]) -> String {
    match ranked.first().and_then(|row| row.stepping_share) {
        Some(share) => format!(
            "which assume that {:.1} % of the time is spent stepping; evaluations, checkpoints and stalls take the rest (measured from finished steps, blended with 5 ± 3 % that counts as half an hour)",
            100.0 * share
        ),
        None => {
            "at the steady speed: what evaluations and checkpoints take is not known apart from it"
                .to_owned()
        }
    }
}

/// What the hours count of the wait for a start; a measured spot run's hours hold its own waits.
fn waits(outcomes: &[Outcome]) -> Option<String> {
    let is_counted = |one: &&Outcome| {
        one.purchase_option == PurchaseOption::OnDemand || one.tokens_per_second.is_none()
    };
    let counted = outcomes.iter().filter(is_counted);
    let mut all: Vec<String> = counted
        .filter_map(|one| {
            let wait = one.expected_wait.filter(|wait| wait.is_long())?;
            let option = match one.purchase_option {
                PurchaseOption::OnDemand => "",
                PurchaseOption::Spot => " spot",
            };
            Some(format!(
                "{}{option} {:.1} h ({} starts)",
                one.instance_type, wait.hours, wait.starts
            ))
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    (!all.is_empty()).then(|| {
        format!(
            "measured: hours include the wait from a job's creation to its first instance, the median of this project's earlier starts (those that never started are not counted): {}",
            all.join(", ")
        )
    })
}

/// How far the trials have come towards the loss that is projected to.
fn towards(target: Target, tokens: Tokens) -> String {
    let name = target.name();
    let of_all = format!(
        "hours and cost are those of all {} tokens, and limits are checked against those; comparable candidates need the same tokens for the loss, and in a shorter run what is spent once weighs more",
        tokens.total
    );
    match (target.reached_by, target.least) {
        (0, None) => format!("no loss was reported: {of_all}"),
        (0, Some(least)) if least <= target.loss => format!(
            "{name} was touched ({least:.4}), but it did not last or was there before the first step, so that it does not count as reached: {of_all}"
        ),
        (0, Some(least)) => {
            format!("{name} was not reached, the least is {least:.4}: {of_all}")
        }
        (count, _) => format!(
            "measured: {name} was reached after {} ({count} of {} trials, five-minute means); from run to run that differs by 6.4 % (ten repeats of MLPerf's fine-tuning). A full run is stopped there, and is planned for the upper end of what it may need. One whose learning rate follows its length has another curve in a longer run",
            tokens_told(real(tokens.total)),
            target.trials
        ),
    }
}

/// What is measured, projected and not known.
pub(super) fn basis(outcomes: &[Outcome], ranked: &[Ranked], tokens: Tokens) -> Vec<String> {
    let choices = ranked.len();
    let mut basis = vec![
        format!(
            "measured: tokens per second and billed seconds, from trials of {} tokens each ({choices} ranked)",
            tokens.trial
        ),
        format!(
            "projected: hours and cost of the full run of {} tokens, {}",
            tokens.total,
            pauses(ranked)
        ),
    ];
    basis.extend(tokens.target.map(|target| towards(target, tokens)));
    basis.extend(waits(outcomes));
    let is_spot = |one: &&Outcome| {
        one.purchase_option == PurchaseOption::Spot && one.state == TrialState::Completed
    };
    match outcomes.iter().filter(is_spot).count() {
        0 => {}
        1 => basis.push(
            "observed once: spot interruptions and savings; another run may differ".to_owned(),
        ),
        runs => basis.push(format!(
            "observed in {runs} runs: spot interruptions and savings; another run may differ"
        )),
    }
    basis.push(
        "odds: drawn from the measured speeds and their intervals, from how much machines differ (1.5 % unless repeats say otherwise), and from predictions of what has not run"
            .to_owned(),
    );
    basis.push("not measured: final loss of the full run".to_owned());
    basis
}

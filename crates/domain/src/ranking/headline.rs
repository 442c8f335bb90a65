//! The conclusion in one or two sentences, by one function of the decision. It never says more than the
//! table and the odds do: no superlative that a row contradicts, and nothing leads that is beyond its
//! limits without a word of that.

use crate::ranking::outcome::Tokens;
use crate::ranking::recommendation::{Conclusion, NotRanked, Ranked, RunOdds};
use crate::spec::{Minimize, ObjectiveSpec, PurchaseOption};

/// A choice by its type, its purchase option and its candidate.
pub(super) fn name(row: &Ranked) -> String {
    let purchase = match row.purchase_option {
        PurchaseOption::OnDemand => "on demand",
        PurchaseOption::Spot => "spot",
    };
    format!("{} {purchase} ({})", row.instance_type, row.candidate)
}

/// Says that a choice is bought as spot; on demand is the usual way, and is not said.
pub(super) fn on_spot(option: PurchaseOption) -> &'static str {
    match option {
        PurchaseOption::OnDemand => "",
        PurchaseOption::Spot => " on spot",
    }
}

/// What the best of an objective is.
pub(super) fn superlative(minimize: Minimize) -> &'static str {
    match minimize {
        Minimize::Cost => "cheapest",
        Minimize::Time => "fastest",
        Minimize::UsdPerMillionTokens => "cheapest per token",
    }
}

/// A probability as far as it is known: by draws, none is certain.
pub(super) fn percent(p: f64) -> String {
    if p < 0.01 {
        "less than 1 %".to_owned()
    } else if p > 0.99 {
        "more than 99 %".to_owned()
    } else {
        format!("{:.0} %", 100.0 * p)
    }
}

/// The row's value of what the objective minimizes: dollars, hours, or dollars per million tokens.
fn measure(row: &Ranked, minimize: Minimize) -> f64 {
    match minimize {
        Minimize::Cost => row.projected_cost_usd.as_f64(),
        Minimize::Time => row.projected_hours,
        Minimize::UsdPerMillionTokens => row.usd_per_million_tokens.as_f64(),
    }
}

/// Whether no other row of those within the limits is better than the first.
fn is_best_of_table(first: &Ranked, ranked: &[Ranked], minimize: Minimize) -> bool {
    let own = measure(first, minimize);
    let mut others = ranked.iter().skip(1).filter(|row| row.feasible);
    first.feasible && others.all(|row| measure(row, minimize) >= own)
}

/// P(the run keeps to all its limits), at most: each of them is known apart.
fn within_limits(odds: &RunOdds) -> Option<f64> {
    let limits = [odds.p_within_budget, odds.p_within_deadline];
    limits.into_iter().flatten().min_by(f64::total_cmp)
}

/// The unmeasured choice that is likelier to be the best than the first, if there is one.
fn likelier<'a>(first: &Ranked, not_ranked: &'a [NotRanked]) -> Option<(&'a NotRanked, f64)> {
    let own = first.odds.as_ref().map_or(0.0, |odds| odds.p_best);
    let rivals = not_ranked
        .iter()
        .filter_map(|row| Some((row, row.odds.as_ref()?.p_best)));
    rivals
        .filter(|(_, p)| *p > own)
        .max_by(|one, other| one.1.total_cmp(&other.1))
}

/// Left out for something that can be had, and so not counted in any odds: a price, a quota, a region.
fn left_out(not_ranked: &[NotRanked]) -> String {
    const NAMED_MAX: usize = 2;
    let removable = ["price", "quota", "region"];
    let rows = not_ranked.iter().filter(|row| {
        let is_refused =
            row.reason.starts_with("refused: ") || row.reason.contains("price is unknown");
        row.odds.is_none() && is_refused && removable.iter().any(|word| row.reason.contains(word))
    });
    let mut named: Vec<String> = Vec::new();
    for row in rows {
        let reason = row.reason.strip_prefix("refused: ").unwrap_or(&row.reason);
        let short = reason.split([':', ';']).next().unwrap_or(reason);
        let text = format!("{} ({}): {short}", row.instance_type, row.candidate);
        // Repeats are one choice.
        if !named.contains(&text) {
            named.push(text);
        }
    }
    let Some(shown) = named
        .get(..named.len().min(NAMED_MAX))
        .filter(|shown| !shown.is_empty())
    else {
        return String::new();
    };
    let more = match named.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!(" Not considered: {}{more}.", shown.join("; "))
}

/// The conclusion in words.
pub(super) fn headline(
    conclusion: Conclusion,
    ranked: &[Ranked],
    not_ranked: &[NotRanked],
    objective: &ObjectiveSpec,
    tokens: Tokens,
) -> String {
    let what = superlative(objective.minimize);
    let run = match tokens.target {
        Some(target) if target.reached_by > 0 => format!("run to {}", target.name()),
        _ => "full run".to_owned(),
    };
    let unreached = unreached(tokens);
    let left_out = left_out(not_ranked);
    let Some(first) = ranked.first() else {
        return format!("Not enough evidence to recommend an instance.{left_out}");
    };
    // A cheaper row that breaks a limit is in the table as well.
    let limits = if ranked.iter().any(|row| !row.feasible) {
        " within the limits"
    } else {
        ""
    };
    let best = match objective.minimize {
        Minimize::UsdPerMillionTokens => {
            format!("comparable {run}{limits} that is {what}")
        }
        Minimize::Cost | Minimize::Time => format!("{what} comparable {run}{limits}"),
    };
    let figures = format!(
        "{} in {:.1} h (projected)",
        first.projected_cost_usd, first.projected_hours
    );
    let said = match conclusion {
        Conclusion::Clear => bought(first, ranked, &best, &figures, objective.minimize),
        Conclusion::Leading => leaning(
            first,
            ranked,
            not_ranked,
            &best,
            &figures,
            objective.minimize,
        ),
        Conclusion::Reached => "A trial has reached the target loss.".to_owned(),
        Conclusion::Infeasible => format!(
            "No candidate meets the full run's limits; the closest is {}, {figures}.",
            name(first)
        ),
        Conclusion::NotEnoughEvidence | Conclusion::FullRun => {
            "Not enough evidence to recommend an instance.".to_owned()
        }
    };
    format!("{said}{left_out}{unreached}")
}

fn bought(
    first: &Ranked,
    ranked: &[Ranked],
    best: &str,
    figures: &str,
    minimize: Minimize,
) -> String {
    let own = name(first);
    // A purchase loses next to nothing against the best, which may still be another.
    let is_sure = first.odds.as_ref().is_none_or(|odds| odds.p_best >= SURE);
    if !is_best_of_table(first, ranked, minimize) {
        return format!("Buy {own}: {figures}, about as good as the {best}.");
    }
    if is_sure {
        return format!("Buy {own}: the {best}, {figures}.");
    }
    let is_close =
        |row: &&Ranked| row.feasible && measure(row, minimize) <= 1.05 * measure(first, minimize);
    let second = ranked.get(1).filter(is_close).map(name);
    let second = second.map_or_else(String::new, |name| format!("; {name} is about as good"));
    format!("Buy {own}: {figures}, the {best} or within 5 % of it{second}.")
}

/// The sentence about a target loss that no trial has reached.
fn unreached(tokens: Tokens) -> String {
    let target = tokens.target.filter(|target| target.reached_by == 0);
    target.map_or_else(String::new, |target| {
        let name = capitalized(&target.name());
        format!(" {name} was not reached, so this is for all tokens.")
    })
}

/// At the beginning of a sentence.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// P(best) from which the first is called the best without a word of doubt.
const SURE: f64 = 0.8;
/// By how much more another measured row must be likely to be the best, for a headline of its own: P.
const LIKELIER: f64 = 0.05;

/// Another measured row that is likelier to be the best than the first, which is ahead as projected.
fn likelier_row<'a>(first: &Ranked, ranked: &'a [Ranked]) -> Option<(&'a Ranked, f64)> {
    let own = first.odds.as_ref()?.p_best;
    let others = ranked.iter().skip(1);
    let others = others.filter_map(|row| Some((row, row.odds.as_ref()?.p_best)));
    others
        .filter(|(_, p)| *p > own + LIKELIER)
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
}

fn leaning(
    first: &Ranked,
    ranked: &[Ranked],
    not_ranked: &[NotRanked],
    best: &str,
    figures: &str,
    minimize: Minimize,
) -> String {
    let own = name(first);
    if let Some((rival, p)) = likelier(first, not_ranked) {
        return format!(
            "Probably {}{} ({}), not measured yet: {} likely to be the {best}. Of what was measured, {own} comes first: {figures}.",
            rival.instance_type,
            on_spot(rival.purchase_option),
            rival.candidate,
            percent(p)
        );
    }
    let odds = first.odds.as_ref();
    if !first.feasible {
        let within = odds.and_then(within_limits);
        let within = within.map_or_else(String::new, |p| {
            format!("; {} likely to keep to them", percent(p))
        });
        return format!(
            "No measured candidate is projected to meet the full run's limits; {own} comes closest, {figures}{within}."
        );
    }
    if let Some((other, p)) = likelier_row(first, ranked) {
        let why = if measure(first, minimize) <= measure(other, minimize) {
            "is ahead as projected"
        } else {
            "is surer to keep to the limits"
        };
        return format!(
            "Open between {own}, {figures}, and {}, {} in {:.1} h: the first {why}, the second is {} likely to be the {best}.",
            name(other),
            other.projected_cost_usd,
            other.projected_hours,
            percent(p)
        );
    }
    let likely = odds.map(|odds| percent(odds.p_best));
    match likely {
        Some(likely) if is_best_of_table(first, ranked, minimize) => {
            format!("Lean towards {own}: {likely} likely to be the {best}, {figures}.")
        }
        Some(likely) => format!(
            "Lean towards {own}: {figures}, {likely} likely to be the {best}; another is projected lower."
        ),
        None => format!("Lean towards {own}: {figures}."),
    }
}

#[cfg(test)]
mod tests;

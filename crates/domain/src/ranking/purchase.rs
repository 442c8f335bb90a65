//! Whether an answer may be bought without a person. Everything that buys asks it: a full run by API or command line,
//! and each step of a pipeline that acts on an answer. It starts nothing.

use crate::ranking::recommendation::{Conclusion, Ranked, Recommendation};
use crate::spec::PurchaseOption;

/// A row of an answer, by its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowName<'a> {
    pub candidate: &'a str,
    /// Needed only where the candidate is ranked under both.
    pub purchase_option: Option<PurchaseOption>,
}

/// Which row is to be bought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurchaseChoice<'a> {
    /// The recommended one, under any purchase option or a given one.
    First(Option<PurchaseOption>),
    /// The one that came first when it was written down: nobody has chosen it.
    Written(RowName<'a>),
    /// The one that a person has chosen.
    Named(RowName<'a>),
}

/// What is to be bought, and how sure the answer must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions<'a> {
    pub wanted: PurchaseChoice<'a>,
    /// P(best) from which a row that only leads is bought too; without it, the conclusion must be clear.
    pub at_least: Option<f64>,
}

/// What becomes of a purchase.
#[derive(Debug, Clone, PartialEq)]
pub enum Purchase<'a> {
    Bought(&'a Ranked),
    /// A person may name the row to buy.
    WaitsForPerson {
        why: String,
    },
    /// No such row can be bought, whoever asks.
    Refused {
        why: String,
    },
}

/// Whether a row may be bought now. What a person has chosen may; all else only of a final answer that is clear, or
/// leads with the probability that was asked for.
pub fn may_buy<'a>(answer: &'a Recommendation, conditions: &Conditions<'_>) -> Purchase<'a> {
    let first = match conditions.wanted {
        PurchaseChoice::Named(name) => return named(answer, name),
        PurchaseChoice::First(option) => first_under(answer, option),
        PurchaseChoice::Written(name) => {
            if let Err(why) = find(answer, name) {
                return Purchase::WaitsForPerson { why };
            }
            first_under(answer, None).filter(|row| is_row(row, name))
        }
    };
    if answer.ranked.is_empty() {
        let why = "no trial has been measured".to_owned();
        return Purchase::Refused { why };
    }
    let Some(first) = first else {
        return Purchase::WaitsForPerson {
            why: "it is not the first row of the answer any more".to_owned(),
        };
    };
    match doubt(answer, first, conditions.at_least) {
        None => Purchase::Bought(first),
        Some(why) => Purchase::WaitsForPerson { why },
    }
}

fn first_under(answer: &Recommendation, option: Option<PurchaseOption>) -> Option<&Ranked> {
    let first = answer.ranked.first();
    first.filter(|row| option.is_none_or(|option| row.purchase_option == option))
}

fn is_row(row: &Ranked, name: RowName<'_>) -> bool {
    let is_option = |option| row.purchase_option == option;
    row.candidate == name.candidate && name.purchase_option.is_none_or(is_option)
}

/// Why the first row is not bought without a person; `None` if it is.
fn doubt(answer: &Recommendation, first: &Ranked, at_least: Option<f64>) -> Option<String> {
    let headline = answer.headline.trim_end_matches('.');
    if answer.provisional {
        return Some(format!(
            "the answer is provisional, and may change once every trial is over: \"{headline}\""
        ));
    }
    match answer.conclusion {
        Conclusion::Clear => None,
        Conclusion::Leading => leads(first, at_least)
            .map(|why| format!("the answer is \"{headline}\", which recommends no purchase{why}")),
        Conclusion::Reached
        | Conclusion::Infeasible
        | Conclusion::NotEnoughEvidence
        | Conclusion::FullRun => Some(format!(
            "the answer is \"{headline}\", which recommends no purchase"
        )),
    }
}

/// What a leading row lacks; `None` if it leads as clearly as was asked.
fn leads(first: &Ranked, at_least: Option<f64>) -> Option<String> {
    let p_best = first.odds.as_ref().map(|odds| odds.p_best);
    match (at_least, p_best) {
        (Some(least), Some(p_best)) if p_best >= least => None,
        (Some(least), Some(p_best)) => Some(format!(
            ": {} is the best with P = {p_best:.2}, and at least {least} is asked for",
            first.candidate
        )),
        (Some(_), None) | (None, _) => Some(String::new()),
    }
}

fn named<'a>(answer: &'a Recommendation, name: RowName<'_>) -> Purchase<'a> {
    match find(answer, name) {
        Ok(row) => Purchase::Bought(row),
        Err(why) => Purchase::Refused { why },
    }
}

/// The row of that name, or why there is none.
pub fn find<'a>(answer: &'a Recommendation, name: RowName<'_>) -> Result<&'a Ranked, String> {
    let candidate = name.candidate;
    let mut rows = answer.ranked.iter().filter(|row| is_row(row, name));
    let row = rows.next().ok_or_else(|| {
        let all = names(answer);
        format!("{candidate} is not among the ranked candidates: {all}")
    })?;
    match rows.next() {
        Some(_) => Err(format!(
            "{candidate} is ranked on demand and on spot: name the purchase_option"
        )),
        None => Ok(row),
    }
}

/// The rows that can be named.
pub fn names(answer: &Recommendation) -> String {
    let names: Vec<String> = answer
        .ranked
        .iter()
        .map(|row| format!("{} ({})", row.candidate, row.purchase_option.as_str()))
        .collect();
    if names.is_empty() {
        "no trial has been measured".to_owned()
    } else {
        format!("measured and ranked are {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests;

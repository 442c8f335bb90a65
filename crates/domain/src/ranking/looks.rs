//! The answer as it grew: what each look at a race found, which looks are worth keeping, what changed from one to the
//! next, and the answer in brief.

use serde::{Deserialize, Serialize};

use crate::ids::TrialId;
use crate::money::Usd;
use crate::ranking::headline::name;
use crate::ranking::recommendation::{Conclusion, NotRanked, Ranked, Recommendation};
use crate::spec::PurchaseOption;

/// Looks are kept at each growth of what was spent by this share: a curve over dollars, drawn on a logarithmic axis, has
/// then about 50 points from one decade to the next.
const GROWTH: f64 = 1.05;

/// One ranked choice as it stood at a look. Projections are for its full run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    pub trial_id: TrialId,
    pub candidate: String,
    pub purchase_option: PurchaseOption,
    pub usd_per_million_tokens: Usd,
    pub projected_cost_usd: Usd,
    pub projected_hours: f64,
    /// Ends of the 90 % interval of the cost, where the odds are known.
    pub cost_usd_90: Option<[Usd; 2]>,
    /// Ends of the 90 % interval of the hours.
    pub hours_90: Option<[f64; 2]>,
    pub p_best: Option<f64>,
}

impl From<&Ranked> for Arm {
    fn from(row: &Ranked) -> Self {
        let odds = row.odds.as_ref();
        Self {
            trial_id: row.trial_id,
            candidate: row.candidate.clone(),
            purchase_option: row.purchase_option,
            usd_per_million_tokens: row.usd_per_million_tokens,
            projected_cost_usd: row.projected_cost_usd,
            projected_hours: row.projected_hours,
            cost_usd_90: odds.map(|odds| [odds.cost_usd_low, odds.cost_usd_high]),
            hours_90: odds.map(|odds| [odds.hours_low, odds.hours_high]),
            p_best: odds.map(|odds| odds.p_best),
        }
    }
}

/// What an answer says in one line of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Brief {
    pub conclusion: Conclusion,
    pub headline: String,
    pub provisional: bool,
    pub first: Option<BriefChoice>,
    pub runner_up: Option<BriefChoice>,
}

/// A ranked choice in brief.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BriefChoice {
    pub candidate: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    pub projected_cost_usd: Usd,
    pub projected_hours: f64,
    pub p_best: Option<f64>,
}

impl From<&Ranked> for BriefChoice {
    fn from(row: &Ranked) -> Self {
        Self {
            candidate: row.candidate.clone(),
            instance_type: row.instance_type.clone(),
            instance_count: row.instance_count,
            purchase_option: row.purchase_option,
            projected_cost_usd: row.projected_cost_usd,
            projected_hours: row.projected_hours,
            p_best: row.odds.as_ref().map(|odds| odds.p_best),
        }
    }
}

impl From<&Recommendation> for Brief {
    fn from(answer: &Recommendation) -> Self {
        Self {
            conclusion: answer.conclusion,
            headline: answer.headline.clone(),
            provisional: answer.provisional,
            first: answer.ranked.first().map(Into::into),
            runner_up: answer.ranked.get(1).map(Into::into),
        }
    }
}

/// A look that was kept, as far as the next one is held against it.
#[derive(Debug, Clone, PartialEq)]
pub struct LastLook {
    pub spent_usd: Usd,
    /// The newest answer that differed from the one before it.
    pub answer: Recommendation,
}

/// What to keep of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Nothing,
    /// How the choices stand.
    Arms,
    /// The whole answer, too: it is another one.
    Answer,
}

/// Dollars spent so far on the trials behind an answer; zero in answers from before this was counted.
pub fn spent(answer: &Recommendation) -> Usd {
    answer.spend.as_ref().map_or(Usd::ZERO, |spend| spend.usd)
}

/// Decides how much of a look to keep.
pub fn keep(last: Option<&LastLook>, now: &Recommendation) -> Keep {
    let Some(last) = last else {
        return Keep::Answer;
    };
    if !changes(&last.answer, now).is_empty() {
        return Keep::Answer;
    }
    let (before, after) = (last.spent_usd.as_f64(), spent(now).as_f64());
    if after > before && after >= before * GROWTH {
        Keep::Arms
    } else {
        Keep::Nothing
    }
}

/// A conclusion as its headline begins.
fn in_past_tense(conclusion: Conclusion) -> &'static str {
    match conclusion {
        Conclusion::Clear => "The answer was \"Buy\"",
        Conclusion::Leading => "The answer was \"Lean towards\"",
        Conclusion::Infeasible => "No candidate met the limits",
        Conclusion::NotEnoughEvidence => "There was not enough evidence",
        Conclusion::Reached => "A trial had reached the target loss",
        Conclusion::FullRun => "It was a full run",
    }
}

fn in_present_tense(conclusion: Conclusion) -> &'static str {
    match conclusion {
        Conclusion::Clear => "it is \"Buy\"",
        Conclusion::Leading => "it is \"Lean towards\"",
        Conclusion::Infeasible => "no candidate meets the limits",
        Conclusion::NotEnoughEvidence => "there is not enough evidence",
        Conclusion::Reached => "a trial has reached the target loss",
        Conclusion::FullRun => "it is a full run",
    }
}

/// What one answer says that the one before it did not, in words; empty where both say the same. Figures that only
/// became more exact are no change.
pub fn changes(before: &Recommendation, after: &Recommendation) -> Vec<String> {
    let mut said = Vec::new();
    match (before.ranked.first(), after.ranked.first()) {
        (Some(old), Some(new)) if is_same(old, new) => (),
        (Some(old), Some(new)) => said.push(format!(
            "{} is first now, at {} projected; before, it was {} at {}.",
            name(new),
            new.projected_cost_usd,
            name(old),
            old.projected_cost_usd
        )),
        (None, Some(new)) => said.push(format!(
            "{} is first, at {} projected.",
            name(new),
            new.projected_cost_usd
        )),
        (Some(old), None) => said.push(format!("{} was first; now nothing is ranked.", name(old))),
        (None, None) => (),
    }
    if before.conclusion != after.conclusion {
        said.push(format!(
            "{}; now {}.",
            in_past_tense(before.conclusion),
            in_present_tense(after.conclusion)
        ));
    }
    let was_ranked = |row: &Ranked| before.ranked.iter().any(|old| is_same(old, row));
    let first = after.ranked.first().map(|row| row.trial_id);
    let new = after.ranked.iter().filter(|row| !was_ranked(row));
    for row in new.filter(|row| Some(row.trial_id) != first) {
        said.push(format!(
            "{} is measured: {} projected.",
            name(row),
            row.projected_cost_usd
        ));
    }
    let was_out = |row: &NotRanked| {
        let mut rows = before.not_ranked.iter();
        rows.any(|old| old.trial_id == row.trial_id && old.reason == row.reason)
    };
    let is_gone = |row: &NotRanked| before.ranked.iter().any(|old| old.trial_id == row.trial_id);
    for row in after
        .not_ranked
        .iter()
        .filter(|row| is_gone(row) && !was_out(row))
    {
        said.push(format!(
            "{} is not ranked any more: {}.",
            row.candidate, row.reason
        ));
    }
    if before.provisional && !after.provisional {
        said.push("Nothing runs any more: the answer is final.".to_owned());
    }
    said
}

fn is_same(a: &Ranked, b: &Ranked) -> bool {
    a.candidate == b.candidate && a.purchase_option == b.purchase_option
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::state::TrialState;
    use crate::ranking::outcome::{Outcome, Tokens};
    use crate::ranking::recommend::recommend;
    use crate::ranking::samples::{cheapest, steady, waiting};
    use uuid::Uuid;

    /// Runs at this speed on a machine at this price.
    fn running(number: u128, candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
        Outcome {
            trial_id: TrialId(Uuid::from_u128(number)),
            state: TrialState::Running,
            tokens_per_second: Some(steady(tokens_per_second)),
            cost_usd: Usd(100.into()),
            ..waiting(candidate, usd, tokens_per_second)
        }
    }

    fn answer(outcomes: &[Outcome]) -> Recommendation {
        let tokens = Tokens {
            trial: 1_000_000,
            total: 10_000_000_000,
            target: None,
        };
        recommend(outcomes, &cheapest(), tokens)
    }

    fn last(of: &Recommendation) -> LastLook {
        LastLook {
            spent_usd: spent(of),
            answer: of.clone(),
        }
    }

    #[test]
    fn the_first_look_is_kept_whole_and_the_same_again_is_not() {
        let now = answer(&[running(1, "p5", 60, 9e4), running(2, "p4d", 30, 3e4)]);
        assert_eq!(keep(None, &now), Keep::Answer);
        assert_eq!(keep(Some(&last(&now)), &now), Keep::Nothing);
    }

    #[test]
    fn figures_that_become_more_exact_are_kept_as_dollars_are_spent() {
        let two = [running(1, "p5", 60, 9e4), running(2, "p4d", 30, 3e4)];
        let before = last(&answer(&two));
        let spend = |usd: i64| {
            let mut later = two.clone();
            for outcome in &mut later {
                outcome.cost_usd = Usd(usd.into());
            }
            keep(Some(&before), &answer(&later))
        };
        assert_eq!(spend(104), Keep::Nothing);
        assert_eq!(spend(105), Keep::Arms);
    }

    #[test]
    fn another_first_is_another_answer_and_is_told() {
        let before = answer(&[running(1, "p5", 60, 9e4), running(2, "p4d", 30, 4e4)]);
        let after = answer(&[running(1, "p5", 60, 9e4), running(2, "p4d", 30, 5e4)]);
        assert_eq!(keep(Some(&last(&before)), &after), Keep::Answer);
        let said = changes(&before, &after).join(" ");
        assert!(
            said.contains("ml.p4d on demand (p4d) is first now, at $"),
            "{said}"
        );
    }

    #[test]
    fn a_choice_that_is_measured_later_is_told() {
        let before = answer(&[running(1, "p5", 60, 9e4), waiting("g6", 30, 1e4)]);
        let after = answer(&[running(1, "p5", 60, 9e4), running(2, "g6", 30, 1e4)]);
        let said = changes(&before, &after).join(" ");
        assert!(
            said.contains("ml.g6 on demand (g6) is measured: $"),
            "{said}"
        );
    }

    #[test]
    fn a_choice_that_fails_later_is_told_with_its_reason() {
        let before = answer(&[running(1, "p5", 60, 9e4), running(2, "g6", 30, 1e4)]);
        let failed = Outcome {
            state: TrialState::Failed,
            reason: Some("out of memory".to_owned()),
            ..running(2, "g6", 30, 1e4)
        };
        let after = answer(&[running(1, "p5", 60, 9e4), failed]);
        let said = changes(&before, &after).join(" ");
        assert!(said.contains("g6 is not ranked any more: "), "{said}");
    }

    #[test]
    fn the_end_of_the_race_is_a_change() {
        let before = answer(&[running(1, "p5", 60, 9e4)]);
        let after = Recommendation {
            provisional: false,
            ..before.clone()
        };
        assert!(before.provisional);
        assert_eq!(
            changes(&before, &after),
            ["Nothing runs any more: the answer is final."]
        );
    }
}

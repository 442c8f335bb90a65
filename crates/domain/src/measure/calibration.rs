//! How good the predictions were: each is scored once its truth is measured. It scores; predicting
//! is the planner's, measuring is [`crate::measure::speed`]'s.

use std::collections::BTreeMap;

use crate::number::{median, of_items};

named! {
    /// What was predicted
    Figure {
        /// A trial's speed, by its plan.
        TokensPerSecond = "tokens_per_second",
        /// A finished trial's billed hours, by its plan.
        TrialHours = "trial_hours",
        /// A finished trial's cost, by its plan.
        TrialCostUsd = "trial_cost_usd",
        /// What was left of a finished trial at half of its steps, by the estimate then.
        RemainingHours = "remaining_hours",
        /// A full run's hours, projected from its trial.
        FullRunHours = "full_run_hours",
        /// A full run's cost, projected from its trial.
        FullRunCostUsd = "full_run_cost_usd",
    }
}

impl Figure {
    /// How often its intervals are to hold, by what they state: 0 to 100.
    pub fn stated_percent(self) -> u8 {
        match self {
            Self::RemainingHours => 95,
            Self::TokensPerSecond
            | Self::TrialHours
            | Self::TrialCostUsd
            | Self::FullRunHours
            | Self::FullRunCostUsd => 90,
        }
    }
}

/// What a prediction is counted with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    pub figure: Figure,
    pub instance_type: String,
    /// Whether measurements of the user's own code had adjusted the law.
    pub is_adjusted: bool,
}

/// A predicted figure with its interval, and what was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    pub class: Class,
    pub low: f64,
    pub expected: f64,
    pub high: f64,
    pub measured: f64,
}

/// The record of the predictions of a class.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub class: Class,
    /// Repeats of one candidate share a prediction, and are counted each.
    pub count: usize,
    /// Share of the intervals that held what was measured, 0 to 100.
    pub held_percent: f64,
    /// Median of the absolute error, per cent of what was measured.
    pub median_error_percent: f64,
    /// Median of the error with its sign: above zero, predictions are too high.
    pub bias_percent: f64,
}

/// One record for each class, in order.
pub fn records(scores: &[Score]) -> Vec<Record> {
    let mut classes: BTreeMap<&Class, Vec<&Score>> = BTreeMap::new();
    let is_known = |score: &&Score| score.measured > 0.0;
    for score in scores.iter().filter(is_known) {
        classes.entry(&score.class).or_default().push(score);
    }
    let record = |(class, scores): (&Class, Vec<&Score>)| {
        let is_held = |score: &&&Score| (score.low..=score.high).contains(&score.measured);
        let held = scores.iter().filter(is_held).count();
        let error = |score: &&Score| 100.0 * (score.expected / score.measured - 1.0);
        let errors: Vec<f64> = scores.iter().map(error).collect();
        Record {
            class: class.clone(),
            count: scores.len(),
            held_percent: 100.0 * of_items(held) / of_items(scores.len()),
            median_error_percent: median(errors.iter().map(|error| error.abs()).collect()),
            bias_percent: median(errors),
        }
    };
    classes.into_iter().map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(instance_type: &str, expected: f64, measured: f64) -> Score {
        Score {
            class: Class {
                figure: Figure::TokensPerSecond,
                instance_type: instance_type.to_owned(),
                is_adjusted: false,
            },
            low: expected * 0.8,
            expected,
            high: expected * 1.25,
            measured,
        }
    }

    #[test]
    fn each_class_has_its_own_record() {
        let scores = [
            score("a", 110.0, 100.0),
            score("a", 90.0, 100.0),
            score("a", 150.0, 100.0),
            score("b", 100.0, 100.0),
            // Nothing was measured: nothing is known.
            score("b", 100.0, 0.0),
        ];
        let found = records(&scores);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].count, found[1].count), (3, 1));
        assert!((found[0].held_percent - 200.0 / 3.0).abs() < 1e-9);
        assert!((found[0].median_error_percent - 10.0).abs() < 1e-9);
        assert!((found[0].bias_percent - 10.0).abs() < 1e-9);
        assert!((found[1].held_percent - 100.0).abs() < 1e-9);
    }

    #[test]
    fn of_nothing_there_is_no_record() {
        assert_eq!(records(&[]), []);
    }
}

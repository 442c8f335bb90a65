//! Expectations of a trial or run, and whether they are met.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An expectation of a trial or run: a column of the comparison, and a bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Expectation {
    /// In an experiment, the candidate it applies to; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
    /// A numeric column of the comparison, such as `gpu_utilization_percent`.
    pub column: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Who expects it, or why.
    #[serde(default)]
    pub note: String,
}

impl Expectation {
    pub fn verdict(&self, measured: Option<f64>) -> Verdict {
        match measured.filter(|value| value.is_finite()) {
            None => Verdict::Unknown,
            Some(value)
                if self.at_least.is_none_or(|least| value >= least)
                    && self.at_most.is_none_or(|most| value <= most) =>
            {
                Verdict::Met
            }
            Some(_) => Verdict::NotMet,
        }
    }
}

/// Whether an expectation is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ExpectationVerdict)]
pub enum Verdict {
    Met,
    NotMet,
    /// Nothing has been measured.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_without_a_measurement_is_neither_met_nor_not() {
        let least = Expectation {
            candidate: None,
            column: String::new(),
            at_least: Some(85.0),
            at_most: None,
            note: String::new(),
        };
        assert_eq!(least.verdict(None), Verdict::Unknown);
        assert_eq!(
            (least.verdict(Some(85.0)), least.verdict(Some(84.9))),
            (Verdict::Met, Verdict::NotMet)
        );
    }
}

//! External runs: training that SageMaker never saw (another cloud, a machine in the cellar),
//! compared in the same table. Their rate is what the user says; nothing here is started or
//! stopped.

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::catalog;
use crate::claim::Claims;
use crate::finding::Finding;
use crate::lint::rules::found;
use crate::model::ModelShape;
use crate::money::Usd;
use crate::spec::ProfileSpec;

const USD_PER_HOUR_MAX: u32 = 1_000_000;
const ACCELERATORS_MAX: u32 = 100_000;

/// An external run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunSpec {
    pub name: String,
    /// What it runs on, for people: `8x H100 SXM, Hyperbolic`.
    pub hardware: String,
    /// The instance type with the same accelerators, for their peak: `ml.p5.48xlarge` has eight
    /// H100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like_instance_type: Option<String>,
    pub accelerator_count: u32,
    /// USD an hour of all its machines together; its cost is unknown when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_per_hour: Option<Usd>,
    /// Where the rate comes from.
    #[serde(default)]
    pub price_source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelShape>,
    /// Sequences per optimiser step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// Optimiser steps of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_steps: Option<u64>,
    /// Tokens of one pass over the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_tokens: Option<u64>,
    /// When it began; the first point's moment when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    /// What somebody expected of it, shown beside what was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<Expectation>,
    /// How it is configured, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileSpec>,
    /// What is taken for true of its hardware, data and speed: checked by the linter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Claims>,
}

/// What somebody expects of a trial or a run: a column of the comparison, and a bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Expectation {
    /// Of an experiment: the candidate that it is about; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
    /// A column of the comparison with numbers: `gpu_utilization_percent`.
    pub column: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Who says so, or why.
    #[serde(default)]
    pub note: String,
}

/// Whether an expectation is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Met,
    NotMet,
    /// Nothing has been measured.
    Unknown,
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

impl RunSpec {
    /// Tokens of one optimiser step.
    pub fn tokens_per_step(&self) -> Option<u64> {
        self.global_batch?
            .checked_mul(u64::from(self.model.as_ref()?.sequence_length))
    }

    /// Peak dense TFLOP/s of one accelerator in 16 bit.
    pub fn peak_tflops(&self) -> Option<f64> {
        catalog::find(self.like_instance_type.as_deref()?)?.peak_tflops()
    }

    /// Everything that makes no sense of it, all at once.
    pub fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut wrong = |rule: &str, pointer: &str, message: String, fix: &str| {
            findings.push(found(rule, pointer).says(message).fix(fix));
        };
        for (pointer, text, most) in [
            ("/name", &self.name, 100),
            ("/hardware", &self.hardware, 200),
        ] {
            if !(1..=most).contains(&text.chars().count()) {
                wrong(
                    "text-length",
                    pointer,
                    "it is empty or too long".to_owned(),
                    &format!("give 1 to {most} characters"),
                );
            }
        }
        if !(1..=ACCELERATORS_MAX).contains(&self.accelerator_count) {
            let message = format!("{} accelerators", self.accelerator_count);
            wrong(
                "accelerator-count",
                "/accelerator_count",
                message,
                &format!("give 1 to {ACCELERATORS_MAX}"),
            );
        }
        let is_sound = |usd: Usd| usd.0 > Decimal::ZERO && usd.0 <= Decimal::from(USD_PER_HOUR_MAX);
        if self.usd_per_hour.is_some_and(|usd| !is_sound(usd)) {
            let message = "it is not a positive rate in USD an hour".to_owned();
            wrong(
                "usd-per-hour",
                "/usd_per_hour",
                message,
                "give the rate of all machines together, or leave it out",
            );
        }
        if let Some(like) = self
            .like_instance_type
            .as_deref()
            .filter(|like| catalog::find(like).is_none())
        {
            let message = format!("`{like}` is not a SageMaker training instance type");
            let fix = format!("did you mean {}?", catalog::nearest(like).join(", "));
            wrong(
                "unknown-instance-type",
                "/like_instance_type",
                message,
                &fix,
            );
        }
        for (index, expectation) in self.expectations.iter().enumerate() {
            if expectation.at_least.is_none() && expectation.at_most.is_none() {
                let pointer = format!("/expectations/{index}");
                wrong(
                    "expectation-bound",
                    &pointer,
                    "it has no bound".to_owned(),
                    "give at_least, at_most or both",
                );
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hyperbolic() -> serde_json::Value {
        serde_json::json!({
            "name": "1B on 8x H100", "hardware": "8x H100 SXM, Hyperbolic", "like_instance_type": "ml.p5.48xlarge",
            "accelerator_count": 8, "usd_per_hour": 7.92, "global_batch": 512, "planned_steps": 49209,
            "model": {"layers": 24, "hidden": 1536, "heads": 24, "vocabulary": 50000, "tied_embeddings": true, "sequence_length": 2048}
        })
    }

    #[test]
    fn the_documents_run_is_sound_and_its_step_has_a_million_tokens() {
        let run: RunSpec = serde_json::from_value(hyperbolic()).unwrap();
        assert_eq!(
            (run.check(), run.tokens_per_step()),
            (vec![], Some(1_048_576))
        );
        assert_eq!(run.peak_tflops(), Some(989.0));
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        let mut bad = hyperbolic();
        for (key, value) in [("name", ""), ("like_instance_type", "ml.p5.48xl")] {
            bad[key] = value.into();
        }
        bad["usd_per_hour"] = (-1).into();
        bad["accelerator_count"] = 0.into();
        bad["expectations"] = serde_json::json!([{"column": "cost_usd"}]);
        let run: RunSpec = serde_json::from_value(bad).unwrap();
        let pointers: Vec<String> = run
            .check()
            .into_iter()
            .map(|finding| finding.pointer)
            .collect();
        assert_eq!(
            pointers,
            [
                "/name",
                "/accelerator_count",
                "/usd_per_hour",
                "/like_instance_type",
                "/expectations/0"
            ]
        );
    }

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

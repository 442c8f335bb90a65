//! Rules on a training run outside SageMaker.

use bakeoff_domain::catalog;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::is_sound;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::money::Usd;
use bakeoff_domain::spec::Precision;
use bakeoff_domain::spec::run::RunSpec;
use rust_decimal::Decimal;

use super::request::model::described;
use super::{LintContext, candidate, claims};
use crate::rules::found;
use crate::setup::Setup;

const USD_PER_HOUR_MAX: u32 = 1_000_000;
const ACCELERATORS_MAX: u32 = 100_000;

/// Reports everything that makes the run invalid, all at once.
pub fn check(run: &RunSpec) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut wrong = |rule: &str, pointer: &str, message: String, fix: &str| {
        findings.push(found(rule, pointer).says(message).fix(fix));
    };
    for (pointer, text, most) in [("/name", &run.name, 100), ("/hardware", &run.hardware, 200)] {
        if !(1..=most).contains(&text.chars().count()) {
            wrong(
                "text-length",
                pointer,
                "the text is empty or too long".to_owned(),
                &format!("use 1 to {most} characters"),
            );
        }
    }
    if !(1..=ACCELERATORS_MAX).contains(&run.accelerator_count) {
        let message = format!("accelerator_count is {}", run.accelerator_count);
        wrong(
            "accelerator-count",
            "/accelerator_count",
            message,
            &format!("use 1 to {ACCELERATORS_MAX}"),
        );
    }
    let is_rate = |usd: Usd| usd.0 > Decimal::ZERO && usd.0 <= Decimal::from(USD_PER_HOUR_MAX);
    if run.usd_per_hour.is_some_and(|usd| !is_rate(usd)) {
        let message = "not a valid rate in USD per hour".to_owned();
        wrong(
            "usd-per-hour",
            "/usd_per_hour",
            message,
            "set the combined rate of all machines, or omit it",
        );
    }
    if let Some(like) = run
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
    for (index, expectation) in run.expectations.iter().enumerate() {
        if expectation.at_least.is_none() && expectation.at_most.is_none() {
            let pointer = format!("/expectations/{index}");
            wrong(
                "expectation-bound",
                &pointer,
                "the expectation has no bound".to_owned(),
                "set at_least, at_most or both",
            );
        }
    }
    if let Some(model) = run.model.as_ref().filter(|model| model.is_described()) {
        described(model, "/model", &mut findings);
    }
    findings
}

/// Checks the run's claims, and profile settings that it could do without.
pub(super) fn claimed(run: &RunSpec, known: LintContext<'_>, findings: &mut Vec<Finding>) {
    let model = run.model.as_ref().filter(|model| is_sound(model));
    if let Some(claimed) = &run.claims {
        let runs_on: Vec<&str> = run.like_instance_type.as_deref().into_iter().collect();
        let facts = claims::Facts {
            model,
            global_batch: run.global_batch.filter(|batch| *batch > 0),
            profile: run.profile.as_ref(),
            runs_on: &runs_on,
            ..claims::Facts::of(known)
        };
        claims::check(claimed, "/claims", facts, findings);
    }
    let instance = run.like_instance_type.as_deref().and_then(catalog::find);
    if let (Some(model), Some(profile), Some(instance)) = (model, &run.profile, instance) {
        let setup = Setup {
            model,
            profile,
            // If the precision is not given, assume 16 bit, the usual choice in training.
            precision: Precision::Bf16,
            cluster: Cluster { instance, count: 1 },
        };
        candidate::needless(setup, "/profile", findings);
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
            (check(&run), run.tokens_per_step()),
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
        let pointers: Vec<String> = check(&run)
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
}

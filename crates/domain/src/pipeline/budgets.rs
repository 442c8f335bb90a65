//! Budgets that steps state: other ones for steps that have not begun.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{StepKind, StepState};
use crate::finding::flaws::Flaw;
use crate::finding::{escaped, nearest};
use crate::money::Usd;
use crate::spec::pipeline::{PipelineSpec, StepSpec};

/// A pipeline with other budgets of its steps, by name. `states`: of its steps, in order.
pub fn with_step_budgets(
    spec: &PipelineSpec,
    states: &[StepState],
    budgets: &BTreeMap<String, Usd>,
) -> Result<PipelineSpec, Vec<Flaw>> {
    let (mut changed, mut flaws) = (spec.clone(), Vec::new());
    for (name, usd) in budgets {
        let place = spec.steps.iter().position(|step| step.name == *name);
        let state = place.and_then(|place| states.get(place)).copied();
        let step = place.and_then(|place| changed.steps.get_mut(place));
        let result = match (step, state) {
            (Some(step), Some(state)) => set(step, state, *usd),
            (_, _) => Err(unknown(spec, name)),
        };
        if let Err((detail, fix)) = result {
            let pointer = format!("/step_budgets_usd/{}", escaped(name));
            flaws.push(Flaw::new(pointer, detail, fix));
        }
    }
    if flaws.is_empty() {
        Ok(changed)
    } else {
        Err(flaws)
    }
}

fn unknown(spec: &PipelineSpec, name: &str) -> (String, String) {
    let names: Vec<&str> = spec.steps.iter().map(|step| step.name.as_str()).collect();
    let near = nearest(name, names.iter().copied(), 1);
    let near = if near.is_empty() { names } else { near };
    (
        format!("there is no step {name}"),
        format!("name a step of this pipeline: {}", near.join(", ")),
    )
}

fn set(step: &mut StepSpec, state: StepState, usd: Usd) -> Result<(), (String, String)> {
    let name = step.name.clone();
    if usd <= Usd::ZERO {
        let fix = "say what the step may spend".to_owned();
        return Err(("must be more than 0".to_owned(), fix));
    }
    if matches!(state, StepState::Running | StepState::Completed) {
        return Err((
            format!("{name} is {}", state.as_str()),
            "change the budget of its experiment, if it still runs".to_owned(),
        ));
    }
    let kind = step.bodies().first().map(|(kind, _)| *kind);
    let body = match kind {
        Some(StepKind::Experiment) => step.experiment.as_mut(),
        Some(StepKind::FullRun) => step.full_run.as_mut(),
        Some(
            StepKind::Processing
            | StepKind::Tuning
            | StepKind::Model
            | StepKind::Transform
            | StepKind::Endpoint,
        )
        | None => None,
    };
    let Some(body) = body.and_then(Value::as_object_mut) else {
        return Err((
            format!("{name} states no budget of its own"),
            "raise the pipeline's with budget_usd".to_owned(),
        ));
    };
    body.insert("budget_usd".to_owned(), serde_json::json!(usd));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pipeline() -> PipelineSpec {
        serde_json::from_value(json!({
            "name": "legal", "region": "us-east-1", "role_arn": "arn:aws:iam::1:role/x",
            "output_s3_uri": "s3://b/out", "budget_usd": 100,
            "steps": [{"name": "compare", "experiment": {"budget_usd": 10}},
                {"name": "train", "full_run": {"experiment_id": "${compare.experiment_id}", "budget_usd": 20}},
                {"name": "register", "model": {}}],
        }))
        .unwrap()
    }

    #[test]
    fn only_steps_that_have_not_begun_get_another_budget() {
        let states = [StepState::Completed, StepState::Failed, StepState::Skipped];
        let ask = |name: &str, usd: i64| {
            let budgets = BTreeMap::from([(name.to_owned(), Usd(usd.into()))]);
            with_step_budgets(&pipeline(), &states, &budgets)
        };
        let changed = ask("train", 30).unwrap();
        let body = changed.steps[1].full_run.clone().unwrap();
        assert_eq!(body["budget_usd"].as_f64(), Some(30.0));
        for (name, usd, part) in [
            ("compare", 30, "is completed"),
            ("register", 30, "states no budget"),
            ("trian", 30, "no step trian"),
            ("train", 0, "more than 0"),
        ] {
            let flaws = ask(name, usd).unwrap_err();
            assert!(flaws[0].detail.contains(part), "{flaws:?}");
            assert_eq!(flaws[0].pointer, format!("/step_budgets_usd/{name}"));
        }
    }
}

//! What a pipeline's steps buy of answers: which comparisons a step acts on, who has chosen its candidate, and what is
//! wrong with its condition. Whether it may go on is asked of [`crate::ranking::purchase`].

use std::collections::BTreeSet;

use chrono::TimeDelta;
use serde_json::Value;

use super::StepKind;
use super::reference::{self, Reference};
use crate::finding::flaws::Flaw;
use crate::spec::pipeline::{PipelineSpec, StepSpec};

named! {
    /// What a person has made of a purchase that a step has asked for
    PurchaseState {
        /// Nobody has decided yet.
        Asked = "asked",
        Approved = "approved",
        Refused = "refused",
    }
}

/// How long a step waits for a person; then it fails, and a resume asks again.
pub const PURCHASE_WAIT: TimeDelta = TimeDelta::days(7);

/// The comparisons whose winner a step refers to, by name, also through the registration of its model. A registration
/// itself buys nothing.
pub fn winners_of(spec: &PipelineSpec, step: &StepSpec) -> BTreeSet<String> {
    let bodies = step.bodies().into_iter();
    let buying = bodies.filter(|(kind, _)| *kind != StepKind::Model);
    let references = buying.flat_map(|(_, body)| reference::find(body).0);
    references.flat_map(|one| chosen_by(spec, &one)).collect()
}

/// The comparisons whose winner a reference stands for.
fn chosen_by(spec: &PipelineSpec, reference: &Reference) -> BTreeSet<String> {
    let named = spec.steps.iter().find(|one| one.name == reference.step);
    let Some(named) = named else {
        return BTreeSet::new();
    };
    if is_of_winner(reference) && named.experiment.is_some() {
        return BTreeSet::from([named.name.clone()]);
    }
    let registered = named.model.iter().flat_map(|body| reference::find(body).0);
    let direct = registered.filter(|one| {
        let is_comparison = |step: &&StepSpec| step.name == one.step && step.experiment.is_some();
        is_of_winner(one) && spec.steps.iter().any(|step| is_comparison(&step))
    });
    direct.map(|one| one.step).collect()
}

fn is_of_winner(reference: &Reference) -> bool {
    reference.path.first().is_some_and(|name| name == "winner")
}

/// Whether the spec itself names the candidate of a full run: then a person has chosen it.
pub fn names_candidate(body: &Value) -> bool {
    let candidate = body.get("candidate").and_then(Value::as_str);
    candidate.is_some_and(|name| !name.contains("${"))
}

/// Whether a step acts on an answer that no person has chosen from.
pub fn acts_on_answer(spec: &PipelineSpec, step: &StepSpec) -> bool {
    let is_open_run = step
        .full_run
        .as_ref()
        .is_some_and(|body| !names_candidate(body));
    // What is wrong with a reference to a step that there is not is told where it stands.
    let is_known = |name: &str| spec.steps.iter().any(|one| one.name == name);
    let bodies = step.bodies().into_iter();
    let mut references = bodies.flat_map(|(_, body)| reference::find(body).0);
    is_open_run
        || !winners_of(spec, step).is_empty()
        || references.any(|one| is_of_winner(&one) && !is_known(&one.step))
}

/// What is wrong with the condition of a step.
pub fn condition_flaw(spec: &PipelineSpec, step: &StepSpec, pointer: &str) -> Option<Flaw> {
    let condition = step.condition.as_ref()?;
    if !acts_on_answer(spec, step) {
        return Some(Flaw::new(
            format!("{pointer}/if"),
            "the step acts on no answer: it is no full_run without a candidate, and refers to no winner of a comparison",
            "leave `if` out",
        ));
    }
    let is_probability = condition.at_least > 0.0 && condition.at_least <= 1.0;
    (!is_probability).then(|| {
        Flaw::new(
            format!("{pointer}/if/at_least"),
            "must be a probability above 0 and at most 1",
            "write the least P(best) that is bought without a person, such as 0.6",
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A comparison, the registration of its winner's model, and an endpoint of that.
    #[test]
    fn a_registered_winner_is_still_a_winner() {
        let spec: PipelineSpec = serde_json::from_value(json!({
            "name": "p", "region": "us-east-1", "budget_usd": 10, "role_arn": "arn:aws:iam::1:role/r",
            "output_s3_uri": "s3://b/p", "steps": [
                {"name": "compare", "experiment": {}},
                {"name": "register", "model": {"trial_id": "${compare.winner.trial_id}", "approval": "approved"}},
                {"name": "serve", "endpoint": {"model": {"model_package_id": "${register.model_package_id}"}}},
                {"name": "other", "endpoint": {"model": {"model_package_id": "pkg_1"}}}]}))
        .unwrap();
        let of = |place: usize| winners_of(&spec, &spec.steps[place]);
        assert_eq!(of(1), BTreeSet::new(), "a registration buys nothing");
        assert_eq!(of(2), BTreeSet::from(["compare".to_owned()]));
        assert_eq!(of(3), BTreeSet::new());
        assert!(acts_on_answer(&spec, &spec.steps[2]));
    }
}

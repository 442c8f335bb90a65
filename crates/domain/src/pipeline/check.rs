//! What is wrong with a pipeline before any of it runs: names, references, circles, bodies. What the linter says
//! of an experiment is asked elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::reference::{self, Reference};
use super::{StepKind, processing, purchase, tuning};
use crate::endpoint::check as endpoint;
use crate::finding::flaws::Flaw;
use crate::finding::nearest;
use crate::money::budget::{least_budget, limit_flaw};
use crate::sagemaker::is_region;
use crate::spec::labels;
use crate::spec::pipeline::{PipelineSpec, StepSpec};

pub const STEPS_MAX: usize = 50;
const NAME_MAX: usize = 100;
const STEP_NAME_MAX: usize = 40;
const RETRIES_MAX: u32 = 5;
const STEP_BYTES_MAX: usize = 128 * 1024;
const REFERENCES_MAX: usize = 100;
/// What is told of an answer's first row.
pub const WINNER: [&str; 7] = [
    "candidate",
    "instance_type",
    "instance_count",
    "purchase_option",
    "trial_id",
    "job_name",
    "model_s3_uri",
];

impl StepKind {
    /// The outputs of a step of this kind, at the top.
    pub fn outputs(self) -> &'static [&'static str] {
        match self {
            Self::Processing => &["outputs", "message", "job_name"],
            Self::Experiment | Self::FullRun => &["experiment_id", "headline", "winner"],
            Self::Model => &["model_package_id", "arn", "version", "group"],
            Self::Tuning => &["best", "candidates", "metric", "goal"],
            Self::Transform => &["output_s3_uri", "job_name"],
            Self::Endpoint => &[
                "endpoint_id",
                "endpoint_name",
                "expires_at",
                "model_package_id",
            ],
        }
    }
}

/// A pipeline that can begin: for each step, in order, its kind and the places of the steps that it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    pub kinds: Vec<StepKind>,
    pub needs: Vec<Vec<usize>>,
}

/// Steps that are too large to be looked into: what a reference stands for is tried out, which takes time.
pub fn oversized(spec: &PipelineSpec) -> Vec<Flaw> {
    let steps = spec.steps.iter().enumerate();
    let is_large = |step: &StepSpec| {
        step.bodies().iter().any(|(_, body)| {
            body.to_string().len() > STEP_BYTES_MAX
                || reference::find(body).0.len() > REFERENCES_MAX
        })
    };
    let large = steps.filter(|(_, step)| is_large(step));
    let flaws = large.map(|(place, _)| {
        let detail = "must have at most 128 KB and 100 references";
        Flaw::new(
            format!("/steps/{place}"),
            detail,
            "put what is long into a file in S3",
        )
    });
    flaws.collect()
}

/// Everything that is wrong with it, or its graph.
pub fn check(spec: &PipelineSpec) -> Result<Graph, Vec<Flaw>> {
    let mut flaws = oversized(spec);
    if !flaws.is_empty() {
        return Err(flaws);
    }
    flaws.extend(head(spec));
    let places = places(spec);
    let mut seen = BTreeSet::new();
    let mut graph = Graph {
        kinds: Vec::new(),
        needs: needs(spec),
    };
    for (place, step) in spec.steps.iter().enumerate() {
        let pointer = format!("/steps/{place}");
        if !seen.insert(&step.name) {
            let detail = format!("two steps are named {}", step.name);
            flaws.push(Flaw::new(
                format!("{pointer}/name"),
                detail,
                "rename one of them",
            ));
        }
        flaws.extend(of_step(step, &pointer));
        flaws.extend(purchase::condition_flaw(spec, step, &pointer));
        flaws.extend(reference_flaws(spec, step, &pointer, &places));
        let kind = step.bodies().first().map(|(kind, _)| *kind);
        graph.kinds.push(kind.unwrap_or(StepKind::Processing));
    }
    flaws.extend(circle(spec, &graph.needs));
    if flaws.is_empty() {
        Ok(graph)
    } else {
        Err(flaws)
    }
}

/// References to the model of a winner that may have been stopped once its speed was known: whether it was is luck,
/// and is seen only after everything before it was paid for. What was accepted before this was known goes on.
pub fn stopped_winners(spec: &PipelineSpec) -> Vec<Flaw> {
    let may_be_stopped = |step: &&StepSpec| {
        let experiment = step.experiment.as_ref();
        experiment.is_some_and(|body| body["stopping_policy"] != "full")
    };
    let raced: Vec<&str> = spec
        .steps
        .iter()
        .filter(may_be_stopped)
        .map(|step| step.name.as_str())
        .collect();
    let mut flaws = Vec::new();
    for (place, step) in spec.steps.iter().enumerate() {
        for (kind, body) in step.bodies() {
            let references = reference::find(body).0.into_iter();
            let wanted = references
                .filter(|one| raced.contains(&one.step.as_str()) && is_model_of_winner(kind, one));
            flaws.extend(wanted.map(|one| stopped_winner(place, kind, &one)));
        }
    }
    flaws
}

fn is_model_of_winner(by: StepKind, reference: &Reference) -> bool {
    let path: Vec<&str> = reference.path.iter().map(String::as_str).collect();
    match path.as_slice() {
        ["winner", "model_s3_uri"] => true,
        ["winner", "trial_id"] => by == StepKind::Model && reference.pointer == "/trial_id",
        _ => false,
    }
}

fn stopped_winner(place: usize, by: StepKind, reference: &Reference) -> Flaw {
    let Reference { step, pointer, .. } = reference;
    Flaw::new(
        format!("/steps/{place}/{}{pointer}", by.as_str()),
        format!(
            "the winner of {step} may be stopped once its speed is known, and then leaves no model"
        ),
        format!(
            "add a full_run of ${{{step}.experiment_id}} and refer to its winner, or set \"stopping_policy\": \"full\" in {step}"
        ),
    )
}

/// The flaw of a step that waits for itself.
fn circle(spec: &PipelineSpec, needs: &[Vec<usize>]) -> Option<Flaw> {
    let place = on_a_circle(needs)?;
    let name = &spec.steps.get(place)?.name;
    Some(Flaw::new(
        format!("/steps/{place}"),
        format!("{name} waits for itself, through the steps that it needs"),
        "drop one of the references, or one name from `after`",
    ))
}

fn head(spec: &PipelineSpec) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    let mut add = |is_fine: bool, member: &str, detail: &str, fix: &str| {
        if !is_fine {
            flaws.push(Flaw::new(format!("/{member}"), detail, fix));
        }
    };
    let is_line = |text: &str| !text.chars().any(char::is_control);
    let has_name = (1..=NAME_MAX).contains(&spec.name.chars().count()) && is_line(&spec.name);
    add(
        has_name,
        "name",
        "must be one line of 1 to 100 characters",
        "name it",
    );
    add(
        is_region(&spec.region),
        "region",
        "is no region",
        "use one such as us-east-1",
    );
    let has_role = spec.role_arn.starts_with("arn:") && spec.role_arn.contains(":role/");
    add(
        has_role,
        "role_arn",
        "must be the ARN of a role",
        "use arn:aws:iam::<account>:role/<name>",
    );
    let output = &spec.output_s3_uri;
    let has_output = output.starts_with("s3://") && output.len() > 5 && is_line(output);
    add(
        has_output,
        "output_s3_uri",
        "must be s3://bucket/prefix",
        "give a folder for the outputs",
    );
    add(
        limit_flaw(spec.budget_usd, least_budget()).is_none(),
        "budget_usd",
        "must be an amount in US dollars from 0.01 to 1000000000, with at most six decimal places",
        "say what all steps may spend together",
    );
    let has_steps = (1..=STEPS_MAX).contains(&spec.steps.len());
    add(
        has_steps,
        "steps",
        "must be 1 to 50 steps",
        "add or drop steps",
    );
    let labels = labels::flaws(&spec.labels).into_iter();
    flaws.extend(labels.map(|flaw| {
        let pointer = format!("/labels{}", flaw.pointer);
        Flaw::new(pointer, flaw.detail, flaw.fix)
    }));
    flaws
}

/// What is wrong with a step by itself.
fn of_step(step: &StepSpec, pointer: &str) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let name = &step.name;
    if !(1..=STEP_NAME_MAX).contains(&name.len()) || !name.chars().all(is_part) {
        let detail = "must be 1 to 40 lowercase letters, digits and hyphens";
        flaws.push(Flaw::new(format!("{pointer}/name"), detail, "rename it"));
    }
    if step.retries > RETRIES_MAX {
        let detail = "must be at most 5";
        flaws.push(Flaw::new(
            format!("{pointer}/retries"),
            detail,
            "try it less often",
        ));
    }
    let bodies = step.bodies();
    let [(kind, body)] = bodies.as_slice() else {
        let detail = "must have exactly one of processing, experiment, full_run, tuning, model, transform and endpoint";
        flaws.push(Flaw::new(
            pointer,
            detail,
            "say what the step does, and split it if it does two things",
        ));
        return flaws;
    };
    let pointer = format!("{pointer}/{}", kind.as_str());
    let (_, unreadable) = reference::find(body);
    flaws.extend(unreadable.into_iter().map(|one| {
        Flaw::new(
            format!("{pointer}{}", one.pointer),
            format!("{} is no reference", one.text),
            "write ${step.member}, or $${ for a literal ${",
        )
    }));
    flaws.extend(of_body(*kind, body, &pointer));
    flaws
}

/// Of a body that cannot be read, or not yet because a number in it is a reference, nothing is said here; neither
/// of those that others check.
fn of_body(kind: StepKind, body: &Value, pointer: &str) -> Vec<Flaw> {
    fn read<T: DeserializeOwned>(body: &Value) -> Option<T> {
        serde_json::from_value(body.clone()).ok()
    }
    let flaws = match kind {
        StepKind::Processing => read(body).map(|spec| processing::flaws(&spec, pointer)),
        StepKind::Tuning => read(body).map(|spec| tuning::flaws(&spec, pointer)),
        StepKind::Transform => {
            read(body).map(|spec| endpoint::transform_flaws(&spec, pointer, None))
        }
        StepKind::Endpoint => read(body).map(|spec| endpoint::endpoint_flaws(&spec, pointer, None)),
        StepKind::Experiment | StepKind::FullRun | StepKind::Model => None,
    };
    flaws.unwrap_or_default()
}

/// For each step, in order, the places of the steps that it needs: those that it names, and those that it refers to.
pub fn needs(spec: &PipelineSpec) -> Vec<Vec<usize>> {
    let places = places(spec);
    let of_step = |step: &StepSpec| {
        let bodies = step.bodies().into_iter();
        let referred = bodies.flat_map(|(_, body)| reference::find(body).0);
        let referred = referred.map(|reference| reference.step);
        let names = step.after.iter().cloned().chain(referred);
        let needed: BTreeSet<usize> = names
            .filter_map(|name| places.get(name.as_str()).copied())
            .collect();
        needed.into_iter().collect()
    };
    spec.steps.iter().map(of_step).collect()
}

fn places(spec: &PipelineSpec) -> BTreeMap<&str, usize> {
    let numbered = spec.steps.iter().enumerate();
    numbered
        .map(|(place, step)| (step.name.as_str(), place))
        .collect()
}

/// Names of steps that are none, and references to outputs that a step never has.
fn reference_flaws(
    spec: &PipelineSpec,
    step: &StepSpec,
    pointer: &str,
    places: &BTreeMap<&str, usize>,
) -> Vec<Flaw> {
    let unknown = |name: &str, pointer: String| {
        let near = nearest(name, places.keys().copied(), 1);
        let names: Vec<&str> = if near.is_empty() {
            places.keys().copied().collect()
        } else {
            near
        };
        let fix = format!("name a step of this pipeline: {}", names.join(", "));
        Flaw::new(pointer, format!("there is no step {name}"), fix)
    };
    let mut flaws = Vec::new();
    for (index, name) in step.after.iter().enumerate() {
        if !places.contains_key(name.as_str()) {
            flaws.push(unknown(name, format!("{pointer}/after/{index}")));
        }
    }
    for (kind, body) in step.bodies() {
        for reference in reference::find(body).0 {
            let place = format!("{pointer}/{}{}", kind.as_str(), reference.pointer);
            let needed = places.get(reference.step.as_str());
            match needed.and_then(|place| spec.steps.get(*place)) {
                Some(needed) => flaws.extend(unknown_output(needed, &reference, &place)),
                None => flaws.push(unknown(&reference.step, place)),
            }
        }
    }
    flaws
}

/// The flaw of a reference to an output that its step never has.
fn unknown_output(of: &StepSpec, reference: &Reference, pointer: &str) -> Option<Flaw> {
    let (kind, body) = of.bodies().into_iter().next()?;
    let known = kind.outputs();
    let first = reference.path.first()?;
    if !known.contains(&first.as_str()) {
        let detail = format!("{} has {}, but no {first}", of.name, known.join(", "));
        return Some(Flaw::new(pointer, detail, "refer to one of them"));
    }
    let second = reference.path.get(1).map(String::as_str);
    if first == "winner" && !second.is_some_and(|second| WINNER.contains(&second)) {
        let detail = format!("{}.winner has {}", of.name, WINNER.join(", "));
        return Some(Flaw::new(pointer, detail, "refer to one of them"));
    }
    let is_one = reference.path.len() <= 2 && second.is_some();
    if first == "outputs" && !is_one {
        let detail = "an output is one address: ${step.outputs.name}";
        return Some(Flaw::new(
            pointer,
            detail,
            "name the output, and nothing below it",
        ));
    }
    let output = reference.path.get(1).filter(|_| first == "outputs")?;
    let outputs = body["outputs"].as_array().into_iter().flatten();
    let names: Vec<&str> = outputs
        .filter_map(|output| output["name"].as_str())
        .collect();
    let detail = || format!("{} has no output {output}", of.name);
    let fix = || match names.as_slice() {
        [] => "add it to its outputs".to_owned(),
        _ => format!("add it to its outputs, or refer to {}", names.join(", ")),
    };
    (!names.contains(&output.as_str())).then(|| Flaw::new(pointer, detail(), fix()))
}

/// A step that waits for itself, if any does.
fn on_a_circle(needs: &[Vec<usize>]) -> Option<usize> {
    let mut is_done = vec![false; needs.len()];
    // Each round finishes what needs only finished steps; what is left over lies on a circle or behind one.
    for _ in needs {
        for (place, needed) in needs.iter().enumerate() {
            let is_ready = needed.iter().all(|need| is_done.get(*need) == Some(&true));
            if let Some(done) = is_done.get_mut(place) {
                *done |= is_ready;
            }
        }
    }
    is_done.iter().position(|done| !done)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pipeline(steps: &Value) -> PipelineSpec {
        serde_json::from_value(
            json!({"name": "legal", "region": "us-east-1", "role_arn": "arn:aws:iam::1:role/x",
            "output_s3_uri": "s3://b/out", "budget_usd": 100, "steps": steps}),
        )
        .unwrap()
    }

    fn processing(name: &str, input: &str) -> Value {
        json!({"name": name, "processing": {"image": "i", "instance_type": "ml.m5.xlarge",
            "inputs": [{"name": "raw", "s3_uri": input}], "outputs": [{"name": "train"}]}})
    }

    fn flaws(steps: &Value) -> Vec<(String, String)> {
        let flaws = check(&pipeline(steps)).unwrap_err();
        flaws
            .into_iter()
            .map(|flaw| (flaw.pointer, flaw.detail))
            .collect()
    }

    #[test]
    fn a_model_is_not_left_to_the_luck_of_a_race() {
        let compare =
            |policy: &Value| json!({"name": "compare", "experiment": {"stopping_policy": policy}});
        let flawed = |policy: &Value, after: &Value| {
            let flaws = stopped_winners(&pipeline(&json!([compare(policy), after])));
            flaws.len()
        };
        let register =
            json!({"name": "register", "model": {"trial_id": "${compare.winner.trial_id}"}});
        let evaluate = processing("evaluate", "${compare.winner.model_s3_uri}");
        for after in [&register, &evaluate] {
            for stopped in [Value::Null, json!("race"), json!("probe")] {
                assert_eq!(flawed(&stopped, after), 1, "{stopped} {after}");
            }
            assert_eq!(flawed(&json!("full"), after), 0, "{after}");
        }
        let told = json!({"name": "register", "model": {"metadata": {"by": "${compare.winner.trial_id}"}}});
        assert_eq!(flawed(&Value::Null, &told), 0);
    }

    #[test]
    fn a_reference_is_a_need() {
        let steps = json!([processing("a", "s3://b/raw"), processing("b", "${a.outputs.train}"),
            {"name": "c", "after": ["a"], "model": {"trial_id": "${b.message.x}"}}]);
        let graph = check(&pipeline(&steps)).unwrap();
        assert_eq!(graph.needs, [vec![], vec![0], vec![0, 1]]);
        assert_eq!(
            graph.kinds,
            [StepKind::Processing, StepKind::Processing, StepKind::Model]
        );
    }

    #[test]
    fn a_circle_is_refused_once() {
        let steps = json!([
            processing("a", "${b.outputs.train}"),
            processing("b", "${a.outputs.train}")
        ]);
        let all = flaws(&steps);
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].1.contains("waits for itself"));
        let own = json!([processing("a", "${a.outputs.train}")]);
        assert!(flaws(&own)[0].1.contains("waits for itself"));
    }

    #[test]
    fn an_unknown_output_is_refused_with_the_known_ones() {
        let all = flaws(&json!([
            processing("a", "s3://b/raw"),
            processing("b", "${a.outputs.test}"),
            processing("c", "${a.winner.trial_id}"),
            processing("d", "${e.outputs.x}")
        ]));
        let told: Vec<&str> = all.iter().map(|(_, detail)| detail.as_str()).collect();
        assert_eq!(
            told,
            [
                "a has no output test",
                "a has outputs, message, job_name, but no winner",
                "there is no step e"
            ]
        );
        assert_eq!(all[0].0, "/steps/1/processing/inputs/0/s3_uri");
    }

    #[test]
    fn a_step_does_one_thing_and_has_a_name_of_its_own() {
        let all = flaws(
            &json!([{"name": "A B", "retries": 9}, processing("c", "s3://b/x"), processing("c", "s3://b/x")]),
        );
        let pointers: Vec<&str> = all.iter().map(|(pointer, _)| pointer.as_str()).collect();
        assert_eq!(
            pointers,
            [
                "/steps/0/name",
                "/steps/0/retries",
                "/steps/0",
                "/steps/2/name"
            ]
        );
        let all = flaws(
            &json!([{"name": "a", "processing": {"image": "i", "instance_type": "ml.p5.48xlarge"}}]),
        );
        assert_eq!(all[0].0, "/steps/0/processing/instance_type");
    }
}

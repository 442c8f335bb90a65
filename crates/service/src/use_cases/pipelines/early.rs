//! What can be said of a pipeline before any of it runs: whether its bodies fit their types, with stand-ins where
//! references are, and what the linter says of its comparisons.

use std::collections::BTreeMap;

use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::pipeline::StepKind;
use bakeoff_domain::pipeline::reference::{self, Reference};
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_domain::spec::full_run::FullRunSpec;
use bakeoff_domain::spec::labels;
use bakeoff_domain::spec::pipeline::endpoint::{EndpointSpec, TransformSpec};
use bakeoff_domain::spec::pipeline::tuning::TuningSpec;
use bakeoff_domain::spec::pipeline::{PipelineSpec, ProcessingSpec};
use bakeoff_planner::rules::found;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::app::App;
use crate::document;
use crate::use_cases::intake;
use crate::use_cases::pipelines::worst_case::{self, ReadSteps};
use bakeoff_api::model_packages::RegisterModel;
use bakeoff_store::StoreError;

/// What may stand where a reference is: one after the other, until it fits.
fn stand_ins(reference: &Reference) -> [Value; 4] {
    let path: Vec<&str> = reference.path.iter().map(String::as_str).collect();
    let likely = match path.as_slice() {
        ["outputs", name] => json!(format!("s3://bakeoff-later/{}/{name}", reference.step)),
        ["experiment_id"] => json!(ExperimentId(Uuid::nil())),
        ["winner" | "best", "trial_id"] => json!(TrialId(Uuid::nil())),
        ["winner", "purchase_option"] => json!("on_demand"),
        _ => json!("later"),
    };
    [likely, json!("later"), json!(1_000_000), json!(true)]
}

/// A body with stand-ins, as far as it can be read: what does not fit, whatever its references stand for, is told.
fn read<T: DeserializeOwned + ToSchema>(
    body: &Value,
    pointer: &str,
    told: &mut Vec<Finding>,
) -> Option<T> {
    let mut references = reference::find(body).0;
    let first = |one: &Reference| Ok(stand_ins(one)[0].clone());
    let mut whole = reference::replaced(body, &first).ok()?;
    // Within a text, a reference is a text.
    references.retain(|one| body.pointer(&one.pointer) == Some(&json!(one.text())));
    let mut tries: BTreeMap<String, usize> = BTreeMap::new();
    loop {
        let (parsed, other) = document::read::<T>(&whole);
        let finding = match parsed {
            Ok(value) => {
                told.extend(other.into_iter().map(|finding| below(pointer, finding)));
                return Some(value);
            }
            Err(finding) => finding,
        };
        let of = references.iter().find(|one| one.pointer == finding.pointer);
        let nth = tries.entry(finding.pointer.clone()).or_default();
        *nth += 1;
        let next = of.and_then(|one| stand_ins(one).into_iter().nth(*nth));
        if let (Some(next), Some(there)) = (next, whole.pointer_mut(&finding.pointer)) {
            *there = next;
            continue;
        }
        // What a reference stands for may be of a kind that nothing here stands for.
        let own = of.is_none().then_some(finding);
        let all = other.into_iter().chain(own);
        told.extend(all.map(|finding| below(pointer, finding)));
        return None;
    }
}

fn below(pointer: &str, finding: Finding) -> Finding {
    Finding {
        pointer: format!("{pointer}{}", finding.pointer),
        ..finding
    }
}

/// Everything that is wrong with the bodies of the steps.
pub async fn findings(
    app: &App,
    project: ProjectId,
    spec: &PipelineSpec,
) -> Result<Vec<Finding>, StoreError> {
    let mut told = Vec::new();
    if !app.places.contains_key(&spec.region) {
        let served: Vec<&str> = app.places.keys().map(String::as_str).collect();
        let says = format!("this service runs jobs in {} only", served.join(", "));
        told.push(
            found("pipeline", "/region")
                .says(says)
                .fix("use one of them"),
        );
    }
    let mut steps = ReadSteps::default();
    for (place, step) in spec.steps.iter().enumerate() {
        for (kind, body) in step.bodies() {
            let pointer = format!("/steps/{place}/{}", kind.as_str());
            match kind {
                StepKind::Processing => _ = read::<ProcessingSpec>(body, &pointer, &mut told),
                StepKind::Tuning => _ = read::<TuningSpec>(body, &pointer, &mut told),
                StepKind::Transform => _ = read::<TransformSpec>(body, &pointer, &mut told),
                StepKind::Endpoint => _ = read::<EndpointSpec>(body, &pointer, &mut told),
                StepKind::Model => _ = read::<RegisterModel>(body, &pointer, &mut told),
                StepKind::FullRun => {
                    let run = full_run(body, &pointer, &mut told);
                    steps.full_runs.extend(run.map(|run| (place, run)));
                }
                StepKind::Experiment => {
                    if let Some(experiment) = read::<ExperimentSpec>(body, &pointer, &mut told) {
                        let known = (step.name.clone(), experiment.clone());
                        steps.comparisons.extend([known]);
                        told.extend(lint(app, project, spec, &pointer, experiment).await?);
                    }
                }
            }
        }
    }
    // What is wrong with a comparison says nothing of its full runs.
    if told.is_empty() {
        told = Box::pin(worst_case::findings(app, project, spec, &steps)).await?;
    }
    Ok(told)
}

/// The full runs, of those that are still to begin, whose budget does not cover every candidate.
pub async fn short_budgets(
    app: &App,
    project: ProjectId,
    spec: &PipelineSpec,
    is_open: impl Fn(&usize) -> bool,
) -> Result<Vec<Finding>, StoreError> {
    let (mut steps, mut ignored) = (ReadSteps::default(), Vec::new());
    for (place, step) in spec.steps.iter().enumerate() {
        let run = step.full_run.as_ref().filter(|_| is_open(&place));
        let run = run.and_then(|body| full_run(body, "", &mut ignored));
        steps.full_runs.extend(run.map(|run| (place, run)));
        let comparison = step.experiment.as_ref();
        let comparison = comparison.and_then(|body| read(body, "", &mut ignored));
        steps
            .comparisons
            .extend(comparison.map(|spec| (step.name.clone(), spec)));
    }
    Box::pin(worst_case::findings(app, project, spec, &steps)).await
}

fn full_run(body: &Value, pointer: &str, told: &mut Vec<Finding>) -> Option<FullRunSpec> {
    let mut rest = body.clone();
    let of = rest
        .as_object_mut()
        .and_then(|rest| rest.remove("experiment_id"));
    if of.is_none() {
        let at = format!("{pointer}/experiment_id");
        let finding = found("pipeline", at).says("must name the experiment whose answer is run");
        told.push(finding.fix("use ${<step>.experiment_id}, or an id"));
    }
    read::<FullRunSpec>(&rest, pointer, told)
}

/// What the linter says of a comparison.
async fn lint(
    app: &App,
    project: ProjectId,
    spec: &PipelineSpec,
    pointer: &str,
    mut experiment: ExperimentSpec,
) -> Result<Vec<Finding>, StoreError> {
    labels::inherit(&mut experiment.labels, &spec.labels);
    if experiment.region != spec.region {
        let finding = found("pipeline", format!("{pointer}/region"));
        let finding = finding.says(format!("must be the pipeline's, {}", spec.region));
        return Ok(vec![finding.fix("use one region for all of it")]);
    }
    let loaded = intake::load(app, project, experiment).await?;
    let preview = tokio::task::spawn_blocking(move || loaded.preview()).await;
    let findings = preview.map_or_else(|_| Vec::new(), |preview| preview.findings);
    let blocking = findings.into_iter();
    let blocking = blocking.filter(|finding| finding.severity == Severity::Error);
    Ok(blocking.map(|finding| below(pointer, finding)).collect())
}

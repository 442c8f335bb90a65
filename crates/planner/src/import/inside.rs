//! Training jobs that stand in other documents: in a tuning job, a pipeline's definition, a state machine, a template.

use bakeoff_domain::finding::escaped;
use serde_json::{Map, Value};

use crate::lint::{Kind, variables};

/// Deeper than anybody nests steps and states.
const DEPTH_MAX: usize = 32;
/// Places that are named where there are several; what is beyond them is not looked for.
const FOUND_MAX: usize = 20;
/// Characters of a place that are shown.
const SHOWN_MAX: usize = 200;

/// The one training job of a document that holds others, or the places of several; `None` where it holds none. What is
/// known only while the document runs is left out of it.
pub(super) fn only(kind: Kind, document: &Value) -> Option<Result<Value, String>> {
    let mut found = Vec::new();
    match kind {
        Kind::TuningJob => tuned(document, "", &mut found),
        Kind::PipelineDefinition | Kind::StateMachine | Kind::CloudformationTemplate => {
            search(document, &mut Vec::new(), &mut found);
        }
        _ => {}
    }
    if found.len() > 1 {
        let places: Vec<String> = found.into_iter().map(|job| job.pointer).collect();
        return Some(Err(places.join(", ")));
    }
    let job = found.pop()?;
    Some(Ok(variables::split(&job.body).value))
}

struct ContainedJob {
    /// Where it stands.
    pointer: String,
    /// As CreateTrainingJob takes it.
    body: Value,
}

/// What each trial of a tuning job is, with the hyperparameters that all have.
fn tuned(document: &Value, at: &str, found: &mut Vec<ContainedJob>) {
    let config = document.get("HyperParameterTuningJobConfig");
    let one = document.get("TrainingJobDefinition");
    let several = document.get("TrainingJobDefinitions");
    let several = several.and_then(Value::as_array).into_iter().flatten();
    let all = one.into_iter().chain(several).filter_map(Value::as_object);
    for (place, definition) in all.enumerate().take(FOUND_MAX) {
        let mut body: Map<String, Value> = definition.clone();
        let fixed = body.remove("StaticHyperParameters");
        body.extend(fixed.map(|fixed| ("HyperParameters".to_owned(), fixed)));
        let searched = config.map(|config| ("HyperParameterTuningJobConfig", config.clone()));
        body.extend(searched.map(|(name, config)| (name.to_owned(), config)));
        found.push(ContainedJob {
            pointer: format!("{at} training job definition {place}")
                .trim()
                .to_owned(),
            body: Value::Object(body),
        });
    }
}

/// Looks through a document, and through documents that stand in its strings.
fn search(value: &Value, path: &mut Vec<String>, found: &mut Vec<ContainedJob>) {
    if path.len() > DEPTH_MAX || found.len() >= FOUND_MAX {
        return;
    }
    match value {
        Value::Object(entries) => {
            if let Some(request) = request(entries) {
                return add(&request, path, found);
            }
            for (name, inner) in entries {
                within(inner, || escaped(name), path, found);
            }
        }
        Value::Array(items) => {
            for (place, inner) in items.iter().enumerate() {
                within(inner, || place.to_string(), path, found);
            }
        }
        Value::String(text) if text.trim_start().starts_with('{') => {
            if let Ok(inner) = serde_json::from_str::<Value>(text) {
                search(&inner, path, found);
            }
        }
        _ => {}
    }
}

/// Names are made for what may hold a job only: most of a document is plain values.
fn within(
    inner: &Value,
    name: impl FnOnce() -> String,
    path: &mut Vec<String>,
    found: &mut Vec<ContainedJob>,
) {
    if matches!(inner, Value::Object(_) | Value::Array(_) | Value::String(_)) {
        path.push(name().chars().take(SHOWN_MAX).collect());
        search(inner, path, found);
        path.pop();
    }
}

fn add(request: &Request<'_>, path: &[String], found: &mut Vec<ContainedJob>) {
    let whole = format!("/{}/{}", path.join("/"), request.member);
    let pointer: String = whole.chars().take(SHOWN_MAX).collect();
    if request.is_tuning {
        return tuned(request.body, &pointer, found);
    }
    found.push(ContainedJob {
        pointer,
        body: request.body.clone(),
    });
}

/// The request that a step or a state sends.
struct Request<'a> {
    member: &'static str,
    body: &'a Value,
    is_tuning: bool,
}

/// The request of a pipeline's step, or of a state, that trains.
fn request(entries: &Map<String, Value>) -> Option<Request<'_>> {
    let text = |name: &str| {
        entries
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let resource = text("Resource").to_lowercase();
    let is_step = ["Training", "Tuning"].contains(&text("Type"));
    let is_state = ["createtrainingjob", "createhyperparametertuningjob"]
        .iter()
        .any(|call| resource.contains(&format!("sagemaker:{call}")));
    let members: &[&'static str] = match (is_step, is_state) {
        (true, _) => &["Arguments"],
        (_, true) => &["Arguments", "Parameters"],
        _ => &[],
    };
    let mut sent = members
        .iter()
        .filter_map(|member| Some((*member, entries.get(*member)?)));
    let (member, body) = sent.find(|(_, value)| value.is_object())?;
    Some(Request {
        member,
        body,
        is_tuning: text("Type") == "Tuning" || resource.contains("tuningjob"),
    })
}

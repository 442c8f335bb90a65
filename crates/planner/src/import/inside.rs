//! Training jobs that stand in other documents: in a tuning job, a pipeline's definition, a state machine, a template.

use bakeoff_domain::finding::escaped;
use serde_json::{Map, Value};

use crate::lint::Kind;

/// Deeper than anybody nests steps and states.
const DEPTH_MAX: usize = 32;

/// The one training job of a document that holds others; `None` where it holds none.
pub(super) fn only(kind: Kind, document: &Value) -> Option<Result<Value, String>> {
    let mut found = match kind {
        Kind::TuningJob => tuned(document),
        Kind::PipelineDefinition | Kind::StateMachine | Kind::CloudformationTemplate => {
            let mut found = Vec::new();
            search(document, "", 0, &mut found);
            found
        }
        _ => Vec::new(),
    };
    if found.len() > 1 {
        let places: Vec<String> = found.into_iter().map(|job| job.pointer).collect();
        return Some(Err(places.join(", ")));
    }
    found.pop().map(|job| Ok(job.body))
}

struct Held {
    /// Where it stands.
    pointer: String,
    /// As CreateTrainingJob takes it.
    body: Value,
}

/// What each trial of a tuning job is, with the hyperparameters that all have.
fn tuned(document: &Value) -> Vec<Held> {
    let config = document.get("HyperParameterTuningJobConfig");
    let one = document.get("TrainingJobDefinition");
    let several = document.get("TrainingJobDefinitions");
    let several = several.and_then(Value::as_array).into_iter().flatten();
    let all = one.into_iter().chain(several).filter_map(Value::as_object);
    let held = all.enumerate().map(|(place, definition)| {
        let mut body: Map<String, Value> = definition.clone();
        let fixed = body.remove("StaticHyperParameters");
        body.extend(fixed.map(|fixed| ("HyperParameters".to_owned(), fixed)));
        let searched = config.map(|config| ("HyperParameterTuningJobConfig", config.clone()));
        body.extend(searched.map(|(name, config)| (name.to_owned(), config)));
        Held {
            pointer: format!("training job definition {place}"),
            body: Value::Object(body),
        }
    });
    held.collect()
}

/// Looks through a document, and through documents that stand in its strings.
fn search(value: &Value, at: &str, depth: usize, found: &mut Vec<Held>) {
    if depth > DEPTH_MAX {
        return;
    }
    match value {
        Value::Object(entries) => {
            if let Some((member, body)) = body(entries) {
                found.push(Held {
                    pointer: format!("{at}/{member}"),
                    body: body.clone(),
                });
                return;
            }
            for (name, inner) in entries {
                search(inner, &format!("{at}/{}", escaped(name)), depth + 1, found);
            }
        }
        Value::Array(items) => {
            for (place, inner) in items.iter().enumerate() {
                search(inner, &format!("{at}/{place}"), depth + 1, found);
            }
        }
        Value::String(text) if text.starts_with('{') => {
            if let Ok(inner) = serde_json::from_str::<Value>(text) {
                search(&inner, at, depth + 1, found);
            }
        }
        _ => {}
    }
}

/// The request of a pipeline's training step, or of a state that creates a training job.
fn body(entries: &Map<String, Value>) -> Option<(&'static str, &Value)> {
    let text = |name: &str| entries.get(name).and_then(Value::as_str);
    let is_step = text("Type") == Some("Training");
    let is_state = text("Resource").is_some_and(|resource| {
        let resource = resource.to_lowercase();
        resource.contains("sagemaker:createtrainingjob")
    });
    let members: &[&'static str] = match (is_step, is_state) {
        (true, _) => &["Arguments"],
        (_, true) => &["Arguments", "Parameters"],
        _ => &[],
    };
    let mut sent = members
        .iter()
        .filter_map(|name| Some((*name, entries.get(*name)?)));
    sent.find(|(_, value)| value.is_object())
}

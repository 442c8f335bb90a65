//! Parses documents: JSON into a type, reporting everything that does not fit as findings with
//! pointers. Used by handlers and by the command line; the linter checks the values themselves.

mod schemas;

use std::borrow::Cow;
use std::collections::BTreeMap;

use bakeoff_domain::catalog::hugging_face;
use bakeoff_domain::finding::{Finding, capped};
use bakeoff_domain::money::price::Price;
use bakeoff_domain::spec::{ExperimentSpec, metric_definitions};
use bakeoff_planner::lint::{self, Document, Kind};
use bakeoff_planner::rules::found;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;
use utoipa::ToSchema;

use self::schemas::Schemas;

/// Maximum number of unknown fields reported: finding suggestions for each takes time.
const UNKNOWN_MAX: usize = 20;

/// An answer to an import's question that is no field of an experiment, or no value of one; the latter only shows once
/// nothing is missing.
pub fn wrong_answer(
    spec: &Value,
    is_complete: bool,
    answers: &BTreeMap<String, Value>,
) -> Option<Finding> {
    let (read, unknown) = read::<ExperimentSpec>(spec);
    let not_read = read.err().filter(|_| is_complete);
    let is_answered = |place: &str| {
        let mut all = answers.keys();
        all.any(|answer| place == answer || place.starts_with(&format!("{answer}/")))
    };
    let mut wrong = unknown.into_iter().chain(not_read);
    wrong.find(|finding| is_answered(&finding.pointer))
}

/// Returns the value, or the finding that prevents parsing it; and the other findings: unknown
/// fields, and further missing ones.
pub fn read<T: DeserializeOwned + ToSchema>(json: &Value) -> (Result<T, Finding>, Vec<Finding>) {
    let schemas = Schemas::of::<T>();
    let mut unknown = Vec::new();
    let json = &*completed(json, &mut unknown);
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(json, &mut track);
    let mut more = 0_usize;
    let parsed = serde_ignored::deserialize(deserializer, |path| {
        if unknown.len() < UNKNOWN_MAX {
            unknown.push(schemas.unknown_field(json, &path));
        } else {
            more += 1;
        }
    });
    if more > 0 {
        unknown.push(found("unknown-field", "").says(format!("{more} more unknown fields")));
    }
    let parsed = parsed.map_err(|error: serde_json::Error| {
        found("type", reached(&track.path())).says(error.to_string())
    });
    let root = schemas.named(&T::name());
    let parsed = parsed.map_err(|first| match first.message.split('`').nth(1) {
        Some(name) if first.message.starts_with("missing field") => {
            schemas.missing(schemas.at(root, &first.pointer), &first.pointer, name)
        }
        _ => first,
    });
    // serde reports only the first missing field.
    if let Err(first) = &parsed
        && first.message.starts_with("missing field")
    {
        let mut missing = Vec::new();
        schemas.find_missing(root, json, String::new(), &mut missing);
        unknown.extend(
            missing
                .into_iter()
                .filter(|one| one.pointer != first.pointer),
        );
    }
    (parsed, unknown)
}

/// Where a document may have a model.
const MODELS: [&str; 2] = ["/model", "/workload/model"];

/// The document as it is meant. A workload without metrics gets those that its image or script is known to
/// print. A model that is given as Hugging Face's `config.json` is put in our own fields; one that cannot be
/// described so is said, and left as it is; so is one without the length of its sequences, of which the
/// configuration has only the longest.
fn completed<'a>(json: &'a Value, findings: &mut Vec<Finding>) -> Cow<'a, Value> {
    let mut read = Cow::Borrowed(json);
    for at in ["", "/workload"] {
        if let Some(set) = json.pointer(at).and_then(metrics_of)
            && let Some(Value::Object(workload)) = read.to_mut().pointer_mut(at)
        {
            workload.insert("metrics".to_owned(), set.into());
        }
    }
    for at in MODELS {
        let Some(config) = json.pointer(at).filter(|model| is_config(model)) else {
            continue;
        };
        match hugging_face::shape(config) {
            Ok(_) if config.get("sequence_length").is_none() => findings.push(
                found("type", format!("{at}/sequence_length"))
                    .says("config.json has the longest sequence of the model, not the one that you train with")
                    .fix("add \"sequence_length\" beside the configuration's own members, 2048 for example"),
            ),
            Ok(model) => {
                let shape = serde_json::to_value(&model.shape).unwrap_or_default();
                if let Some(place) = read.to_mut().pointer_mut(at) {
                    *place = shape;
                }
            }
            Err(why) => findings.push(found("model-shape", at).says(why)),
        }
    }
    read
}

/// The metrics that a workload without any is known to print.
fn metrics_of(workload: &Value) -> Option<&'static str> {
    let image = workload.get("image")?.as_str()?;
    // Only workloads have both an image and what they train.
    if workload.get("metrics").is_some() || workload.get("trial_tokens").is_none() {
        return None;
    }
    let script = workload
        .pointer("/script/entry_point")
        .and_then(Value::as_str);
    let started = workload
        .get("container_entrypoint")
        .and_then(Value::as_array);
    let words = started.into_iter().flatten().filter_map(Value::as_str);
    metric_definitions::chosen_by(image, script.into_iter().chain(words)).map(|set| set.id.as_str())
}

/// What each model that is given as a `config.json` is read as.
fn models_read(json: &Value) -> impl Iterator<Item = Finding> {
    MODELS.iter().filter_map(|at| {
        let config = json.pointer(at).filter(|model| is_config(model))?;
        let read = hugging_face::shape(config).ok()?;
        let shape = serde_json::to_string(&read.shape).unwrap_or_default();
        let notes = read.notes.join("; ");
        let finding = found("model-config", *at).fix("nothing, unless a figure is wrong");
        Some(finding.says(format!(
            "Hugging Face's config.json is read as {shape}. {notes}"
        )))
    })
}

/// Whether a model is given as Hugging Face gives it, and not in our own fields.
fn is_config(model: &Value) -> bool {
    hugging_face::is_config(model) && model.get("layers").is_none() && model.get("hidden").is_none()
}

/// Where parsing stopped, as a JSON pointer.
fn reached(path: &serde_path_to_error::Path) -> String {
    path.iter().fold(String::new(), |pointer, segment| {
        let name = match segment {
            Segment::Seq { index } => index.to_string(),
            Segment::Map { key } => key.replace('~', "~0").replace('/', "~1"),
            Segment::Enum { variant } => variant.clone(),
            Segment::Unknown => return pointer,
        };
        format!("{pointer}/{name}")
    })
}

/// Parses a document of one of our own types as far as possible.
fn typed<T: DeserializeOwned + ToSchema>(
    json: &Value,
    wrap: impl Fn(Box<T>) -> Document,
) -> (Option<Document>, Vec<Finding>) {
    let (value, mut findings) = read::<T>(json);
    findings.extend(models_read(json));
    match value {
        Ok(value) => (Some(wrap(Box::new(value))), findings),
        Err(error) => {
            findings.push(error);
            (None, findings)
        }
    }
}

/// Checks a document of any kind: returns the kind it was treated as, and all findings. `None` if
/// the kind cannot be determined.
pub fn check(json: &Value, kind: Option<Kind>, prices: &[Price]) -> Option<(Kind, Vec<Finding>)> {
    let kind = kind.or_else(|| lint::kind_of(json))?;
    let (document, mut findings) = match kind {
        Kind::Experiment => typed(json, Document::Experiment),
        Kind::Workload => typed(json, Document::Workload),
        Kind::Run => typed(json, Document::Run),
        Kind::InstanceProfile => {
            let instance_type = json
                .get("instance_type")
                .and_then(Value::as_str)
                .map(str::to_owned);
            let inner = json.get("spec");
            let at = if inner.is_some() { "/spec" } else { "" };
            let wrap = |spec| Document::InstanceProfile {
                instance_type: instance_type.clone(),
                spec,
                at,
            };
            let (document, mut findings) = typed(inner.unwrap_or(json), wrap);
            for finding in &mut findings {
                finding.pointer.insert_str(0, at);
            }
            (document, findings)
        }
        foreign => (Some(Document::Foreign(foreign, json.clone())), Vec::new()),
    };
    if let Some(document) = &document {
        findings.extend(lint::document(document, prices));
    }
    Some((kind, capped(findings)))
}

/// Limits for fixing one document: patches tried, and bytes processed.
const ROUNDS_MAX: usize = 200;
const MENDED_BYTES_MAX: usize = 8 << 20;

/// Applies the offered patches repeatedly until none is left or nothing changes. For a large
/// document, or if each patch causes another, only the first patches are applied.
pub fn apply_fixes(json: &Value, kind: Kind, prices: &[Price]) -> Value {
    let findings_of = |document: &Value| {
        check(document, Some(kind), prices).map_or_else(Vec::new, |(_, found)| found)
    };
    let mut document = json.clone();
    let mut findings = findings_of(&document);
    // One patch may make another one necessary, so allow twice the initial number.
    let offered = findings
        .iter()
        .filter(|finding| !finding.patch.is_empty())
        .count();
    let affordable = MENDED_BYTES_MAX / json.to_string().len().max(1);
    for _ in 0..(offered * 2 + 8).min(affordable).clamp(1, ROUNDS_MAX) {
        // Apply one patch at a time: it may move the target of the next.
        let applied = findings
            .iter()
            .filter(|finding| !finding.patch.is_empty())
            .find_map(|finding| {
                let patch: json_patch::Patch =
                    serde_json::from_value(serde_json::to_value(&finding.patch).ok()?).ok()?;
                let mut tried = document.clone();
                json_patch::patch(&mut tried, &patch).ok()?;
                (tried != document).then_some(tried)
            });
        let Some(next) = applied else { break };
        document = next;
        findings = findings_of(&document);
    }
    document
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_so_many_patches_of_a_document_are_applied() {
        let wrong: Vec<Value> = (0..300)
            .map(|_| json!({"instance_type": "ml.p5.48xlarge", "accelerators": 7}))
            .collect();
        let run = json!({"name": "x", "hardware": "none", "accelerator_count": 1, "claims": {"hardware": wrong}});
        let fixed = apply_fixes(&run, Kind::Run, &[]);
        let right = fixed["claims"]["hardware"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["accelerators"] == 8)
            .count();
        assert_eq!(right, ROUNDS_MAX);
    }

    /// As in many a notebook: all members side by side. What is meant is kept, and nothing is made up.
    #[test]
    fn misplaced_members_are_moved_into_objects_that_are_missing() {
        let flat = json!({"job_name": "x", "instance_type": "ml.m5.xlarge", "instance_count": 2, "max_runtime_in_seconds": 3600});
        let fixed = apply_fixes(&flat, Kind::TrainingJob, &[]);
        let resources = &fixed["ResourceConfig"];
        assert_eq!(resources["InstanceType"], "ml.m5.xlarge", "{fixed}");
        assert_eq!(resources["InstanceCount"], 2, "{fixed}");
        let stopping = json!({"MaxRuntimeInSeconds": 3600});
        assert_eq!(fixed["StoppingCondition"], stopping, "{fixed}");
        // All patches of one answer at once lose nothing.
        let (_, findings) = check(&flat, Some(Kind::TrainingJob), &[]).unwrap();
        let mut document = flat;
        for finding in &findings {
            let patch = serde_json::to_value(&finding.patch).unwrap();
            let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
            json_patch::patch(&mut document, &patch).unwrap();
        }
        let text = document.to_string();
        assert!(
            text.contains("ml.m5.xlarge") && text.contains("3600"),
            "{text}"
        );
        // An object that is there under another name is renamed, and then filled.
        let half =
            json!({"resource_config": {"instance_count": 1}, "instance_type": "ml.m5.xlarge"});
        let fixed = apply_fixes(&half, Kind::TrainingJob, &[]);
        assert_eq!(
            fixed["ResourceConfig"]["InstanceType"], "ml.m5.xlarge",
            "{fixed}"
        );
        assert_eq!(fixed.get("resource_config"), None, "{fixed}");
    }

    #[test]
    fn a_model_may_be_given_as_its_configuration() {
        let config = json!({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": false});
        let run = |model: &Value| json!({"name": "x", "hardware": "8 x A100", "accelerator_count": 8, "model": model});
        let (parsed, findings) = read::<bakeoff_domain::spec::run::RunSpec>(&run(&config));
        assert_eq!(
            findings[0].pointer, "/model/sequence_length",
            "{findings:?}"
        );
        drop(parsed);
        let mut whole = config;
        whole["sequence_length"] = json!(1024);
        let (parsed, findings) = read::<bakeoff_domain::spec::run::RunSpec>(&run(&whole));
        assert_eq!(findings, []);
        let model = parsed.unwrap().model.unwrap();
        assert_eq!((model.layers, model.sequence_length), (32, 1024));
        let (_, told) = check(&run(&whole), Some(Kind::Run), &[]).unwrap();
        assert!(
            told.iter().any(|one| one.rule == "model-config"),
            "{told:?}"
        );
    }

    #[test]
    fn metrics_are_named_or_chosen_by_what_prints_them() {
        use bakeoff_domain::spec::WorkloadSpec;
        let mut workload = bakeoff_planner::rules::example(Kind::Workload);
        let names = |workload: &Value| -> Vec<String> {
            let (parsed, unknown) = read::<WorkloadSpec>(workload);
            assert_eq!(unknown, []);
            parsed
                .unwrap()
                .metrics
                .into_iter()
                .map(|one| one.name)
                .collect()
        };
        workload["metrics"] = json!("torchtune");
        assert_eq!(
            names(&workload),
            [
                "step",
                "train_loss",
                "tokens_per_second_per_device",
                "learning_rate"
            ]
        );
        workload["metrics"] = json!("torchtitain");
        let (parsed, _) = read::<WorkloadSpec>(&workload);
        let finding = parsed.unwrap_err();
        assert_eq!(finding.pointer, "/metrics");
        assert!(
            finding.message.contains("torchtitan, torchtune"),
            "{finding:?}"
        );
        // In a list, a slip is found where it is.
        workload["metrics"] =
            json!([{"name": "tps", "regex": "tps=(.*)", "meaning": "step", "regx": "x"}]);
        let (_, unknown) = read::<WorkloadSpec>(&workload);
        assert_eq!(unknown[0].pointer, "/metrics/0/regx", "{unknown:?}");
        workload["metrics"] = json!([{"name": "tps", "regex": "tps=(.*)", "meaning": "stepp"}]);
        let (parsed, _) = read::<WorkloadSpec>(&workload);
        assert_eq!(parsed.unwrap_err().pointer, "/metrics/0/meaning");
        // Without any, by the image.
        workload.as_object_mut().unwrap().remove("metrics");
        assert_eq!(names(&workload), Vec::<String>::new());
        workload["image"] = json!(
            "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-training:2.5.1-transformers4.49.0-gpu-py311-cu124-ubuntu22.04"
        );
        assert!(names(&workload).contains(&"validation_loss".to_owned()));
        let (_, told) = check(&workload, Some(Kind::Workload), &[]).unwrap();
        assert!(
            told.iter().any(|one| one.rule == "metrics-of-framework"),
            "{told:?}"
        );
    }

    #[test]
    fn what_others_call_a_field_is_renamed() {
        let profile = json!({"instance_type": "ml.p4d.24xlarge", "gpu_count": 8, "gpu_memory": "40GB", "batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 4, "deepspeed_config": "p4d_deepspeed_config.json"});
        assert_eq!(lint::kind_of(&profile), Some(Kind::InstanceProfile));
        let fixed = apply_fixes(&profile, Kind::InstanceProfile, &[]);
        assert_eq!(
            (&fixed["micro_batch_per_gpu"], fixed.get("gpu_count")),
            (&json!(2), None),
            "{fixed}"
        );
        // A file's name is no configuration: what to do is said, and nothing is done.
        let (_, left) = check(&fixed, Some(Kind::InstanceProfile), &[]).unwrap();
        let finding = left
            .iter()
            .find(|one| one.pointer == "/deepspeed_config")
            .unwrap();
        assert!(
            finding.fix.contains("put the settings of that file"),
            "{finding:?}"
        );
    }

    #[test]
    fn all_missing_fields_are_named_at_once() {
        let half = json!({"name": "x", "workload": {"name": "y", "model": {}, "channels": [{"name": "train"}]}, "candidates": [{}]});
        let (parsed, others) = read::<bakeoff_domain::spec::ExperimentSpec>(&half);
        let mut all: Vec<String> = others
            .iter()
            .chain([&parsed.unwrap_err()])
            .map(|one| format!("{} {}", one.pointer, one.message))
            .collect();
        all.sort();
        let expected = [
            "/budget_usd missing field `budget_usd`",
            "/candidates/0/instance_type missing field `instance_type`",
        ];
        assert!(
            expected
                .iter()
                .all(|one| all.iter().any(|found| found == one)),
            "{all:#?}"
        );
        assert!(
            all.iter()
                .any(|one| one == "/workload/image missing field `image`"),
            "{all:#?}"
        );
        assert!(
            all.iter()
                .any(|one| one == "/workload/channels/0/s3_uri missing field `s3_uri`"),
            "{all:#?}"
        );
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:#?}");
    }

    #[test]
    fn twenty_unknown_fields_are_named_and_the_rest_counted() {
        let numbered = (0..49).map(|number| (format!("unread_{number:02}"), json!(1)));
        let fields: serde_json::Map<String, Value> = numbered
            .chain([("accelerator_cuont".to_owned(), json!(1))])
            .collect();
        let (_, mut unknown) = read::<bakeoff_domain::spec::run::RunSpec>(&Value::Object(fields));
        unknown.retain(|finding| finding.rule == "unknown-field");
        assert_eq!(unknown.len(), UNKNOWN_MAX + 1);
        assert!(
            unknown[0].fix.contains("accelerator_count"),
            "{}",
            unknown[0].fix
        );
        assert!(
            unknown[UNKNOWN_MAX].message.contains("30 more"),
            "{}",
            unknown[UNKNOWN_MAX].message
        );
    }
}

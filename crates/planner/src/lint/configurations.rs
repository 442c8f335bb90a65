//! Configurations of other programs that say something of a job: a model's `config.json`, and
//! DeepSpeed's own file.

use bakeoff_domain::catalog::hugging_face;
use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::spec::ProfileSpec;
use serde_json::{Map, Value, json};

use crate::render::deepspeed::is_auto;
use crate::rules::found;

/// Checks a model's `config.json`, and says what it is as an experiment's model.
pub(super) fn model(config: &Value, findings: &mut Vec<Finding>) {
    match hugging_face::shape(config) {
        Err(why) => findings.push(found("model-config-not-read", "").says(why)),
        Ok(read) => {
            let parameters = read.shape.parameters() / 1e9;
            // The length that is trained with is the user's to say.
            let shape = ModelShape {
                sequence_length: 1,
                ..read.shape
            };
            let written = serde_json::to_string(&shape).unwrap_or_default();
            let notes = read.notes.join("; ");
            findings.push(
                found("model-config", "")
                    .says(format!(
                        "a decoder of {parameters:.2} billion parameters; {notes}"
                    ))
                    .fix(format!(
                        "use it as \"model\" as it is, or write \"model\": {written}"
                    )),
            );
        }
    }
}

/// Whether a document is DeepSpeed's configuration.
pub(super) fn is_deepspeed(document: &Map<String, Value>) -> bool {
    [
        "zero_optimization",
        "train_micro_batch_size_per_gpu",
        "train_batch_size",
    ]
    .iter()
    .any(|name| document.contains_key(*name))
}

/// Checks DeepSpeed's configuration (deepspeed.ai, "DeepSpeed Configuration JSON"; runtime/config.py).
pub(super) fn deepspeed(config: &Value, findings: &mut Vec<Finding>) {
    let Some(entries) = config.as_object() else {
        return;
    };
    precision(entries, findings);
    batches(entries, findings);
    offload(entries, findings);
    let is_sound = findings.is_empty();
    let filled_in: Vec<&str> = entries
        .iter()
        .filter(|(_, value)| is_auto(value))
        .map(|(name, _)| name.as_str())
        .collect();
    if !filled_in.is_empty() {
        findings.push(found("deepspeed-auto", "").says(format!(
            "{} are filled in by whoever starts DeepSpeed (Hugging Face's Trainer, accelerate)",
            filled_in.join(", ")
        )));
    }
    if is_sound {
        findings.push(found("deepspeed-profile", "").fix(format!(
            "write \"profile\": {}, and in its \"deepspeed\" whatever else you set",
            profile(entries)
        )));
    }
}

fn is_on(entries: &Map<String, Value>, name: &str) -> bool {
    let enabled = entries.get(name).and_then(|part| part.get("enabled"));
    enabled == Some(&Value::Bool(true))
}

fn precision(entries: &Map<String, Value>, findings: &mut Vec<Finding>) {
    if is_on(entries, "fp16") && is_on(entries, "bf16") {
        findings.push(found("deepspeed-precision", "/fp16").says("fp16 and bf16 are both on"));
    }
}

fn count(entries: &Map<String, Value>, name: &str) -> Option<u64> {
    entries.get(name).and_then(Value::as_u64)
}

/// The global batch is micro-batch × accumulation × processes.
fn batches(entries: &Map<String, Value>, findings: &mut Vec<Finding>) {
    for name in [
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
    ] {
        let value = entries.get(name);
        if let Some(value) =
            value.filter(|value| !is_auto(value) && value.as_u64().is_none_or(|count| count == 0))
        {
            findings.push(
                found("deepspeed-batch", format!("/{name}"))
                    .says(format!("{name} is {value}"))
                    .fix("write a whole number of at least 1, or \"auto\""),
            );
        }
    }
    let [Some(batch), Some(micro)] =
        ["train_batch_size", "train_micro_batch_size_per_gpu"].map(|name| count(entries, name))
    else {
        return;
    };
    let accumulation = count(entries, "gradient_accumulation_steps").unwrap_or(1);
    let each = micro.saturating_mul(accumulation);
    if each > 0 && batch % each != 0 {
        findings.push(found("deepspeed-batch", "/train_batch_size").says(format!(
            "train_batch_size is {batch}, which is no multiple of {micro} × {accumulation}: no number of GPUs fits"
        )));
    }
}

fn offload(entries: &Map<String, Value>, findings: &mut Vec<Finding>) {
    let Some(zero) = entries.get("zero_optimization").and_then(Value::as_object) else {
        return;
    };
    let stage = zero.get("stage");
    let number = stage.and_then(Value::as_u64);
    if stage.is_some() && number.is_none_or(|stage| stage > 3) {
        findings.push(
            found("deepspeed-stage", "/zero_optimization/stage")
                .says(format!("stage is {}", stage.unwrap_or(&Value::Null)))
                .fix("ZeRO has stages 0 to 3"),
        );
    }
    for (name, least) in [("offload_optimizer", 1), ("offload_param", 3)] {
        let Some(part) = zero.get(name) else { continue };
        let device = part.get("device").and_then(Value::as_str).unwrap_or("none");
        let at = format!("/zero_optimization/{name}");
        if device == "nvme" && part.get("nvme_path").is_none() {
            findings.push(
                found("deepspeed-nvme", format!("{at}/nvme_path"))
                    .says(format!("{name} goes to NVMe, but nvme_path is missing")),
            );
        }
        if device != "none" && number.is_some_and(|stage| stage < least) {
            findings.push(found("deepspeed-stage", at).says(format!(
                "{name} needs stage {least}{}; the stage is {}",
                if least < 3 { " or more" } else { "" },
                number.unwrap_or_default()
            )));
        }
    }
}

/// Splits a profile as the configuration does.
pub(crate) fn apply(entries: &Map<String, Value>, to: &mut ProfileSpec) {
    let mut fields = json!(to);
    if let (Some(fields), Value::Object(own)) = (fields.as_object_mut(), profile(entries)) {
        let split = ["library", "zero_stage", "cpu_offload"];
        fields.extend(
            own.into_iter()
                .filter(|(name, _)| split.contains(&name.as_str())),
        );
    }
    if let Ok(applied) = serde_json::from_value(fields) {
        *to = applied;
    }
}

/// The fields of a profile that the configuration sets.
fn profile(entries: &Map<String, Value>) -> Value {
    let zero = entries
        .get("zero_optimization")
        .cloned()
        .unwrap_or_default();
    let is_offloaded = |name: &str| {
        zero.get(name)
            .and_then(|part| part.get("device")?.as_str())
            .is_some_and(|device| device != "none")
    };
    let mut profile = json!({
        "library": "deepspeed",
        "micro_batch_per_gpu": count(entries, "train_micro_batch_size_per_gpu").unwrap_or(1),
        "gradient_accumulation_steps": count(entries, "gradient_accumulation_steps").unwrap_or(1),
        "zero_stage": zero.get("stage").and_then(Value::as_u64).unwrap_or(0),
    });
    let offload = match (
        is_offloaded("offload_optimizer"),
        is_offloaded("offload_param"),
    ) {
        (_, true) => Some("optimizer_and_parameters"),
        (true, false) => Some("optimizer"),
        (false, false) => None,
    };
    if let (Some(offload), Some(fields)) = (offload, profile.as_object_mut()) {
        fields.insert("cpu_offload".to_owned(), offload.into());
    }
    profile
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules_of(config: &Value) -> Vec<String> {
        let mut findings = Vec::new();
        deepspeed(config, &mut findings);
        findings.into_iter().map(|one| one.rule).collect()
    }

    #[test]
    fn what_deepspeed_refuses_is_found() {
        let wrong = json!({
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}, "offload_param": {"device": "cpu"}},
            "train_batch_size": 100, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
            "fp16": {"enabled": true}, "bf16": {"enabled": true}
        });
        assert_eq!(
            rules_of(&wrong),
            [
                "deepspeed-precision",
                "deepspeed-batch",
                "deepspeed-nvme",
                "deepspeed-stage"
            ]
        );
        let auto = json!({"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}});
        assert_eq!(rules_of(&auto), ["deepspeed-auto", "deepspeed-profile"]);
    }
}

//! Runs of Weights & Biases: `config.yaml`, the settings that a run has logged, and `wandb-metadata.json`, how it was started and on
//! what. W&B keeps both beside each run, under Files.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Whose figures they are.
pub(super) const RUN: &str = "the W&B run";

/// Members that W&B adds for itself.
const OWN: [&str; 2] = ["wandb_version", "_wandb"];

/// The settings of a run's `config.yaml`, where each is an object with its `value`; `None` if it is no such file.
pub(super) fn config(document: &Value) -> Option<Value> {
    let entries = document.as_object()?;
    let has = |name: &str| entries.contains_key(name);
    // A run's summary is marked the same way, and says how it went instead.
    let is_summary = has("_runtime") || document.pointer("/_wandb/runtime").is_some();
    if !OWN.iter().any(|name| has(name)) || is_summary {
        return None;
    }
    let settings = entries
        .iter()
        .filter(|(name, _)| !OWN.contains(&name.as_str()))
        .map(|(name, setting)| {
            let value = setting.get("value").unwrap_or(setting);
            (name.clone(), value.clone())
        });
    Some(Value::Object(settings.collect()))
}

/// How a run was started.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RunStart {
    /// What its script was told, and how many processes it ran in: one for each accelerator of its machine.
    pub(super) settings: BTreeMap<String, String>,
    /// Of its code.
    pub(super) commit: Option<String>,
}

/// The start that newer versions keep within `config.yaml`, if one process alone has written it.
pub(super) fn start_within(document: &Value) -> Option<RunStart> {
    let writers = document.pointer("/_wandb/value/e")?.as_object()?;
    let mut starts = writers.values().filter_map(start);
    let one = starts.next()?;
    starts.next().is_none().then_some(one)
}

/// Reads a run's `wandb-metadata.json`; `None` if it is no such file. An anonymous run names no executable.
pub(super) fn start(document: &Value) -> Option<RunStart> {
    let entries = document.as_object()?;
    let has = |name: &str| entries.contains_key(name);
    let is_start = has("program") && (has("executable") || has("startedAt") || has("started_at"));
    if !is_start {
        return None;
    }
    let mut settings = arguments(entries);
    if let Some(count) = entries.get("gpu_count").and_then(Value::as_u64) {
        let nodes = document.pointer("/slurm/nnodes").and_then(Value::as_str);
        let nodes: u64 = nodes.and_then(|count| count.parse().ok()).unwrap_or(1);
        let processes = count.saturating_mul(nodes);
        settings.insert("num_processes".to_owned(), processes.to_string());
    }
    let commit = document.pointer("/git/commit").and_then(Value::as_str);
    Some(RunStart {
        settings,
        commit: commit.map(str::to_owned),
    })
}

/// `["--lr", "1e-4", "--bf16", "--max-steps=500"]` as names and values; what is only named is on.
fn arguments(entries: &Map<String, Value>) -> BTreeMap<String, String> {
    let words = entries.get("args").and_then(Value::as_array);
    let words = words.into_iter().flatten().filter_map(Value::as_str);
    let mut told = BTreeMap::new();
    let mut named: Option<String> = None;
    for word in words {
        let Some(flag) = word.strip_prefix("--") else {
            if let Some(name) = named.take() {
                told.insert(name, word.to_owned());
            } else if let Some((name, value)) = word.trim_start_matches('+').split_once('=') {
                // Hydra's: `optimizer.lr=0.1`.
                let name = name.rsplit('.').next().unwrap_or(name);
                told.insert(underscored(name), value.to_owned());
            }
            continue;
        };
        told.extend(named.take().map(|name| (name, "true".to_owned())));
        match flag.split_once('=') {
            Some((name, value)) => _ = told.insert(underscored(name), value.to_owned()),
            None => named = Some(underscored(flag)),
        }
    }
    told.extend(named.map(|name| (name, "true".to_owned())));
    told
}

fn underscored(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_loses_its_wrapping() {
        let file = json!({"wandb_version": 1, "_wandb": {"value": {"cli_version": "0.19.1"}},
            "learning_rate": {"desc": null, "value": 0.0002}, "model": {"value": {"value": 7}}});
        assert_eq!(
            config(&file),
            Some(json!({"learning_rate": 0.0002, "model": {"value": 7}}))
        );
        assert_eq!(config(&json!({"learning_rate": {"value": 1}})), None);
        let summary = json!({"_wandb": {"runtime": 60}, "_runtime": 60, "train/loss": 2.1});
        assert_eq!(config(&summary), None);
        assert_eq!(config(&json!({"_wandb": {"runtime": 0}})), None);
    }

    #[test]
    fn a_start_tells_what_its_script_was_told() {
        let file = json!({"program": "/code/train.py", "executable": "/usr/bin/python", "gpu": "NVIDIA A100-SXM4-80GB",
            "gpu_count": 8, "git": {"remote": "git@example.com:a/b", "commit": "0f1e2d"},
            "args": ["--model_name_or_path", "Qwen/Qwen2.5-7B", "--bf16", "--max-steps=500", "--lr", "-1", "stray", "--tf32"]});
        let start = start(&file).unwrap();
        assert_eq!(start.commit.as_deref(), Some("0f1e2d"));
        let told = |name: &str| start.settings.get(name).map(String::as_str);
        assert_eq!(told("model_name_or_path"), Some("Qwen/Qwen2.5-7B"));
        assert_eq!((told("bf16"), told("tf32")), (Some("true"), Some("true")));
        assert_eq!((told("max_steps"), told("lr")), (Some("500"), Some("-1")));
        assert_eq!(told("num_processes"), Some("8"));
        assert_eq!(super::start(&json!({"program": "x"})), None);
        // On two machines of Slurm's, anonymous, and configured by Hydra.
        let file = json!({"program": "/code/train.py", "startedAt": "2026-05-09T10:00:00Z", "gpu_count": 4, "slurm": {"nnodes": "2"},
            "args": ["+trainer.max_steps=500", "BATCH-SIZE=8"]});
        let start = super::start(&file).unwrap();
        let told = |name: &str| start.settings.get(name).map(String::as_str);
        assert_eq!(
            (told("max_steps"), told("num_processes")),
            (Some("500"), Some("8"))
        );
        assert_eq!(told("BATCH_SIZE"), Some("8"));
        let within = json!({"_wandb": {"value": {"e": {"w1": file}}}});
        assert_eq!(start_within(&within).as_ref(), Some(&start));
        let both = json!({"_wandb": {"value": {"e": {"w1": file, "w2": file}}}});
        assert_eq!(
            start_within(&both),
            None,
            "of several processes, none stands for all"
        );
    }
}

//! The layouts of the writers, read from their sources: Transformers 5.23 (`trainer.py`), DeepSpeed 0.19
//! (`engine.py`), Lightning 2.6, PyTorch DCP with Megatron Core 0.16 (torchtitan and NeMo 2 write it, too), Megatron-LM's
//! older one, Composer 0.32, accelerate 1.15 (`checkpointing.py`), TensorFlow 2 and Orbax.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::Writer;
use crate::embedded::pattern;

/// The checkpoint that an object belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LayoutMatch {
    pub(super) name: String,
    pub(super) writer: Writer,
    pub(super) step: Option<u64>,
}

impl LayoutMatch {
    /// The part of a key that is the same in every checkpoint of its writer. Ranks are counted elsewhere,
    /// and may differ from one run to the next; of a distributed checkpoint, their files are all there is.
    pub(super) fn part(&self, key: &str) -> String {
        let rest = key.strip_prefix(&self.name).unwrap_or(key);
        // DeepSpeed's folder within one of Hugging Face's.
        match self.step {
            Some(step) => rest.replace(&format!("global_step{step}"), "global_step"),
            None => rest.to_owned(),
        }
    }
}

/// Parts that a later checkpoint of the same writer has, too.
pub(super) fn common(writer: Writer, parts: &BTreeSet<String>) -> BTreeSet<String> {
    if writer == Writer::Distributed {
        return parts.clone();
    }
    let is_digit = |c: char| c.is_ascii_digit();
    let parts = parts.iter().map(|part| part.replace(is_digit, ""));
    parts.collect()
}

struct Patterns {
    hugging_face: Regex,
    deepspeed: Regex,
    megatron: Regex,
    distributed: Regex,
    nemo: Regex,
    tensorflow: Regex,
    lightning: Regex,
    composer: Regex,
    distcp: Regex,
    step: Regex,
    file_step: Regex,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| Patterns {
    hugging_face: pattern(r"(.*?checkpoint-(\d+))/.+"),
    deepspeed: pattern(r"(.*?global_step(\d+))/.+"),
    megatron: pattern(r"(.*?iter_(\d+))/mp_rank_\d+(?:_\d+)*/.+"),
    distributed: pattern(r"(.*?iter_(\d+))/.+"),
    nemo: pattern(r"(.*?step=(\d+)[^/]*)/(?:weights|context)/.+"),
    tensorflow: pattern(r"(.*?ckpt-(\d+))\.(?:index|data-\d+-of-\d+)"),
    lightning: pattern(r"(.+\.ckpt)(?:/.+)?"),
    composer: pattern(r"(.*?ep\d+-ba(\d+))-rank\d+\.pt"),
    distcp: pattern(r"(?:(.+)/)?(?:__\d+_\d+\.distcp|\.metadata)"),
    step: pattern(r".*?step[=_-]?(\d+).*"),
    // A number that ends a name, or stands before its figures: `xgboost-checkpoint.99`, `model.05-0.31.keras`, `500`.
    file_step: pattern(
        r"(?:.*?[._-])?(\d+)(?:-\d+\.\d+)?(?:\.(?:keras|h5|hdf5|weights\.h5|pt|pth|ckpt|bin|json|ubj|txt))?",
    ),
});

/// Which checkpoint a key belongs to; `None` for trackers, links and SageMaker's own marks of finished
/// uploads.
pub(super) fn named(key: &str) -> Option<LayoutMatch> {
    let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
    let is_mark = name.ends_with(".sagemaker-uploaded");
    // DeepSpeed's tracker within a checkpoint of Hugging Face or Lightning is a part of it.
    let is_within = key.contains("checkpoint-") || key.contains(".ckpt/");
    if is_mark || super::CheckpointFacts::is_tracker(key) && !is_within {
        return None;
    }
    let all = &*PATTERNS;
    let by_step = [
        (&all.hugging_face, Writer::HuggingFace),
        (&all.deepspeed, Writer::DeepSpeed),
        (&all.megatron, Writer::Megatron),
        (&all.distributed, Writer::Distributed),
        (&all.nemo, Writer::Distributed),
        (&all.tensorflow, Writer::TensorFlow),
        (&all.composer, Writer::Composer),
    ];
    for (pattern, writer) in by_step {
        if let Some(found) = pattern.captures(key) {
            return Some(LayoutMatch {
                name: found.get(1)?.as_str().to_owned(),
                writer,
                step: found.get(2)?.as_str().parse().ok(),
            });
        }
    }
    let of = |name: &str, writer: Writer| LayoutMatch {
        name: name.to_owned(),
        writer,
        step: all
            .step
            .captures(name)
            .and_then(|found| found.get(1)?.as_str().parse().ok()),
    };
    if let Some(found) = all.lightning.captures(key) {
        return Some(of(found.get(1)?.as_str(), Writer::Lightning));
    }
    if let Some(found) = all.distcp.captures(key) {
        let folder = found.get(1).map_or("", |folder| folder.as_str());
        return Some(of(folder, Writer::Distributed));
    }
    let (top, is_folder) = key
        .split_once('/')
        .map_or((key, false), |(top, _)| (top, true));
    let mut unit = of(top, Writer::Unknown);
    // accelerate numbers its folders by how often it saved.
    if unit.step.is_none() && !(is_folder && top.starts_with("checkpoint_")) {
        let number = all.file_step.captures(top);
        unit.step = number.and_then(|found| found.get(1)?.as_str().parse().ok());
    }
    Some(unit)
}

/// The writer of a folder in which no name says it, by the files that it always writes.
pub(super) fn recognised<'a>(writer: Writer, keys: impl Iterator<Item = &'a str>) -> Writer {
    if writer != Writer::Unknown {
        return writer;
    }
    let states = pattern(r".+/random_states_\d+\.pkl");
    let mut found = Writer::Unknown;
    for key in keys {
        let name = key.rsplit_once('/').map_or("", |(_, name)| name);
        if states.is_match(key) {
            return Writer::Accelerate;
        }
        if matches!(name, "_CHECKPOINT_METADATA" | "commit_success.txt") {
            found = Writer::Orbax;
        }
    }
    found
}

/// What a checkpoint lacks by its layout; `None` if nothing. `parts` are its keys without its own name,
/// `ranks` the number of training processes, if known.
pub(super) fn missing(
    writer: Writer,
    parts: &BTreeSet<String>,
    ranks: Option<u32>,
) -> Option<String> {
    if let Some(mark) = parts
        .iter()
        .find(|part| part.ends_with(".sagemaker-uploading"))
    {
        return Some(format!("the end of an upload ({mark})"));
    }
    match writer {
        Writer::HuggingFace => hugging_face(parts, ranks),
        Writer::DeepSpeed => deepspeed(parts, ranks),
        Writer::Lightning => lightning(parts, ranks),
        Writer::Megatron => megatron(parts),
        Writer::Accelerate => accelerate(parts, ranks),
        Writer::TensorFlow => tensorflow(parts),
        // Its folder has its own name only once all is written, or its last file says so.
        Writer::Orbax => None,
        Writer::Distributed => distributed(parts),
        Writer::Composer => each_rank(parts, r"-rank(\d+)\.pt", "rank", ranks),
        Writer::Unknown => Some("a layout that is recognised".to_owned()),
    }
}

fn has(parts: &BTreeSet<String>, name: &str) -> bool {
    parts
        .iter()
        .any(|part| part.trim_start_matches('/') == name)
}

fn hugging_face(parts: &BTreeSet<String>, ranks: Option<u32>) -> Option<String> {
    if !has(parts, "trainer_state.json") {
        return Some("trainer_state.json, which is written last".to_owned());
    }
    let is_weights = |part: &String| {
        let name = part.trim_start_matches('/');
        name == "model.safetensors"
            || name == "pytorch_model.bin"
            || name.starts_with("pytorch_model-")
            || name.starts_with("adapter_model")
    };
    let is_sharded = has(parts, "model.safetensors.index.json");
    let is_nested = parts
        .iter()
        .any(|part| part.contains("global_step") || part.contains(".distcp"));
    if is_sharded {
        if let Some(lacking) = shards(parts) {
            return Some(lacking);
        }
    } else if !is_nested && !parts.iter().any(is_weights) {
        return Some("the weights".to_owned());
    }
    let states = ["optimizer.pt", "scheduler.pt"];
    let has_ranks = parts.iter().any(|part| part.contains("/rng_state"));
    // `save_only_model` leaves all of them out.
    if !has_ranks && !states.iter().any(|state| has(parts, state)) {
        return None;
    }
    if !is_nested && let Some(needed) = states.iter().find(|state| !has(parts, state)) {
        return Some((*needed).to_owned());
    }
    if has(parts, "rng_state.pth") {
        return None;
    }
    each_rank(
        parts,
        r"/rng_state_(\d+)\.pth",
        "the RNG state of rank",
        ranks,
    )
}

/// `model-00001-of-00003.safetensors`.
fn shards(parts: &BTreeSet<String>) -> Option<String> {
    let shard = pattern(r".*-(\d+)-of-(\d+)\.safetensors");
    let numbers = |part: &String| -> Option<(u32, u32)> {
        let found = shard.captures(part)?;
        Some((
            found.get(1)?.as_str().parse().ok()?,
            found.get(2)?.as_str().parse().ok()?,
        ))
    };
    let found: Vec<(u32, u32)> = parts.iter().filter_map(numbers).collect();
    let Some((_, all)) = found.first() else {
        return Some("the weights".to_owned());
    };
    let lacking = (1..=*all).find(|number| !found.iter().any(|(own, _)| own == number));
    lacking.map(|number| format!("part {number} of {all} of the weights"))
}

fn deepspeed(parts: &BTreeSet<String>, ranks: Option<u32>) -> Option<String> {
    let has_model = parts.iter().any(|part| part.ends_with("_model_states.pt"));
    if !has_model {
        return Some("the model states".to_owned());
    }
    let model_parallel = numbers(parts, r"/mp_rank_(\d+)_model_states\.pt");
    if let Some(lacking) = gap(&model_parallel) {
        return Some(format!("the model states of rank {lacking}"));
    }
    let split = u32::try_from(model_parallel.len()).unwrap_or(1).max(1);
    // Without ZeRO, they hold the optimiser, too.
    if !parts.iter().any(|part| part.contains("zero_pp_rank_")) {
        return None;
    }
    // ZeRO-3 keeps the model states by data-parallel rank, too.
    let of_zero_3 = numbers(parts, r"/zero_pp_rank_(\d+)_mp_rank_\d+_model_states\.pt");
    if let Some(lacking) = gap(&of_zero_3) {
        return Some(format!("the model states of rank {lacking}"));
    }
    let optimizer = r"/(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt";
    let data_parallel = ranks.map(|ranks| (ranks / split).max(1));
    let lacking = each_rank(
        parts,
        optimizer,
        "the optimiser states of rank",
        data_parallel,
    );
    lacking.or_else(|| {
        let few = data_parallel.filter(|all| !of_zero_3.is_empty() && count(&of_zero_3) < *all);
        few.map(|all| format!("the model states of {} ranks", all - count(&of_zero_3)))
    })
}

fn lightning(parts: &BTreeSet<String>, ranks: Option<u32>) -> Option<String> {
    // With DeepSpeed, the file is a folder with one of DeepSpeed's.
    let of_deepspeed: BTreeSet<String> = parts
        .iter()
        .filter_map(|part| part.strip_prefix("/checkpoint"))
        .map(str::to_owned)
        .collect();
    if !of_deepspeed.is_empty() {
        return deepspeed(&of_deepspeed, ranks);
    }
    let is_file = parts.iter().all(String::is_empty);
    let is_sealed = parts
        .iter()
        .any(|part| part.ends_with("/.metadata") || part.ends_with("/meta.pt"));
    (!is_file && !is_sealed).then(|| ".metadata, which is written last".to_owned())
}

/// Each model-parallel rank has a folder with the same files: of tensor parallelism, and below it of the pipeline.
fn megatron(parts: &BTreeSet<String>) -> Option<String> {
    let file = pattern(r"/(mp_rank_(\d+)(?:_(\d+))?(?:_\d+)*)/(.+)");
    let (mut tensor, mut pipeline) = (BTreeSet::new(), BTreeSet::new());
    let (mut folders, mut names) = (BTreeSet::new(), BTreeSet::new());
    for part in parts {
        let Some(found) = file.captures(part) else {
            continue;
        };
        let number = |group: usize| found.get(group)?.as_str().parse::<u32>().ok();
        tensor.extend(number(2));
        pipeline.extend(number(3));
        folders.extend(found.get(1).map(|folder| folder.as_str()));
        names.extend(found.get(4).map(|name| name.as_str()));
    }
    if !names.contains("model_optim_rng.pt") {
        return Some("model_optim_rng.pt".to_owned());
    }
    if let Some(lacking) = gap(&tensor).or_else(|| gap(&pipeline)) {
        return Some(format!("the folder of rank {lacking}"));
    }
    if folders.len() < tensor.len() * pipeline.len().max(1) {
        return Some("the folder of a rank".to_owned());
    }
    let mut all = folders
        .iter()
        .flat_map(|folder| names.iter().map(move |name| format!("/{folder}/{name}")));
    all.find(|file| !parts.contains(file))
        .map(|file| file.trim_start_matches('/').to_owned())
}

fn accelerate(parts: &BTreeSet<String>, ranks: Option<u32>) -> Option<String> {
    let is_weights = |part: &String| {
        let name = part.trim_start_matches('/');
        name.starts_with("model")
            || name.starts_with("pytorch_model")
            || name.starts_with("adapter_model")
    };
    if !parts.iter().any(is_weights) {
        return Some("the weights".to_owned());
    }
    let is_optimizer = |part: &String| part.trim_start_matches('/').starts_with("optimizer");
    if !parts.iter().any(is_optimizer) {
        return Some("optimizer.bin".to_owned());
    }
    each_rank(
        parts,
        r"/random_states_(\d+)\.pkl",
        "the random state of rank",
        ranks,
    )
}

fn tensorflow(parts: &BTreeSet<String>) -> Option<String> {
    if !parts.contains(".index") {
        return Some(".index, which is written last".to_owned());
    }
    let shard = pattern(r"\.data-(\d+)-of-(\d+)");
    let number = |part: &String, group: usize| -> Option<u32> {
        shard.captures(part)?.get(group)?.as_str().parse().ok()
    };
    let found: BTreeSet<u32> = parts.iter().filter_map(|part| number(part, 1)).collect();
    let all = parts.iter().find_map(|part| number(part, 2)).unwrap_or(1);
    let lacking = (0..all).find(|part| !found.contains(part));
    lacking.map(|part| format!("part {part} of {all} of its data"))
}

fn distributed(parts: &BTreeSet<String>) -> Option<String> {
    let is_seal = |part: &String| {
        let name = part.trim_start_matches('/');
        name == ".metadata" || name == "weights/.metadata"
    };
    if !parts.iter().any(is_seal) {
        return Some(".metadata, which is written last".to_owned());
    }
    // Not every rank has to write data: only gaps are told here, and what the one before has.
    each_rank(
        parts,
        r"/?(?:weights/)?__(\d+)_\d+\.distcp",
        "the file of rank",
        None,
    )
}

fn numbers(parts: &BTreeSet<String>, of: &str) -> BTreeSet<u32> {
    let of = pattern(of);
    parts
        .iter()
        .filter_map(|part| of.captures(part)?.get(1)?.as_str().parse().ok())
        .collect()
}

fn count(numbers: &BTreeSet<u32>) -> u32 {
    u32::try_from(numbers.len()).unwrap_or(u32::MAX)
}

/// The first number from 0 on that is left out below the largest.
fn gap(numbers: &BTreeSet<u32>) -> Option<u32> {
    numbers
        .iter()
        .zip(0..)
        .find_map(|(own, expected)| (*own != expected).then_some(expected))
}

/// What is missing of files that each rank writes.
fn each_rank(parts: &BTreeSet<String>, of: &str, what: &str, ranks: Option<u32>) -> Option<String> {
    let found = numbers(parts, of);
    if let Some(lacking) = gap(&found) {
        return Some(format!("{what} {lacking}"));
    }
    if found.is_empty() {
        return Some(format!("{what} 0"));
    }
    let lacking = ranks.filter(|ranks| count(&found) < *ranks);
    lacking.map(|_| format!("{what} {}", count(&found)))
}

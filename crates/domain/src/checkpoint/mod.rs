//! Checkpoints as objects below a prefix: which there are, at which step, and whether each is whole. What
//! may be deleted of them is in [`keep`].
//!
//! S3 shows objects in the order of their uploads, not of their writing, so a file that its writer writes
//! last may be there before others. Whole is what its layout asks for, on as many ranks as are known, with
//! the same files as the last whole one before it.

pub mod copy;
pub mod cost;
pub mod keep;
mod layout;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::checkpoint::layout::{LayoutMatch, named};

/// An object below the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Relative to the prefix, such as `checkpoint-500/model.safetensors`.
    pub key: String,
    pub bytes: u64,
    pub written_at: DateTime<Utc>,
}

named! {
    /// What wrote a checkpoint, by its layout
    Writer {
        /// `checkpoint-<step>/` of Hugging Face's Trainer.
        HuggingFace = "hugging_face",
        /// `global_step<step>/` of DeepSpeed.
        DeepSpeed = "deepspeed",
        /// A `.ckpt` file of Lightning.
        Lightning = "lightning",
        /// `.metadata` and `.distcp` files of PyTorch's distributed checkpoints and Megatron Core.
        Distributed = "distributed",
        /// `ep<epoch>-ba<batch>-rank<rank>.pt` of Composer.
        Composer = "composer",
        /// `iter_<step>/mp_rank_<rank>/` of Megatron-LM, one folder for each model-parallel rank.
        Megatron = "megatron",
        /// A folder of accelerate's `save_state`.
        Accelerate = "accelerate",
        /// `ckpt-<number>.index` with its data, of TensorFlow.
        TensorFlow = "tensor_flow",
        /// A folder of Orbax, for JAX.
        Orbax = "orbax",
        /// Files in no known layout: whether they are whole cannot be told.
        Unknown = "unknown",
    }
}

/// Whether a checkpoint is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Completeness {
    Complete,
    /// It was written to so recently that more may come.
    BeingWritten,
    Incomplete {
        missing: String,
    },
    /// Its layout is not known, or it is a single file: a person may know more.
    Unknown,
}

/// One checkpoint: all objects of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The folder or file below the prefix, such as `checkpoint-500`.
    pub name: String,
    pub writer: Writer,
    /// Empty where the layout does not name it.
    pub step: Option<u64>,
    pub bytes: u64,
    /// When its newest object was written.
    pub written_at: DateTime<Utc>,
    pub wholeness: Completeness,
    /// Relative to the prefix.
    pub keys: Vec<String>,
}

impl Checkpoint {
    /// The folder that it lies in, below the prefix; empty for the prefix itself.
    pub fn folder(&self) -> &str {
        self.name.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Whether another one is of the same writer, in the same folder.
    pub fn is_of_series(&self, other: &Self) -> bool {
        self.writer == other.writer && self.folder() == other.folder()
    }

    pub fn is_complete(&self) -> bool {
        self.wholeness == Completeness::Complete
    }
}

/// After so long without a new object, no more are expected.
const SETTLES: TimeDelta = TimeDelta::minutes(5);

/// What is known beside the objects.
#[derive(Debug, Clone, Default)]
pub struct CheckpointFacts {
    /// Training processes, each of which may write files of its own.
    pub ranks: Option<u32>,
    /// Contents of small tracker files, by key: `latest`, `latest_checkpointed_iteration.txt`.
    pub trackers: BTreeMap<String, String>,
}

/// What TensorFlow's `checkpoint` says of its newest one.
fn tensorflow_tracker(name: &str) -> String {
    format!("model_checkpoint_path: \"{name}\"\n")
}

impl CheckpointFacts {
    /// Keys of tracker files, whose contents are worth reading.
    pub fn is_tracker(key: &str) -> bool {
        let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
        let is_named = matches!(
            name,
            "latest" | "latest_checkpointed_iteration.txt" | "checkpoint"
        );
        is_named || name.ends_with(".symlink")
    }

    /// Whether a tracker names a checkpoint: a program that resumes will look for it.
    pub fn tracks(&self, name: &str, step: Option<u64>) -> bool {
        self.trackers.iter().any(|(key, text)| {
            let folder = key.rfind('/').map_or("", |slash| key.split_at(slash + 1).0);
            let Some(own) = name.strip_prefix(folder) else {
                return false;
            };
            // Composer's names a file of one rank.
            let text = text.trim().split("-rank").next().unwrap_or_default();
            text == own
                || text.starts_with(tensorflow_tracker(own).trim())
                || step.is_some_and(|step| text.parse() == Ok(step))
        })
    }
}

/// The checkpoints among some objects, the oldest step first.
pub fn find(
    objects: &[StoredObject],
    known: &CheckpointFacts,
    now: DateTime<Utc>,
) -> Vec<Checkpoint> {
    let mut found: Vec<Checkpoint> = Vec::new();
    let mut last_whole: BTreeMap<Writer, BTreeSet<String>> = BTreeMap::new();
    for (unit, objects) in by_step(objects) {
        let parts: BTreeSet<String> = objects.iter().map(|one| unit.part(&one.key)).collect();
        let missing = layout::missing(unit.writer, &parts, known.ranks).or_else(|| {
            let before = last_whole.get(&unit.writer)?;
            let common = layout::common(unit.writer, &parts);
            let lacking = before.difference(&common).next()?;
            Some(format!("{lacking}, which the one before has"))
        });
        let written_at = objects.iter().map(|one| one.written_at).max();
        let written_at = written_at.unwrap_or(DateTime::UNIX_EPOCH);
        let wholeness = match missing {
            None => {
                last_whole.insert(unit.writer, layout::common(unit.writer, &parts));
                Completeness::Complete
            }
            Some(_) if now - written_at < SETTLES => Completeness::BeingWritten,
            Some(_) if unit.writer == Writer::Unknown => Completeness::Unknown,
            Some(missing) => Completeness::Incomplete { missing },
        };
        found.push(Checkpoint {
            name: unit.name,
            writer: unit.writer,
            step: unit.step,
            bytes: objects.iter().map(|one| one.bytes).sum(),
            written_at,
            wholeness,
            keys: objects.iter().map(|one| one.key.clone()).collect(),
        });
    }
    found
}

/// The objects of each checkpoint, by step: the one before is known when one is judged.
fn by_step(objects: &[StoredObject]) -> Vec<(LayoutMatch, Vec<&StoredObject>)> {
    let mut units: BTreeMap<LayoutMatch, Vec<&StoredObject>> = BTreeMap::new();
    for object in objects {
        if let Some(unit) = named(&object.key) {
            units.entry(unit).or_default().push(object);
        }
    }
    let mut units: Vec<(LayoutMatch, Vec<&StoredObject>)> = units.into_iter().collect();
    for (unit, objects) in &mut units {
        let keys = objects.iter().map(|one| one.key.as_str());
        unit.writer = layout::recognised(unit.writer, keys);
    }
    gather_nested(&mut units);
    units.sort_by(|(a, of_a), (b, of_b)| {
        let newest = |of: &[&StoredObject]| of.iter().map(|one| one.written_at).max();
        (a.step, newest(of_a)).cmp(&(b.step, newest(of_b)))
    });
    units
}

/// What lies in a folder of accelerate's is a part of it, also where it looks like a checkpoint of its own.
fn gather_nested(units: &mut Vec<(LayoutMatch, Vec<&StoredObject>)>) {
    let of_accelerate = units
        .iter()
        .filter(|(unit, _)| unit.writer == Writer::Accelerate);
    let folders: Vec<String> = of_accelerate
        .map(|(unit, _)| format!("{}/", unit.name))
        .collect();
    for folder in folders {
        let is_nested = |(unit, _): &mut (LayoutMatch, Vec<_>)| unit.name.starts_with(&folder);
        let nested: Vec<&StoredObject> = units
            .extract_if(.., is_nested)
            .flat_map(|(_, objects)| objects)
            .collect();
        let mut whole = units.iter_mut();
        if let Some((_, objects)) =
            whole.find(|(unit, _)| folder.trim_end_matches('/') == unit.name)
        {
            objects.extend(nested);
        }
    }
}

#[cfg(test)]
mod tests;

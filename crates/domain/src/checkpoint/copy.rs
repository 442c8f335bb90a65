//! A copy of one checkpoint in a folder of its own: SageMaker restores a whole prefix, and a script then
//! takes the newest that it finds, so a run that is to go on from an earlier one needs a prefix in which
//! there is nothing else.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};

use super::{Checkpoint, StoredObject, Writer};
use crate::ids::TrialId;

/// An object to copy; keys are relative to their folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    pub from: String,
    pub to: String,
    pub bytes: u64,
    /// When what is copied was written.
    pub written_at: DateTime<Utc>,
}

/// A small file to write, once all objects are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracker {
    pub key: String,
    pub text: String,
}

/// What a copy consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    pub objects: Vec<Copied>,
    /// They name the copied checkpoint to the script that resumes: written last.
    pub trackers: Vec<Tracker>,
}

impl Copy {
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }

    /// The objects that are not in the copy's folder yet.
    pub fn missing<'a>(&'a self, there: &'a [StoredObject]) -> impl Iterator<Item = &'a Copied> {
        let is_there = |one: &Copied| {
            there.iter().any(|object| {
                // What was written again since is copied again.
                object.key == one.to
                    && object.bytes == one.bytes
                    && object.written_at >= one.written_at
            })
        };
        self.objects.iter().filter(move |one| !is_there(one))
    }

    /// Whether the folder holds the whole copy.
    pub fn is_done(&self, there: &[StoredObject]) -> bool {
        let has = |tracker: &Tracker| there.iter().any(|object| object.key == tracker.key);
        self.missing(there).next().is_none() && self.trackers.iter().all(has)
    }
}

/// The folder of the next copy of one checkpoint of a trial: the same one until a run uses it, since what
/// a run writes there is newer than what was copied. It has the form of a trial's, beside which it lies,
/// and is none.
pub fn folder(trial: TrialId, checkpoint: &str, used: &BTreeSet<TrialId>) -> TrialId {
    let mut folders = (0..=used.len()).map(|number| numbered(trial, checkpoint, number));
    let first = numbered(trial, checkpoint, 0);
    folders
        .find(|folder| !used.contains(folder))
        .unwrap_or(first)
}

fn numbered(trial: TrialId, checkpoint: &str, number: usize) -> TrialId {
    let digest = Sha256::digest(format!("{trial} {checkpoint} {number}"));
    let mut bytes = [0; 16];
    for (byte, of_digest) in bytes.iter_mut().zip(digest) {
        *byte = of_digest;
    }
    TrialId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// What a copy of a checkpoint consists of. `objects` are those of its prefix.
pub fn of(checkpoint: &Checkpoint, objects: &[StoredObject]) -> Copy {
    let own = objects
        .iter()
        .filter(|object| checkpoint.keys.contains(&object.key));
    let mut copied: Vec<Copied> = own
        .map(|object| Copied {
            from: object.key.clone(),
            to: object.key.clone(),
            bytes: object.bytes,
            written_at: object.written_at,
        })
        .collect();
    let folder = match checkpoint.folder() {
        "" => String::new(),
        folder => format!("{folder}/"),
    };
    if checkpoint.writer == Writer::Lightning {
        copied.extend(as_last(checkpoint, &folder, &copied));
    }
    Copy {
        objects: copied,
        trackers: trackers(checkpoint, &folder),
    }
}

/// Lightning's `ckpt_path="last"` looks for `last.ckpt` only.
fn as_last(checkpoint: &Checkpoint, folder: &str, copied: &[Copied]) -> Vec<Copied> {
    let last = format!("{folder}last.ckpt");
    if checkpoint.name == last {
        return Vec::new();
    }
    let named = |one: &Copied| {
        let rest = one.from.strip_prefix(&checkpoint.name)?;
        Some(Copied {
            to: format!("{last}{rest}"),
            ..one.clone()
        })
    };
    copied.iter().filter_map(named).collect()
}

/// The tracker files beside a checkpoint, as they would be if it were the newest.
fn trackers(checkpoint: &Checkpoint, folder: &str) -> Vec<Tracker> {
    let own = checkpoint.name.strip_prefix(folder).unwrap_or_default();
    let tracker = |name: &str, text: String| Tracker {
        key: format!("{folder}{name}"),
        text,
    };
    let step = checkpoint.step.map(|step| step.to_string());
    match checkpoint.writer {
        Writer::DeepSpeed => vec![tracker("latest", own.to_owned())],
        Writer::TensorFlow => vec![tracker("checkpoint", super::tensorflow_tracker(own))],
        Writer::Megatron | Writer::Distributed if own.starts_with("iter_") => step
            .map(|step| tracker("latest_checkpointed_iteration.txt", step))
            .into_iter()
            .collect(),
        // One for each rank; each names that rank's file.
        Writer::Composer => checkpoint
            .keys
            .iter()
            .filter_map(|key| {
                let file = key.strip_prefix(folder)?;
                let rank = file.strip_prefix(own)?.strip_suffix(".pt")?;
                let name = format!("latest{rank}.pt.symlink");
                Some(tracker(&name, file.to_owned()))
            })
            .collect(),
        Writer::HuggingFace
        | Writer::Distributed
        | Writer::Lightning
        | Writer::Megatron
        | Writer::Accelerate
        | Writer::Orbax
        | Writer::Unknown => Vec::new(),
    }
}

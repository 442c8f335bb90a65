//! Which checkpoints may be deleted, so that the newest few are kept. Deleting is the service's matter.

use serde::{Deserialize, Serialize};

use super::{Checkpoint, Known, Wholeness};

/// What must be kept beside the newest.
#[derive(Debug, Clone, Default)]
pub struct Protected {
    /// The best one, by name, as the writer's state says.
    pub best: Option<String>,
    /// What a job was resumed from, by name.
    pub resumed_from: Option<String>,
}

named! {
    /// Why a checkpoint is kept
    KeptFor {
        /// Among the newest whole ones.
        Newest = "newest",
        Best = "best",
        ResumedFrom = "resumed_from",
        /// A tracker file names it.
        Tracked = "tracked",
        /// It is newer than the newest whole one.
        Unfinished = "unfinished",
        /// Its layout is unknown.
        Unknown = "unknown",
    }
}

/// What becomes of one checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Kept(KeptFor),
    Deleted,
}

/// The fate of each checkpoint, oldest first, as [`super::find`] returns them, if the newest `keep` whole
/// ones are kept. At least one is; without a whole one, nothing is deleted.
pub fn fates(all: &[Checkpoint], keep: usize, known: &Known, protected: &Protected) -> Vec<Fate> {
    let whole: Vec<usize> = (0..all.len())
        .filter(|index| all.get(*index).is_some_and(Checkpoint::is_complete))
        .collect();
    let newest = whole.last().copied();
    let first_kept = whole.len().saturating_sub(keep.max(1));
    let kept = whole.get(first_kept..).unwrap_or_default();
    let fate = |(index, one): (usize, &Checkpoint)| {
        let is = |name: &Option<String>| name.as_deref() == Some(one.name.as_str());
        if kept.contains(&index) {
            Fate::Kept(KeptFor::Newest)
        } else if is(&protected.best) {
            Fate::Kept(KeptFor::Best)
        } else if is(&protected.resumed_from) {
            Fate::Kept(KeptFor::ResumedFrom)
        } else if known.tracks(&one.name, one.step) {
            Fate::Kept(KeptFor::Tracked)
        } else if one.writer == super::Writer::Unknown {
            Fate::Kept(KeptFor::Unknown)
        } else if newest.is_none_or(|newest| index > newest)
            || one.wholeness == Wholeness::BeingWritten
        {
            Fate::Kept(KeptFor::Unfinished)
        } else {
            Fate::Deleted
        }
    };
    all.iter().enumerate().map(fate).collect()
}

/// The keys of a checkpoint in the order in which they are deleted: what says that it is whole first, so
/// that a half-deleted one is not taken for whole.
pub fn deletion_order(checkpoint: &Checkpoint) -> Vec<String> {
    let mut keys = checkpoint.keys.clone();
    let is_seal = |key: &str| {
        let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
        matches!(
            name,
            "trainer_state.json" | ".metadata" | "meta.pt" | "metadata.json"
        ) || name.ends_with("_model_states.pt")
    };
    keys.sort_by_key(|key| !is_seal(key));
    keys
}

//! Which checkpoints may be deleted, so that the newest few are kept. Deleting is the service's matter.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Checkpoint, CheckpointFacts, Completeness, Writer};

/// What must be kept beside the newest.
#[derive(Debug, Clone, Default)]
pub struct Protected {
    /// The best ones, by name: each trainer below the prefix names its own.
    pub best: BTreeSet<String>,
}

named! {
    /// Why a checkpoint is kept
    KeptFor {
        /// Among the newest whole ones.
        Newest = "newest",
        Best = "best",
        /// A tracker file names it.
        Tracked = "tracked",
        /// It is newer than the newest whole one.
        Unfinished = "unfinished",
        /// Its layout is unknown.
        Unknown = "unknown",
        /// Its name has no step, as the one that Lightning resumes from.
        Unnumbered = "unnumbered",
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
///
/// Each writer and each folder counts on its own: two trainers below one prefix know nothing of each
/// other, and what lies beside one another below a step may be parts of one state.
pub fn fates(
    all: &[Checkpoint],
    keep: usize,
    known: &CheckpointFacts,
    protected: &Protected,
) -> Vec<Fate> {
    let mut series: BTreeMap<(Writer, &str), BTreeSet<u64>> = BTreeMap::new();
    for one in all.iter().filter(|one| one.is_complete()) {
        series.entry(own_series(one)).or_default().extend(one.step);
    }
    let none = BTreeSet::new();
    let fate = |one: &Checkpoint| {
        let whole = series.get(&own_series(one)).unwrap_or(&none);
        let mut newest = whole.iter().rev().take(keep.max(1));
        let is_past = whole.last().is_some_and(|newest| one.step < Some(*newest));
        if one.is_complete() && newest.any(|step| one.step == Some(*step)) {
            Fate::Kept(KeptFor::Newest)
        } else if protected.best.contains(&one.name) {
            Fate::Kept(KeptFor::Best)
        } else if known.tracks(&one.name, one.step) {
            Fate::Kept(KeptFor::Tracked)
        } else if one.writer == Writer::Unknown {
            Fate::Kept(KeptFor::Unknown)
        } else if one.step.is_none() {
            Fate::Kept(KeptFor::Unnumbered)
        } else if !is_past || one.wholeness == Completeness::BeingWritten {
            Fate::Kept(KeptFor::Unfinished)
        } else {
            Fate::Deleted
        }
    };
    all.iter().map(fate).collect()
}

/// The writer and the folder of a checkpoint.
fn own_series(one: &Checkpoint) -> (Writer, &str) {
    (one.writer, one.folder())
}

/// The keys of a checkpoint in the order in which they are deleted: what says that it is whole first, so
/// that a half-deleted one is not taken for whole.
pub fn deletion_order(checkpoint: &Checkpoint) -> Vec<String> {
    let mut keys = checkpoint.keys.clone();
    let is_seal = |key: &str| {
        let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
        matches!(
            name,
            "trainer_state.json"
                | ".metadata"
                | "meta.pt"
                | "metadata.json"
                | "_CHECKPOINT_METADATA"
                | "commit_success.txt"
        ) || name.ends_with("_model_states.pt")
            || name
                .rsplit_once('.')
                .is_some_and(|(_, kind)| kind == "index")
            || key.ends_with("mp_rank_00/model_optim_rng.pt")
            || key.ends_with("mp_rank_00_000/model_optim_rng.pt")
    };
    keys.sort_by_key(|key| !is_seal(key));
    keys
}

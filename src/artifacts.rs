//! What trials leave in S3: output files, and checkpoints, which are deleted when somebody says so. Read
//! when asked for; nothing is stored here.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bakeoff_domain::checkpoint::keep::{Fate, Protected, deletion_order, fates};
use bakeoff_domain::checkpoint::{Checkpoint, Known, StoredObject, find};
use bakeoff_domain::embedded::pattern;
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::{DateTime, Utc};
use regex::Regex;

use crate::aws::Aws;
use crate::store::jobs::checkpoints::CheckpointPlace;

/// Trackers read at most: programs write one.
const TRACKERS_MAX: usize = 4;

/// Files that are shown of one job.
const FILES_MAX: usize = 1_000;

/// The files below a job's output prefix, with keys relative to it.
pub async fn output_files(aws: &Aws, s3_uri: &str) -> Result<Vec<StoredObject>, AwsError> {
    let mut files = aws.list_objects(s3_uri).await?;
    files.truncate(FILES_MAX);
    Ok(files)
}

/// What lies below a trial's prefix.
#[derive(Debug)]
pub struct Found {
    pub checkpoints: Vec<Checkpoint>,
    pub known: Known,
    pub protected: Protected,
    /// Of all objects, also those of no checkpoint: all of them are restored.
    pub bytes: u64,
    /// A file that says what must be kept, and could not be read.
    pub unread: Option<String>,
}

/// Reads what lies below a prefix: a listing, and a few small files.
pub async fn read(
    aws: &Aws,
    place: &CheckpointPlace,
    now: DateTime<Utc>,
) -> Result<Found, AwsError> {
    let objects = aws.list_objects(&place.s3_uri).await?;
    let mut found = Found {
        checkpoints: Vec::new(),
        known: Known {
            ranks: place.ranks,
            trackers: BTreeMap::new(),
        },
        protected: Protected::default(),
        bytes: objects.iter().map(|object| object.bytes).sum(),
        unread: None,
    };
    let trackers = objects
        .iter()
        .filter(|object| Known::is_tracker(&object.key));
    for tracker in trackers.take(TRACKERS_MAX) {
        if let Some(text) = small(aws, place, &tracker.key, &mut found.unread).await {
            found.known.trackers.insert(tracker.key.clone(), text);
        }
    }
    found.checkpoints = find(&objects, &found.known, now);
    found.protected.best = best(aws, place, &found.checkpoints, &mut found.unread).await;
    Ok(found)
}

/// The best checkpoint, as the newest whole one of Hugging Face's Trainer says. What Lightning and Composer
/// think is best is in no file.
async fn best(
    aws: &Aws,
    place: &CheckpointPlace,
    checkpoints: &[Checkpoint],
    unread: &mut Option<String>,
) -> Option<String> {
    let mut newest = checkpoints.iter().rev().filter(|one| one.is_complete());
    let has_state = |one: &'_ Checkpoint| {
        let mut keys = one.keys.iter();
        keys.find(|key| key.ends_with("/trainer_state.json"))
            .cloned()
    };
    let (checkpoint, key) = newest.find_map(|one| Some((one, has_state(one)?)))?;
    let text = small(aws, place, &key, unread).await?;
    // As text: Python writes NaN into it, which is no JSON.
    let path = BEST.captures(&text)?.get(1)?.as_str();
    // A path inside the container: its last part is the folder, beside the one that says so.
    let own = path.trim_end_matches('/').rsplit('/').next()?;
    let folder = checkpoint
        .name
        .rfind('/')
        .map_or("", |slash| checkpoint.name.split_at(slash + 1).0);
    Some(format!("{folder}{own}"))
}

static BEST: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"(?s).*?"best_model_checkpoint"\s*:\s*"([^"]+)".*"#));

/// A small file; one that is there and cannot be read is noted.
async fn small(
    aws: &Aws,
    place: &CheckpointPlace,
    key: &str,
    unread: &mut Option<String>,
) -> Option<String> {
    match aws.get_object(&format!("{}/{key}", place.s3_uri)).await {
        Ok(found) => found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => {
            tracing::info!(%error, key, "a file beside checkpoints could not be read");
            *unread = Some(key.to_owned());
            None
        }
    }
}

/// What becomes of each checkpoint if the newest `keep` whole ones are kept.
pub fn fates_of(found: &Found, keep: usize) -> Vec<Fate> {
    fates(&found.checkpoints, keep, &found.known, &found.protected)
}

/// Deletes a checkpoint, what says that it is whole first; returns how many objects are gone.
pub async fn delete(
    aws: &Aws,
    place: &CheckpointPlace,
    checkpoint: &Checkpoint,
) -> Result<usize, AwsError> {
    for keys in deletion_order(checkpoint).chunks(1_000) {
        aws.delete_objects(&place.s3_uri, keys).await?;
    }
    Ok(checkpoint.keys.len())
}

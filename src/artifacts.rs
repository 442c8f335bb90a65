//! What trials leave in S3: output files, and checkpoints, which are deleted when somebody says so. Read
//! when asked for; nothing is stored here.

use std::collections::BTreeMap;

use bakeoff_domain::checkpoint::keep::{Fate, Protected, deletion_order, fates};
use bakeoff_domain::checkpoint::{Checkpoint, Known, StoredObject, find};
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::{DateTime, Utc};
use serde::Deserialize;

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
}

/// The part of Hugging Face's trainer_state.json that matters here.
#[derive(Deserialize)]
struct TrainerState {
    best_model_checkpoint: Option<String>,
}

/// Reads what lies below a prefix: a listing, and a few small files.
pub async fn read(
    aws: &Aws,
    place: &CheckpointPlace,
    now: DateTime<Utc>,
) -> Result<Found, AwsError> {
    let objects = aws.list_objects(&place.s3_uri).await?;
    let trackers = objects
        .iter()
        .filter(|object| Known::is_tracker(&object.key));
    let mut known = Known {
        ranks: place.ranks,
        trackers: BTreeMap::new(),
    };
    for tracker in trackers.take(TRACKERS_MAX) {
        if let Some(text) = small(aws, place, &tracker.key).await? {
            known.trackers.insert(tracker.key.clone(), text);
        }
    }
    let checkpoints = find(&objects, &known, now);
    let best = best(aws, place, &checkpoints).await?;
    Ok(Found {
        bytes: objects
            .iter()
            .map(|object: &StoredObject| object.bytes)
            .sum(),
        known,
        protected: Protected {
            best,
            resumed_from: None,
        },
        checkpoints,
    })
}

/// The best checkpoint, as the newest whole one of Hugging Face's says.
async fn best(
    aws: &Aws,
    place: &CheckpointPlace,
    checkpoints: &[Checkpoint],
) -> Result<Option<String>, AwsError> {
    let state = checkpoints
        .iter()
        .rev()
        .filter(|one| one.is_complete())
        .find_map(|one| {
            one.keys
                .iter()
                .find(|key| key.ends_with("/trainer_state.json"))
        });
    let Some(key) = state else {
        return Ok(None);
    };
    let text = small(aws, place, key).await?.unwrap_or_default();
    let state: Option<TrainerState> = serde_json::from_str(&text).ok();
    let path = state.and_then(|state| state.best_model_checkpoint);
    // A path inside the container: its last part is the folder.
    Ok(path.and_then(|path| {
        path.trim_end_matches('/')
            .rsplit('/')
            .next()
            .map(str::to_owned)
    }))
}

async fn small(aws: &Aws, place: &CheckpointPlace, key: &str) -> Result<Option<String>, AwsError> {
    let read = aws.get_object(&format!("{}/{key}", place.s3_uri)).await;
    match read {
        Ok(found) => Ok(found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        // Too large to be a tracker, or not ours to read: nothing is known of it.
        Err(AwsError::Denied(_) | AwsError::Unknown(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What becomes of each checkpoint if the newest `keep` whole ones are kept.
pub fn fates_of(found: &Found, keep: usize) -> Vec<Fate> {
    fates(&found.checkpoints, keep, &found.known, &found.protected)
}

/// Deletes those checkpoints whose fate it is, what says that they are whole first; returns how many
/// objects are gone.
pub async fn delete(
    aws: &Aws,
    place: &CheckpointPlace,
    found: &Found,
    fates: &[Fate],
) -> Result<usize, AwsError> {
    let mut gone = 0;
    for (checkpoint, fate) in found.checkpoints.iter().zip(fates) {
        if *fate == Fate::Deleted {
            for keys in deletion_order(checkpoint).chunks(1_000) {
                aws.delete_objects(&place.s3_uri, keys).await?;
                gone += keys.len();
            }
        }
    }
    Ok(gone)
}

//! What trials leave in S3: output files, and checkpoints, which are deleted when somebody says so. Read
//! when asked for; nothing is stored here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use bakeoff_domain::checkpoint::copy::{self, Copy};
use bakeoff_domain::checkpoint::keep::{Fate, Protected, deletion_order, fates};
use bakeoff_domain::checkpoint::{Checkpoint, CheckpointFacts, Completeness, StoredObject, find};
use bakeoff_domain::embedded::pattern;
use bakeoff_domain::ids::TrialId;
use bakeoff_domain::number::real;
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use regex::Regex;

use crate::aws::Aws;
use bakeoff_store::jobs::checkpoints::CheckpointPlace;

/// Small files read at most: programs write one or, with Composer, one for each rank.
const SMALL_MAX: usize = 128;

/// Objects of a copy that are under way at once.
const COPIED_AT_ONCE: usize = 8;

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
pub struct TrialArtifacts {
    pub checkpoints: Vec<Checkpoint>,
    pub known: CheckpointFacts,
    pub protected: Protected,
    /// All objects, also those of no checkpoint: all of them are restored.
    pub objects: Vec<StoredObject>,
    /// A file that says what must be kept, and could not be read.
    pub unread: Option<String>,
}

/// Reads what lies below a prefix: a listing, and a few small files.
pub async fn read(
    aws: &Aws,
    place: &CheckpointPlace,
    now: DateTime<Utc>,
) -> Result<TrialArtifacts, AwsError> {
    let objects = aws.list_objects(&place.s3_uri).await?;
    let mut found = TrialArtifacts {
        checkpoints: Vec::new(),
        known: CheckpointFacts {
            ranks: place.ranks,
            trackers: BTreeMap::new(),
        },
        protected: Protected::default(),
        objects: Vec::new(),
        unread: None,
    };
    let is_tracker = |object: &&StoredObject| CheckpointFacts::is_tracker(&object.key);
    for (read, tracker) in objects.iter().filter(is_tracker).enumerate() {
        if read == SMALL_MAX {
            found.unread = Some(tracker.key.clone());
            break;
        }
        if let Some(text) = small(aws, place, &tracker.key, &mut found.unread).await {
            found.known.trackers.insert(tracker.key.clone(), text);
        }
    }
    found.checkpoints = find(&objects, &found.known, now);
    found.objects = objects;
    found.protected.best = best(aws, place, &found.checkpoints, &mut found.unread).await;
    Ok(found)
}

/// The best checkpoint of each folder, as its newest whole one of Hugging Face's Trainer says. What
/// Lightning and Composer think is best is in no file.
async fn best(
    aws: &Aws,
    place: &CheckpointPlace,
    checkpoints: &[Checkpoint],
    unread: &mut Option<String>,
) -> BTreeSet<String> {
    let mut states: BTreeMap<&str, &String> = BTreeMap::new();
    for one in checkpoints.iter().filter(|one| one.is_complete()) {
        let mut keys = one.keys.iter();
        if let Some(state) = keys.find(|key| key.ends_with("/trainer_state.json")) {
            // They come by step: the newest stays.
            states.insert(one.folder(), state);
        }
    }
    if let Some((_, key)) = states.iter().nth(SMALL_MAX) {
        *unread = Some((*key).clone());
    }
    let mut best = BTreeSet::new();
    for (folder, key) in states.into_iter().take(SMALL_MAX) {
        let text = small(aws, place, key, unread).await.unwrap_or_default();
        if let Some(own) = named_best(&text) {
            best.insert(format!("{folder}/{own}").trim_start_matches('/').to_owned());
        }
    }
    best
}

/// The folder that a trainer's state names: the last part of a path inside the container. As text, since
/// Python writes NaN into it, which is no JSON.
fn named_best(state: &str) -> Option<&str> {
    let path = BEST.captures(state)?.get(1)?.as_str();
    path.trim_end_matches('/').rsplit('/').next()
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

/// A checkpoint that somebody chose, and the copy of it alone that a run may go on from.
#[derive(Debug)]
pub struct CheckpointCopy {
    pub step: Option<u64>,
    pub written_at: DateTime<Utc>,
    /// The whole ones of its writer in its folder.
    pub series: Vec<Checkpoint>,
    /// The folder of the copy, beside the trial's; no run has used it.
    pub folder: TrialId,
    pub from: String,
    pub to: String,
    pub copy: Copy,
    /// What of it is there.
    pub there: Vec<StoredObject>,
}

impl TrialArtifacts {
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }
}

impl CheckpointCopy {
    /// Its step over that of the newest that the trial itself had written by `until`; 0 without steps.
    pub fn share_of_trial(&self, until: Option<DateTime<Utc>>) -> f64 {
        let own = self.series.iter();
        let newest = own
            .filter(|one| until.is_none_or(|until| one.written_at <= until))
            .filter_map(|one| one.step)
            .max()
            .filter(|newest| *newest > 0);
        let share = self.step.zip(newest);
        share.map_or(0.0, |(step, newest)| real(step) / real(newest))
    }
}

/// Why a checkpoint cannot be chosen.
#[derive(Debug)]
pub enum CheckpointRefusal {
    /// There is none of that name; these are whole.
    Absent(Vec<String>),
    /// It lacks something.
    Incomplete(String),
    Aws(AwsError),
}

impl From<AwsError> for CheckpointRefusal {
    fn from(error: AwsError) -> Self {
        Self::Aws(error)
    }
}

/// Finds a checkpoint of a trial by its name, and what there is of its copy. `used`: folders that runs have
/// written to.
pub async fn choose(
    aws: &Aws,
    place: &CheckpointPlace,
    name: &str,
    used: &BTreeSet<TrialId>,
    now: DateTime<Utc>,
) -> Result<CheckpointCopy, CheckpointRefusal> {
    let found = read(aws, place, now).await?;
    let Some(one) = found.checkpoints.iter().find(|one| one.name == name) else {
        let whole = found.checkpoints.iter().filter(|one| one.is_complete());
        return Err(CheckpointRefusal::Absent(
            whole.map(|one| one.name.clone()).collect(),
        ));
    };
    match &one.wholeness {
        // Whoever names one in an unknown layout knows more of it than this does.
        Completeness::Complete | Completeness::Unknown => {}
        Completeness::BeingWritten => {
            return Err(CheckpointRefusal::Incomplete(
                "it is being written".to_owned(),
            ));
        }
        Completeness::Incomplete { missing } => {
            return Err(CheckpointRefusal::Incomplete(format!("it lacks {missing}")));
        }
    }
    let folder = copy::folder(place.trial, name, used);
    let base = place.s3_uri.rsplit_once('/').map_or("", |(base, _)| base);
    let to = format!("{base}/{folder}");
    let whole = found.checkpoints.iter().filter(|one| one.is_complete());
    Ok(CheckpointCopy {
        step: one.step,
        written_at: one.written_at,
        series: whole
            .filter(|other| other.is_of_series(one))
            .cloned()
            .collect(),
        folder,
        from: place.s3_uri.clone(),
        copy: copy::of(one, &found.objects),
        there: aws.list_objects(&to).await?,
        to,
    })
}

/// Copies what is missing of a checkpoint, several objects at a time, and writes its trackers last. All that
/// can be copied is, also where something fails.
pub async fn copy_missing(aws: &Aws, chosen: &CheckpointCopy) -> Result<(), AwsError> {
    let copies = chosen.copy.missing(&chosen.there).map(|object| {
        let from = format!("{}/{}", chosen.from, object.from);
        let to = format!("{}/{}", chosen.to, object.to);
        async move { aws.copy_object(&from, &to, object).await }
    });
    let copies: Vec<_> = copies.collect();
    let ended: Vec<Result<(), AwsError>> = futures::stream::iter(copies)
        .buffer_unordered(COPIED_AT_ONCE)
        .collect()
        .await;
    ended.into_iter().collect::<Result<(), AwsError>>()?;
    // Another process may have copied it meanwhile, and a run may have begun.
    if chosen.copy.is_done(&aws.list_objects(&chosen.to).await?) {
        return Ok(());
    }
    for tracker in &chosen.copy.trackers {
        let key = format!("{}/{}", chosen.to, tracker.key);
        aws.put_object(&key, tracker.text.clone().into_bytes())
            .await?;
    }
    Ok(())
}

/// What becomes of each checkpoint if the newest `keep` whole ones are kept.
pub fn fates_of(found: &TrialArtifacts, keep: usize) -> Vec<Fate> {
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

//! The checkpoints that training scripts write to S3: one per half hour of training, with the
//! virtual time as its modification time, unless the sync has stalled.

use std::fs;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, TimeDelta, Utc};

use crate::region::Region;
use crate::timeline::CHECKPOINT_SECONDS;
use crate::world::Job;

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Writes checkpoints until the program ends; runs on its own thread.
pub(crate) fn write(region: &Region) {
    loop {
        write_due(region);
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Writes the checkpoints that are due now.
pub(crate) fn write_due(region: &Region) {
    let now = region.now();
    let due = region.with(|world| {
        let due: Vec<(String, usize, DateTime<Utc>)> = world
            .jobs
            .iter_mut()
            .flat_map(|job| {
                let times = due(job, now);
                let first = job.checkpoints;
                job.checkpoints += times.len();
                let uri = job.request["CheckpointConfig"]["S3Uri"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                times
                    .into_iter()
                    .enumerate()
                    .map(move |(index, at)| (uri.clone(), first + index, at))
            })
            .collect();
        due
    });
    for (uri, number, at) in due {
        let Some(path) = region.object_path(&format!(
            "{}/checkpoint-{number}/state.bin",
            uri.trim_end_matches('/')
        )) else {
            continue;
        };
        let written = path
            .parent()
            .map(fs::create_dir_all)
            .transpose()
            .and_then(|_| {
                fs::write(&path, "checkpoint")?;
                fs::File::options()
                    .write(true)
                    .open(&path)?
                    .set_modified(SystemTime::from(at))
            });
        if let Err(error) = written {
            tracing::warn!(%error, "a checkpoint could not be written");
        }
    }
}

/// Times of the checkpoints that a job should have written but has not.
fn due(job: &Job, now: DateTime<Utc>) -> Vec<DateTime<Utc>> {
    if !job.request["CheckpointConfig"]["S3Uri"].is_string()
        || job.syncs_once && job.checkpoints > 0
    {
        return Vec::new();
    }
    let interval = bakeoff_domain::clock::seconds(CHECKPOINT_SECONDS);
    let mut times = Vec::new();
    for phase in job
        .timeline
        .phases
        .iter()
        .filter(|phase| phase.status == "Training")
    {
        let mut at = phase.start + interval;
        while at <= phase.end.min(now) {
            times.push(at);
            at += interval;
        }
    }
    let most = if job.syncs_once { 1 } else { usize::MAX };
    times
        .into_iter()
        .take(most)
        .skip(job.checkpoints)
        .filter(|at| *at > now - TimeDelta::days(400))
        .collect()
}

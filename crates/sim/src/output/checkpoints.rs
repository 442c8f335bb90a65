//! What jobs write to S3, with the virtual time as its modification time: their scripts' checkpoints, one
//! per half hour of training unless the sync has stalled; their models; the profiler's reports.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, TimeDelta, Utc};

use crate::jobs::job::Job;
use crate::machines::timeline::CHECKPOINT_SECONDS;
use crate::output::evaluations::{self, Reports};
use crate::output::metrics;
use crate::world::region::Region;

/// What Hugging Face's Trainer writes, the last one last.
const FILES: [&str; 5] = [
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
];
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Writes checkpoints until the program ends; runs on its own thread.
pub(crate) fn write(region: &Region) {
    loop {
        write_due(region);
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Writes the models of jobs that have completed.
fn write_models(region: &Region, now: DateTime<Utc>) {
    let due: Vec<(String, DateTime<Utc>)> = region.with(|world| {
        let done = world.jobs.iter_mut().filter(|job| !job.written.has_model);
        let due = done.filter_map(|job| {
            let due = job.model_uri(now).zip(job.timeline.end());
            job.written.has_model = due.is_some();
            due
        });
        due.collect()
    });
    for (uri, at) in due {
        if let Some(path) = region.object_path(&uri)
            && let Err(error) = write_file(&path, "{}", at)
        {
            tracing::warn!(%error, "a model could not be written");
        }
    }
}

/// Writes the outputs of processing and batch transform jobs that have completed, and the models of trials.
pub(crate) fn write_outputs(region: &Region, now: DateTime<Utc>) {
    let due: Vec<(Vec<String>, DateTime<Utc>)> = region.with(|world| {
        let jobs = world.processing.iter_mut().filter(|job| !job.has_written);
        let due = jobs.filter_map(|job| {
            let outputs = job.outputs(now);
            job.has_written = !outputs.is_empty();
            job.has_written.then(|| (outputs, job.ended_at()))
        });
        let mut due: Vec<(Vec<String>, DateTime<Utc>)> = due.collect();
        due.extend(
            world
                .transforms
                .iter_mut()
                .filter_map(|job| job.output(now)),
        );
        due.extend(world.tunings.iter_mut().map(|job| (job.models(now), now)));
        due
    });
    for (uris, at) in due {
        for path in uris.iter().filter_map(|uri| region.object_path(uri)) {
            if let Err(error) = write_file(&path, "{\"text\": \"of the region\"}\n", at) {
                tracing::warn!(%error, "an output could not be written");
            }
        }
    }
}

/// Writes what the profiler has found of jobs that have ended.
fn write_reports(region: &Region, now: DateTime<Utc>) {
    let due: Vec<Reports> = region.with(|world| {
        let jobs = world.jobs.iter_mut().filter(|job| !job.written.has_reports);
        let due = jobs.filter_map(|job| {
            let reports = evaluations::reports(job, now);
            job.written.has_reports = reports.is_some();
            reports
        });
        due.collect()
    });
    for Reports { at, files } in due {
        for (uri, content) in files {
            if let Some(path) = region.object_path(&uri)
                && let Err(error) = write_file(&path, &content, at)
            {
                tracing::warn!(%error, "a report could not be written");
            }
        }
    }
}

/// Writes the checkpoints, models and reports that are due now.
pub(crate) fn write_due(region: &Region) {
    let now = region.now();
    write_models(region, now);
    write_outputs(region, now);
    write_reports(region, now);
    let due = region.with(|world| {
        let resumes = world.resumes;
        let due: Vec<(String, String, DateTime<Utc>)> = world
            .jobs
            .iter_mut()
            .flat_map(|job| {
                let times = due(job, now);
                let steps: Vec<Option<f64>> = times
                    .iter()
                    .map(|at| metrics::step_at(job, *at).filter(|_| resumes))
                    .collect();
                let first = job.written.checkpoints;
                job.written.checkpoints += times.len();
                let uri = job.request["CheckpointConfig"]["S3Uri"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                times
                    .into_iter()
                    .enumerate()
                    .zip(steps)
                    .map(move |((index, at), step)| {
                        let number = 100 * (first + index + 1);
                        let step = step.map_or(number.to_string(), |step| step.to_string());
                        (uri.clone(), step, at)
                    })
            })
            .collect();
        due
    });
    for (uri, step, at) in due {
        let folder = format!("{}/checkpoint-{step}", uri.trim_end_matches('/'));
        write_checkpoint(region, &folder, at);
    }
}

fn write_checkpoint(region: &Region, folder: &str, at: DateTime<Utc>) {
    for file in FILES {
        let Some(path) = region.object_path(&format!("{folder}/{file}")) else {
            continue;
        };
        if let Err(error) = write_file(&path, "{}", at) {
            tracing::warn!(%error, "a checkpoint could not be written");
        }
    }
}

/// The step of the newest whole checkpoint below a prefix, as Hugging Face's Trainer finds it; 0 without
/// one.
pub(crate) fn newest_step(region: &Region, uri: &str) -> f64 {
    let folder = region.object_path(uri);
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
    let step = |entry: fs::DirEntry| -> Option<u32> {
        let is_whole = entry.path().join("trainer_state.json").exists();
        let name = entry.file_name().into_string().ok()?;
        let step = name.strip_prefix("checkpoint-")?.parse().ok()?;
        is_whole.then_some(step)
    };
    let steps = entries.into_iter().flatten().flatten().filter_map(step);
    steps.max().map_or(0.0, f64::from)
}

fn write_file(path: &Path, content: &str, at: DateTime<Utc>) -> std::io::Result<()> {
    path.parent().map(fs::create_dir_all).transpose()?;
    fs::write(path, content)?;
    fs::File::options()
        .write(true)
        .open(path)?
        .set_modified(SystemTime::from(at))
}

/// Times of the checkpoints that a job should have written but has not.
fn due(job: &Job, now: DateTime<Utc>) -> Vec<DateTime<Utc>> {
    if !job.request["CheckpointConfig"]["S3Uri"].is_string()
        || job.syncs_once && job.written.checkpoints > 0
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
        .skip(job.written.checkpoints)
        .filter(|at| *at > now - TimeDelta::days(400))
        .collect()
}

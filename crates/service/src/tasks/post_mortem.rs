//! Post-mortems: some seconds after a job has failed, reads the end of its log, finds the cause, and
//! keeps both with the last lines.

use std::collections::BTreeMap;

use bakeoff_domain::catalog;
use bakeoff_domain::diagnosis::{Diagnosis, Evidence, diagnose, signatures};
use bakeoff_domain::sagemaker::log::{LogLine, last_bytes, one_line};
use bakeoff_domain::spec::ProfileSpec;
use chrono::TimeDelta;

use crate::app::App;
use crate::live::job_log::{self, LogQuery, LoggedJob};
use crate::read::figures::Figures;
use bakeoff_store::StoreError;
use bakeoff_store::experiments::race::{Judged, Verdict};
use bakeoff_store::jobs::post_mortems::PostMortemDue;

const DUE_MAX: i64 = 50;
/// How long a claim is held, and until a log that could not be read is tried again.
const HOLD: TimeDelta = TimeDelta::minutes(3);
/// After so many tries, what SageMaker reports has to do.
const TRIES_MAX: u32 = 4;
/// Lines that are searched of each stream: eight ranks' tracebacks and what waits for them are thousands, and the cause
/// stands before them.
const LINES: usize = 20_000;
/// What is kept of the log.
const KEPT_BYTES: usize = 8 * 1024;
/// Lines of causes that are kept beside it.
const CLUES_MAX: usize = 32;

/// Runs one tick; returns how many were claimed.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let due = app
        .store
        .claim_due_post_mortems(&app.place.region, app.clock.now(), HOLD, DUE_MAX)
        .await?;
    let count = due.len();
    for one in due {
        app.pulse.beat();
        // One that fails must not hold up the others.
        if let Err(error) = examine(app, &one).await {
            tracing::warn!(%error, job = one.job_name, "a post-mortem failed; trying again later");
        }
    }
    Ok(count)
}

async fn examine(app: &App, due: &PostMortemDue) -> Result<(), StoreError> {
    let lines = read_log(app, due).await;
    // CloudWatch may not show the lines yet.
    let is_missing = lines.as_ref().is_none_or(Vec::is_empty);
    if due.has_started && is_missing && due.tries < TRIES_MAX {
        return Ok(());
    }
    let experiment = app
        .store
        .experiment(due.project_id, due.experiment_id)
        .await;
    let experiment = match experiment {
        Err(error) if due.tries < TRIES_MAX => return Err(error),
        // Without its profile, no change is proposed; the experiment must still be concluded.
        found => found.unwrap_or_default(),
    };
    let profile: Option<ProfileSpec> = experiment.as_ref().and_then(|experiment| {
        let mut candidates = experiment.resolved.candidates();
        let own = candidates.find(|candidate| candidate.spec.name == due.candidate)?;
        Some(own.profile.clone())
    });
    let failed = due.clone();
    // Off the workers that answer requests: a log has tens of thousands of lines.
    let thought = tokio::task::spawn_blocking(move || {
        let diagnosis = diagnose(&Evidence {
            failure_reason: failed.failure_reason.as_deref(),
            lines: lines.as_deref(),
            transitions: &failed.transitions,
            rules: &failed.rules,
            instance: catalog::find(&failed.instance_type),
            profile: profile.as_ref(),
        });
        (kept(&lines.unwrap_or_default(), &diagnosis), diagnosis)
    });
    // Without an end to its post-mortem, the experiment would have none either.
    let (kept, diagnosis) = thought.await.unwrap_or_else(|error| {
        tracing::error!(%error, job = due.job_name, "the log of a failed job could not be examined");
        let diagnosis = Diagnosis {
            summary: "Its log could not be examined: read its end".to_owned(),
            causes: Vec::new(),
            is_log_read: false,
        };
        (Vec::new(), diagnosis)
    });
    let now = app.clock.now();
    app.store
        .record_post_mortem(due, &diagnosis, &kept, now)
        .await?;
    if diagnosis.is_out_of_accelerator_memory() {
        stop_twins(app, due).await?;
    }
    Ok(())
}

/// Trials of the same candidate that have done no step yet would fail for the same reason: the profile and the type are
/// the same.
async fn stop_twins(app: &App, due: &PostMortemDue) -> Result<(), StoreError> {
    let trials = app.store.trials_of(&[due.experiment_id.0]).await?;
    let own = trials.iter().find(|trial| trial.id == due.trial_id);
    let option = own.map_or("", |own| own.plan.purchase_option.as_str());
    let ids: Vec<uuid::Uuid> = trials.iter().map(|trial| trial.id.0).collect();
    let figures = Figures::load(&app.store, &ids).await?;
    let twins = trials.iter().filter(|trial| {
        let is_alike = trial.plan.candidate == due.candidate && !trial.state.is_terminal();
        is_alike && !figures.reports_speed(trial.id.0)
    });
    let verdict = Verdict {
        stops: twins
            .map(|twin| Judged {
                trial: twin.id,
                reason: format!(
                    "stopped: {} {option} ran out of accelerator memory with the same profile on {}; add a candidate with a smaller micro-batch",
                    due.candidate, due.instance_type
                ),
            })
            .collect(),
        ..Verdict::default()
    };
    if !verdict.is_empty() {
        let (project, experiment) = (due.project_id, due.experiment_id);
        let store = &app.store;
        store
            .apply_verdict(project, experiment, &verdict, app.clock.now())
            .await?;
    }
    Ok(())
}

/// The last lines of each stream, together no more than is kept, and the lines that causes were found in.
fn kept(lines: &[LogLine], diagnosis: &Diagnosis) -> Vec<LogLine> {
    let mut streams: BTreeMap<&str, Vec<LogLine>> = BTreeMap::new();
    for line in lines {
        streams.entry(&line.stream).or_default().push(line.clone());
    }
    let each = KEPT_BYTES / streams.len().max(1);
    let mut kept: Vec<LogLine> = streams
        .values()
        .flat_map(|lines| last_bytes(lines, each))
        .collect();
    let is_clue = |line: &&LogLine| {
        diagnosis.causes.iter().any(|cause| {
            cause.clue.at == Some(line.at)
                && cause.clue.stream.as_ref() == Some(&line.stream)
                && cause.clue.text == one_line(&line.message)
        })
    };
    let of_causes = lines.iter().filter(is_clue).take(CLUES_MAX);
    kept.extend(of_causes.cloned());
    kept.sort();
    kept.dedup();
    kept
}

/// The end of each stream of its log, and what stands before it with a word of a failure: the cause comes first, and what
/// waits for it may write more than is read. Nothing of a job that never had instances, or if it cannot be read.
async fn read_log(app: &App, due: &PostMortemDue) -> Option<Vec<LogLine>> {
    if !due.has_started {
        return None;
    }
    let job = LoggedJob {
        kind: due.kind?,
        name: &due.job_name,
    };
    let read = job_log::tails(&app.place.aws, job, &LogQuery::default(), LINES).await;
    let part = read
        .inspect_err(|error| {
            tracing::info!(%error, job = due.job_name, tries = due.tries, "the log of a failed job could not be read");
        })
        .ok()?;
    let mut lines = part.lines;
    if !part.is_whole {
        match job_log::search(&app.place.aws, job, &signatures::WORDS, LINES).await {
            Ok(found) => {
                lines.extend(found);
                lines.sort();
                lines.dedup();
            }
            // The end of the log still says something.
            Err(error) => {
                tracing::info!(%error, job = due.job_name, "the log of a failed job could not be searched");
            }
        }
    }
    Some(lines)
}

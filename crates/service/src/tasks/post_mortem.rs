//! Post-mortems: some seconds after a job has failed, reads the end of its log, finds the cause, and
//! keeps both with the last lines. Where the machine was defective, the trial is retried on another one.

use std::collections::BTreeMap;

use bakeoff_domain::catalog;
use bakeoff_domain::diagnosis::{Diagnosis, Evidence, diagnose, signatures};
use bakeoff_domain::event::Change;
use bakeoff_domain::lifecycle::failure::{FailureClass, deserves_another_machine};
use bakeoff_domain::sagemaker::log::{LogLine, last_bytes, one_line};
use bakeoff_domain::spec::{ProfileSpec, PurchaseOption};
use chrono::TimeDelta;

use crate::app::App;
use crate::live::job_log::{self, LogQuery, LoggedJob};
use crate::read::figures::Figures;
use crate::use_cases::additions::{self, NotAdded, WantedTrials};
use bakeoff_store::StoreError;
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::additions::Added;
use bakeoff_store::experiments::race::{Judged, Verdict};
use bakeoff_store::experiments::trials::{Attempt, ShownTrial, Trial};
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
/// How often the experiment may change while a retry is planned.
const CHANGES_MAX: u32 = 3;
/// Why a trial is retried although nobody has asked for it.
const ANOTHER_MACHINE: &str =
    "the log of its job names a defective machine, so that another one is tried";

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
    if diagnosis.is_of_hardware()
        && let Err(error) = Box::pin(on_another_machine(app, due)).await
    {
        if due.tries < TRIES_MAX {
            return Err(error);
        }
        tracing::warn!(%error, job = due.job_name, "not retried on another machine");
    }
    let now = app.clock.now();
    app.store
        .record_post_mortem(due, &diagnosis, &kept, now)
        .await?;
    if diagnosis.is_out_of_accelerator_memory() {
        stop_twins(app, due).await?;
    }
    Ok(())
}

/// Retries a trial whose log alone says that its machine was defective; what FailureReason says, the scheduler has acted
/// on. Runs before the post-mortem is recorded, because an open post-mortem holds up the conclusion.
async fn on_another_machine(app: &App, due: &PostMortemDue) -> Result<(), StoreError> {
    let store = &app.store;
    // The retry would be given the instances that this job has left.
    store.distrust_pool(due.job_id, app.clock.now()).await?;
    let shown = store.shown_trial(due.project_id, due.trial_id).await?;
    if !shown.is_some_and(|trial| is_due_again(&trial, due)) {
        return Ok(());
    }
    let Some(trial) = store.trial(due.project_id, due.trial_id).await? else {
        return Ok(());
    };
    for _ in 0..CHANGES_MAX {
        let experiment = store.experiment(due.project_id, due.experiment_id).await?;
        let Some(experiment) = experiment.filter(|one| one.paused_reason.is_none()) else {
            return Ok(());
        };
        match retry(app, &experiment, &trial).await {
            Ok(()) => return Ok(()),
            Err(NotAdded::Store(error)) => return Err(error),
            // A person, or another post-mortem, has changed it meanwhile.
            Err(NotAdded::NotNow(Added::Since(_))) => {}
            // A person can still retry it: the diagnosis says so.
            Err(why) => {
                tracing::info!(?why, trial = %due.trial_id, "not retried on another machine");
                return Ok(());
            }
        }
    }
    tracing::info!(trial = %due.trial_id, "not retried on another machine: its experiment keeps changing");
    Ok(())
}

/// Whether this was the last job of a trial that is to run once more.
fn is_due_again(trial: &ShownTrial, due: &PostMortemDue) -> bool {
    let class = |attempt: &Attempt| attempt.failure_reason.as_deref().map(FailureClass::of);
    let classes: Vec<Option<FailureClass>> = trial.attempts.iter().map(class).collect();
    let is_last = trial
        .attempts
        .last()
        .is_some_and(|last| last.id == due.job_id);
    is_last && deserves_another_machine(trial.state, trial.retry_of.is_some(), &classes)
}

async fn retry(app: &App, experiment: &Experiment, trial: &Trial) -> Result<(), NotAdded> {
    let change = Change {
        cause: Some(ANOTHER_MACHINE.to_owned()),
        ..Change::default()
    };
    let Some(wanted) = WantedTrials::retry(experiment, trial, change) else {
        return Ok(());
    };
    let loaded = additions::load(app, experiment, wanted).await?;
    let checked = tokio::task::spawn_blocking(move || loaded.check()).await;
    let checked = checked.map_err(|error| NotAdded::Unchecked(error.to_string()))??;
    // It may not matter any more.
    if checked.starts() {
        additions::add(app, experiment, checked).await?;
    }
    Ok(())
}

/// Trials of the same candidate that have done no step yet would fail for the same reason: the profile and the type are
/// the same.
async fn stop_twins(app: &App, due: &PostMortemDue) -> Result<(), StoreError> {
    let trials = app.store.trials_of(&[due.experiment_id.0]).await?;
    let own = trials.iter().find(|trial| trial.id == due.trial_id);
    let option = own.map_or("", |own| match own.plan.purchase_option {
        PurchaseOption::OnDemand => "on demand",
        PurchaseOption::Spot => "on spot",
    });
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
                    "stopped: {} {option} ran out of accelerator memory on {} with the same profile; add a candidate with a smaller micro-batch",
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

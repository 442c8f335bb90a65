//! Post-mortems: some seconds after a job has failed, reads the end of its log, finds the cause, and
//! keeps both with the last lines.

use bakeoff_domain::catalog;
use bakeoff_domain::diagnosis::{Evidence, diagnose};
use bakeoff_domain::sagemaker::log::{LogLine, last_bytes};
use bakeoff_domain::spec::ProfileSpec;
use chrono::TimeDelta;

use crate::app::App;
use crate::job_log::{self, Wanted};
use crate::store::StoreError;
use crate::store::jobs::post_mortems::PostMortemDue;

const DUE_MAX: i64 = 50;
/// How long a claim is held, and until a log that could not be read is tried again.
const HOLD: TimeDelta = TimeDelta::minutes(3);
/// After so many tries, what SageMaker reports has to do.
const TRIES_MAX: u32 = 4;
/// Lines that are searched: of each host as many, and of all together.
const LINES: usize = 500;
/// What is kept of the log.
const KEPT_BYTES: usize = 8 * 1024;

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
    let lines = match read_log(app, due).await {
        Ok(lines) => Some(lines),
        Err(()) if due.tries < TRIES_MAX => return Ok(()),
        Err(()) => None,
    };
    let experiment = app
        .store
        .experiment(due.project_id, due.experiment_id)
        .await?;
    let profile: Option<ProfileSpec> = experiment.as_ref().and_then(|experiment| {
        let mut candidates = experiment.resolved.candidates();
        let own = candidates.find(|candidate| candidate.spec.name == due.candidate)?;
        Some(own.profile.clone())
    });
    let diagnosis = diagnose(&Evidence {
        failure_reason: due.failure_reason.as_deref(),
        lines: lines.as_deref(),
        transitions: &due.transitions,
        rules: &due.rules,
        instance: catalog::find(&due.instance_type),
        profile: profile.as_ref(),
    });
    let kept = last_bytes(&lines.unwrap_or_default(), KEPT_BYTES);
    app.store
        .record_post_mortem(due, &diagnosis, &kept, app.clock.now())
        .await
}

/// The end of its log; nothing of a job that never had instances.
async fn read_log(app: &App, due: &PostMortemDue) -> Result<Vec<LogLine>, ()> {
    if !due.has_started {
        return Ok(Vec::new());
    }
    let read = job_log::tail(&app.place.aws, &due.job_name, &Wanted::default(), LINES).await;
    read.map(|part| part.lines).map_err(|error| {
        tracing::info!(%error, job = due.job_name, tries = due.tries, "the log of a failed job could not be read");
    })
}

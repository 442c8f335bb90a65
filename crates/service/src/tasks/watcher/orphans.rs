//! Jobs and warm pools of this installation that no living attempt stands for: adopted, stopped and
//! billed, on behalf of the watcher's term.

use bakeoff_domain::ids::{JobId, TrialId};
use bakeoff_domain::lifecycle::orphan::{self, OrphanDecision, OrphanSeen, Sighting};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::{Billing, JobStatus, ObservedJob, WarmPool};
use bakeoff_planner::render::attempt;
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use bakeoff_store::StoreError;
use bakeoff_store::jobs::attempts::StopRefusal;
use bakeoff_store::jobs::orphans::{Orphan, OrphanBill};
use bakeoff_store::leases::Term;

/// Orphaned jobs followed in one tick.
const ORPHANS_MAX: i64 = 100;
/// How often a bill is asked for that is late: an estimate of it is booked.
const LATE_BILL_EVERY: TimeDelta = TimeDelta::minutes(5);

/// Adopts a job in progress that no living attempt stands for; false if it is not yet certain what
/// the job is. A job without our marker belongs to somebody else.
pub(super) async fn adopt(
    app: &App,
    kind: JobKind,
    name: &str,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let job = match app.place.aws.describe(kind, name).await {
        Ok(job) => job,
        Err(AwsError::NotFound(_)) => return Ok(true),
        Err(error) => {
            tracing::warn!(%error, job = name, "reading an orphaned job failed; retrying at the next listing");
            return Ok(false);
        }
    };
    let Some(attempt) = own_attempt(app, kind, &job) else {
        return Ok(true);
    };
    let is_running = job.status == JobStatus::InProgress;
    if !app.fence.may_act(now) {
        return Ok(false);
    }
    let mut is_accounted = true;
    let record = app.store.attempt_record(attempt).await?;
    if record.is_none() {
        if !app.fence.may_stop_unknown(now) {
            if !is_running {
                return Ok(true);
            }
            metrics::counter!("bakeoff_unknown_jobs_total").increment(1);
            tracing::error!(
                job = name,
                "a running job of this installation is not in this database; left alone"
            );
            let Ok(trial) = trial_of(app, &job).await else {
                return Ok(false);
            };
            app.store.tell_unknown_job(name, trial, false, now).await?;
            return Ok(true);
        }
        is_accounted = recover(app, &job, attempt, now).await?;
    }
    // Followed in any case; its owner may be found later.
    let settled = record.and_then(|record| record.settled);
    let sighting = orphan::classify(settled.as_ref(), &job);
    let region = &app.place.region;
    let is_new = app.store.record_orphan(region, kind, name, sighting, now);
    if is_new.await? {
        match sighting {
            Sighting::Orphan => tracing::error!(
                job = name,
                is_running,
                "orphaned job found; following it to its end and billing it"
            ),
            Sighting::LateBill => {
                tracing::info!(
                    job = name,
                    "the bill of a job that was estimated is read again"
                );
            }
        }
    }
    Ok(is_accounted)
}

/// The attempt named by a job's marker, if it belongs to this installation and matches the job's
/// name.
fn own_attempt(app: &App, kind: JobKind, job: &ObservedJob) -> Option<JobId> {
    let attempt: JobId = job.marker.as_ref()?.parse().ok()?;
    let name = attempt::job_name(kind, &app.settings.installation, attempt.0);
    (name == job.job_name).then_some(attempt)
}

/// The trial named by a job's tag; an error if the tags may become readable later.
async fn trial_of(app: &App, job: &ObservedJob) -> Result<Option<TrialId>, AwsError> {
    let tags = match app.place.aws.tags(&job.arn).await {
        Ok(tags) => tags,
        Err(error @ (AwsError::Throttled(_) | AwsError::Unknown(_) | AwsError::Expired(_))) => {
            return Err(error);
        }
        Err(error) => {
            tracing::warn!(%error, job = job.job_name, "reading the tags of a job failed");
            return Ok(None);
        }
    };
    Ok(tags
        .get("bakeoff:trial")
        .and_then(|trial| trial.parse().ok()))
}

/// Restores the row of a job that lost it, if its trial is known, so that the job can be billed.
/// False means try again.
async fn recover(
    app: &App,
    job: &ObservedJob,
    attempt: JobId,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let Ok(trial) = trial_of(app, job).await else {
        return Ok(false);
    };
    let store = &app.store;
    let is_recovered = match trial {
        Some(trial) => {
            store
                .recover_attempt(attempt, &job.job_name, trial, now)
                .await?
        }
        None => false,
    };
    // Another may have planned it meanwhile.
    if !is_recovered && store.attempt_record(attempt).await?.is_none() {
        store
            .tell_unknown_job(&job.job_name, trial, true, now)
            .await?;
        tracing::error!(
            job = job.job_name,
            "a job of this installation belongs to no trial in this database; its cost is not booked"
        );
    }
    Ok(true)
}

/// Stops orphaned jobs until they are over, and then bills them.
pub(super) async fn follow(app: &App, term: &Term, now: DateTime<Utc>) -> Result<(), StoreError> {
    if !app.fence.may_act(now) {
        return Ok(());
    }
    for orphan in app
        .store
        .due_orphans(&term.region, now, ORPHANS_MAX)
        .await?
    {
        app.pulse.beat();
        // A failed write for one orphan must not hold up the others.
        if let Err(error) = follow_one(app, term, &orphan, now).await {
            tracing::warn!(%error, job = orphan.job_name, "following an orphaned job failed; retrying");
        }
    }
    Ok(())
}

async fn settle(
    app: &App,
    term: &Term,
    orphan: &Orphan,
    job: Option<&ObservedJob>,
    billing: Billing,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    // Take over its pool first, even one that is not visible yet: once the job is settled,
    // nothing would look for it before the next sweep.
    if let (Some(job), Some(owner)) = (job, &orphan.owner) {
        app.store
            .take_over_pool(term, owner.account.job_id, job, now)
            .await?;
    }
    let bill = OrphanBill {
        billing,
        training_seconds: job.and_then(|job| job.training_seconds),
    };
    app.store.settle_orphan(term, orphan, bill, now).await
}

async fn follow_one(
    app: &App,
    term: &Term,
    orphan: &Orphan,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let looked = app.place.aws.describe(orphan.kind, &orphan.job_name).await;
    let seen = match &looked {
        Ok(job) => OrphanSeen::Job(job),
        Err(AwsError::NotFound(_)) => OrphanSeen::Absent,
        Err(_) => OrphanSeen::Unreadable,
    };
    let decision = orphan::decide(&orphan.facts, seen, now);
    if let OrphanDecision::Settle(billing) = decision {
        let job = looked.as_ref().ok();
        return settle(app, term, orphan, job, billing, now).await;
    }
    if decision == OrphanDecision::Stop
        && app.place.watcher.is_trusted().await
        && let Err(error) = app.place.aws.stop(orphan.kind, &orphan.job_name).await
    {
        tracing::warn!(%error, job = orphan.job_name, "stopping an orphaned job failed; retrying");
        tell_stop_refusal(app, orphan, &error, now).await?;
    }
    let last_seen = if looked.is_ok() {
        now
    } else {
        orphan.facts.last_seen_at
    };
    let is_late_bill =
        decision == OrphanDecision::LookAgain && orphan.facts.estimated_seconds.is_some();
    let poll = app.settings.policy.poll;
    let after = if is_late_bill { LATE_BILL_EVERY } else { poll };
    app.store
        .postpone_orphan(&orphan.job_name, last_seen, now + after)
        .await
}

/// An alarm, since it goes on being billed. One that is not there any more is not.
async fn tell_stop_refusal(
    app: &App,
    orphan: &Orphan,
    error: &AwsError,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if matches!(error, AwsError::NotFound(_)) {
        return Ok(());
    }
    let job = &orphan.job_name;
    let why = format!("{job} is not stopped, and goes on being billed: {error}");
    let refusal = StopRefusal {
        why: &why,
        is_definite: matches!(error, AwsError::Denied(_)),
    };
    app.store.record_orphan_refusal(orphan, refusal, now).await
}

/// Takes over a pool that is not tracked, or that cost more than is booked, so that it is ended and
/// billed. A pool without a row has nobody to bill, and is only ended. False means try again.
pub(super) async fn take_over_pool(app: &App, term: &Term, name: &str) -> Result<bool, StoreError> {
    let job = match app.place.aws.describe(JobKind::Training, name).await {
        Ok(job) => job,
        Err(AwsError::NotFound(_)) => return Ok(true),
        Err(error) => {
            tracing::warn!(%error, job = name, "reading an orphaned pool failed; retrying at the next listing");
            return Ok(false);
        }
    };
    let Some(attempt) = own_attempt(app, JobKind::Training, &job).filter(|_| job.status.is_over())
    else {
        return Ok(true);
    };
    let now = app.clock.now();
    if !app.fence.may_act(now) {
        return Ok(false);
    }
    if app.store.attempt_record(attempt).await?.is_some() {
        if app.store.take_over_pool(term, attempt, &job, now).await? {
            tracing::error!(
                job = name,
                "a warm pool recorded as over still exists; ending and billing it"
            );
        }
        return Ok(true);
    }
    // Without a row, it may be the pool of another database of this installation.
    let is_idle = job.warm_pool.as_ref().is_some_and(WarmPool::is_idle);
    if !is_idle || !app.fence.may_stop_unknown(now) {
        return Ok(true);
    }
    if !app.place.watcher.is_trusted().await {
        return Ok(false);
    }
    tracing::error!(
        job = name,
        "an idle warm pool of this installation is in no row; ending it, its cost is not booked"
    );
    Ok(app.place.aws.end_pool(name).await.is_ok())
}

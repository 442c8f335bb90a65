//! The watcher: one replica lists all our jobs, page by page within ListTrainingJobs' two calls a second, and makes due what
//! has changed. It also stops and bills stray jobs, ends stray pools, and reads the account's quotas.
//!
//! It settles nothing: a trial is looked at by the scheduler. Its writes are fenced by its term.

use bakeoff_domain::job::{JobStatus, JobSummary};
use bakeoff_domain::ports::{AwsError, PageRequest};
use bakeoff_domain::stray::{self, StrayDecision, StraySeen};
use bakeoff_domain::watch::{self, Listing};
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use crate::aws::Operation;
use crate::crash;
use crate::store::StoreError;
use crate::store::leases::Term;
use crate::store::watch::Stray;

/// Pages of one listing: a hundred thousand jobs.
const PAGES_MAX: u32 = 1000;
/// A listing goes back to the oldest running job, and a little before: clocks differ.
const MARGIN: TimeDelta = TimeDelta::minutes(10);
/// Now and then a listing goes back this far, for jobs that nobody remembers.
const DEEP: TimeDelta = TimeDelta::hours(24);
const DEEP_EVERY: TimeDelta = TimeDelta::hours(6);
const QUOTAS_EVERY: TimeDelta = TimeDelta::hours(6);
/// Somebody who resumes an experiment says that a quota has changed: read again at once, but not at every resume.
const QUOTAS_AGAIN: TimeDelta = TimeDelta::minutes(5);
const STRAYS_MAX: i64 = 100;

/// When each part of the work is due next; a new watcher begins anew.
#[derive(Debug, Default)]
pub struct Memory {
    listing: Option<DateTime<Utc>>,
    deep: Option<DateTime<Utc>>,
    quotas: Option<DateTime<Utc>>,
}

/// One tick; returns how long until the next.
pub async fn tick(app: &App, memory: &mut Memory) -> Result<TimeDelta, StoreError> {
    let (shortest, longest) = app.settings.listing;
    let Some(term) = app.watcher.term(&app.store).await? else {
        *memory = Memory::default();
        return Ok(shortest);
    };
    let now = app.clock.now();
    let is_due = |at: Option<DateTime<Utc>>| at.is_none_or(|at| at <= now);
    let is_doubted = memory.quotas.is_some_and(|next| next - QUOTAS_EVERY + QUOTAS_AGAIN <= now)
        && app.store.quotas_are_doubted().await?;
    if is_doubted || is_due(memory.quotas) {
        read_quotas(app, &term, now).await?;
        memory.quotas = Some(now + QUOTAS_EVERY);
    }
    if is_due(memory.listing) {
        let is_deep = is_due(memory.deep);
        let pages = list(app, &term, is_deep, now).await?;
        if is_deep {
            memory.deep = Some(now + DEEP_EVERY);
        }
        memory.listing = Some(now + watch::next_listing(pages, shortest, longest));
    }
    follow_strays(app, now).await?;
    let until = memory.listing.map_or(shortest, |at| at - app.clock.now());
    Ok(until.clamp(TimeDelta::zero(), shortest))
}

async fn read_quotas(app: &App, term: &Term, now: DateTime<Utc>) -> Result<(), StoreError> {
    match app.aws.training_quotas().await {
        Ok(quotas) => app.store.put_quotas(term, &quotas, now).await.map(drop),
        Err(error) => {
            tracing::info!(%error, "Service Quotas could not be read; jobs are created until AWS refuses them");
            Ok(())
        }
    }
}

/// One listing; returns how many pages it had.
async fn list(app: &App, term: &Term, is_deep: bool, now: DateTime<Utc>) -> Result<u32, StoreError> {
    let oldest = app.store.oldest_watched().await?;
    let reach = is_deep.then_some(now - DEEP);
    let Some(since) = oldest.into_iter().chain(reach).min() else { return Ok(1) };
    let mut request = PageRequest {
        fragment: format!("bakeoff-{}-", app.settings.installation),
        created_after: since - MARGIN,
        token: None,
    };
    let (mut jobs, mut pages, mut is_complete) = (Vec::new(), 0, false);
    while pages < PAGES_MAX {
        if app.aws.wait_for(Operation::ListTrainingJobs).await.is_err() {
            break;
        }
        // A long listing outlives a lease: whoever lost it stops here.
        if app.watcher.still(&app.store).await?.as_ref() != Some(term) {
            return Ok(pages);
        }
        match app.aws.list(&request).await {
            Ok(page) => {
                crash::point("mid_listing");
                pages += 1;
                jobs.extend(page.jobs);
                request.token = page.next;
                // Filters apply after a page is cut: only a missing token is the end, not an empty page.
                if request.token.is_none() {
                    is_complete = true;
                    break;
                }
            }
            Err(AwsError::Denied(why)) => {
                tracing::error!(why, "AWS denies ListTrainingJobs; every running job is looked at instead");
                app.store.look_at_all_running(now).await?;
                break;
            }
            Err(error) => {
                tracing::info!(%error, "a listing ended early; what was seen counts");
                break;
            }
        }
    }
    apply(app, term, Listing { jobs: &jobs, began_at: now, is_complete }).await?;
    if is_complete {
        app.store.listed(term, now).await?;
    }
    Ok(pages)
}

async fn apply(app: &App, term: &Term, listing: Listing<'_>) -> Result<(), StoreError> {
    let known = app.store.running_attempts(None).await?;
    let notices = watch::compare(&known, listing);
    let now = app.clock.now();
    let is_quiet = notices.changed.is_empty() && notices.look.is_empty();
    if !is_quiet && !app.store.notice(term, &notices.changed, &notices.look, now).await? {
        return Ok(());
    }
    for name in app.store.without_living_attempt(&notices.unaccounted).await? {
        adopt_stray(app, &name, now).await?;
    }
    if !notices.idle_pools.is_empty() {
        for name in app.store.notice_idle_pools(&notices.idle_pools, now).await? {
            end_stray_pool(app, &name, listing.jobs).await;
        }
    }
    Ok(())
}

/// A job in progress that no living attempt stands for. Without our marker it is somebody else's.
async fn adopt_stray(app: &App, name: &str, now: DateTime<Utc>) -> Result<(), StoreError> {
    let Ok(job) = app.aws.describe(name).await else { return Ok(()) };
    // It may have ended, and been settled, between the listing and now.
    if job.marker.is_none() || job.status != JobStatus::InProgress {
        return Ok(());
    }
    if app.store.record_stray(name, now).await? {
        tracing::error!(job = name, "a job of ours runs without a living attempt; stopping it");
    }
    Ok(())
}

/// Strays are stopped until they are over, and then billed.
async fn follow_strays(app: &App, now: DateTime<Utc>) -> Result<(), StoreError> {
    for stray in app.store.due_strays(now, STRAYS_MAX).await? {
        follow_stray(app, &stray, now).await?;
    }
    Ok(())
}

async fn follow_stray(app: &App, stray: &Stray, now: DateTime<Utc>) -> Result<(), StoreError> {
    let looked = app.aws.describe(&stray.job_name).await;
    let seen = match &looked {
        Ok(job) => StraySeen::Job(job),
        Err(AwsError::NotFound(_)) => StraySeen::Absent,
        Err(_) => StraySeen::Unreadable,
    };
    let decision = stray::decide(&stray.facts, seen, now);
    if let StrayDecision::Settle(billing) = decision {
        return app.store.settle_stray(stray, billing, now).await;
    }
    if decision == StrayDecision::Stop
        && app.watcher.is_trusted().await
        && let Err(error) = app.aws.stop(&stray.job_name).await
    {
        tracing::warn!(%error, job = stray.job_name, "a stray job could not be stopped; next time");
    }
    let last_seen = if looked.is_ok() { now } else { stray.facts.last_seen_at };
    app.store.postpone_stray(&stray.job_name, last_seen, now + app.settings.policy.poll).await
}

/// A pool that waits although nobody looks after it any more.
async fn end_stray_pool(app: &App, name: &str, jobs: &[JobSummary]) {
    let is_over = jobs.iter().any(|job| job.job_name == name && job.status != JobStatus::InProgress);
    if !is_over || !app.watcher.is_trusted().await {
        return;
    }
    match app.aws.describe(name).await {
        Ok(job) if job.marker.is_some() => {}
        Ok(_) | Err(_) => return,
    }
    tracing::error!(job = name, "a warm pool of ours waits and nobody will use it; ending it");
    if let Err(error) = app.aws.end_pool(name).await {
        tracing::warn!(%error, job = name, "a stray pool could not be ended; next time");
    }
}

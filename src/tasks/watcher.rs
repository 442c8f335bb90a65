//! The watcher: one replica lists all our jobs page by page, at half of ListTrainingJobs' request
//! quota, and makes trials due whose job has changed. It also stops and bills stray jobs, ends
//! stray pools, and reads the account's quotas.
//!
//! Each listing starts at least as far back as the last complete one, so a job without a row is
//! seen by the first listing after its creation. A sweep of 28 days runs when a term begins and
//! every six hours, a few pages per listing. A listing that was cut off does not count.
//!
//! It settles nothing but strays: a trial is looked at by the scheduler. What it writes of trials,
//! strays' bills and quotas is fenced by its term; that a stray was seen may be written late, and
//! is true all the same.

use bakeoff_domain::ids::{AttemptId, TrialId};
use bakeoff_domain::lifecycle::stray::{self, StrayDecision, StraySeen};
use bakeoff_domain::lifecycle::watch::{self, Listing};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::observed::{JobStatus, JobSummary, ObservedJob, WarmPool};
use bakeoff_domain::sagemaker::ports::PageRequest;
use bakeoff_planner::render::request;
use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;

use crate::app::App;
use crate::crash;
use crate::store::StoreError;
use crate::store::leases::Term;
use crate::store::strays::Stray;

/// Pages of one listing: a hundred thousand jobs.
const PAGES_MAX: u32 = 1000;
/// Pages of a sweep between two listings.
const SWEEP_PAGES: u32 = 20;
/// A listing goes back a little before the oldest job of interest: clocks differ, and jobs are
/// listed late.
const MARGIN: TimeDelta = TimeDelta::minutes(30);
/// Jobs whose end nobody told us are looked for in listings for so long.
const IN_DOUBT: TimeDelta = TimeDelta::hours(48);
/// The same of pools that did not show: longer than any is kept.
const POOL_IN_DOUBT: TimeDelta = TimeDelta::hours(7);
/// A sweep goes back as far as a job can run.
const SWEEP_REACH: TimeDelta = TimeDelta::days(28);
const SWEEP_EVERY: TimeDelta = TimeDelta::hours(6);
const QUOTAS_EVERY: TimeDelta = TimeDelta::hours(6);
/// Somebody who resumes an experiment says that a quota has changed: read again at once, but not at
/// every resume. Nor more often when they could not be read.
const QUOTAS_AGAIN: TimeDelta = TimeDelta::minutes(5);
const STRAYS_MAX: i64 = 100;

/// When each part of the work is due next, and how far it has come; a new watcher begins anew.
#[derive(Debug, Default)]
pub struct Memory {
    listing: Option<DateTime<Utc>>,
    quotas: Option<DateTime<Utc>>,
    /// When the last listing began that was complete and left no job unaccounted for.
    listed_from: Option<DateTime<Utc>>,
    sweep: Option<DateTime<Utc>>,
    sweeping: Option<Sweep>,
}

/// A sweep that is under way.
#[derive(Debug)]
struct Sweep {
    began_at: DateTime<Utc>,
    /// Its next page; none at its beginning.
    token: Option<String>,
    /// No job of the pages so far is left unaccounted for.
    is_accounted: bool,
}

/// Whether something is due. A time further ahead than one interval was set before the clock
/// stepped back, and is due.
fn is_due(at: Option<DateTime<Utc>>, interval: TimeDelta, now: DateTime<Utc>) -> bool {
    at.is_none_or(|at| at <= now || at - now > interval)
}

/// One tick; returns how long until the next.
pub async fn tick(app: &App, memory: &mut Memory) -> Result<TimeDelta, StoreError> {
    let (shortest, _) = app.settings.listing;
    let Some(term) = app.watcher.term(&app.store).await? else {
        *memory = Memory::default();
        return Ok(shortest);
    };
    app.watcher
        .keep(&app.store, work(app, &term, memory).boxed())
        .await?;
    let until = memory.listing.map_or(shortest, |at| at - app.clock.now());
    Ok(until.clamp(TimeDelta::zero(), shortest))
}

/// All that is due: the listing before anything that could keep it waiting.
async fn work(app: &App, term: &Term, memory: &mut Memory) -> Result<(), StoreError> {
    let now = app.clock.now();
    let (shortest, longest) = app.settings.listing;
    if is_due(memory.listing, longest.max(shortest), now) {
        let listed = match super::confirm_account(app).await? {
            Err(error @ AwsError::Denied(_)) => {
                tracing::error!(%error, "nothing is listed: the jobs would be another account's");
                Listed {
                    pages: 0,
                    is_cut_off: true,
                }
            }
            confirmed => {
                let round = Round {
                    app,
                    term,
                    now,
                    is_account_confirmed: confirmed.is_ok(),
                };
                round.list_and_sweep(memory).await?
            }
        };
        let next = watch::next_listing(listed.pages, shortest, longest);
        // Jobs that were not seen may have ended: it is made again soon.
        memory.listing = Some(now + if listed.is_cut_off { next / 10 } else { next });
    }
    let is_doubted = memory
        .quotas
        .is_some_and(|next| next - QUOTAS_EVERY + QUOTAS_AGAIN <= now)
        && app.store.quotas_are_doubted().await?;
    if is_doubted || is_due(memory.quotas, QUOTAS_EVERY, now) {
        let is_read = read_quotas(app, term, now).await?;
        memory.quotas = Some(now + if is_read { QUOTAS_EVERY } else { QUOTAS_AGAIN });
    }
    follow_strays(app, term, now).await
}

/// False: they could not be read, and are to be asked for again soon.
async fn read_quotas(app: &App, term: &Term, now: DateTime<Utc>) -> Result<bool, StoreError> {
    match app.aws.training_quotas().await {
        Ok(quotas) => app.store.put_quotas(term, &quotas, now).await,
        Err(error) => {
            tracing::info!(%error, "Service Quotas could not be read; jobs are created until AWS refuses them");
            Ok(false)
        }
    }
}

/// What was read of a listing.
#[derive(Default)]
struct Read {
    jobs: Vec<JobSummary>,
    pages: u32,
    /// The page that comes next; none at the end.
    next: Option<String>,
    /// All pages were read, and they are of our account: what is missing is not there.
    is_complete: bool,
    /// It ended before its end, and is to be made again.
    is_cut_off: bool,
    /// Somebody else lists now.
    is_stale: bool,
}

/// What came of a listing.
#[derive(Debug, Default, Clone, Copy)]
struct Listed {
    pages: u32,
    is_cut_off: bool,
}

impl From<&Read> for Listed {
    fn from(read: &Read) -> Self {
        Self {
            pages: read.pages,
            is_cut_off: read.is_cut_off || read.is_stale,
        }
    }
}

/// One round of listing.
struct Round<'a> {
    app: &'a App,
    term: &'a Term,
    now: DateTime<Utc>,
    /// False: STS gave no answer. What is listed is ours by its name; of what is missing nothing is
    /// known.
    is_account_confirmed: bool,
}

impl Round<'_> {
    /// Reads at most so many pages of our jobs that were created since a moment: from the first
    /// page, or from the one that a token names.
    async fn read(
        &self,
        since: DateTime<Utc>,
        token: Option<String>,
        pages_max: u32,
    ) -> Result<Read, StoreError> {
        let app = self.app;
        let fragment = format!("bakeoff-{}-", app.settings.installation);
        let mut request = PageRequest {
            fragment,
            created_after: since,
            token,
        };
        let mut read = Read::default();
        while read.pages < pages_max {
            // A long listing outlives a lease: whoever lost it stops here.
            if app.watcher.still(&app.store).await?.as_ref() != Some(self.term) {
                return Ok(Read {
                    is_stale: true,
                    ..read
                });
            }
            app.pulse.beat();
            match app.aws.list(&request).await {
                Ok(page) => {
                    crash::point("mid_listing");
                    read.pages += 1;
                    read.jobs.extend(page.jobs);
                    request.token.clone_from(&page.next);
                    read.next = page.next;
                    // Filters apply after a page is cut: only a missing token is the end, not an
                    // empty page.
                    if read.next.is_none() {
                        read.is_complete = self.is_account_confirmed;
                        break;
                    }
                }
                Err(AwsError::Denied(why)) => {
                    tracing::error!(
                        why,
                        "AWS denies ListTrainingJobs; every running job is looked at instead"
                    );
                    app.store.look_at_all_running(self.now).await?;
                    read.next = None;
                    break;
                }
                Err(AwsError::Expired(why)) => {
                    tracing::error!(
                        why,
                        "the AWS credentials have expired: nothing is listed until they are renewed"
                    );
                    read.next = None;
                    read.is_cut_off = true;
                    break;
                }
                Err(error) => {
                    tracing::info!(%error, "a listing ended early; what was seen counts, and it is made again");
                    read.next = None;
                    read.is_cut_off = true;
                    break;
                }
            }
        }
        Ok(read)
    }

    /// One listing. It goes back to the oldest job of interest, and to the last complete one.
    async fn list(&self, memory: &mut Memory) -> Result<Listed, StoreError> {
        let now = self.now;
        let oldest = self
            .app
            .store
            .oldest_watched(now - IN_DOUBT, now - POOL_IN_DOUBT)
            .await?;
        let since = oldest
            .into_iter()
            .chain(memory.listed_from)
            .min()
            .unwrap_or(now)
            .min(now)
            - MARGIN;
        let read = self.read(since, None, PAGES_MAX).await?;
        if read.is_stale {
            return Ok(Listed::from(&read));
        }
        let is_complete = read.is_complete;
        let is_accounted = self
            .apply(Listing {
                jobs: &read.jobs,
                began_at: now,
                is_complete,
            })
            .await?;
        if is_complete {
            self.app.store.listed(self.term, now).await?;
            if is_accounted {
                memory.listed_from = Some(now);
            }
        }
        Ok(Listed::from(&read))
    }

    /// Some pages of a sweep when one is due, and a listing unless the sweep was one.
    async fn list_and_sweep(&self, memory: &mut Memory) -> Result<Listed, StoreError> {
        // A sweep that cannot count is not begun.
        let swept = if self.is_account_confirmed {
            self.sweep(memory).await?
        } else {
            Listed::default()
        };
        // Read to its end at once, a sweep has told all that a listing would.
        if memory.listed_from == Some(self.now) {
            return Ok(swept);
        }
        let listed = self.list(memory).await?;
        Ok(Listed {
            pages: swept.pages + listed.pages,
            ..listed
        })
    }

    /// Some pages of a sweep, when one is due; it counts as done when its last page has been read
    /// and every job is accounted for.
    async fn sweep(&self, memory: &mut Memory) -> Result<Listed, StoreError> {
        let (app, now) = (self.app, self.now);
        if memory.sweeping.is_none() {
            let is_asked = app.store.sweep_is_due().await?;
            if !is_asked && !is_due(memory.sweep, SWEEP_EVERY, now) {
                return Ok(Listed::default());
            }
            memory.sweeping = Some(Sweep {
                began_at: now,
                token: None,
                is_accounted: true,
            });
        }
        // Taken: whatever goes wrong, the sweep begins anew.
        let Some(Sweep {
            began_at,
            token,
            is_accounted: was_accounted,
        }) = memory.sweeping.take()
        else {
            return Ok(Listed::default());
        };
        let is_from_the_start = token.is_none();
        let read = self
            .read(began_at - SWEEP_REACH - MARGIN, token, SWEEP_PAGES)
            .await?;
        if read.is_stale {
            return Ok(Listed::from(&read));
        }
        // In pieces, it began too long ago for the absence of a job to mean anything: that is the
        // listing's business.
        let is_listing = is_from_the_start && began_at == now && read.is_complete;
        let listing = Listing {
            jobs: &read.jobs,
            began_at,
            is_complete: is_listing,
        };
        let is_accounted = self.apply(listing).await? && was_accounted;
        let listed = Listed::from(&read);
        if read.next.is_some() {
            memory.sweeping = Some(Sweep {
                began_at,
                token: read.next,
                is_accounted,
            });
        } else if is_accounted && read.is_complete {
            memory.sweep = Some(now + SWEEP_EVERY);
            app.store.swept(began_at).await?;
        }
        if is_listing {
            app.store.listed(self.term, now).await?;
            if is_accounted {
                memory.listed_from = Some(now);
            }
        }
        Ok(listed)
    }

    /// Writes what a listing tells; false when a job is not accounted for yet.
    async fn apply(&self, listing: Listing<'_>) -> Result<bool, StoreError> {
        let app = self.app;
        let known = app.store.running_attempts(None).await?;
        let notices = watch::compare(&known, listing);
        let now = app.clock.now();
        let is_quiet = notices.changed.is_empty() && notices.look.is_empty();
        if !is_quiet
            && !app
                .store
                .notice(self.term, &notices.changed, &notices.look, now)
                .await?
        {
            return Ok(false);
        }
        let mut is_accounted = true;
        for name in app
            .store
            .without_living_attempt(&notices.unaccounted)
            .await?
        {
            app.pulse.beat();
            // One that cannot be written must not keep the others waiting.
            is_accounted &= adopt_stray(app, &name, now).await.unwrap_or_else(|error| {
                tracing::warn!(%error, job = name, "a job that nobody stands for could not be taken over; next time");
                false
            });
        }
        if !notices.pools.is_empty() {
            for name in app.store.notice_pools(&notices.pools, now).await? {
                app.pulse.beat();
                // One that cannot be written must not keep the others waiting.
                is_accounted &= take_over_pool(app, self.term, &name).await.unwrap_or_else(|error| {
                    tracing::warn!(%error, job = name, "a stray pool could not be taken over; next time");
                    false
                });
            }
        }
        Ok(is_accounted)
    }
}

/// A job in progress that no living attempt stands for; false when it is not certain yet what it
/// is. Without our marker it is somebody else's.
async fn adopt_stray(app: &App, name: &str, now: DateTime<Utc>) -> Result<bool, StoreError> {
    let job = match app.aws.describe(name).await {
        Ok(job) => job,
        Err(AwsError::NotFound(_)) => return Ok(true),
        Err(error) => {
            tracing::warn!(%error, job = name, "a job that nobody stands for could not be looked at; again at the next listing");
            return Ok(false);
        }
    };
    let Some(attempt) = own_attempt(app, &job) else {
        return Ok(true);
    };
    let is_running = job.status == JobStatus::InProgress;
    if !app.fence.may_act(now) {
        return Ok(false);
    }
    let mut is_accounted = true;
    if !app.store.has_attempt(attempt).await? {
        if !app.fence.may_stop_unknown(now) {
            if !is_running {
                return Ok(true);
            }
            metrics::counter!("bakeoff_unknown_jobs_total").increment(1);
            tracing::error!(
                job = name,
                "a job of this installation runs and is not in this database; it is left alone"
            );
            if let Ok(Some(trial)) = trial_of(app, &job).await {
                app.store.tell_unknown_job(name, trial, now).await?;
            }
            return Ok(true);
        }
        is_accounted = recover(app, &job, attempt, now).await?;
    }
    // Stopped in any case; whose it is may be found out later.
    if app.store.record_stray(name, now).await? {
        tracing::error!(
            job = name,
            is_running,
            "a job of ours without a living attempt is followed to its end, and billed"
        );
    }
    Ok(is_accounted)
}

/// The attempt that a job carries the marker of, when that is one of this installation's and the
/// job has its name.
fn own_attempt(app: &App, job: &ObservedJob) -> Option<AttemptId> {
    let attempt: AttemptId = job.marker.as_ref()?.parse().ok()?;
    (request::job_name(&app.settings.installation, attempt.0) == job.job_name).then_some(attempt)
}

/// The trial that a job's tag names; an error when the tags may be readable another time.
async fn trial_of(app: &App, job: &ObservedJob) -> Result<Option<TrialId>, AwsError> {
    let tags = match app.aws.tags(&job.arn).await {
        Ok(tags) => tags,
        Err(error @ (AwsError::Throttled(_) | AwsError::Unknown(_) | AwsError::Expired(_))) => {
            return Err(error);
        }
        Err(error) => {
            tracing::warn!(%error, job = job.job_name, "the tags of a job cannot be read");
            return Ok(None);
        }
    };
    Ok(tags
        .get("bakeoff:trial")
        .and_then(|trial| trial.parse().ok()))
}

/// Gives a job without a row the row that it lost, where its trial is known: then it can be billed
/// to somebody. False: to be tried again.
async fn recover(
    app: &App,
    job: &ObservedJob,
    attempt: AttemptId,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let is_recovered = match trial_of(app, job).await {
        Ok(Some(trial)) => {
            app.store
                .recover_attempt(attempt, &job.job_name, trial, now)
                .await?
        }
        Ok(None) => false,
        Err(_) => return Ok(false),
    };
    if !is_recovered {
        tracing::error!(
            job = job.job_name,
            "a job of ours belongs to no trial in this database; what it costs is booked nowhere"
        );
    }
    Ok(true)
}

/// Strays are stopped until they are over, and then billed.
async fn follow_strays(app: &App, term: &Term, now: DateTime<Utc>) -> Result<(), StoreError> {
    if !app.fence.may_act(now) {
        return Ok(());
    }
    for stray in app.store.due_strays(now, STRAYS_MAX).await? {
        app.pulse.beat();
        // One that cannot be written must not keep the others waiting.
        if let Err(error) = follow_stray(app, term, &stray, now).await {
            tracing::warn!(%error, job = stray.job_name, "a stray job could not be followed; next time");
        }
    }
    Ok(())
}

async fn follow_stray(
    app: &App,
    term: &Term,
    stray: &Stray,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let looked = app.aws.describe(&stray.job_name).await;
    let seen = match &looked {
        Ok(job) => StraySeen::Job(job),
        Err(AwsError::NotFound(_)) => StraySeen::Absent,
        Err(_) => StraySeen::Unreadable,
    };
    let decision = stray::decide(&stray.facts, seen, now);
    if let StrayDecision::Settle(billing) = decision {
        // Its pool first, also one that does not show yet: of a job that is settled nobody would
        // look at it before the next sweep.
        if let (Ok(job), Some(owner)) = (&looked, &stray.owner) {
            app.store
                .take_over_pool(term, owner.account.attempt_id, job, now)
                .await?;
        }
        return app.store.settle_stray(term, stray, billing, now).await;
    }
    if decision == StrayDecision::Stop
        && app.watcher.is_trusted().await
        && let Err(error) = app.aws.stop(&stray.job_name).await
    {
        tracing::warn!(%error, job = stray.job_name, "a stray job could not be stopped; next time");
    }
    let last_seen = if looked.is_ok() {
        now
    } else {
        stray.facts.last_seen_at
    };
    app.store
        .postpone_stray(&stray.job_name, last_seen, now + app.settings.policy.poll)
        .await
}

/// A pool that nobody looks after, or that cost more than is booked: it becomes one of those that
/// are ended and billed. Without a row there is nobody to bill; then it is only ended. False: to be
/// tried again.
async fn take_over_pool(app: &App, term: &Term, name: &str) -> Result<bool, StoreError> {
    let job = match app.aws.describe(name).await {
        Ok(job) => job,
        Err(AwsError::NotFound(_)) => return Ok(true),
        Err(error) => {
            tracing::warn!(%error, job = name, "a pool that nobody looks after could not be looked at; again at the next listing");
            return Ok(false);
        }
    };
    let Some(attempt) = own_attempt(app, &job).filter(|_| job.status.is_over()) else {
        return Ok(true);
    };
    let now = app.clock.now();
    if !app.fence.may_act(now) {
        return Ok(false);
    }
    if app.store.has_attempt(attempt).await? {
        if app.store.take_over_pool(term, attempt, &job, now).await? {
            tracing::error!(
                job = name,
                "a warm pool of ours was thought to be over; it is ended, and billed"
            );
        }
        return Ok(true);
    }
    // Without a row it may be the pool of another database of this installation.
    let is_idle = job.warm_pool.as_ref().is_some_and(WarmPool::is_idle);
    if !is_idle || !app.fence.may_stop_unknown(now) {
        return Ok(true);
    }
    if !app.watcher.is_trusted().await {
        return Ok(false);
    }
    tracing::error!(
        job = name,
        "a warm pool of ours waits, and is in no row; ending it, and it is booked nowhere"
    );
    Ok(app.aws.end_pool(name).await.is_ok())
}

//! The watcher: in each region, one replica lists all our jobs page by page, kind by kind, at half of ListTrainingJobs'
//! request quota, and makes trials due whose job has changed. It also stops and bills orphaned jobs, ends
//! orphaned pools, and reads the account's quotas.
//!
//! Each listing starts at least as far back as the last complete one, so a job without a row is
//! seen by the first listing after its creation. A sweep of 28 days runs when a term begins and
//! every six hours, a few pages per listing. An interrupted listing does not count.
//!
//! It settles only orphans; trials are handled by the scheduler. Its writes to trials, orphans'
//! bills and quotas check its term; the sighting of an orphaned job may be written late,
//! and is true all the same.

mod orphans;

use bakeoff_domain::lifecycle::watch::{self, Listing, Unaccounted};
use bakeoff_domain::ports::{JobPage, PageRequest};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::JobSummary;
use bakeoff_planner::render::attempt;
use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;

use crate::app::App;
use crate::aws::JobOperations;
use bakeoff_process::crash;
use bakeoff_store::StoreError;
use bakeoff_store::leases::Term;

/// Maximum pages of one listing: a hundred thousand jobs.
const PAGES_MAX: u32 = 1000;
/// Pages of a sweep read between two listings.
const SWEEP_PAGES: u32 = 20;
/// A listing starts a little before the oldest job of interest: clocks differ, and jobs appear
/// late.
const MARGIN: TimeDelta = TimeDelta::minutes(30);
/// How long listings look for jobs whose end was not reported.
const IN_DOUBT: TimeDelta = TimeDelta::hours(48);
/// The same for pools that did not appear: longer than any pool is kept.
const POOL_IN_DOUBT: TimeDelta = TimeDelta::hours(7);
/// A sweep goes back as far as a job can run.
const SWEEP_REACH: TimeDelta = TimeDelta::days(28);
const SWEEP_EVERY: TimeDelta = TimeDelta::hours(6);
const QUOTAS_EVERY: TimeDelta = TimeDelta::hours(6);
/// A user who resumes an experiment implies that a quota has changed: read quotas at once, but not
/// at every resume. After a failed read, wait just as long.
const QUOTAS_AGAIN: TimeDelta = TimeDelta::minutes(5);

/// When each part of the work is due next, and its progress; a new watcher starts with an empty
/// memory.
#[derive(Debug, Default)]
pub struct Memory {
    listing: Option<DateTime<Utc>>,
    quotas: Option<DateTime<Utc>>,
    /// Start of the last listing that was complete and left no job unaccounted for.
    listed_from: Option<DateTime<Utc>>,
    sweep: Option<DateTime<Utc>>,
    sweeping: Option<Sweep>,
}

/// A sweep in progress.
#[derive(Debug)]
struct Sweep {
    began_at: DateTime<Utc>,
    /// Its next page; `None` at the start.
    place: Option<ListPlace>,
    /// Whether all jobs on the pages so far are accounted for.
    is_accounted: bool,
}

/// A page of the listing of all jobs, kind by kind.
#[derive(Debug, Clone)]
struct ListPlace {
    kind: JobKind,
    /// `None` for the kind's first page.
    token: Option<String>,
}

/// Whether something is due. A time further ahead than one interval was set before the clock
/// stepped back, and counts as due.
fn is_due(at: Option<DateTime<Utc>>, interval: TimeDelta, now: DateTime<Utc>) -> bool {
    at.is_none_or(|at| at <= now || at - now > interval)
}

/// Runs one tick; returns how long until the next.
pub async fn tick(app: &App, memory: &mut Memory) -> Result<TimeDelta, StoreError> {
    let (shortest, _) = app.settings.listing;
    let Some(term) = app.place.watcher.term(&app.store).await? else {
        *memory = Memory::default();
        return Ok(shortest);
    };
    app.place
        .watcher
        .keep(&app.store, work(app, &term, memory).boxed())
        .await?;
    let until = memory.listing.map_or(shortest, |at| at - app.clock.now());
    Ok(until.clamp(TimeDelta::zero(), shortest))
}

/// Does everything that is due, the listing before anything that could delay it.
async fn work(app: &App, term: &Term, memory: &mut Memory) -> Result<(), StoreError> {
    let now = app.clock.now();
    let (shortest, longest) = app.settings.listing;
    if is_due(memory.listing, longest.max(shortest), now) {
        let listed = match super::confirm_account(app).await? {
            Err(error @ AwsError::Denied(_)) => {
                tracing::error!(%error, "listing skipped: the credentials belong to another account");
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
                    watched: app
                        .store
                        .watched_kinds(&term.region, now - IN_DOUBT)
                        .await?,
                    is_account_confirmed: confirmed.is_ok(),
                };
                round.list_and_sweep(memory).await?
            }
        };
        let next = watch::next_listing(listed.pages, shortest, longest);
        // Unseen jobs may have ended, so repeat the listing soon.
        memory.listing = Some(now + if listed.is_cut_off { next / 10 } else { next });
    }
    let is_doubted = memory
        .quotas
        .is_some_and(|next| next - QUOTAS_EVERY + QUOTAS_AGAIN <= now)
        && app.store.quotas_are_doubted(&term.region).await?;
    if is_doubted || is_due(memory.quotas, QUOTAS_EVERY, now) {
        let is_read = read_quotas(app, term, now).await?;
        memory.quotas = Some(now + if is_read { QUOTAS_EVERY } else { QUOTAS_AGAIN });
    }
    orphans::follow(app, term, now).await
}

/// Returns false if the quotas could not be read and should be requested again soon.
async fn read_quotas(app: &App, term: &Term, now: DateTime<Utc>) -> Result<bool, StoreError> {
    match app.place.aws.instance_quotas().await {
        Ok(quotas) => app.store.put_quotas(term, &quotas, now).await,
        Err(error) => {
            tracing::info!(%error, "reading Service Quotas failed; jobs are created until AWS refuses them");
            Ok(false)
        }
    }
}

/// The part of a listing that was read.
#[derive(Default)]
struct ListingPart {
    jobs: Vec<JobSummary>,
    pages: u32,
    /// The most pages of one kind: each kind has a request quota of its own.
    pages_of_a_kind: u32,
    /// The next page; `None` at the end.
    next: Option<ListPlace>,
    /// All pages were read, and they belong to our account: a missing job does not exist.
    is_complete: bool,
    /// The listing was interrupted, and must be repeated.
    is_cut_off: bool,
    /// Another replica lists now.
    is_stale: bool,
}

/// The result of a listing.
#[derive(Debug, Default, Clone, Copy)]
struct Listed {
    pages: u32,
    is_cut_off: bool,
}

impl From<&ListingPart> for Listed {
    fn from(read: &ListingPart) -> Self {
        Self {
            pages: read.pages_of_a_kind,
            is_cut_off: read.is_cut_off || read.is_stale,
        }
    }
}

/// One round of listing.
struct Round<'a> {
    app: &'a App,
    term: &'a Term,
    now: DateTime<Utc>,
    /// False if STS gave no answer. Listed jobs are ours by name; missing jobs prove nothing.
    is_account_confirmed: bool,
    /// Kinds beside training of which there are jobs to watch.
    watched: Vec<JobKind>,
}

impl ListPlace {
    /// What comes after this page, given its token for the next one of its kind.
    fn next(&self, token: Option<String>, kinds: &[JobKind]) -> Option<Self> {
        let kind = match token {
            Some(_) => self.kind,
            None => kinds.iter().copied().find(|kind| *kind > self.kind)?,
        };
        Some(Self { kind, token })
    }
}

impl Round<'_> {
    /// Reads at most `pages_max` pages of our jobs of some kinds, created since a given time: from the
    /// first page, or from a later one.
    async fn read(
        &self,
        since: DateTime<Utc>,
        from: Option<ListPlace>,
        kinds: &[JobKind],
        pages_max: u32,
    ) -> Result<ListingPart, StoreError> {
        let app = self.app;
        let mut at = from.unwrap_or(ListPlace {
            kind: JobKind::Training,
            token: None,
        });
        let mut read = ListingPart::default();
        let mut of_this_kind = 0;
        while read.pages < pages_max {
            // A long listing outlives a lease: a replica that lost it stops here.
            if !self.is_current().await? {
                read.is_stale = true;
                break;
            }
            app.pulse.beat();
            let request = PageRequest {
                fragment: attempt::fragment(at.kind, &app.settings.installation),
                created_after: since,
                token: at.token.clone(),
            };
            let mut reply = app.place.aws.list(at.kind, &request).await;
            if self.is_needless(at.kind, &reply) {
                reply = Ok(JobPage::default());
            }
            match reply {
                Ok(page) => {
                    crash::point("mid_listing");
                    read.pages += 1;
                    of_this_kind += 1;
                    read.pages_of_a_kind = read.pages_of_a_kind.max(of_this_kind);
                    read.jobs.extend(page.jobs);
                    // Filters apply after a page is cut, so an empty page is not the end: only a
                    // missing token is.
                    read.next = at.next(page.next, kinds);
                    let Some(next) = read.next.clone() else {
                        read.is_complete = self.is_account_confirmed;
                        break;
                    };
                    of_this_kind = if next.kind == at.kind {
                        of_this_kind
                    } else {
                        0
                    };
                    at = next;
                }
                Err(AwsError::Denied(why)) => {
                    let kind = at.kind.as_str();
                    tracing::error!(why, kind, "listing jobs denied; checking all running jobs");
                    app.store
                        .look_at_all_running(&self.term.region, self.now)
                        .await?;
                    read.next = None;
                    break;
                }
                Err(AwsError::Expired(why)) => {
                    tracing::error!(why, "AWS credentials expired; listing stops until renewed");
                    read.next = None;
                    read.is_cut_off = true;
                    break;
                }
                Err(error) => {
                    tracing::info!(%error, "listing ended early; keeping what was seen, retrying");
                    read.next = None;
                    read.is_cut_off = true;
                    break;
                }
            }
        }
        Ok(read)
    }

    /// Whether a refused listing does not matter: an account that may not list jobs of a kind, in a database that
    /// has none to watch, runs none.
    fn is_needless(&self, kind: JobKind, reply: &Result<JobPage, AwsError>) -> bool {
        let is_denied = matches!(reply, Err(AwsError::Denied(_)));
        let is_needless = is_denied && kind != JobKind::Training && !self.watched.contains(&kind);
        if is_needless {
            let operation = JobOperations::of(kind).list.as_str();
            tracing::warn!(operation, "denied; no job of this database needs it");
        }
        is_needless
    }

    async fn is_current(&self) -> Result<bool, StoreError> {
        let term = self.app.place.watcher.still(&self.app.store).await?;
        Ok(term.as_ref() == Some(self.term))
    }

    /// Runs one listing, back to the oldest job of interest and to the last complete listing.
    async fn list(&self, memory: &mut Memory) -> Result<Listed, StoreError> {
        let now = self.now;
        let oldest = self
            .app
            .store
            .oldest_watched(&self.term.region, now - IN_DOUBT, now - POOL_IN_DOUBT)
            .await?;
        let since = oldest
            .into_iter()
            .chain(memory.listed_from)
            .min()
            .unwrap_or(now)
            .min(now)
            - MARGIN;
        let kinds: Vec<JobKind> = JobKind::ALL
            .iter()
            .copied()
            .filter(|kind| *kind == JobKind::Training || self.watched.contains(kind))
            .collect();
        let read = self.read(since, None, &kinds, PAGES_MAX).await?;
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

    /// Reads some pages of a sweep if one is due, and a listing unless the sweep served as one.
    async fn list_and_sweep(&self, memory: &mut Memory) -> Result<Listed, StoreError> {
        // A sweep that cannot count is not started.
        let swept = if self.is_account_confirmed {
            self.sweep(memory).await?
        } else {
            Listed::default()
        };
        // A sweep read to its end at once includes everything a listing would.
        if memory.listed_from == Some(self.now) {
            return Ok(swept);
        }
        let listed = self.list(memory).await?;
        Ok(Listed {
            pages: swept.pages + listed.pages,
            ..listed
        })
    }

    /// Reads some pages of a sweep if one is due; it counts as done once its last page has been
    /// read and every job is accounted for.
    async fn sweep(&self, memory: &mut Memory) -> Result<Listed, StoreError> {
        let (app, now) = (self.app, self.now);
        let Some(Sweep {
            began_at,
            place,
            is_accounted: was_accounted,
        }) = self.take_sweep(memory).await?
        else {
            return Ok(Listed::default());
        };
        let is_from_the_start = place.is_none();
        let since = began_at - SWEEP_REACH - MARGIN;
        let read = self.read(since, place, JobKind::ALL, SWEEP_PAGES).await?;
        if read.is_stale {
            return Ok(Listed::from(&read));
        }
        // A sweep read in pieces began too long ago for a job's absence to mean anything: that is
        // left to the listing.
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
                place: read.next,
                is_accounted,
            });
        } else if is_accounted && read.is_complete {
            memory.sweep = Some(now + SWEEP_EVERY);
            app.store.swept(self.term, began_at).await?;
        }
        if is_listing {
            app.store.listed(self.term, now).await?;
            if is_accounted {
                memory.listed_from = Some(now);
            }
        }
        Ok(listed)
    }

    /// Takes out the sweep in progress, so that it starts over on any failure; or begins one that is
    /// due.
    async fn take_sweep(&self, memory: &mut Memory) -> Result<Option<Sweep>, StoreError> {
        if let Some(sweep) = memory.sweeping.take() {
            return Ok(Some(sweep));
        }
        let is_asked = self.app.store.sweep_is_due(&self.term.region).await?;
        let begins = is_asked || is_due(memory.sweep, SWEEP_EVERY, self.now);
        Ok(begins.then_some(Sweep {
            began_at: self.now,
            place: None,
            is_accounted: true,
        }))
    }

    /// Writes the results of a listing; false if a job is not accounted for yet.
    async fn apply(&self, listing: Listing<'_>) -> Result<bool, StoreError> {
        let app = self.app;
        let known = app.store.running_attempts(&self.term.region, None).await?;
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
        for Unaccounted {
            kind,
            job_name: name,
            ..
        } in app
            .store
            .without_living_attempt(notices.unaccounted)
            .await?
        {
            app.pulse.beat();
            // A failed write for one job must not hold up the others.
            is_accounted &= orphans::adopt(app, kind, &name, now)
                .await
                .unwrap_or_else(|error| {
                    tracing::warn!(%error, job = name, "adopting an orphaned job failed; retrying");
                    false
                });
        }
        if !notices.pools.is_empty() {
            for name in app.store.notice_pools(&notices.pools, now).await? {
                app.pulse.beat();
                // A failed write for one pool must not hold up the others.
                is_accounted &= orphans::take_over_pool(app, self.term, &name).await.unwrap_or_else(|error| {
                    tracing::warn!(%error, job = name, "taking over an orphaned pool failed; retrying");
                    false
                });
            }
        }
        Ok(is_accounted)
    }
}

//! Cheap monitoring: compares a listing of all jobs (or an event pushed by AWS) with the stored
//! state, to find the few trials worth a Describe. A listing, like an event, is only a hint:
//! nothing is settled from it.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use crate::ids::{JobId, TrialId};
use crate::sagemaker::kind::JobKind;
use crate::sagemaker::observed::{JobStatus, JobSummary};
use crate::sagemaker::phase::JobPhase;

/// A job recorded this shortly before a listing began may be missing from it.
const LISTING_LAG: TimeDelta = TimeDelta::minutes(2);

/// Stored facts about a running attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAttempt {
    pub attempt: JobId,
    pub trial: TrialId,
    pub job_name: String,
    pub secondary_status: Option<String>,
    /// SageMaker's LastModifiedTime, as last seen.
    pub modified_at: Option<DateTime<Utc>>,
    /// Whether we know when billing began.
    pub has_started: bool,
    pub is_spot: bool,
    /// When we recorded that the job exists.
    pub running_at: DateTime<Utc>,
    /// The requested settings have been compared with the actual ones.
    pub is_compared: bool,
}

/// A new status of an attempt's job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub attempt: JobId,
    pub trial: TrialId,
    pub status: JobStatus,
    pub secondary_status: String,
    pub modified_at: Option<DateTime<Utc>>,
}

/// The result of comparing a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notices {
    pub changed: Vec<Change>,
    /// Trials worth a Describe now.
    pub look: Vec<TrialId>,
    /// Jobs that no running attempt stands for. The store knows which of them are orphaned jobs.
    pub unaccounted: Vec<Unaccounted>,
    /// Warm pools that are idle or over.
    pub pools: Vec<PoolNotice>,
}

/// A job that no running attempt stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unaccounted {
    pub kind: JobKind,
    pub job_name: String,
    pub is_over: bool,
}

/// What a listing reports about a job's warm pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolNotice {
    pub job_name: String,
    /// It waits for a job, and is billed.
    pub is_idle: bool,
    /// Billed seconds, once it is over.
    pub retained_seconds: u64,
}

/// A listing of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listing<'a> {
    pub jobs: &'a [JobSummary],
    pub began_at: DateTime<Utc>,
    /// All pages were read: a job missing from the listing is absent.
    pub is_complete: bool,
}

/// Whether a new status is worth a Describe: the end, the first status with instances (when billing
/// began), and for spot, because of its history and cost, an interruption and the start or
/// resumption of training. The listing reports everything else well enough.
pub fn deserves_a_look(known: &StoredAttempt, status: &JobStatus, secondary_status: &str) -> bool {
    match status {
        JobStatus::Completed | JobStatus::Failed | JobStatus::Stopped | JobStatus::Deleting => true,
        JobStatus::InProgress | JobStatus::Stopping => {
            let phase = JobPhase::of(secondary_status);
            let is_waiting = matches!(
                phase,
                JobPhase::Starting | JobPhase::Stopping | JobPhase::Unreported
            );
            let is_of_spot =
                phase == JobPhase::Interrupted || (known.is_spot && phase == JobPhase::Training);
            is_of_spot || (!known.has_started && !is_waiting)
        }
        JobStatus::Unknown(_) => false,
    }
}

/// What AWS pushed about a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushedStatus {
    pub status: JobStatus,
    pub secondary_status: String,
    pub modified_at: Option<DateTime<Utc>>,
    /// When billing began; only believed of an event that carries our marker.
    pub started_at: Option<DateTime<Utc>>,
}

/// The result of comparing an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushNotice {
    pub changed: Option<Change>,
    /// News of when billing began.
    pub started_at: Option<DateTime<Utc>>,
    /// The trial is worth a Describe now.
    pub look: bool,
}

/// Compares an event with the stored state. Events come late and in any order: an older one
/// changes nothing.
pub fn compare_event(known: &StoredAttempt, event: PushedStatus) -> PushNotice {
    let is_old = known
        .modified_at
        .zip(event.modified_at)
        .is_some_and(|(ours, theirs)| theirs < ours);
    let is_new = known.secondary_status.as_deref() != Some(event.secondary_status.as_str());
    let started_at = event.started_at.filter(|_| !known.has_started);
    let informed = StoredAttempt {
        has_started: known.has_started || event.started_at.is_some(),
        ..known.clone()
    };
    let look = !is_old && deserves_a_look(&informed, &event.status, &event.secondary_status);
    PushNotice {
        changed: (is_new && !is_old).then_some(Change {
            attempt: known.attempt,
            trial: known.trial,
            status: event.status,
            secondary_status: event.secondary_status,
            modified_at: event.modified_at,
        }),
        started_at,
        look,
    }
}

/// Reports idle pools and pools with a known cost. A pool that still serves its job is no news, nor
/// is one whose cost is not reported yet.
fn pool_notice(job: &JobSummary) -> Option<PoolNotice> {
    let pool = job.warm_pool.as_ref()?;
    let is_idle = pool.is_idle();
    let retained_seconds = pool.retained_seconds.filter(|_| !is_idle).unwrap_or(0);
    let job_name = job.job_name.clone();
    (is_idle || retained_seconds > 0).then_some(PoolNotice {
        job_name,
        is_idle,
        retained_seconds,
    })
}

/// Compares a listing with the stored state.
pub fn compare(known: &[StoredAttempt], listing: Listing<'_>) -> Notices {
    let mut notices = Notices::default();
    let mut unseen: BTreeMap<&str, &StoredAttempt> = known
        .iter()
        .map(|known| (known.job_name.as_str(), known))
        .collect();
    for job in listing.jobs {
        notices.pools.extend(pool_notice(job));
        let Some(stored) = unseen.remove(job.job_name.as_str()) else {
            let is_over = job.status.is_over();
            notices.unaccounted.push(Unaccounted {
                kind: job.kind,
                job_name: job.job_name.clone(),
                is_over,
            });
            continue;
        };
        // A page may be older than the latest Describe.
        let is_old = stored
            .modified_at
            .zip(job.modified_at)
            .is_some_and(|(ours, theirs)| theirs < ours);
        let is_new = stored.secondary_status.as_deref() != Some(job.secondary_status.as_str());
        let is_over = job.status.is_over();
        // The end is final, however old the page, and without a Describe it is never settled.
        if is_old && !is_over {
            continue;
        }
        // It may have been interrupted and resumed between two listings.
        let may_be_back = stored.is_spot
            && JobPhase::of(&job.secondary_status) == JobPhase::Training
            && stored
                .modified_at
                .zip(job.modified_at)
                .is_some_and(|(ours, theirs)| ours < theirs);
        if is_new && !is_old {
            notices.changed.push(Change {
                attempt: stored.attempt,
                trial: stored.trial,
                status: job.status.clone(),
                secondary_status: job.secondary_status.clone(),
                modified_at: job.modified_at,
            });
        }
        // Describe an ended job until it is settled, in case a poll was lost; everything else once.
        if (is_new || is_over || may_be_back)
            && deserves_a_look(stored, &job.status, &job.secondary_status)
        {
            notices.look.push(stored.trial);
        }
    }
    if listing.is_complete {
        let settled = listing.began_at - LISTING_LAG;
        notices.look.extend(
            unseen
                .values()
                .filter(|known| known.running_at < settled)
                .map(|known| known.trial),
        );
    }
    notices
}

/// Time until the next listing: `shortest` for each page, at most `longest`. A page costs a call,
/// and the calls are spread over the interval.
pub fn next_listing(pages: u32, shortest: TimeDelta, longest: TimeDelta) -> TimeDelta {
    (shortest * i32::try_from(pages.max(1)).unwrap_or(i32::MAX)).min(longest.max(shortest))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::sagemaker::observed::{WarmPool, WarmPoolStatus};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn known(number: u128, secondary: &str) -> StoredAttempt {
        StoredAttempt {
            attempt: JobId(Uuid::from_u128(number)),
            trial: TrialId(Uuid::from_u128(number)),
            job_name: format!("job-{number}"),
            secondary_status: Some(secondary.into()),
            modified_at: Some(at(100)),
            has_started: secondary != "Starting",
            is_spot: false,
            running_at: at(0),
            is_compared: true,
        }
    }

    fn job(number: u128, status: &str, secondary: &str) -> JobSummary {
        JobSummary {
            kind: JobKind::Training,
            job_name: format!("job-{number}"),
            status: JobStatus::parse(status),
            secondary_status: secondary.into(),
            created_at: Some(at(0)),
            modified_at: Some(at(200)),
            warm_pool: None,
        }
    }

    fn read(known: &[StoredAttempt], jobs: &[JobSummary], is_complete: bool) -> Notices {
        compare(
            known,
            Listing {
                jobs,
                began_at: at(1000),
                is_complete,
            },
        )
    }

    #[test]
    fn what_has_not_changed_costs_nothing() {
        assert_eq!(
            read(
                &[known(1, "Training")],
                &[job(1, "InProgress", "Training")],
                true
            ),
            Notices::default()
        );
    }

    #[test]
    fn instances_an_interruption_and_the_end_deserve_a_look_and_an_upload_does_not() {
        let looks = |before: &str, status: &str, after: &str| {
            let notices = read(&[known(1, before)], &[job(1, status, after)], true);
            assert_eq!(notices.changed.len(), 1);
            !notices.look.is_empty()
        };
        assert!(looks("Starting", "InProgress", "Downloading"));
        assert!(looks("Training", "InProgress", "Interrupted"));
        assert!(looks("Training", "Completed", "Completed"));
        assert!(!looks("Downloading", "InProgress", "Training"));
        assert!(!looks("Training", "InProgress", "Uploading"));
        assert!(
            !looks("Training", "Hibernating", "Dreaming"),
            "an unheard-of status is kept, and is not an end"
        );
    }

    /// Otherwise its cost and interruptions would be stale until its next regular poll, hours
    /// later.
    #[test]
    fn a_spot_job_that_trains_again_deserves_a_look() {
        let spot = |before: &str| StoredAttempt {
            is_spot: true,
            ..known(1, before)
        };
        let trains = job(1, "InProgress", "Training");
        assert_eq!(
            read(&[spot("Downloading")], std::slice::from_ref(&trains), true)
                .look
                .len(),
            1
        );
        // No listing has seen the interruption.
        let later = JobSummary {
            modified_at: Some(at(500)),
            ..trains.clone()
        };
        let of_training = StoredAttempt {
            modified_at: Some(at(100)),
            ..spot("Training")
        };
        assert_eq!(
            read(std::slice::from_ref(&of_training), &[later], true)
                .look
                .len(),
            1
        );
        let the_same = JobSummary {
            modified_at: of_training.modified_at,
            ..trains
        };
        assert_eq!(read(&[of_training], &[the_same], true).look.len(), 0);
    }

    #[test]
    fn an_end_that_is_stored_but_not_settled_is_looked_at_again() {
        let notices = read(
            &[known(1, "Completed")],
            &[job(1, "Completed", "Completed")],
            true,
        );
        assert_eq!((notices.changed.len(), notices.look.len()), (0, 1));
    }

    #[test]
    fn absence_counts_only_in_a_complete_listing_and_not_for_the_newest() {
        assert_eq!(read(&[known(1, "Training")], &[], true).look.len(), 1);
        assert_eq!(read(&[known(1, "Training")], &[], false).look.len(), 0);
        let newest = StoredAttempt {
            running_at: at(999),
            ..known(1, "Starting")
        };
        assert_eq!(read(&[newest], &[], true).look.len(), 0);
    }

    #[test]
    fn a_page_older_than_what_is_known_says_nothing() {
        let ours = StoredAttempt {
            modified_at: Some(at(300)),
            ..known(1, "Training")
        };
        assert_eq!(
            read(&[ours], &[job(1, "InProgress", "Downloading")], true),
            Notices::default()
        );
    }

    /// An event reported the end, on a clock slightly ahead of the listing's, and the Describe that
    /// followed reached a replica that did not know of it yet.
    #[test]
    fn an_end_is_looked_at_however_old_the_page_is_that_shows_it() {
        let ours = StoredAttempt {
            modified_at: Some(at(300)),
            ..known(1, "Completed")
        };
        let notices = read(&[ours], &[job(1, "Completed", "Completed")], true);
        assert_eq!((notices.changed.len(), notices.look.len()), (0, 1));
    }

    #[test]
    fn strangers_and_pools_that_wait_or_are_over_are_reported() {
        let with_pool = |number, status, retained_seconds| JobSummary {
            warm_pool: Some(WarmPool {
                status,
                retained_seconds,
                reused_by: None,
            }),
            ..job(number, "Completed", "Completed")
        };
        let idle = with_pool(3, WarmPoolStatus::Available, None);
        let over = with_pool(4, WarmPoolStatus::Terminated, Some(90));
        let untold = with_pool(5, WarmPoolStatus::Terminated, None);
        let notices = read(
            &[],
            &[job(2, "InProgress", "Training"), idle, over, untold],
            true,
        );
        let strangers = [
            ("job-2", false),
            ("job-3", true),
            ("job-4", true),
            ("job-5", true),
        ];
        assert_eq!(
            notices.unaccounted,
            strangers.map(|(name, is_over)| Unaccounted {
                kind: JobKind::Training,
                job_name: name.to_owned(),
                is_over,
            })
        );
        let notice = |name: &str, is_idle, retained_seconds| PoolNotice {
            job_name: name.to_owned(),
            is_idle,
            retained_seconds,
        };
        assert_eq!(
            notices.pools,
            [notice("job-3", true, 0), notice("job-4", false, 90)]
        );
    }

    #[test]
    fn more_pages_are_listed_less_often() {
        let next = |pages| {
            next_listing(pages, TimeDelta::seconds(30), TimeDelta::minutes(5)).num_seconds()
        };
        assert_eq!((next(0), next(1), next(4), next(100)), (30, 30, 120, 300));
    }

    #[test]
    fn an_event_that_is_older_than_what_is_known_changes_nothing() {
        let event = |modified, status: &str, secondary: &str| PushedStatus {
            status: JobStatus::parse(status),
            secondary_status: secondary.into(),
            modified_at: Some(at(modified)),
            started_at: None,
        };
        let known = known(1, "Training");
        let late = compare_event(&known, event(99, "InProgress", "Downloading"));
        assert_eq!((late.changed, late.look), (None, false));
        let upload = compare_event(&known, event(101, "InProgress", "Uploading"));
        assert!(upload.changed.is_some() && !upload.look);
        let end = compare_event(&known, event(101, "Completed", "Completed"));
        assert!(end.changed.is_some() && end.look);
    }

    #[test]
    fn an_event_that_says_when_billing_began_saves_the_look_for_it() {
        let known = known(1, "Starting");
        let event = PushedStatus {
            status: JobStatus::InProgress,
            secondary_status: "Downloading".into(),
            modified_at: Some(at(101)),
            started_at: Some(at(100)),
        };
        let said = compare_event(&known, event.clone());
        assert_eq!((said.started_at, said.look), (Some(at(100)), false));
        let silent = PushedStatus {
            started_at: None,
            ..event
        };
        assert!(compare_event(&known, silent).look);
    }
}

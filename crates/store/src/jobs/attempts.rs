//! Applies decisions to a claimed trial and its attempt, up to the attempt's end
//! ([`crate::jobs::settling`]). Each function is one transaction that checks the
//! lease's token: [`Applied::Stale`] means that another scheduler now holds the trial and nothing
//! was changed.

mod looks;
pub mod plan;

use bakeoff_domain::event::{Ended, Event};
use bakeoff_domain::ids::JobId;
use bakeoff_domain::lifecycle::state::{AttemptPhase, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::{EntryComponent, EntryKind, EntryResource};
use bakeoff_domain::money::worst_case::WorstCase;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::ObservedJob;
use bakeoff_domain::sagemaker::requested::{self, Difference};
use bakeoff_planner::plan::TrialPlan;
use bakeoff_planner::render::request;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use crate::account::Account;
use crate::events::{self, EventSubject, NewEvent};
use crate::experiments::trials::{Attempt, Claimed};
use crate::money::ledger::{self, Entry};
use crate::stored;
use crate::{Store, StoreError, retried};

/// Whether a decision was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    Done,
    /// The lease has passed to another scheduler: drop the work.
    Stale,
}

/// A job that is known to exist.
#[derive(Debug, Clone, Copy)]
pub struct Running {
    /// When to look at it next.
    pub due_at: DateTime<Utc>,
    /// When to read its metrics first.
    pub metrics_at: Option<DateTime<Utc>>,
    /// When its billing began, if a look told.
    pub started_at: Option<DateTime<Utc>>,
}

/// Creates postponed in a row before an alarm: half an hour, with the backoff.
const POSTPONED_ALARM: u32 = 10;

/// Whether the lease is kept for the next step of the same tick, or released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    Keep,
    Release,
}

/// Why AWS did not accept a stop.
#[derive(Debug, Clone, Copy)]
pub struct StopRefusal<'a> {
    /// As it is told: a sentence.
    pub why: &'a str,
    /// AWS denies it; anything else may be over in an hour.
    pub is_definite: bool,
}

/// When a trial is due again, and what it waits for.
#[derive(Debug, Clone, Copy)]
pub struct Due<'a> {
    at: DateTime<Utc>,
    reason: Option<&'a str>,
    /// It still waits for what it waited for.
    keeps_reason: bool,
}

impl<'a> Due<'a> {
    pub fn at(at: DateTime<Utc>) -> Self {
        Self {
            at,
            reason: None,
            keeps_reason: false,
        }
    }

    /// It waits on, for the same reason.
    pub fn still(at: DateTime<Utc>) -> Self {
        Self {
            keeps_reason: true,
            ..Self::at(at)
        }
    }

    pub fn because(at: DateTime<Utc>, reason: &'a str) -> Self {
        Self {
            reason: Some(reason),
            ..Self::at(at)
        }
    }
}

/// Moves the trial to its next state, if the lease is still ours. If a cancel arrived during the
/// claim, the trial stays due at once.
pub(crate) async fn advance(
    tx: &mut PgConnection,
    trial: &Claimed,
    state: TrialState,
    due: Due<'_>,
    lease: Lease,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let changed = sqlx::query!(
        r#"UPDATE trials
           SET state = $3, reason = CASE WHEN $10 THEN reason ELSE $5 END,
               due_at = CASE WHEN stop_requested_at IS NOT NULL AND NOT $9 THEN $7::timestamptz ELSE $4::timestamptz END,
               ended_at = CASE WHEN $6 THEN $7::timestamptz END,
               lease_owner = CASE WHEN $8 THEN lease_owner END,
               lease_expires_at = CASE WHEN $8 THEN lease_expires_at END
           WHERE id = $1 AND lease_token = $2"#,
        trial.id.0,
        trial.lease_token,
        state.as_str(),
        due.at,
        due.reason,
        state.is_terminal(),
        now,
        lease == Lease::Keep,
        trial.stop_requested,
        due.keeps_reason,
    )
    .execute(tx)
    .await?;
    Ok(changed.rows_affected() == 1)
}

/// The trial's state while its attempt is living. Derived from the attempt, not from the state at
/// the claim: the same claim may have planned the attempt.
fn living_state(trial: &Claimed, attempt: &Attempt) -> TrialState {
    match attempt.phase {
        _ if trial.stop_requested => TrialState::Stopping,
        AttemptPhase::Running => TrialState::Running,
        AttemptPhase::Planned | AttemptPhase::Quarantined { .. } | AttemptPhase::Over(_) => {
            TrialState::Submitting
        }
    }
}

pub(crate) fn account(trial: &Claimed, attempt: &Attempt) -> Account {
    Account {
        project_id: trial.project_id,
        experiment_id: trial.experiment_id,
        trial_id: trial.id,
        job_id: attempt.id,
        price_id: attempt.price_id,
    }
}

impl Store {
    /// Releases the lease on a claimed trial without changing the trial's state.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn release_lease(
        &self,
        trial: &Claimed,
        due_at: DateTime<Utc>,
        reason: Option<&str>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"UPDATE trials
               SET lease_owner = NULL, lease_expires_at = NULL, reason = coalesce($4, reason),
                   due_at = CASE WHEN stop_requested_at IS NOT NULL AND NOT $5 THEN stop_requested_at ELSE $3::timestamptz END
               WHERE id = $1 AND lease_token = $2"#,
            trial.id.0,
            trial.lease_token,
            due_at,
            reason,
            trial.stop_requested,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Returns a claimed trial to the queue, not to be admitted before `at`. When it waits for
    /// money, the experiment's other trials that need as much are held back too: otherwise they
    /// would be tried one by one while others could run.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn requeue(
        &self,
        trial: &Claimed,
        due: Due<'_>,
        worst: Usd,
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            // Locked in the same order as by a cancel.
            let others = sqlx::query_scalar!(
                r#"SELECT id FROM trials
                   WHERE id = $3 OR (experiment_id = $1 AND state = 'queued' AND stop_requested_at IS NULL AND due_at < $2
                                     AND worst_case_training_usd >= $4)
                   ORDER BY id FOR NO KEY UPDATE"#,
                trial.experiment_id.0,
                due.at,
                trial.id.0,
                worst.0,
            )
            .fetch_all(&mut *tx)
            .await?;
            if !advance(&mut tx, trial, TrialState::Queued, due, Lease::Release, now).await? {
                return Ok(Applied::Stale);
            }
            sqlx::query!(
                r#"UPDATE trials SET due_at = $2, reason = $3
                   WHERE id = ANY($1) AND id <> $4 AND state = 'queued' AND stop_requested_at IS NULL"#,
                &others,
                due.at,
                due.reason,
                trial.id.0,
            )
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(Applied::Done)
        };
        retried(transaction).await
    }

    /// Refuses a trial: the budget cannot cover it, and nothing in its experiment will be released.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn refuse(
        &self,
        trial: &Claimed,
        reason: &str,
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        self.end_without_attempt(trial, TrialState::Refused, reason, now)
            .await
    }

    /// Ends a trial that has no attempt to settle.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn end_without_attempt(
        &self,
        trial: &Claimed,
        state: TrialState,
        reason: &str,
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        let mut tx = self.pool.begin().await?;
        let due = Due::because(now, reason);
        if !advance(&mut tx, trial, state, due, Lease::Release, now).await? {
            return Ok(Applied::Stale);
        }
        let ended = Ended {
            reason: reason.to_owned(),
            attempt: None,
        };
        let told =
            Event::trial_ended(state, ended).map(|event| EventSubject::from(trial).told(event));
        events::commit(tx, told.as_slice(), now).await?;
        Ok(Applied::Done)
    }

    /// Records once that the trial's previous scheduler died and the trial was taken over, so that
    /// people see how long it took.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_takeover(
        &self,
        trial: &Claimed,
        owner: &str,
        seconds: f64,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let taken_over = Event::TrialTakenOver {
            owner: owner.to_owned(),
            seconds,
        };
        self.tell(EventSubject::from(trial).told(taken_over), now)
            .await
    }

    /// Records that SageMaker runs something other than what was requested.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_ignored_setting(
        &self,
        trial: &Claimed,
        difference: &Difference,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let ignored = EventSubject::from(trial).told(difference.into());
        self.tell(ignored, now).await
    }

    /// Records that the job exists and is ours.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_running(
        &self,
        trial: &Claimed,
        attempt: &Attempt,
        running: Running,
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let state = if trial.stop_requested {
                TrialState::Stopping
            } else {
                TrialState::Running
            };
            let checkpoint_at = trial
                .checkpoint_interval_seconds
                .map(|seconds| now + TimeDelta::seconds(seconds.into()));
            sqlx::query!(
                r#"UPDATE jobs SET state = 'running', quarantine_until = NULL, postponed = 0, absent = 0, running_at = $3,
                          metrics_due_at = $2, checkpoint_due_at = $4,
                          -- An endpoint is billed from its creation, whether or not anybody sees it again.
                          started_at = CASE WHEN kind = 'endpoint' THEN coalesce(started_at, $5, $3) ELSE started_at END
                   WHERE id = $1 AND state IN ('planned', 'quarantined')"#,
                attempt.id.0,
                running.metrics_at,
                now,
                checkpoint_at,
                running.started_at,
            )
            .execute(&mut *tx)
            .await?;
            if !advance(
                &mut tx,
                trial,
                state,
                Due::at(running.due_at),
                Lease::Release,
                now,
            )
            .await?
            {
                return Ok(Applied::Stale);
            }
            accepted(&mut tx, trial).await?;
            let submitted = Event::TrialSubmitted {
                attempt: attempt.number,
                job_name: attempt.job_name.clone(),
            };
            events::commit(tx, &[EventSubject::from(trial).told(submitted)], now).await?;
            Ok(Applied::Done)
        };
        retried(transaction).await
    }

    /// Records that a stop was not accepted; told once, at once if AWS denies it, and otherwise after an hour.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_stop_refusal(
        &self,
        trial: &Claimed,
        attempt: &Attempt,
        refusal: StopRefusal<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let is_news = sqlx::query_scalar!(
            r#"UPDATE jobs j
               SET stop_refused_at = coalesce(j.stop_refused_at, $2),
                   stop_refusal_told_at = CASE WHEN was.is_to_be_told THEN $2 ELSE j.stop_refusal_told_at END
               FROM (SELECT stop_refusal_told_at IS NULL AND ($3 OR stop_refused_at <= $2::timestamptz - interval '1 hour') AS is_to_be_told
                     FROM jobs WHERE id = $1 FOR NO KEY UPDATE) was
               WHERE j.id = $1 AND j.settled_at IS NULL RETURNING coalesce(was.is_to_be_told, false) AS "is_news!""#,
            attempt.id.0,
            now,
            refusal.is_definite,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let told = is_news.filter(|is_news| *is_news).map(|_| {
            EventSubject::from(trial).told(Event::TrialStopRefused {
                job_name: attempt.job_name.clone(),
                reason: refusal.why.to_owned(),
            })
        });
        events::commit(tx, told.as_slice(), now).await
    }

    /// Says when an endpoint's deletion was asked for: a crash after that must not lose it.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn asks_deletion(
        &self,
        attempt: JobId,
        asked_at: Option<DateTime<Utc>>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE jobs SET delete_asked_at = $2 WHERE id = $1 AND settled_at IS NULL",
            attempt.0,
            asked_at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

/// Writes what is held for an attempt's job and its metrics.
async fn write_reservation(
    tx: &mut PgConnection,
    trial: &Claimed,
    account: &Account,
    worst: &WorstCase,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let job = EntryResource::Job;
    let instances = Some((job.instances(trial.kind), worst.training_usd));
    let metrics = (EntryComponent::Cloudwatch, worst.metrics_usd);
    // Only training has metrics that are read.
    let metrics = (trial.kind == JobKind::Training).then_some(metrics);
    for (component, usd) in instances.into_iter().chain(metrics) {
        let entry = Entry::worst_case(EntryKind::Reserved, job, component, usd);
        ledger::write(tx, account, &entry, now).await?;
    }
    Ok(())
}

/// A create was accepted: if its quota pool was in doubt, it no longer is.
async fn accepted(tx: &mut PgConnection, trial: &Claimed) -> Result<(), StoreError> {
    sqlx::query!(
        r#"UPDATE quotas SET refused_at = NULL, held_until = NULL
           WHERE region = $3 AND instance_type = $1 AND usage = $2 AND refused_at IS NOT NULL"#,
        trial.instance_type,
        trial.usage().as_str(),
        trial.region,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// What an observation changed.
pub(crate) struct Recorded {
    /// On the first observation: how the job differs from the request. Written as events once the
    /// trial is locked.
    pub(crate) differences: Vec<NewEvent>,
    /// Whether the job's status changed.
    pub(crate) is_news: bool,
}

/// Writes an observed job status, only ever forwards: a lagging SageMaker replica may describe an
/// older state, and a listing or an event may have reported a newer one meanwhile. An end is always
/// news, because nothing follows it.
pub(crate) async fn record_job(
    tx: &mut PgConnection,
    trial: &Claimed,
    attempt: &Attempt,
    job: &ObservedJob,
) -> Result<Recorded, StoreError> {
    let is_news = sqlx::query_scalar!(
        r#"UPDATE jobs j
           SET job_status = CASE WHEN is_newer THEN $2 ELSE j.job_status END,
               secondary_status = CASE WHEN is_newer THEN $3 ELSE j.secondary_status END,
               failure_reason = CASE WHEN is_newer THEN $4 ELSE j.failure_reason END,
               transitions = CASE WHEN is_newer THEN $5 ELSE j.transitions END,
               modified_at = greatest(j.modified_at, $8),
               started_at = coalesce($6, started_at), training_seconds = coalesce($7, training_seconds), is_compared = true,
               job_arn = coalesce(nullif($9, ''), job_arn),
               model_s3_uri = coalesce($11, model_s3_uri), rules = coalesce($12, rules), exit_message = coalesce($13, exit_message),
               tuned = coalesce($14, tuned),
               account = coalesce(account, (SELECT account FROM installation))
           FROM (SELECT secondary_status AS known,
                        -- Events have milliseconds, and who knows what is rounded.
                        $10 OR coalesce($8::timestamptz + interval '1 second' >= modified_at, true) AS is_newer
                 FROM jobs WHERE id = $1 FOR NO KEY UPDATE) before
           WHERE j.id = $1
           RETURNING before.is_newer AND before.known IS DISTINCT FROM $3 AS "is_news!""#,
        attempt.id.0,
        job.status.as_str(),
        job.secondary_status,
        job.failure_reason,
        stored::write(&job.transitions)?,
        job.started_at,
        job.training_seconds.and_then(|seconds| i64::try_from(seconds).ok()),
        job.modified_at,
        job.arn,
        job.status.is_over(),
        job.model_s3_uri,
        (!job.rules.is_empty()).then(|| stored::write(&job.rules)).transpose()?,
        job.exit_message,
        job.tuned.as_ref().map(stored::write).transpose()?,
    )
    .fetch_one(&mut *tx)
    .await?;
    let plan = trial.plan.as_ref().filter(|_| !attempt.is_compared);
    let request = plan.and_then(TrialPlan::training);
    let Some(request) = request else {
        return Ok(Recorded {
            differences: Vec::new(),
            is_news,
        });
    };
    let request = request::for_attempt(
        request,
        &attempt.job_name,
        &attempt.id.to_string(),
        &trial.id.to_string(),
    );
    let differences = requested::differences(&request, &job.actual);
    let differences = differences
        .iter()
        .map(|one| EventSubject::from(trial).told(one.into()))
        .collect();
    Ok(Recorded {
        differences,
        is_news,
    })
}

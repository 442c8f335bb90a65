//! The end of an attempt: its cost moves from reserved to settled, and its trial ends or is queued
//! again, in one transaction that checks the lease's token. No metrics are written here, because
//! settling must not wait for them.

use bakeoff_domain::event::{AttemptBill, Charge, Ended, Event, OverReservation};
use bakeoff_domain::lifecycle::decide::{Ending, Shortage};
use bakeoff_domain::lifecycle::state::{AttemptState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::bill::{Agreed, Usage};
use bakeoff_domain::money::ledger::EntryResource;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::ObservedJob;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::error::found_one;
use crate::events::{self, EventSubject, NewEvent};
use crate::experiments::trials::{Attempt, Claimed};
use crate::jobs::attempts::{Applied, Due, Lease, account, advance, record_job};
use crate::jobs::{post_mortems, warm_pools};
use crate::money::bill::{self, Billed, Waits, waits};
use crate::money::budget;
use crate::series::metrics;
use crate::stored;
use crate::{Store, StoreError, retried};
use bakeoff_process::crash;

/// How an attempt ends, and what follows.
#[derive(Debug, Clone, Copy)]
pub struct Settlement<'a> {
    pub ending: &'a Ending,
    /// The attempt's own job, as last observed.
    pub seen: Option<&'a ObservedJob>,
    /// When the trial is retried; none when it is over.
    pub again_at: Option<DateTime<Utc>>,
    /// When the attempt's metrics are read for the last time, if it has any.
    pub metrics_at: Option<DateTime<Utc>>,
}

impl Store {
    /// Settles the attempt, releases its reservation, and ends the trial or queues it again.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn settle(
        &self,
        trial: &Claimed,
        attempt: &Attempt,
        settlement: Settlement<'_>,
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        let transaction = || async move {
            let (ending, seen) = (settlement.ending, settlement.seen);
            let again_at = settlement.again_at;
            let mut tx = self.pool.begin().await?;
            let differences = match seen {
                Some(job) => record_job(&mut tx, trial, attempt, job).await?.differences,
                None => Vec::new(),
            };
            let ran = end(&mut tx, attempt, settlement, now).await?;
            let mut cost = Usd::ZERO;
            let mut alarms = Vec::new();
            if let Some(ran) = &ran {
                cost = book(&mut tx, trial, attempt, ending, ran, now).await?;
                if ran.started_at.is_none() && trial.kind == JobKind::Training {
                    // Nothing to read: the metrics' part is settled with the job's.
                    let (account, held) = (account(trial, attempt), attempt.reserved_metrics_usd);
                    alarms.extend(metrics::settle(&mut tx, &account, held, 0, None, now).await?);
                }
                let account = account(trial, attempt);
                warm_pools::job_ended(&mut tx, &account, ran.left_at(ending), seen, now).await?;
                count_failure(&mut tx, trial, ending, again_at.is_some()).await?;
                order_post_mortem(&mut tx, trial, attempt, settlement, now).await?;
            }
            // The usual lock order: the experiment's row before the trial's.
            let due = Due::because(again_at.unwrap_or(now), &ending.reason);
            if !advance(&mut tx, trial, ending.trial, due, Lease::Release, now).await? {
                return Ok(Applied::Stale);
            }
            // Otherwise a trial would end with nothing booked and nothing released.
            let held = ran.map(|ran| ran.held).ok_or_else(|| missing(attempt))?;
            alarms.extend(over_reservation(&mut tx, trial, attempt, cost, held).await?);
            let over = ended(attempt, settlement, cost);
            let over = over.map(|event| EventSubject::from(trial).told(event));
            let events: Vec<NewEvent> = differences.into_iter().chain(alarms).chain(over).collect();
            crash::point("in_settlement");
            events::commit(tx, &events, now).await?;
            Ok(Applied::Done)
        };
        retried(transaction).await
    }
}

/// An alarm if a job has cost more than was held for it.
async fn over_reservation(
    tx: &mut PgConnection,
    trial: &Claimed,
    attempt: &Attempt,
    cost: Usd,
    held: Usd,
) -> Result<Option<NewEvent>, StoreError> {
    if cost <= held {
        return Ok(None);
    }
    let over = OverReservation {
        charge: Charge::Job,
        job_name: attempt.job_name.clone(),
        usd: cost,
        reserved_usd: held,
    };
    let account = account(trial, attempt);
    budget::over_reservation(tx, &account, over).await.map(Some)
}

fn missing(attempt: &Attempt) -> StoreError {
    StoreError::Missing {
        table: "jobs",
        id: attempt.id.to_string(),
    }
}

/// Of a job that failed, why is found out some seconds later, from its log.
async fn order_post_mortem(
    tx: &mut PgConnection,
    trial: &Claimed,
    attempt: &Attempt,
    settlement: Settlement<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let has_failed = settlement.ending.attempt == AttemptState::Failed;
    if has_failed && settlement.seen.is_some() {
        post_mortems::order(tx, trial, attempt, now).await?;
    }
    Ok(())
}

/// What is told of the end: the trial's, or only the attempt's.
fn ended(attempt: &Attempt, settlement: Settlement<'_>, cost: Usd) -> Option<Event> {
    let ending = settlement.ending;
    let ended = Ended {
        reason: ending.reason.clone(),
        attempt: Some(AttemptBill {
            number: attempt.number,
            job_name: attempt.job_name.clone(),
            billed_seconds: ending.billable_seconds.unwrap_or_default(),
            is_estimated: ending.estimated,
            usd: cost,
        }),
    };
    match settlement.again_at {
        Some(again_at) if ending.trial == TrialState::Queued => {
            Some(Event::TrialRetrying { again_at, ended })
        }
        _ => Event::trial_ended(ending.trial, ended),
    }
}

/// How long an attempt's job ran.
struct Ran {
    /// None when it never started.
    started_at: Option<DateTime<Utc>>,
    ended_at: DateTime<Utc>,
    /// TrainingTimeInSeconds.
    seconds: Option<u64>,
    /// What is held for it by now: an endpoint's time to live may have been extended.
    held: Usd,
    waits: Waits,
}

impl Ran {
    /// When it left instances behind, if it had any.
    fn left_at(&self, ending: &Ending) -> Option<DateTime<Utc>> {
        let had_instances = self.started_at.and(ending.billable_seconds);
        had_instances.map(|_| self.ended_at)
    }
}

/// Ends the attempt's row; none when it was already settled.
async fn end(
    tx: &mut PgConnection,
    attempt: &Attempt,
    settlement: Settlement<'_>,
    now: DateTime<Utc>,
) -> Result<Option<Ran>, StoreError> {
    let Settlement { ending, seen, .. } = settlement;
    let ended_at = seen.and_then(|job| job.ended_at).unwrap_or(now);
    let final_metrics = seen
        .map(|job| &job.final_metrics)
        .filter(|all| !all.is_empty());
    let row = sqlx::query!(
        r#"UPDATE jobs
               SET state = $2, settled_at = $3, ended_at = $4, billable_seconds = coalesce($5, billable_seconds, 0),
                   billing_estimated = $6, quarantine_until = NULL, failure_reason = coalesce(failure_reason, $7),
                   final_metrics = $9, checkpoint_due_at = NULL,
                   metrics_due_at = CASE WHEN started_at IS NULL THEN NULL ELSE $8::timestamptz END
               WHERE id = $1 AND settled_at IS NULL
               RETURNING started_at, training_seconds, reserved_training_usd"#,
        attempt.id.0,
        ending.attempt.as_str(),
        now,
        ended_at,
        ending.billable_seconds.and_then(|seconds| i64::try_from(seconds).ok()),
        ending.estimated,
        (ending.trial == TrialState::Failed).then_some(ending.reason.as_str()),
        settlement.metrics_at as Option<DateTime<Utc>>,
        final_metrics.map(stored::write).transpose()?,
    )
    .fetch_optional(tx)
    .await?;
    let transitions = seen.map_or(&attempt.transitions, |job| &job.transitions);
    Ok(row.map(|row| Ran {
        started_at: row.started_at,
        ended_at,
        seconds: row
            .training_seconds
            .and_then(|seconds| u64::try_from(seconds).ok()),
        held: Usd(row.reserved_training_usd),
        waits: waits(transitions),
    }))
}

/// Counters that limit retries: shortages of quota or capacity are counted separately from failed
/// attempts.
async fn count_failure(
    tx: &mut PgConnection,
    trial: &Claimed,
    ending: &Ending,
    is_retried: bool,
) -> Result<(), StoreError> {
    let done = sqlx::query!(
        r#"UPDATE trials SET failures = failures + $2, over_quota = over_quota + $3, no_capacity = no_capacity + $4
           WHERE id = $1"#,
        trial.id.0,
        i32::from(is_retried && ending.shortage.is_none()),
        i32::from(ending.shortage == Some(Shortage::Quota)),
        i32::from(ending.shortage == Some(Shortage::Capacity)),
    )
    .execute(tx)
    .await?;
    found_one(&done, "trials", trial.id)?;
    Ok(())
}

/// Books an ended attempt's job: its part is settled and released now, the metrics' part with the
/// last read. Returns the cost.
async fn book(
    tx: &mut PgConnection,
    trial: &Claimed,
    attempt: &Attempt,
    ending: &Ending,
    ran: &Ran,
    now: DateTime<Utc>,
) -> Result<Usd, StoreError> {
    let account = account(trial, attempt);
    let billed = ending.billable_seconds.unwrap_or_default();
    let &Ran {
        started_at,
        ended_at,
        seconds,
        ..
    } = ran;
    let from = started_at.unwrap_or(ended_at);
    let usage = Usage {
        kind: trial.kind,
        instance_type: trial.instance_type.clone(),
        region: trial.region.clone(),
        count: trial.instance_count,
        from: from.min(ended_at),
        until: ended_at,
        waits: ran.waits.clone(),
        billed_seconds: billed,
        run_seconds: if billed == 0 {
            0
        } else {
            seconds.unwrap_or(billed).max(billed)
        },
        volume_gb: trial.volume_gb,
    };
    let agreed = Agreed {
        price_id: attempt.price_id,
        usd_per_hour: attempt.usd_per_hour,
        estimated: trial.is_price_estimated,
    };
    let billed = Billed {
        resource: EntryResource::Job,
        settlement: 0,
        usage: &usage,
        agreed,
        held: Some(ran.held),
        estimated: ending.estimated,
    };
    bill::settle(tx, &account, billed, now).await
}

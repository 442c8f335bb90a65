//! The end of an attempt: what it cost goes from reserved to spent, and its trial ends or is queued
//! again, in one transaction fenced by the lease token. It writes no metrics: money must not wait
//! for them.

use bakeoff_domain::attempt::TrialState;
use bakeoff_domain::bill::{Agreed, Usage};
use bakeoff_domain::decide::{Ending, Shortage};
use bakeoff_domain::job::ObservedJob;
use bakeoff_domain::price::PriceStatus;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::crash;

use super::attempts::{Applied, Lease, account, event, fenced, record_job};
use super::bill::{self, Waits, What, waits};
use super::error::{found_one, to_json};
use super::trials::{Attempt, Claimed};
use super::{Store, StoreError, budget, events, retried, warm_pools};

impl Store {
    /// Settles the attempt, releases its reservation, and ends the trial or queues it again for
    /// `again_at`.
    pub async fn settle(
        &self,
        trial: &Claimed,
        attempt: &Attempt,
        ending: &Ending,
        after: (Option<&ObservedJob>, Option<DateTime<Utc>>, DateTime<Utc>),
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        retried(|| self.settle_once(trial, attempt, ending, after, now)).await
    }

    async fn settle_once(
        &self,
        trial: &Claimed,
        attempt: &Attempt,
        ending: &Ending,
        (seen, again_at, metrics_at): (Option<&ObservedJob>, Option<DateTime<Utc>>, DateTime<Utc>),
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        let mut tx = self.pool.begin().await?;
        let due_at = again_at.unwrap_or(now);
        let differences = match seen {
            Some(job) => record_job(&mut tx, trial, attempt, job).await?.differences,
            None => Vec::new(),
        };
        let mut alarm = None;
        let ended_at = seen.and_then(|job| job.ended_at).unwrap_or(now);
        let settled = sqlx::query!(
            r#"UPDATE attempts
               SET state = $2, settled_at = $3, ended_at = $4, billable_seconds = coalesce($5, billable_seconds, 0),
                   billing_estimated = $6, quarantine_until = NULL, failure_reason = coalesce(failure_reason, $7),
                   final_metrics = $9, checkpoint_due_at = NULL,
                   metrics_due_at = CASE WHEN started_at IS NULL THEN NULL ELSE $8::timestamptz END
               WHERE id = $1 AND settled_at IS NULL
               RETURNING started_at, training_seconds"#,
            attempt.id.0,
            ending.attempt.as_str(),
            now,
            ended_at,
            ending.billable_seconds.and_then(|seconds| i64::try_from(seconds).ok()),
            ending.estimated,
            (ending.trial == TrialState::Failed).then_some(ending.reason.as_str()),
            metrics_at,
            seen.filter(|job| !job.final_metrics.is_empty()).map(|job| to_json(&job.final_metrics)).transpose()?,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let is_settled = settled.is_some();
        if let Some(row) = settled {
            let ran = row
                .training_seconds
                .and_then(|seconds| u64::try_from(seconds).ok());
            let waits = waits(seen.map_or(attempt.transitions.as_slice(), |job| {
                job.transitions.as_slice()
            }));
            alarm = book(
                &mut tx,
                trial,
                attempt,
                ending,
                (row.started_at, ended_at),
                (ran, waits),
                now,
            )
            .await?;
            let job_ended_at =
                (ending.billable_seconds.is_some() && row.started_at.is_some()).then_some(ended_at);
            warm_pools::job_ended(&mut tx, &account(trial, attempt), job_ended_at, now).await?;
            count_failure(&mut tx, trial, ending, again_at.is_some()).await?;
        }
        // The experiment's row is locked before the trial's, as everywhere.
        if !fenced(
            &mut tx,
            trial,
            ending.trial,
            (due_at, Some(&ending.reason)),
            Lease::Release,
            now,
        )
        .await?
        {
            return Ok(Applied::Stale);
        }
        if !is_settled {
            // Nothing would be booked, and nothing given back, of a trial that is over.
            return Err(StoreError::Missing {
                table: "attempts",
                id: attempt.id.to_string(),
            });
        }
        events::insert_all(&mut tx, &differences, now).await?;
        if let Some(alarm) = alarm {
            budget::over_reservation(&mut tx, &account(trial, attempt), &alarm, now).await?;
        }
        let (kind, severity) = match ending.trial {
            TrialState::Parked => ("parked", "alarm"),
            TrialState::Failed => ("failed", "warning"),
            _ if again_at.is_some() => ("retrying", "warning"),
            other => (other.as_str(), "info"),
        };
        events::insert(&mut tx, &event(trial, kind, severity, &ending.reason), now).await?;
        crash::point("in_settlement");
        tx.commit().await?;
        Ok(Applied::Done)
    }
}

/// What bounds retries: a shortage of room is counted apart from attempts that came to nothing.
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

/// The money of an ended attempt: the job's part is settled and released now; the metrics' part
/// with the last read, or now when there is nothing to read. What is to be said when it cost more
/// than was held.
async fn book(
    tx: &mut PgConnection,
    trial: &Claimed,
    attempt: &Attempt,
    ending: &Ending,
    (started_at, ended_at): (Option<DateTime<Utc>>, DateTime<Utc>),
    (ran, waits): (Option<u64>, Waits),
    now: DateTime<Utc>,
) -> Result<Option<String>, StoreError> {
    let account = account(trial, attempt);
    let price = trial.plan.price.as_ref();
    let billed = ending.billable_seconds.unwrap_or_default();
    let from = started_at.unwrap_or(ended_at);
    let usage = Usage {
        instance_type: trial.plan.instance_type.clone(),
        region: price.map(|price| price.region.clone()).unwrap_or_default(),
        count: trial.plan.instance_count,
        from: from.min(ended_at),
        until: ended_at,
        waits,
        billed_seconds: billed,
        run_seconds: if billed == 0 {
            0
        } else {
            ran.unwrap_or(billed).max(billed)
        },
        volume_gb: trial
            .plan
            .request
            .as_ref()
            .map_or(0, |request| request.volume_size_gb),
    };
    let agreed = Agreed {
        price_id: attempt.price_id,
        usd_per_hour: attempt.usd_per_hour,
        estimated: price.is_some_and(|price| price.status == PriceStatus::Estimated),
    };
    let held = attempt.reserved_training_usd;
    let money = (Some(held), ending.estimated);
    let cost = bill::settle(tx, &account, (What::Job, &usage, agreed), money, now).await?;
    if started_at.is_none() {
        super::metrics::settle(tx, &account, attempt.reserved_metrics_usd, (0, None), now).await?;
    }
    let what = || {
        format!(
            "{} cost {cost}, more than the {held} reserved for it",
            attempt.job_name
        )
    };
    Ok((cost > held).then(what))
}

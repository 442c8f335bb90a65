//! Corrections: an attempt's actual bill where SageMaker reported nothing and an estimate was booked. A person supplies
//! it, or SageMaker, late.

use bakeoff_domain::event::{BillingCorrection, Event};
use bakeoff_domain::ids::{ExperimentId, JobId, PriceId, ProjectId, TrialId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::kind::JobKind;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::account::Account;
use crate::events::{self, EventSubject, NewEvent};
use crate::money::bill;
use crate::money::budget::{self, Booking};
use crate::money::prices::{self, PricesOf};
use crate::money::repricing::{Correction, adjust};
use crate::money::settled::{CostPart, settled_rows};
use crate::{Store, StoreError, retried};

/// What an attempt was billed, as is known only afterwards.
#[derive(Debug, Clone, Copy)]
pub struct CorrectedBill<'a> {
    pub project: ProjectId,
    pub attempt: JobId,
    /// BillableTimeInSeconds according to AWS's bill.
    pub billable_seconds: u64,
    /// TrainingTimeInSeconds, where it was told with that: volumes are billed for it.
    pub training_seconds: Option<u64>,
    pub reason: &'a str,
}

/// The outcome of a correction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Corrected {
    /// The change in cost, positive or negative.
    By(Usd),
    /// The project has no such attempt.
    Unknown,
    /// The attempt is still running or never had instances, so there is nothing to correct.
    NotSettled,
    /// Part of the attempt was booked as an orphaned job, because it was found to run on. Its bill
    /// is SageMaker's last report.
    Followed,
}

impl Store {
    /// Bills an attempt for different seconds than were booked, with an event that gives the
    /// reason.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn correct_billing(
        &self,
        told: CorrectedBill<'_>,
        now: DateTime<Utc>,
    ) -> Result<Corrected, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let Some((usd, event)) = bill_anew(&mut tx, told, now).await? else {
                return self.why_not(told).await;
            };
            events::commit(tx, &[event], now).await?;
            Ok(Corrected::By(usd))
        };
        retried(transaction).await
    }

    /// Finds out why there is nothing to correct.
    async fn why_not(&self, told: CorrectedBill<'_>) -> Result<Corrected, StoreError> {
        let found = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM orphaned_jobs s WHERE s.job_id = j.id AND s.billed_seconds > coalesce(j.billable_seconds, 0))
                      AS "followed!" FROM jobs j
               WHERE id = $1 AND project_id = $2"#,
            told.attempt.0,
            told.project.0,
        );
        Ok(match found.fetch_optional(&self.pool).await? {
            None => Corrected::Unknown,
            Some(true) => Corrected::Followed,
            Some(false) => Corrected::NotSettled,
        })
    }
}

/// Bills an attempt for the given seconds instead of those that are booked, in the caller's transaction: the change in
/// cost, and the event to commit it with. `None` if there is nothing to correct.
pub(crate) async fn bill_anew(
    tx: &mut PgConnection,
    told: CorrectedBill<'_>,
    now: DateTime<Utc>,
) -> Result<Option<(Usd, NewEvent)>, StoreError> {
    let seconds = i64::try_from(told.billable_seconds).unwrap_or(i64::MAX);
    // Before its job, as whoever follows an orphaned job locks both.
    sqlx::query!(
        "SELECT job_name FROM orphaned_jobs WHERE job_id = $1 FOR NO KEY UPDATE",
        told.attempt.0,
    )
    .fetch_optional(&mut *tx)
    .await?;
    let row = sqlx::query!(
        r#"UPDATE jobs j SET billable_seconds = $3, billing_estimated = false, training_seconds = coalesce($4, j.training_seconds)
           FROM trials t
           WHERE j.id = $1 AND j.project_id = $2 AND j.settled_at IS NOT NULL AND j.started_at IS NOT NULL
             AND t.id = j.trial_id
             -- Beyond its attempt, it was billed as an orphaned job.
             AND NOT EXISTS (SELECT FROM orphaned_jobs s WHERE s.job_id = j.id AND s.billed_seconds > coalesce(j.billable_seconds, 0))
           RETURNING j.experiment_id AS "experiment_id!", j.trial_id AS "trial_id!", j.price_id, j.job_name, j.kind, t.instance_type, t.region"#,
        told.attempt.0,
        told.project.0,
        seconds,
        told.training_seconds
            .map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX)),
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(row) = row else { return Ok(None) };
    // Should it be found to run on, it is billed from there.
    sqlx::query!(
        "UPDATE orphaned_jobs SET billed_seconds = $2 WHERE job_id = $1",
        told.attempt.0,
        seconds,
    )
    .execute(&mut *tx)
    .await?;
    let experiment = ExperimentId(row.experiment_id);
    bill::lock(tx, experiment).await?;
    let of = PricesOf {
        kind: JobKind::parse(&row.kind)
            .ok_or_else(|| StoreError::corrupt("jobs", told.attempt, "kind"))?,
        region: &row.region,
        instance_types: std::slice::from_ref(&row.instance_type),
    };
    let tariffs = prices::tariffs(&mut *tx, told.project, of).await?;
    let account = Account {
        project_id: told.project,
        experiment_id: experiment,
        trial_id: TrialId(row.trial_id),
        job_id: told.attempt,
        price_id: PriceId(row.price_id),
    };
    let mut corrections = Vec::new();
    for settled in settled_rows(tx, experiment, None, Some(told.attempt)).await? {
        let parts = settled.parts(&row.region, &tariffs)?.into_iter();
        corrections.extend(parts.filter_map(|part| correction(account, &part, now)));
    }
    let total: Usd = corrections.iter().map(|correction| correction.usd).sum();
    budget::settle(
        tx,
        Booking {
            experiment,
            project: told.project,
            released: Usd::ZERO,
            settled: total,
        },
        now,
    )
    .await?;
    for correction in &corrections {
        adjust(tx, correction, now).await?;
    }
    let corrected = Event::TrialBillingCorrected(BillingCorrection {
        job_name: row.job_name,
        billed_seconds: told.billable_seconds,
        usd: total,
        reason: told.reason.to_owned(),
    });
    Ok(Some((total, EventSubject::from(&account).told(corrected))))
}

/// The correction of one component: its current lines minus what is booked; none when they are
/// equal.
pub(crate) fn correction(
    account: Account,
    part: &CostPart,
    now: DateTime<Utc>,
) -> Option<Correction> {
    let CostPart {
        resource,
        component,
        lines,
        ..
    } = part;
    let usd = part.owed();
    let span = lines
        .first()
        .zip(lines.last())
        .map(|(first, last)| (first.from, last.until));
    (usd != Usd::ZERO).then(|| Correction {
        account: Account {
            price_id: lines.first().map_or(account.price_id, |line| line.price_id),
            ..account
        },
        resource: *resource,
        component: *component,
        usd,
        quantity: lines
            .iter()
            .map(|line| i64::try_from(line.quantity).unwrap_or(i64::MAX))
            .sum(),
        estimated: false,
        used: span.unwrap_or((now, now)),
    })
}

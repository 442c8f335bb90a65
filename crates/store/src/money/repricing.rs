//! Effects of a price change: which experiments depend on it, what they have settled at another
//! price, and the correction with its reason, in one transaction per experiment.

use bakeoff_domain::event::{Event, Repriced};
use bakeoff_domain::ids::{ExperimentId, JobId, PriceId, ProjectId, TrialId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::{EntryComponent, EntryKind, EntryResource};
use bakeoff_domain::ranking::recommendation::Recommendation;
use bakeoff_domain::ranking::repricing::{Dependent, Effect, PriceChange, Reason, Revision};
use bakeoff_domain::sagemaker::kind::JobKind;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::account::Account;
use crate::error::found_one;
use crate::events::{self, EventSubject};
use crate::experiments::looks;
use crate::money::bill;
use crate::money::budget::{self, Booking};
use crate::money::ledger::{self, Entry};
use crate::money::prices::{self, PricesOf};
use crate::money::settled::settled_rows;
use crate::stored;
use crate::{Store, StoreError};

/// The effect of a price change on an experiment.
#[derive(Debug, Clone)]
pub struct Repricing {
    /// The prices that caused it.
    pub price_ids: Vec<PriceId>,
    pub reason: String,
    /// Change in the settled amount, USD.
    pub usd: Usd,
    pub is_decided_anew: bool,
    pub recorded_at: DateTime<Utc>,
}

/// The correction of an experiment's bill: one entry for each attempt and component that is now
/// billed differently.
#[derive(Debug, Clone)]
pub struct Correction {
    pub(crate) account: Account,
    pub(crate) resource: EntryResource,
    pub(crate) component: EntryComponent,
    pub usd: Usd,
    pub(crate) quantity: i64,
    pub(crate) estimated: bool,
    pub(crate) used: (DateTime<Utc>, DateTime<Utc>),
}

impl Store {
    /// Prices to be applied. Prices that nothing depends on are marked as applied at once.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn prices_to_apply(
        &self,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<PriceChange>, StoreError> {
        sqlx::query!(
            r#"UPDATE prices p SET applied_at = $1
               WHERE applied_at IS NULL AND effective_from <= $1
                 -- Looked up for each price, in the index's order: an anti-join would read all trials.
                 AND (SELECT experiment_id FROM trials t WHERE t.instance_type = p.instance_type
                      ORDER BY experiment_id LIMIT 1) IS NULL
                 AND (component <> 'storage' OR (SELECT 1 FROM experiments LIMIT 1) IS NULL)"#,
            now,
        )
        .execute(&self.pool)
        .await?;
        let rows = sqlx::query!(
            r#"SELECT id, project_id, region, instance_type FROM prices
               WHERE applied_at IS NULL AND effective_from <= $1 AND component <> 'cloudwatch'
               ORDER BY effective_from, id LIMIT $2"#,
            now,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        let change = rows.into_iter().map(|row| PriceChange {
            price_id: PriceId(row.id),
            project_id: row.project_id.map(ProjectId),
            region: row.region,
            instance_type: row.instance_type,
        });
        Ok(change.collect())
    }

    /// Experiments after the given one that may use something whose price has changed, ordered by
    /// id.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn dependents(
        &self,
        changes: &[PriceChange],
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Dependent>, StoreError> {
        let regions: Vec<String> = changes.iter().map(|change| change.region.clone()).collect();
        let types: Vec<String> = changes
            .iter()
            .filter_map(|change| change.instance_type.clone())
            .collect();
        let any_type = changes.iter().any(|change| change.instance_type.is_none());
        let rows = sqlx::query!(
            r#"SELECT e.id, e.project_id, e.region,
                      (SELECT min(t.job_kind) FROM trials t WHERE t.experiment_id = e.id) AS job_kind,
                      ARRAY(SELECT DISTINCT instance_type FROM trials t WHERE t.experiment_id = e.id) AS "types!"
               FROM experiments e
               WHERE e.id > $1 AND e.region = ANY($2)
                 AND ($4 OR EXISTS (SELECT FROM trials t WHERE t.experiment_id = e.id AND t.instance_type = ANY($3)))
               ORDER BY e.id LIMIT $5"#,
            after,
            &regions,
            &types,
            any_type,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        let dependent = rows.into_iter().map(|row| Dependent {
            project_id: ProjectId(row.project_id),
            kind: row.job_kind.as_deref().and_then(JobKind::parse),
            experiment_id: ExperimentId(row.id),
            region: row.region,
            instance_types: row.types,
        });
        Ok(dependent.collect())
    }

    /// Records that prices could not be applied to an experiment, to be retried from the given time
    /// on.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn repricing_failed(
        &self,
        experiment: ExperimentId,
        prices: &[PriceId],
        retry_at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"INSERT INTO repricing_failures (experiment_id, price_id, retry_at) SELECT $1, id, $3 FROM UNNEST($2::uuid[]) AS p(id)
               ON CONFLICT (experiment_id, price_id) DO UPDATE SET retry_at = excluded.retry_at"#,
            experiment.0,
            &prices.iter().map(|price| price.0).collect::<Vec<_>>(),
            retry_at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Experiments to retry, each with the prices to be applied.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn repricings_to_retry(
        &self,
        now: DateTime<Utc>,
    ) -> Result<Vec<(Dependent, Vec<PriceChange>)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT e.id AS experiment_id, e.project_id, e.region AS experiment_region,
                      (SELECT min(t.job_kind) FROM trials t WHERE t.experiment_id = e.id) AS job_kind,
                      ARRAY(SELECT DISTINCT instance_type FROM trials t WHERE t.experiment_id = e.id) AS "types!",
                      p.id, p.project_id AS price_project, p.region, p.instance_type
               FROM repricing_failures f JOIN experiments e ON e.id = f.experiment_id JOIN prices p ON p.id = f.price_id
               WHERE f.retry_at <= $1 ORDER BY e.id, p.id LIMIT 100"#,
            now,
        )
        .fetch_all(&self.pool)
        .await?;
        let mut all: Vec<(Dependent, Vec<PriceChange>)> = Vec::new();
        for row in rows {
            let change = PriceChange {
                price_id: PriceId(row.id),
                project_id: row.price_project.map(ProjectId),
                region: row.region,
                instance_type: row.instance_type,
            };
            match all.last_mut() {
                Some((dependent, changes)) if dependent.experiment_id.0 == row.experiment_id => {
                    changes.push(change);
                }
                _ => {
                    let dependent = Dependent {
                        kind: row.job_kind.as_deref().and_then(JobKind::parse),
                        project_id: ProjectId(row.project_id),
                        experiment_id: ExperimentId(row.experiment_id),
                        region: row.experiment_region,
                        instance_types: row.types,
                    };
                    all.push((dependent, vec![change]));
                }
            }
        }
        Ok(all)
    }

    /// Clears recorded failures that have now been applied.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn repricing_done(
        &self,
        experiment: ExperimentId,
        changes: &[&PriceChange],
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "DELETE FROM repricing_failures WHERE experiment_id = $1 AND price_id = ANY($2)",
            experiment.0,
            &changes
                .iter()
                .map(|change| change.price_id.0)
                .collect::<Vec<_>>(),
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Marks prices as applied once everything that depends on them has been checked.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn prices_are_applied(
        &self,
        changes: &[PriceChange],
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let ids: Vec<Uuid> = changes.iter().map(|change| change.price_id.0).collect();
        sqlx::query!(
            "UPDATE prices SET applied_at = $2 WHERE id = ANY($1)",
            &ids,
            now
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Corrects what is settled, and replaces the recommendation. Computed under the experiment's
    /// lock, so nothing is settled meanwhile; repeating it changes nothing.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn reprice(
        &self,
        dependent: &Dependent,
        changes: &[&PriceChange],
        revision: Option<Revision<'_>>,
        reason: impl FnOnce(&Effect) -> Reason,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let (project, experiment) = (dependent.project_id, dependent.experiment_id);
        let mut tx = self.pool.begin().await?;
        bill::lock(&mut tx, experiment).await?;
        let corrections = corrections(&mut tx, dependent, changes).await?;
        let is_decided_anew = match revision {
            Some(revision) => replace(&mut tx, experiment, revision, now).await?,
            None => false,
        };
        if corrections.is_empty() && !is_decided_anew {
            return Ok(false);
        }
        let effect = Effect {
            usd: corrections.iter().map(|correction| correction.usd).sum(),
            attempts: corrections
                .iter()
                .map(|correction| correction.account.job_id)
                .collect(),
            prices: corrections
                .iter()
                .map(|correction| correction.account.price_id)
                .collect(),
            is_decided_anew,
        };
        let total = effect.usd;
        let reason = reason(&effect);
        sqlx::query!(
            r#"INSERT INTO repricings (experiment_id, price_ids, reason, usd, recommendation_before, recorded_at)
               VALUES ($1, $2, $3, $4, $5, $6)"#,
            experiment.0,
            &reason.price_ids.iter().map(|price| price.0).collect::<Vec<_>>(),
            reason.text,
            total.0,
            revision.filter(|_| is_decided_anew).map(|revision| stored::write(revision.before)).transpose()?,
            now,
        )
        .execute(&mut *tx)
        .await?;
        budget::settle(
            &mut tx,
            Booking {
                experiment,
                project,
                released: Usd::ZERO,
                settled: total,
            },
            now,
        )
        .await?;
        for correction in &corrections {
            adjust(&mut tx, correction, now).await?;
        }
        let subject = EventSubject {
            project,
            experiment,
            trial: None,
        };
        let repriced = subject.told(Event::ExperimentRepriced(Repriced {
            usd: total,
            attempts: u32::try_from(effect.attempts.len()).unwrap_or(u32::MAX),
            price_ids: reason.price_ids,
            is_decided_anew,
            reason: reason.text,
        }));
        events::commit(tx, &[repriced], now).await?;
        Ok(true)
    }

    /// Past effects of price changes on an experiment, newest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn repricings(&self, experiment: ExperimentId) -> Result<Vec<Repricing>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT price_ids, reason, usd, recommendation_before IS NOT NULL AS "is_decided_anew!", recorded_at
               FROM repricings WHERE experiment_id = $1 ORDER BY recorded_at DESC LIMIT 100"#,
            experiment.0,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Repricing {
                price_ids: row.price_ids.into_iter().map(PriceId).collect(),
                reason: row.reason,
                usd: Usd(row.usd),
                is_decided_anew: row.is_decided_anew,
                recorded_at: row.recorded_at,
            })
            .collect())
    }
}

async fn corrections(
    tx: &mut PgConnection,
    dependent: &Dependent,
    changes: &[&PriceChange],
) -> Result<Vec<Correction>, StoreError> {
    let types: Option<Vec<String>> = changes
        .iter()
        .map(|change| change.instance_type.clone())
        .collect();
    let region = &dependent.region;
    let rows = settled_rows(tx, dependent.experiment_id, types.as_deref(), None).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let id = dependent.experiment_id;
    let of = PricesOf {
        // Prices of training for a job of another kind would be a wrong bill.
        kind: dependent
            .kind
            .ok_or_else(|| StoreError::corrupt("trials", id, "job_kind"))?,
        region,
        instance_types: &dependent.instance_types,
    };
    let tariffs = prices::tariffs(&mut *tx, dependent.project_id, of).await?;
    let mut corrections = Vec::new();
    for row in rows {
        for part in row.parts(region, &tariffs)? {
            let usd = part.owed();
            // Differences caused by another price belong to that price's correction.
            let own = part.lines.iter().find(|line| {
                changes
                    .iter()
                    .any(|change| change.price_id == line.price_id)
            });
            let Some(line) = own.filter(|_| usd != Usd::ZERO) else {
                continue;
            };
            let account = Account {
                project_id: dependent.project_id,
                experiment_id: dependent.experiment_id,
                trial_id: TrialId(row.trial_id),
                job_id: JobId(row.id),
                price_id: line.price_id,
            };
            corrections.push(Correction {
                account,
                resource: part.resource,
                component: part.component,
                usd,
                quantity: i64::try_from(line.quantity).unwrap_or(i64::MAX),
                estimated: line.estimated,
                used: (line.from, line.until),
            });
        }
    }
    Ok(corrections)
}

/// Replaces a recommendation; false when the stored one is no longer the expected one. Requires the
/// experiment's lock.
async fn replace(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    revision: Revision<'_>,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let stored = sqlx::query_scalar!(
        "SELECT recommendation FROM experiments WHERE id = $1",
        experiment.0
    )
    .fetch_one(&mut *tx)
    .await?;
    // Compare parsed values: figures that are printed again may differ in the last digit.
    let stored: Option<Recommendation> = stored
        .map(|value| stored::read(value, "experiments", experiment, "recommendation"))
        .transpose()?;
    if stored.is_none_or(|stored| stored.differs(revision.before)) {
        return Ok(false);
    }
    let done = sqlx::query!(
        "UPDATE experiments SET recommendation = $2 WHERE id = $1",
        experiment.0,
        stored::write(revision.after)?
    )
    .execute(&mut *tx)
    .await?;
    found_one(&done, "experiments", experiment)?;
    looks::write_standing(tx, experiment, revision.after, now).await?;
    Ok(true)
}

/// Writes a correction to the ledger, after those of the same component before it. Requires the
/// experiment's lock, which orders them.
pub(crate) async fn adjust(
    tx: &mut PgConnection,
    correction: &Correction,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let before = sqlx::query_scalar!(
        r#"SELECT coalesce(max(settlement) + 1, 0) AS "before!" FROM ledger
           WHERE job_id = $1 AND kind = 'adjusted' AND component = $2"#,
        correction.account.job_id.0,
        correction.component.as_str(),
    )
    .fetch_one(&mut *tx)
    .await?;
    let entry = Entry {
        kind: EntryKind::Adjusted,
        resource: correction.resource,
        component: correction.component,
        settlement: before,
        line: 0,
        usd: correction.usd,
        quantity: correction.quantity,
        unit: correction.component.unit(),
        estimated: correction.estimated,
        used: Some(correction.used),
    };
    ledger::write(tx, &correction.account, &entry, now).await
}

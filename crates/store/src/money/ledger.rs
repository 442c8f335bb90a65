//! The ledger: one row for each change to a job's money, each written at most once.

use bakeoff_domain::ids::{ExperimentId, JobId, PipelineId, PriceId, TrialId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::{EntryComponent, EntryKind, EntryResource, EntryUnit};
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::account::Account;
use crate::{Store, StoreError};

/// A new ledger row.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) kind: EntryKind,
    pub(crate) resource: EntryResource,
    pub(crate) component: EntryComponent,
    /// How many settlements, or corrections, of the same came before: an orphaned job may run on,
    /// and a price may change again.
    pub(crate) settlement: i32,
    /// Number of the line in its settlement.
    pub(crate) line: i32,
    pub(crate) usd: Usd,
    pub(crate) quantity: i64,
    pub(crate) unit: EntryUnit,
    pub(crate) estimated: bool,
    /// Start and end of use, for settled usage.
    pub(crate) used: Option<(DateTime<Utc>, DateTime<Utc>)>,
}

impl Entry {
    /// What is held, or given back.
    pub(crate) fn worst_case(
        kind: EntryKind,
        resource: EntryResource,
        component: EntryComponent,
        usd: Usd,
    ) -> Self {
        Self {
            kind,
            resource,
            component,
            settlement: 0,
            line: 0,
            usd,
            quantity: 0,
            unit: EntryUnit::WorstCase,
            estimated: true,
            used: None,
        }
    }
}

/// Writes a row. Writing the same one again is an error.
pub(crate) async fn write(
    tx: &mut PgConnection,
    account: &Account,
    entry: &Entry,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let written = sqlx::query!(
        r#"INSERT INTO ledger (project_id, experiment_id, trial_id, job_id, kind, component, usd, quantity, unit,
                               price_id, estimated, recorded_at, line, used_from, used_until, resource, settlement)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
           ON CONFLICT ON CONSTRAINT ledger_once DO NOTHING"#,
        account.project_id.0,
        account.experiment_id.0,
        account.trial_id.0,
        account.job_id.0,
        entry.kind.as_str(),
        entry.component.as_str(),
        entry.usd.rounded().0,
        entry.quantity,
        entry.unit.as_str(),
        account.price_id.0,
        entry.estimated,
        now,
        entry.line,
        entry.used.map(|used| used.0),
        entry.used.map(|used| used.1),
        entry.resource.as_str(),
        entry.settlement,
    )
    .execute(tx)
    .await?;
    // The budgets were already changed in this transaction: without the rollback they would count
    // the amount twice.
    if written.rows_affected() == 0 {
        return Err(StoreError::Twice {
            table: "ledger",
            id: account.job_id.to_string(),
        });
    }
    Ok(())
}

/// A trial's cost, as settled.
#[derive(Debug, Clone, Default)]
pub struct TrialCost {
    pub training_usd: Usd,
    pub metrics_usd: Usd,
    /// Volumes of the trial's jobs and pools.
    pub storage_usd: Usd,
    /// The trial's warm pools and orphaned jobs.
    pub other_usd: Usd,
    /// True while part of the cost is an estimate.
    pub estimated: bool,
    /// Attempts whose jobs are included. They are over, whatever was read about them earlier.
    pub settled: Vec<JobId>,
}

/// A stored ledger row.
#[derive(Debug, Clone)]
pub struct LedgerRow {
    pub id: i64,
    /// The trial whose job it was, if it was a trial's.
    pub trial_id: Option<TrialId>,
    pub job_id: JobId,
    pub kind: EntryKind,
    pub resource: EntryResource,
    pub component: EntryComponent,
    pub usd: Usd,
    pub quantity: i64,
    pub unit: EntryUnit,
    pub price_id: Option<PriceId>,
    pub estimated: bool,
    pub used_from: Option<DateTime<Utc>>,
    pub used_until: Option<DateTime<Utc>>,
    pub recorded_at: DateTime<Utc>,
}

struct Row {
    id: i64,
    trial_id: Option<Uuid>,
    job_id: Uuid,
    kind: String,
    resource: String,
    component: String,
    usd: Decimal,
    quantity: i64,
    unit: String,
    price_id: Option<Uuid>,
    estimated: bool,
    recorded_at: DateTime<Utc>,
    used_from: Option<DateTime<Utc>>,
    used_until: Option<DateTime<Utc>>,
}

impl TryFrom<Row> for LedgerRow {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let corrupt = |column| move || StoreError::corrupt("ledger", row.id, column);
        Ok(Self {
            id: row.id,
            trial_id: row.trial_id.map(TrialId),
            job_id: JobId(row.job_id),
            kind: EntryKind::parse(&row.kind).ok_or_else(corrupt("kind"))?,
            resource: EntryResource::parse(&row.resource).ok_or_else(corrupt("resource"))?,
            component: EntryComponent::parse(&row.component).ok_or_else(corrupt("component"))?,
            usd: Usd(row.usd),
            quantity: row.quantity,
            unit: EntryUnit::parse(&row.unit).ok_or_else(corrupt("unit"))?,
            price_id: row.price_id.map(PriceId),
            estimated: row.estimated,
            used_from: row.used_from,
            used_until: row.used_until,
            recorded_at: row.recorded_at,
        })
    }
}

impl Store {
    /// Ledger rows of an experiment after the given id, oldest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn ledger(
        &self,
        experiment: ExperimentId,
        after: i64,
        limit: i64,
    ) -> Result<Vec<LedgerRow>, StoreError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT id, trial_id, job_id, kind, resource, component, usd, quantity, unit, price_id, estimated, recorded_at,
                      used_from, used_until
               FROM ledger WHERE experiment_id = $1 AND id > $2 ORDER BY id LIMIT $3"#,
            experiment.0,
            after,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(LedgerRow::try_from).collect()
    }

    /// The same of all works of a pipeline's steps.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn pipeline_ledger(
        &self,
        pipeline: PipelineId,
        after: i64,
        limit: i64,
    ) -> Result<Vec<LedgerRow>, StoreError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT l.id, l.trial_id, l.job_id, l.kind, l.resource, l.component, l.usd, l.quantity, l.unit, l.price_id,
                      l.estimated, l.recorded_at, l.used_from, l.used_until
               FROM pipeline_works w CROSS JOIN LATERAL (
                    SELECT * FROM ledger WHERE experiment_id = w.experiment_id AND id > $2 ORDER BY id LIMIT $3) l
               WHERE w.pipeline_id = $1 ORDER BY l.id LIMIT $3"#,
            pipeline.0,
            after,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(LedgerRow::try_from).collect()
    }

    /// Settled costs of all trials of the given experiments, in one query.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn trial_costs(
        &self,
        experiments: &[Uuid],
    ) -> Result<Vec<(TrialId, TrialCost)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT trial_id AS "trial_id!",
                      coalesce(sum(usd) FILTER (WHERE component IN ('training', 'processing', 'tuning', 'transform', 'hosting')), 0) AS "training!: Decimal",
                      coalesce(sum(usd) FILTER (WHERE component = 'cloudwatch'), 0) AS "metrics!: Decimal",
                      coalesce(sum(usd) FILTER (WHERE component = 'storage'), 0) AS "storage!: Decimal",
                      coalesce(sum(usd) FILTER (WHERE component IN ('warm_pool', 'orphaned_job')), 0) AS "other!: Decimal",
                      bool_or(estimated) AS "estimated!",
                      coalesce(array_agg(job_id) FILTER (WHERE component IN ('training', 'processing', 'tuning', 'transform', 'hosting') AND kind = 'settled'), '{}')
                          AS "settled!: Vec<Uuid>"
               FROM ledger WHERE experiment_id = ANY($1) AND kind IN ('settled', 'adjusted') AND trial_id IS NOT NULL
               GROUP BY trial_id"#,
            experiments,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let cost = TrialCost {
                    training_usd: Usd(row.training),
                    metrics_usd: Usd(row.metrics),
                    storage_usd: Usd(row.storage),
                    other_usd: Usd(row.other),
                    estimated: row.estimated,
                    settled: row.settled.into_iter().map(JobId).collect(),
                };
                (TrialId(row.trial_id), cost)
            })
            .collect())
    }
}

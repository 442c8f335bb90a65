//! Settled attempts of an experiment, and their lines at current prices: the basis for corrections.

use bakeoff_domain::ids::{ExperimentId, JobId, PriceId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::bill::{Agreed, Line, Usage, lines as bill_lines};
use bakeoff_domain::money::ledger::{EntryComponent, EntryResource};
use bakeoff_domain::money::price::Component;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::Transition;
use bakeoff_domain::sagemaker::observed::waits;
use chrono::{DateTime, TimeDelta, Utc};
use rust_decimal::Decimal;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::StoreError;
use crate::money::prices::Tariffs;
use crate::{error, stored};

/// A settled attempt, with how long its pool was kept and what is booked so far.
pub(crate) struct SettledRow {
    pub(crate) id: Uuid,
    pub(crate) trial_id: Uuid,
    kind: String,
    price_id: Uuid,
    usd_per_hour: Decimal,
    started_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
    pub(crate) billable_seconds: Option<i64>,
    training_seconds: Option<i64>,
    transitions: serde_json::Value,
    instance_type: String,
    instance_count: i32,
    is_estimated: bool,
    volume_gb: i32,
    pool_from: Option<DateTime<Utc>>,
    retained_seconds: Option<i64>,
    training: Decimal,
    pool: Decimal,
    storage: Decimal,
}

impl SettledRow {
    /// Converts a count. An invalid count is an error, not zero: otherwise the booked amount would
    /// be corrected to it.
    fn count<T: TryFrom<i64>>(&self, value: i64, column: &'static str) -> Result<T, StoreError> {
        error::count(value, "jobs", self.id, column)
    }

    fn kind(&self) -> Result<JobKind, StoreError> {
        JobKind::parse(&self.kind).ok_or_else(|| StoreError::corrupt("jobs", self.id, "kind"))
    }

    fn job(&self, region: &str) -> Result<Usage, StoreError> {
        let transitions: Vec<Transition> =
            stored::read(self.transitions.clone(), "jobs", self.id, "transitions")?;
        let billed = self.count(self.billable_seconds.unwrap_or(0), "billable_seconds")?;
        let trained: u64 = self.count(self.training_seconds.unwrap_or(0), "training_seconds")?;
        let until = self
            .ended_at
            .unwrap_or(self.started_at)
            .max(self.started_at);
        Ok(Usage {
            kind: self.kind()?,
            instance_type: self.instance_type.clone(),
            region: region.to_owned(),
            count: self.count(self.instance_count.into(), "instance_count")?,
            from: self.started_at,
            until,
            waits: waits(&transitions),
            billed_seconds: billed,
            run_seconds: if billed == 0 { 0 } else { trained.max(billed) },
            volume_gb: error::count(self.volume_gb, "trials", self.trial_id, "volume_gb")?,
        })
    }

    fn kept(&self, job: &Usage) -> Result<Option<Usage>, StoreError> {
        let kept = self
            .pool_from
            .zip(self.retained_seconds.filter(|seconds| *seconds != 0));
        let Some((from, retained)) = kept else {
            return Ok(None);
        };
        let kept = self.count(retained, "retained_seconds")?;
        let until = from + TimeDelta::seconds(retained);
        Ok(Some(Usage {
            from,
            until,
            waits: Vec::new(),
            billed_seconds: kept,
            run_seconds: kept,
            ..job.clone()
        }))
    }

    /// The current lines by component, with what is booked.
    pub(crate) fn parts(
        &self,
        region: &str,
        tariffs: &Tariffs,
    ) -> Result<[CostPart; 3], StoreError> {
        let agreed = Agreed {
            price_id: PriceId(self.price_id),
            usd_per_hour: Usd(self.usd_per_hour),
            estimated: self.is_estimated,
        };
        let lines = |usage: &Usage| -> (Vec<Line>, Vec<Line>) {
            let lines = bill_lines(usage, &tariffs.prices, &tariffs.rates, agreed);
            lines
                .into_iter()
                .partition(|line| line.component != Component::Storage)
        };
        let job = self.job(region)?;
        let (training, mut storage) = lines(&job);
        let (pool, kept) = self
            .kept(&job)?
            .map(|kept| lines(&kept))
            .unwrap_or_default();
        storage.extend(kept);
        // What its volumes and those of its pool owe is corrected together.
        let part = |component, lines, booked| CostPart {
            resource: match component {
                EntryComponent::WarmPool => EntryResource::WarmPool,
                _ => EntryResource::Job,
            },
            component,
            lines,
            booked: Usd(booked),
        };
        Ok([
            part(
                EntryResource::Job.instances(job.kind),
                training,
                self.training,
            ),
            part(EntryComponent::WarmPool, pool, self.pool),
            part(EntryComponent::Storage, storage, self.storage),
        ])
    }
}

/// One component of an attempt's cost.
#[derive(Debug, Clone)]
pub(crate) struct CostPart {
    pub(crate) resource: EntryResource,
    pub(crate) component: EntryComponent,
    /// The lines at current prices.
    pub(crate) lines: Vec<Line>,
    pub(crate) booked: Usd,
}

impl CostPart {
    /// What the lines cost beyond what is booked.
    pub(crate) fn owed(&self) -> Usd {
        self.lines.iter().map(|line| line.usd).sum::<Usd>() - self.booked
    }
}

/// Settled attempts of an experiment with what is booked for each: only of the given types, or one
/// attempt.
pub(crate) async fn settled_rows(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    types: Option<&[String]>,
    attempt: Option<JobId>,
) -> Result<Vec<SettledRow>, StoreError> {
    // Volumes of orphaned jobs keep their booked amount, because the time they ran is not known
    // precisely enough.
    Ok(sqlx::query_as!(
        SettledRow,
        r#"SELECT j.id, j.trial_id AS "trial_id!", j.kind, j.price_id, j.usd_per_hour, j.started_at AS "started_at!", j.ended_at,
                  j.billable_seconds, j.training_seconds, j.transitions, t.instance_type, t.instance_count,
                  t.is_price_estimated AS is_estimated, t.volume_gb,
                  p.job_ended_at AS "pool_from?", p.retained_seconds AS "retained_seconds?",
                  l.training AS "training!", l.pool AS "pool!", l.storage AS "storage!"
           FROM jobs j JOIN trials t ON t.id = j.trial_id
                LEFT JOIN warm_pools p ON p.job_id = j.id AND p.retained_seconds IS NOT NULL
                CROSS JOIN LATERAL (
                    SELECT coalesce(sum(usd) FILTER (WHERE component IN ('training', 'processing', 'tuning', 'transform', 'hosting')), 0) AS training,
                           coalesce(sum(usd) FILTER (WHERE component = 'warm_pool'), 0) AS pool,
                           coalesce(sum(usd) FILTER (WHERE component = 'storage' AND resource <> 'orphaned_job'), 0) AS storage
                    FROM ledger WHERE job_id = j.id AND kind IN ('settled', 'adjusted')) l
           WHERE j.experiment_id = $1 AND j.settled_at IS NOT NULL AND j.started_at IS NOT NULL
             AND ($2::text[] IS NULL OR t.instance_type = ANY($2)) AND ($3::uuid IS NULL OR j.id = $3)
           ORDER BY j.id"#,
        experiment.0,
        types,
        attempt.map(|attempt| attempt.0),
    )
    .fetch_all(&mut *tx)
    .await?)
}

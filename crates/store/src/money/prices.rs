//! Effective-dated prices: the shipped catalog, AWS's list, and each project's own. Prices are
//! never overwritten; a price that is seen again is confirmed. [`crate::money::repricing`]
//! handles the effects of new prices.

use std::collections::BTreeSet;

use bakeoff_domain::ids::{PriceId, ProjectId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{Component, NewPrice, Price, PriceStatus, Rate};
use bakeoff_domain::money::worst_case::Tariff;
use bakeoff_domain::sagemaker::kind::JobKind;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use sqlx::PgExecutor;
use uuid::Uuid;

use crate::{Store, StoreError};

struct Row {
    id: Uuid,
    instance_type: Option<String>,
    region: String,
    component: String,
    usd: Decimal,
    usd_max: Option<Decimal>,
    effective_from: DateTime<Utc>,
    confirmed_at: DateTime<Utc>,
    source: String,
    status: String,
    note: String,
}

impl Row {
    fn status(&self) -> Result<PriceStatus, StoreError> {
        PriceStatus::parse(&self.status)
            .ok_or_else(|| StoreError::corrupt("prices", self.id, "status"))
    }
}

impl TryFrom<Row> for Price {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: PriceId(row.id),
            status: row.status()?,
            instance_type: row
                .instance_type
                .ok_or_else(|| StoreError::corrupt("prices", row.id, "instance_type"))?,
            region: row.region,
            usd_per_hour: Usd(row.usd.normalize()),
            usd_per_hour_max: row.usd_max.map(|max| Usd(max.normalize())),
            effective_from: row.effective_from,
            source: row.source,
            note: row.note,
            confirmed_at: Some(row.confirmed_at),
        })
    }
}

impl TryFrom<Row> for Rate {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: PriceId(row.id),
            status: row.status()?,
            component: Component::parse(&row.component)
                .ok_or_else(|| StoreError::corrupt("prices", row.id, "component"))?,
            region: row.region,
            usd: Usd(row.usd.normalize()),
            usd_max: row.usd_max.map(|max| Usd(max.normalize())),
            effective_from: row.effective_from,
            confirmed_at: row.confirmed_at,
            source: row.source,
        })
    }
}

/// Prices and rates in one region, with their history.
#[derive(Debug, Clone, Default)]
pub struct Tariffs {
    pub prices: Vec<Price>,
    pub rates: Vec<Rate>,
}

impl Tariffs {
    pub fn as_ref(&self) -> Tariff<'_> {
        Tariff {
            prices: &self.prices,
            rates: &self.rates,
        }
    }
}

/// Whose prices: of some instance types in a region, as what jobs of a kind use them for.
#[derive(Debug, Clone, Copy)]
pub struct PricesOf<'a> {
    pub kind: JobKind,
    pub region: &'a str,
    pub instance_types: &'a [String],
}

impl<'a> PricesOf<'a> {
    pub fn training(region: &'a str, instance_types: &'a [String]) -> Self {
        Self {
            kind: JobKind::Training,
            region,
            instance_types,
        }
    }
}

/// Reads a project's prices, and the related rates, inside the caller's transaction. A type whose rate as
/// something else than training is not known has that of training: the two are equal where both are known
/// (ml.m5.xlarge: $0.23, us-east-1). What was negotiated for training is not taken to hold for anything else.
pub(crate) async fn tariffs(
    executor: impl PgExecutor<'_>,
    project: ProjectId,
    of: PricesOf<'_>,
) -> Result<Tariffs, StoreError> {
    let component = of.kind.component();
    let rows = sqlx::query_as!(
        Row,
        r#"SELECT id, instance_type, region, component, usd, usd_max, effective_from, confirmed_at, source, status, note
           FROM prices
           WHERE (project_id IS NULL OR project_id = $1)
             AND (instance_type = ANY($3) AND region = $2 AND component IN ($4, 'training')
                  -- Storage of everywhere: it bounds what is known nowhere near.
                  OR instance_type IS NULL AND (region IN ($2, '*') OR component = 'storage'))
           ORDER BY effective_from, id"#,
        project.0,
        of.region,
        of.instance_types,
        component.as_str(),
    )
    .fetch_all(executor)
    .await?;
    let (of_types, rates): (Vec<Row>, Vec<Row>) = rows
        .into_iter()
        .partition(|row| row.instance_type.is_some());
    let (own, assumed): (Vec<Row>, Vec<Row>) = of_types
        .into_iter()
        .partition(|row| row.component == component.as_str());
    let known: BTreeSet<Option<String>> = own.iter().map(|row| row.instance_type.clone()).collect();
    let assumed = assumed
        .into_iter()
        .filter(|row| !known.contains(&row.instance_type))
        .filter(|row| row.status != PriceStatus::Negotiated.as_str());
    let mut prices: Vec<Price> = own
        .into_iter()
        .map(Row::try_into)
        .collect::<Result<_, _>>()?;
    for row in assumed {
        let price = Price::try_from(row)?;
        let status = match price.status {
            PriceStatus::Listed => PriceStatus::AssumedSameAs,
            status => status,
        };
        prices.push(Price { status, ..price });
    }
    Ok(Tariffs {
        prices,
        rates: rates
            .into_iter()
            .map(Row::try_into)
            .collect::<Result<_, _>>()?,
    })
}

impl Store {
    /// Adds new catalog or listed prices, and marks the others as confirmed. Returns the indices of
    /// the new ones. What was confirmed by a clock that has been stepped back since counts as older:
    /// of two prices, the one that was seen last is in force.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn put_prices(
        &self,
        rows: &[NewPrice],
        mut fresh: impl FnMut() -> Uuid,
        now: DateTime<Utc>,
    ) -> Result<Vec<usize>, StoreError> {
        let ids: Vec<Uuid> = rows.iter().map(|_| fresh()).collect();
        let text = |field: fn(&NewPrice) -> &str| {
            rows.iter()
                .map(|row| field(row).to_owned())
                .collect::<Vec<_>>()
        };
        let types: Vec<Option<String>> = rows.iter().map(|row| row.instance_type.clone()).collect();
        let max: Vec<Option<Decimal>> = rows.iter().map(|row| row.usd_max).collect();
        let mut tx = self.pool.begin().await?;
        sqlx::query!(
            r#"WITH future AS (
                   SELECT id FROM prices
                   WHERE project_id IS NULL AND confirmed_at > $1 AND region = ANY($2)
                   ORDER BY id FOR NO KEY UPDATE)
               UPDATE prices p SET confirmed_at = $1 - interval '1 millisecond' FROM future WHERE p.id = future.id"#,
            now,
            &text(|row| &row.region),
        )
        .execute(&mut *tx)
        .await?;
        let written: Vec<Uuid> = sqlx::query_scalar!(
            r#"INSERT INTO prices (id, component, region, instance_type, usd, usd_max, effective_from, confirmed_at, source,
                                   status, note, created_at)
               SELECT id, component, region, instance_type, usd, usd_max, effective_from, confirmed_at, source, status,
                      note, $12
               FROM UNNEST($1::uuid[], $2::text[], $3::text[], $4::text[], $5::numeric[], $6::numeric[],
                           $7::timestamptz[], $8::timestamptz[], $9::text[], $10::text[], $11::text[])
                    AS t(id, component, region, instance_type, usd, usd_max, effective_from, confirmed_at, source, status, note)
               ON CONFLICT (component, region, coalesce(instance_type, ''), effective_from, source, usd)
                   WHERE project_id IS NULL
               DO UPDATE SET confirmed_at = excluded.confirmed_at,
                   -- Another one that was newer is not any more: this one takes its place.
                   applied_at = CASE WHEN EXISTS (
                       SELECT FROM prices o
                       WHERE o.component = prices.component AND o.region = prices.region
                         AND o.instance_type IS NOT DISTINCT FROM prices.instance_type AND o.project_id IS NULL
                         AND o.confirmed_at > prices.confirmed_at) THEN NULL ELSE prices.applied_at END
               WHERE prices.confirmed_at < excluded.confirmed_at
               RETURNING id"#,
            &ids,
            &text(|row| row.component.as_str()),
            &text(|row| &row.region),
            &types as &[Option<String>],
            &rows.iter().map(|row| row.usd).collect::<Vec<_>>(),
            &max as &[Option<Decimal>],
            &rows.iter().map(|row| row.effective_from).collect::<Vec<_>>(),
            &rows.iter().map(|row| row.confirmed_at).collect::<Vec<_>>(),
            &text(|row| &row.source),
            &text(|row| row.status.as_str()),
            &text(|row| &row.note),
            now,
        )
        .fetch_all(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(ids
            .iter()
            .enumerate()
            .filter(|(_, id)| written.contains(id))
            .map(|(place, _)| place)
            .collect())
    }

    /// Adds a project's own price. The same source on the same day is a conflict.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn insert_price(
        &self,
        project: ProjectId,
        price: &Price,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"INSERT INTO prices (id, project_id, component, region, instance_type, usd, effective_from, confirmed_at,
                                   source, status, note, created_at)
               VALUES ($1, $2, 'training', $3, $4, $5, $6, $10, $7, $8, $9, $10)"#,
            price.id.0,
            project.0,
            price.region,
            price.instance_type,
            price.usd_per_hour.0,
            price.effective_from,
            price.source,
            price.status.as_str(),
            price.note,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// A project's prices, and the related rates.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn tariffs(
        &self,
        project: ProjectId,
        of: PricesOf<'_>,
    ) -> Result<Tariffs, StoreError> {
        tariffs(&self.pool, project, of).await
    }

    /// All prices visible to a project, with their history, by type and region; only of the given
    /// types, if any.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn prices_of(
        &self,
        project: ProjectId,
        region: Option<&str>,
        instance_types: Option<&[String]>,
    ) -> Result<Vec<Price>, StoreError> {
        sqlx::query_as!(
            Row,
            r#"SELECT id, instance_type, region, component, usd, usd_max, effective_from, confirmed_at, source, status, note
               FROM prices
               WHERE component = 'training' AND (project_id IS NULL OR project_id = $1)
                 AND ($2::text IS NULL OR region = $2)
                 AND ($3::text[] IS NULL OR instance_type = ANY($3))
               ORDER BY instance_type, region, effective_from, id"#,
            project.0,
            region,
            instance_types,
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(Price::try_from)
        .collect()
    }

    /// Rates that do not depend on an instance type, with their history.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn rates(
        &self,
        project: ProjectId,
        region: Option<&str>,
    ) -> Result<Vec<Rate>, StoreError> {
        sqlx::query_as!(
            Row,
            r#"SELECT id, instance_type, region, component, usd, usd_max, effective_from, confirmed_at, source, status, note
               FROM prices
               WHERE instance_type IS NULL AND (project_id IS NULL OR project_id = $1)
                 AND ($2::text IS NULL OR region IN ($2, '*'))
               ORDER BY component, region, effective_from, id"#,
            project.0,
            region,
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(Rate::try_from)
        .collect()
    }
}

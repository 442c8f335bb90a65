//! Effective-dated prices: the shipped catalog and each project's own. Never overwritten.

use bakeoff_domain::ids::{PriceId, ProjectId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::price::{CatalogPrice, Price, PriceStatus};
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

use super::{Store, StoreError};

struct Row {
    id: Uuid,
    instance_type: String,
    region: String,
    usd_per_hour: Decimal,
    usd_per_hour_max: Option<Decimal>,
    effective_from: DateTime<Utc>,
    source: String,
    status: String,
    note: String,
}

impl TryFrom<Row> for Price {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: PriceId(row.id),
            instance_type: row.instance_type,
            region: row.region,
            usd_per_hour: Usd(row.usd_per_hour.normalize()),
            usd_per_hour_max: row.usd_per_hour_max.map(|max| Usd(max.normalize())),
            effective_from: row.effective_from,
            source: row.source,
            status: PriceStatus::parse(&row.status).ok_or_else(|| StoreError::corrupt("prices", row.id, "status"))?,
            note: row.note,
        })
    }
}

impl Store {
    /// Adds catalog prices that are not there yet; a later release adds its own beside them.
    pub async fn load_catalog_prices(
        &self,
        rows: &[CatalogPrice],
        mut fresh: impl FnMut() -> Uuid,
        now: DateTime<Utc>,
    ) -> Result<u64, StoreError> {
        let ids: Vec<Uuid> = rows.iter().map(|_| fresh()).collect();
        let text = |field: fn(&CatalogPrice) -> &str| rows.iter().map(|row| field(row).to_owned()).collect::<Vec<_>>();
        let max: Vec<Option<Decimal>> = rows.iter().map(|row| row.usd_per_hour_max).collect();
        let done = sqlx::query!(
            r#"INSERT INTO prices (id, component, region, instance_type, usd_per_hour, usd_per_hour_max, effective_from,
                                   source, status, note, created_at)
               SELECT id, 'training', region, instance_type, usd, usd_max, effective_from, source, status, note, $10
               FROM UNNEST($1::uuid[], $2::text[], $3::text[], $4::numeric[], $5::numeric[], $6::timestamptz[],
                           $7::text[], $8::text[], $9::text[])
                    AS t(id, region, instance_type, usd, usd_max, effective_from, source, status, note)
               ON CONFLICT DO NOTHING"#,
            &ids,
            &text(|row| &row.region),
            &text(|row| &row.instance_type),
            &rows.iter().map(|row| row.usd_per_hour).collect::<Vec<_>>(),
            &max as &[Option<Decimal>],
            &rows.iter().map(|row| row.effective_from).collect::<Vec<_>>(),
            &text(|row| &row.source),
            &text(|row| row.status.as_str()),
            &text(|row| &row.note),
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected())
    }

    /// A project's own price. The same source on the same day again is a conflict.
    pub async fn insert_price(&self, project: ProjectId, price: &Price, now: DateTime<Utc>) -> Result<(), StoreError> {
        sqlx::query!(
            r#"INSERT INTO prices (id, project_id, component, region, instance_type, usd_per_hour, effective_from, source,
                                   status, note, created_at)
               VALUES ($1, $2, 'training', $3, $4, $5, $6, $7, $8, $9, $10)"#,
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

    /// Every price of some types that a project sees, with their whole history.
    pub async fn prices_of(
        &self,
        project: ProjectId,
        region: Option<&str>,
        instance_types: Option<&[String]>,
    ) -> Result<Vec<Price>, StoreError> {
        sqlx::query_as!(
            Row,
            r#"SELECT id, instance_type, region, usd_per_hour, usd_per_hour_max, effective_from, source, status, note
               FROM prices
               WHERE (project_id IS NULL OR project_id = $1)
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
}

//! When each region's price list is read again: one replica at a time, and not again after a restart.

use chrono::{DateTime, Utc};

use crate::{Store, StoreError};

impl Store {
    /// Claims the refresh of a region's prices if it is due, and sets when the next one is.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_price_refresh(
        &self,
        region: &str,
        next: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let claimed = sqlx::query!(
            r#"INSERT INTO price_refreshes (region, due_at) VALUES ($1, $2)
               ON CONFLICT (region) DO UPDATE SET due_at = excluded.due_at
               WHERE price_refreshes.due_at <= $3 OR price_refreshes.due_at > excluded.due_at"#,
            region,
            next,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(claimed.rows_affected() > 0)
    }

    /// Moves the next refresh of a region: the last one failed.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn retry_price_refresh(
        &self,
        region: &str,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE price_refreshes SET due_at = $2 WHERE region = $1",
            region,
            at
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

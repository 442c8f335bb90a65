//! Leases on work that one replica does for all: name, region, owner, term, and expiry on the
//! database's clock.
//!
//! The term grows with every new holder. A renewal names owner *and* term; zero rows mean that the
//! lease is lost, however sure its holder was. A write on behalf of a term locks the lease's row
//! first, so a takeover either waits for it or stops it. Leases on trials are taken with their
//! claims ([`crate::jobs::queue`], [`crate::experiments::trials`]) and renewed here.

use std::time::Duration;

use bakeoff_domain::ids::TrialId;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::session::interval;
use crate::{Store, StoreError};

/// Owner and duration of leases on rows, and the region that they are in.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    pub region: &'a str,
    pub owner: &'a str,
    pub lease: Duration,
}

/// The holder of a lease, and its term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub name: &'static str,
    pub region: String,
    pub owner: String,
    pub term: i64,
}

impl Store {
    /// Records a complete listing whose results have been written.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn listed(&self, term: &Term, began_at: DateTime<Utc>) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE leases SET listed_at = $4 WHERE name = $1 AND region = $2 AND term = $3",
            term.name,
            term.region,
            term.term,
            began_at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Whether a sweep of the region must come before anything is submitted there.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn sweep_is_due(&self, region: &str) -> Result<bool, StoreError> {
        sweep_is_due(&mut *self.pool.acquire().await?, region).await
    }

    /// Records a complete sweep that began at the given time: all jobs of the term's region were
    /// listed since, and every one is accounted for.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn swept(&self, term: &Term, began_at: DateTime<Utc>) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE leases SET swept_at = greatest(swept_at, $4) WHERE name = $1 AND region = $2 AND term = $3",
            term.name,
            term.region,
            term.term,
            began_at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// When the last complete listing of any region began, by the lister's clock.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn last_listed(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        Ok(sqlx::query_scalar!("SELECT max(listed_at) FROM leases")
            .fetch_one(&self.pool)
            .await?)
    }

    /// Takes a lease that is free or expired.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn acquire_lease(
        &self,
        name: &'static str,
        region: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Term>, StoreError> {
        let term = sqlx::query_scalar!(
            r#"INSERT INTO leases AS held (name, region, owner, term, expires_at)
               VALUES ($1, $2, $3, 1, clock_timestamp() + $4::interval)
               ON CONFLICT (name, region) DO UPDATE
               SET owner = excluded.owner, term = held.term + 1, expires_at = clock_timestamp() + $4::interval
               WHERE held.expires_at < clock_timestamp()
               RETURNING term"#,
            name,
            region,
            owner,
            interval(ttl),
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(term.map(|term| Term {
            name,
            region: region.to_owned(),
            owner: owner.to_owned(),
            term,
        }))
    }

    /// Renews a lease; false when it is lost.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn renew_lease(&self, held: &Term, ttl: Duration) -> Result<bool, StoreError> {
        let renewed = sqlx::query!(
            r#"UPDATE leases SET expires_at = clock_timestamp() + $5::interval
               WHERE name = $1 AND region = $2 AND owner = $3 AND term = $4 AND expires_at >= clock_timestamp()"#,
            held.name,
            held.region,
            held.owner,
            held.term,
            interval(ttl),
        )
        .execute(&self.pool)
        .await?;
        Ok(renewed.rows_affected() == 1)
    }

    /// Renews a lease while its holder may be writing on its behalf; false when it is lost or its
    /// row is currently locked.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn renew_lease_unless_locked(
        &self,
        held: &Term,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let renewed = sqlx::query!(
            r#"WITH held AS (SELECT name, region FROM leases WHERE name = $1 AND region = $2 AND owner = $3 AND term = $4
                               AND expires_at >= clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE leases l SET expires_at = clock_timestamp() + $5::interval FROM held
               WHERE l.name = held.name AND l.region = held.region"#,
            held.name,
            held.region,
            held.owner,
            held.term,
            interval(ttl),
        )
        .execute(&self.pool)
        .await?;
        Ok(renewed.rows_affected() == 1)
    }

    /// Renews the lease on a claimed trial; false when it has passed on, was released, or its row
    /// is currently being written.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn renew_claim(
        &self,
        trial: TrialId,
        lease_token: i64,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let renewed = sqlx::query!(
            r#"WITH held AS (SELECT id FROM trials WHERE id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL
                             FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE trials t SET lease_expires_at = clock_timestamp() + $3::interval FROM held WHERE t.id = held.id"#,
            trial.0,
            lease_token,
            interval(lease),
        )
        .execute(&self.pool)
        .await?;
        Ok(renewed.rows_affected() == 1)
    }

    /// Releases a lease before it expires, so that the next holder need not wait.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn resign_lease(&self, held: &Term) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE leases SET expires_at = '-infinity' WHERE name = $1 AND region = $2 AND owner = $3 AND term = $4",
            held.name,
            held.region,
            held.owner,
            held.term,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

/// Locks the lease for the rest of the transaction; false when its term is over.
pub(super) async fn still_holds(tx: &mut PgConnection, held: &Term) -> Result<bool, StoreError> {
    let row = sqlx::query_scalar!(
        r#"SELECT 1 AS "one!" FROM leases
           WHERE name = $1 AND region = $2 AND owner = $3 AND term = $4 AND expires_at >= clock_timestamp()
           FOR NO KEY UPDATE"#,
        held.name,
        held.region,
        held.owner,
        held.term,
    )
    .fetch_optional(tx)
    .await?;
    Ok(row.is_some())
}

/// Whether the fence was taken over, and not all jobs of the region have been listed since.
pub(super) async fn sweep_is_due(
    connection: &mut PgConnection,
    region: &str,
) -> Result<bool, StoreError> {
    let is_due = sqlx::query_scalar!(
        r#"SELECT sweep_due_since IS NOT NULL AND NOT EXISTS (
               SELECT FROM leases WHERE region = $1 AND swept_at >= sweep_due_since) AS "due!"
           FROM installation"#,
        region,
    );
    Ok(is_due.fetch_one(connection).await?)
}

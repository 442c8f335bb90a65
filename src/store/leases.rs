//! Leases on work that one replica does for all: name, owner, term, and expiry on the database's
//! clock.
//!
//! The term grows with every new holder. A renewal names owner *and* term; zero rows mean that the
//! lease is lost, however sure its holder was. A write on behalf of a term locks the lease's row
//! first, so a takeover either waits for it or stops it. Leases on trials are taken with their
//! claims ([`crate::store::queue`], [`crate::store::trials`]) and renewed here.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::session::interval;
use crate::store::trials::Claimed;
use crate::store::{Store, StoreError};

/// Owner and duration of leases on rows.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    pub owner: &'a str,
    pub lease: Duration,
}

/// The holder of a lease, and its term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub name: &'static str,
    pub owner: String,
    pub term: i64,
}

impl Store {
    /// Records a complete listing whose results have been written.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn listed(&self, term: &Term, began_at: DateTime<Utc>) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE leases SET listed_at = $3 WHERE name = $1 AND term = $2",
            term.name,
            term.term,
            began_at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// When the last complete listing began, by the lister's clock.
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
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Term>, StoreError> {
        let term = sqlx::query_scalar!(
            r#"INSERT INTO leases AS held (name, owner, term, expires_at)
               VALUES ($1, $2, 1, clock_timestamp() + $3::interval)
               ON CONFLICT (name) DO UPDATE
               SET owner = excluded.owner, term = held.term + 1, expires_at = clock_timestamp() + $3::interval
               WHERE held.expires_at < clock_timestamp()
               RETURNING term"#,
            name,
            owner,
            interval(ttl),
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(term.map(|term| Term {
            name,
            owner: owner.to_owned(),
            term,
        }))
    }

    /// Renews a lease; false when it is lost.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn renew_lease(&self, held: &Term, ttl: Duration) -> Result<bool, StoreError> {
        let renewed = sqlx::query!(
            r#"UPDATE leases SET expires_at = clock_timestamp() + $4::interval
               WHERE name = $1 AND owner = $2 AND term = $3 AND expires_at >= clock_timestamp()"#,
            held.name,
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
            r#"WITH held AS (SELECT name FROM leases WHERE name = $1 AND owner = $2 AND term = $3
                               AND expires_at >= clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE leases l SET expires_at = clock_timestamp() + $4::interval FROM held WHERE l.name = held.name"#,
            held.name,
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
    pub async fn renew_claim(&self, trial: &Claimed, lease: Duration) -> Result<bool, StoreError> {
        let renewed = sqlx::query!(
            r#"WITH held AS (SELECT id FROM trials WHERE id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL
                             FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE trials t SET lease_expires_at = clock_timestamp() + $3::interval FROM held WHERE t.id = held.id"#,
            trial.id.0,
            trial.lease_token,
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
            "UPDATE leases SET expires_at = '-infinity' WHERE name = $1 AND owner = $2 AND term = $3",
            held.name,
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
           WHERE name = $1 AND owner = $2 AND term = $3 AND expires_at >= clock_timestamp() FOR NO KEY UPDATE"#,
        held.name,
        held.owner,
        held.term,
    )
    .fetch_optional(tx)
    .await?;
    Ok(row.is_some())
}

//! Requests that must take effect once: the idempotency key or the delivery id is stored in the
//! same transaction as its effect.

use bakeoff_domain::ids::{CiRunId, ProjectId};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::ci::Delivery;
use crate::ci::joining::remember_delivery;
use crate::ci::runs::begin_round;
use crate::events;
use crate::experiments::{self, NewExperiment};
use crate::{Store, StoreError};

/// The stored reply to an earlier request with the same key.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredReply {
    pub fingerprint: Vec<u8>,
    pub status: i16,
    pub body: serde_json::Value,
}

/// What identifies repeats of a request, so that it takes effect once.
#[derive(Debug, Clone)]
pub enum Once<'a> {
    /// Nothing: every request is a new one.
    No,
    Key {
        key: &'a str,
        fingerprint: &'a [u8],
        status: i16,
        body: &'a serde_json::Value,
    },
    Delivery(Delivery<'a>),
    /// A further round of a CI run.
    Round {
        run: CiRunId,
        round: u32,
    },
}

impl Store {
    /// Writes the experiment together with its idempotency key or delivery id. A conflict on
    /// `idempotency_keys_pkey`, `ci_deliveries_pkey` or `ci_runs_of_what_runs` means that an equal
    /// request was faster and nothing was written.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn create_experiment(
        &self,
        new: &NewExperiment<'_>,
        once: &Once<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let created = experiments::insert(&mut tx, new, now).await?;
        remember(&mut tx, new, once, now).await?;
        sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
            .execute(&mut *tx)
            .await?;
        events::commit(tx, &[created], now).await
    }

    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn stored_reply(
        &self,
        project: ProjectId,
        key: &str,
    ) -> Result<Option<StoredReply>, StoreError> {
        let row = sqlx::query!(
            "SELECT fingerprint, status, body FROM idempotency_keys WHERE project_id = $1 AND key = $2",
            project.0,
            key,
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.map(|row| StoredReply {
            fingerprint: row.fingerprint,
            status: row.status,
            body: row.body,
        }))
    }
}

async fn remember(
    tx: &mut PgConnection,
    new: &NewExperiment<'_>,
    once: &Once<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    remember_key(tx, new.project_id, once).await?;
    match once {
        Once::Delivery(delivery) => {
            remember_delivery(tx, delivery, new.project_id, new.id, now).await
        }
        Once::Round { run, round } => begin_round(tx, *run, *round, new.id, now).await,
        Once::No | Once::Key { .. } => Ok(()),
    }
}

/// Stores the reply to a request with an idempotency key, in the transaction of its effect.
pub(crate) async fn remember_key(
    tx: &mut PgConnection,
    project: ProjectId,
    once: &Once<'_>,
) -> Result<(), StoreError> {
    if let Once::Key {
        key,
        fingerprint,
        status,
        body,
    } = once
    {
        sqlx::query!(
            "INSERT INTO idempotency_keys (project_id, key, fingerprint, status, body) VALUES ($1, $2, $3, $4, $5)",
            project.0,
            key,
            fingerprint,
            status,
            body,
        )
        .execute(tx)
        .await?;
    }
    Ok(())
}

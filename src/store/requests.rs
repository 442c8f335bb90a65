//! Requests that must take effect once: the idempotency key or the delivery id is stored in the
//! same transaction as its effect.

use bakeoff_domain::ids::{ExperimentId, ProjectId, TemplateId};
use bakeoff_domain::spec::ExperimentSpec;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::events;
use crate::store::experiments::{self, NewExperiment};
use crate::store::stored;
use crate::store::{Store, StoreError};

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
    Delivery {
        template: TemplateId,
        delivery: &'a str,
    },
}

/// A template that CI may start.
#[derive(Debug, Clone)]
pub struct Template {
    pub id: TemplateId,
    pub project_id: ProjectId,
    pub name: String,
    pub spec: ExperimentSpec,
    pub created_at: DateTime<Utc>,
}

impl Store {
    /// Writes the experiment together with its idempotency key or delivery id. A conflict on
    /// `idempotency_keys_pkey` or `ci_deliveries_pkey` means that an equal request was faster and
    /// nothing was written.
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

    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn insert_template(
        &self,
        project: ProjectId,
        id: TemplateId,
        name: &str,
        spec: &ExperimentSpec,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "INSERT INTO ci_templates (id, project_id, name, spec, created_at) VALUES ($1, $2, $3, $4, $5)",
            id.0,
            project.0,
            name,
            stored::write(spec)?,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// A template by its id alone: the webhook's signature proves the right to use it.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn template(&self, id: TemplateId) -> Result<Option<Template>, StoreError> {
        let row = sqlx::query!(
            "SELECT project_id, name, spec, created_at FROM ci_templates WHERE id = $1",
            id.0
        )
        .fetch_optional(&self.pool)
        .await?;
        row.map(|row| {
            Ok(Template {
                id,
                project_id: ProjectId(row.project_id),
                name: row.name,
                spec: stored::read(row.spec, "ci_templates", id, "spec")?,
                created_at: row.created_at,
            })
        })
        .transpose()
    }

    /// The experiment that a delivery started, if the delivery was seen before.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn delivered(
        &self,
        template: TemplateId,
        delivery: &str,
    ) -> Result<Option<ExperimentId>, StoreError> {
        let id = sqlx::query_scalar!(
            "SELECT experiment_id FROM ci_deliveries WHERE template_id = $1 AND delivery_id = $2",
            template.0,
            delivery,
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(id.map(ExperimentId))
    }
}

async fn remember(
    tx: &mut PgConnection,
    new: &NewExperiment<'_>,
    once: &Once<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    remember_key(tx, new.project_id, once).await?;
    if let Once::Delivery { template, delivery } = once {
        sqlx::query!(
            r#"INSERT INTO ci_deliveries (template_id, delivery_id, experiment_id, received_at)
               VALUES ($1, $2, $3, $4)"#,
            template.0,
            delivery,
            new.id.0,
            now,
        )
        .execute(tx)
        .await?;
    }
    Ok(())
}

/// Stores the reply to a request with an idempotency key, in the transaction of its effect.
pub(in crate::store) async fn remember_key(
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

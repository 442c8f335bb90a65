//! Webhooks that go out: who hears of which events. What is on its way to them is in [`deliveries`].

pub mod deliveries;

use bakeoff_domain::ids::{ProjectId, WebhookEndpointId};
use bakeoff_domain::webhook_endpoint::Form;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Store, StoreError, error, retried};

const TABLE: &str = "webhook_endpoints";
/// Endpoints of one project: each event is written once for each that hears of it.
pub const ENDPOINTS_MAX: i64 = 20;

/// Who hears of which events.
#[derive(Debug, Clone)]
pub struct WebhookEndpoint {
    pub id: WebhookEndpointId,
    pub url: String,
    pub form: Form,
    pub kinds: Vec<String>,
    pub severities: Vec<String>,
    pub secret_version: u32,
    /// Until when the secret before this one signs too.
    pub previous_secret_until: Option<DateTime<Utc>>,
    pub failing_since: Option<DateTime<Utc>>,
    pub disabled_at: Option<DateTime<Utc>>,
    pub disabled_reason: Option<String>,
    pub created_at: DateTime<Utc>,
    pub changed_at: DateTime<Utc>,
}

/// An endpoint as it is written.
#[derive(Debug, Clone, Copy)]
pub struct NewWebhookEndpoint<'a> {
    pub url: &'a str,
    pub form: Form,
    pub kinds: &'a [String],
    pub severities: &'a [String],
}

/// What is changed of an endpoint; what stays is `None`.
#[derive(Debug, Clone, Copy, Default)]
pub struct WebhookChange<'a> {
    pub url: Option<&'a str>,
    pub kinds: Option<&'a [String]>,
    pub severities: Option<&'a [String]>,
    pub is_enabled: Option<bool>,
}

struct EndpointRow {
    id: Uuid,
    url: String,
    form: String,
    kinds: Vec<String>,
    severities: Vec<String>,
    secret_version: i32,
    previous_secret_until: Option<DateTime<Utc>>,
    failing_since: Option<DateTime<Utc>>,
    disabled_at: Option<DateTime<Utc>>,
    disabled_reason: Option<String>,
    created_at: DateTime<Utc>,
    changed_at: DateTime<Utc>,
}

impl TryFrom<EndpointRow> for WebhookEndpoint {
    type Error = StoreError;

    fn try_from(row: EndpointRow) -> Result<Self, StoreError> {
        let form = Form::parse(&row.form);
        Ok(Self {
            id: WebhookEndpointId(row.id),
            url: row.url,
            form: form.ok_or_else(|| StoreError::corrupt(TABLE, row.id, "form"))?,
            kinds: row.kinds,
            severities: row.severities,
            secret_version: error::count(row.secret_version, TABLE, row.id, "secret_version")?,
            previous_secret_until: row.previous_secret_until,
            failing_since: row.failing_since,
            disabled_at: row.disabled_at,
            disabled_reason: row.disabled_reason,
            created_at: row.created_at,
            changed_at: row.changed_at,
        })
    }
}

impl Store {
    /// Stores an endpoint; false if the project has so many that each event would be told too often.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn insert_webhook_endpoint(
        &self,
        project: ProjectId,
        id: WebhookEndpointId,
        new: NewWebhookEndpoint<'_>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        // Two at once must not both be the last one.
        sqlx::query!(
            "SELECT id FROM projects WHERE id = $1 FOR NO KEY UPDATE",
            project.0
        )
        .fetch_optional(&mut *tx)
        .await?;
        let written = sqlx::query!(
            r#"INSERT INTO webhook_endpoints (id, project_id, url, form, kinds, severities, created_at, changed_at)
               SELECT $1, $2, $3, $4, $5, $6, $7, $7
               WHERE (SELECT count(*) FROM webhook_endpoints WHERE project_id = $2 AND deleted_at IS NULL) < $8"#,
            id.0,
            project.0,
            new.url,
            new.form.as_str(),
            new.kinds,
            new.severities,
            now,
            ENDPOINTS_MAX,
        );
        let is_written = written.execute(&mut *tx).await?.rows_affected() == 1;
        tx.commit().await?;
        Ok(is_written)
    }

    /// A page of a project's endpoints, newest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn webhook_endpoints(
        &self,
        project: ProjectId,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<WebhookEndpoint>, StoreError> {
        let rows = sqlx::query_as!(
            EndpointRow,
            r#"SELECT id, url, form, kinds, severities, secret_version, previous_secret_until, failing_since, disabled_at,
                      disabled_reason, created_at, changed_at
               FROM webhook_endpoints
               WHERE project_id = $1 AND deleted_at IS NULL AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3"#,
            project.0,
            before,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(WebhookEndpoint::try_from).collect()
    }

    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn webhook_endpoint(
        &self,
        project: ProjectId,
        id: WebhookEndpointId,
    ) -> Result<Option<WebhookEndpoint>, StoreError> {
        let row = sqlx::query_as!(
            EndpointRow,
            r#"SELECT id, url, form, kinds, severities, secret_version, previous_secret_until, failing_since, disabled_at,
                      disabled_reason, created_at, changed_at
               FROM webhook_endpoints WHERE project_id = $1 AND id = $2 AND deleted_at IS NULL"#,
            project.0,
            id.0,
        );
        let row = row.fetch_optional(&self.pool).await?;
        row.map(WebhookEndpoint::try_from).transpose()
    }

    /// Changes an endpoint; false if there is none. One that is disabled gets nothing more, and what was on its way is
    /// given up.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn change_webhook_endpoint(
        &self,
        project: ProjectId,
        id: WebhookEndpointId,
        change: WebhookChange<'_>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let changed = sqlx::query!(
                r#"UPDATE webhook_endpoints
                   SET url = coalesce($3, url), kinds = coalesce($4, kinds), severities = coalesce($5, severities), changed_at = $6,
                       failing_since = CASE WHEN $7 THEN NULL ELSE failing_since END,
                       disabled_at = CASE WHEN $7 THEN NULL WHEN NOT $7 THEN coalesce(disabled_at, $6) ELSE disabled_at END,
                       disabled_reason = CASE WHEN $7 THEN NULL WHEN NOT $7 THEN coalesce(disabled_reason, 'by hand')
                                              ELSE disabled_reason END
                   WHERE project_id = $1 AND id = $2 AND deleted_at IS NULL"#,
                project.0,
                id.0,
                change.url,
                change.kinds,
                change.severities,
                now,
                change.is_enabled,
            );
            let is_there = changed.execute(&mut *tx).await?.rows_affected() == 1;
            if is_there && change.is_enabled == Some(false) {
                give_up(&mut tx, id, now).await?;
            }
            tx.commit().await?;
            Ok(is_there)
        };
        retried(transaction).await
    }

    /// Ends an endpoint, and what was on its way to it.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn delete_webhook_endpoint(
        &self,
        project: ProjectId,
        id: WebhookEndpointId,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let deleted = sqlx::query!(
                "UPDATE webhook_endpoints SET deleted_at = $3, changed_at = $3 WHERE project_id = $1 AND id = $2 AND deleted_at IS NULL",
                project.0,
                id.0,
                now,
            );
            let is_there = deleted.execute(&mut *tx).await?.rows_affected() == 1;
            if is_there {
                give_up(&mut tx, id, now).await?;
            }
            tx.commit().await?;
            Ok(is_there)
        };
        retried(transaction).await
    }

    /// Gives an endpoint its next secret; the one before signs too until `until`. Returns the new one's number.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn rotate_webhook_secret(
        &self,
        project: ProjectId,
        id: WebhookEndpointId,
        until: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Option<u32>, StoreError> {
        let version = sqlx::query_scalar!(
            r#"UPDATE webhook_endpoints SET secret_version = secret_version + 1, previous_secret_until = $3, changed_at = $4
               WHERE project_id = $1 AND id = $2 AND deleted_at IS NULL RETURNING secret_version"#,
            project.0,
            id.0,
            until,
            now,
        )
        .fetch_optional(&self.pool)
        .await?;
        let version = version.map(|version| error::count(version, TABLE, id.0, "secret_version"));
        version.transpose()
    }
}

/// Gives up what is on its way to an endpoint.
async fn give_up(
    tx: &mut PgConnection,
    endpoint: WebhookEndpointId,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"WITH held AS (SELECT id FROM webhook_deliveries WHERE endpoint_id = $1 AND due_at IS NOT NULL ORDER BY id FOR NO KEY UPDATE)
           UPDATE webhook_deliveries d SET state = 'failed', due_at = NULL, ended_at = $2 FROM held WHERE d.id = held.id"#,
        endpoint.0,
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}

//! The installation: its name in every job, the account that owns its jobs, and the database's side
//! of the fence.

use bakeoff_domain::lifecycle::fence::FenceFacts;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Store, StoreError};

impl Store {
    /// The installation's id, eight hexadecimal digits, part of every job name.
    pub async fn installation(&self) -> Result<String, StoreError> {
        Ok(sqlx::query_scalar!("SELECT id FROM installation")
            .fetch_one(&self.pool)
            .await?)
    }

    /// The account that owns the installation's jobs, once known. The first account seen is kept.
    pub async fn pin_account(&self, seen: Option<&str>) -> Result<Option<String>, StoreError> {
        // Jobs from before the account was pinned show their account in their ARN.
        Ok(sqlx::query_scalar!(
            r#"UPDATE installation SET account = coalesce(account,
                   (SELECT substring(job_arn FROM '^arn:[^:]*:sagemaker:[^:]*:([0-9]{12}):') FROM jobs
                    WHERE job_arn LIKE 'arn:%' ORDER BY planned_at DESC LIMIT 1), $1)
               RETURNING account"#,
            seen
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// URI of the fence. A known URI is kept until the fence is forgotten, because a copy with
    /// another URI would own its own fence.
    pub async fn fence_uri(&self, given: Option<&str>) -> Result<Option<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"UPDATE installation
               SET fence_uri = CASE WHEN fence_token IS NULL AND fence_next IS NULL THEN coalesce($1, fence_uri)
                                    ELSE coalesce(fence_uri, $1) END
               RETURNING fence_uri"#,
            given
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Records an operator's word that no other database of the installation lives: the fence may
    /// be taken over once it has been silent, or be moved. Its URI is kept: without one, nothing
    /// would be swept before something is submitted.
    pub async fn forget_fence(&self) -> Result<(), StoreError> {
        sqlx::query!(
            r#"UPDATE installation SET fence_token = NULL, fence_next = NULL, fence_renewed_at = NULL, fence_has_rival = false"#
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Records that another database renews the fence while this one lives.
    pub async fn fence_has_rival(&self) -> Result<(), StoreError> {
        sqlx::query!("UPDATE installation SET fence_has_rival = true WHERE NOT fence_has_rival")
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// The database's fence state, and the identity of the database: its cluster and its server. A
    /// loaded dump, a database created from a template, and a snapshot restored to a server with
    /// another address all differ in that identity. A copied data directory served at the same
    /// address (embedded ones are all at 127.0.0.1) does not.
    pub async fn fence(&self) -> Result<(FenceFacts, String), StoreError> {
        let row = sqlx::query!(
            r#"SELECT fence_token, fence_next, fence_renewed_at, fence_has_rival,
                      concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
                                (SELECT oid FROM pg_database WHERE datname = current_database()),
                                host(inet_server_addr())) AS "database!"
               FROM installation"#
        )
        .fetch_one(&self.pool)
        .await?;
        let facts = FenceFacts {
            token: row.fence_token,
            next: row.fence_next,
            renewed_at: row.fence_renewed_at,
            has_rival: row.fence_has_rival,
            ..FenceFacts::default()
        };
        Ok((facts, row.database))
    }

    /// Announces the token about to be written. If the token found was our announced one, it is
    /// ours, even if we never heard that the write succeeded. After a takeover of the fence, a
    /// sweep must precede any submission.
    pub async fn fence_will_be(
        &self,
        next: Uuid,
        found: Option<Uuid>,
        swept_since: Option<DateTime<Utc>>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        sqlx::query!(
            r#"UPDATE installation SET fence_token = CASE WHEN fence_next = $2 THEN fence_next ELSE fence_token END,
                      fence_next = $1, sweep_due_since = coalesce($3, sweep_due_since)"#,
            next,
            found,
            swept_since,
        )
        .execute(&mut *tx)
        .await?;
        if swept_since.is_some() {
            // An earlier sweep does not count, whatever the clock said then.
            sqlx::query!("UPDATE leases SET swept_at = NULL WHERE swept_at IS NOT NULL")
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Confirms that the token was written. False when another process is writing a different one.
    pub async fn fence_is(&self, token: Uuid, now: DateTime<Utc>) -> Result<bool, StoreError> {
        let written = sqlx::query!(
            r#"UPDATE installation SET fence_token = $1, fence_renewed_at = $2, fence_next = NULL, fence_has_rival = false
               WHERE fence_next = $1"#,
            token,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(written.rows_affected() == 1)
    }

    /// Turns a copied database into an installation of its own: a new name, no fence, and
    /// everything living in it ended. Whatever runs in AWS belongs to the original installation and
    /// is left alone, and so is whoever it tells: webhooks are disabled, and commits get no status.
    pub async fn make_new_installation(
        &self,
        id: &str,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let reason = "belongs to the installation that this database was copied from";
        sqlx::query!(
            r#"UPDATE jobs SET state = 'stopped', settled_at = $1, ended_at = coalesce(ended_at, $1),
                      quarantine_until = NULL, metrics_due_at = NULL, checkpoint_due_at = NULL,
                      billable_seconds = coalesce(billable_seconds, 0), failure_reason = coalesce(failure_reason, $2)
               WHERE settled_at IS NULL"#,
            now,
            reason,
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("UPDATE jobs SET metrics_due_at = NULL WHERE metrics_due_at IS NOT NULL")
            .execute(&mut *tx)
            .await?;
        sqlx::query!(
            r#"UPDATE trials SET state = 'stopped', reason = $2, ended_at = $1, lease_owner = NULL, lease_expires_at = NULL
               WHERE state IN ('queued', 'submitting', 'parked', 'running', 'stopping')"#,
            now,
            reason,
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            r#"UPDATE warm_pools SET state = 'settled', retained_seconds = coalesce(retained_seconds, 0), due_at = NULL,
                      lease_owner = NULL, lease_expires_at = NULL
               WHERE state <> 'settled'"#
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            r#"UPDATE experiments SET state = 'cancelled', ended_at = $1, reserved_usd = 0, paused_reason = $2
               WHERE state IN ('running', 'cancelling')"#,
            now,
            reason,
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("UPDATE experiments SET reserved_usd = 0 WHERE reserved_usd <> 0")
            .execute(&mut *tx)
            .await?;
        sqlx::query!("UPDATE ci_templates SET reserved_usd = 0 WHERE reserved_usd <> 0")
            .execute(&mut *tx)
            .await?;
        sqlx::query!("UPDATE projects SET reserved_usd = 0 WHERE reserved_usd <> 0")
            .execute(&mut *tx)
            .await?;
        sqlx::query!(
            "UPDATE orphaned_jobs SET settled_at = $1, due_at = NULL WHERE settled_at IS NULL",
            now
        )
        .execute(&mut *tx)
        .await?;
        end_pipelines(&mut tx, reason, now).await?;
        silence(&mut tx, reason, now).await?;
        sqlx::query!("DELETE FROM leases").execute(&mut *tx).await?;
        sqlx::query!(
            r#"UPDATE installation SET id = $1, account = NULL, fence_uri = NULL, fence_token = NULL, fence_next = NULL,
                      fence_renewed_at = NULL, fence_has_rival = false, sweep_due_since = NULL"#,
            id,
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }
}

/// What a pipeline would start next, serve or register.
async fn end_pipelines(
    tx: &mut PgConnection,
    reason: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE pipeline_steps SET state = 'cancelled', ended_at = $1, reason = $2 WHERE state IN ('waiting', 'running')",
        now,
        reason,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE pipelines SET state = 'cancelled', ended_at = $1, due_at = NULL WHERE state IN ('running', 'cancelling')",
        now,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE endpoints SET state = 'failed', ended_at = $1, due_at = NULL, reason = $2 WHERE ended_at IS NULL",
        now,
        reason,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        r#"UPDATE model_packages
           SET state = CASE state WHEN 'registering' THEN 'failed' ELSE state END,
               reason = CASE state WHEN 'registering' THEN $1 ELSE reason END, due_at = NULL
           WHERE due_at IS NOT NULL"#,
        reason,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Webhooks, and statuses of commits.
async fn silence(
    tx: &mut PgConnection,
    reason: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE webhook_endpoints SET disabled_at = $1, disabled_reason = $2 WHERE disabled_at IS NULL",
        now,
        reason,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE webhook_deliveries SET state = 'failed', due_at = NULL, ended_at = $1 WHERE state = 'pending'",
        now,
    )
    .execute(&mut *tx)
    .await?;
    // With the tokens of the code host.
    sqlx::query!("DELETE FROM ci_status_targets")
        .execute(&mut *tx)
        .await?;
    sqlx::query!(
        "UPDATE ci_statuses SET state = 'failed', due_at = NULL, problem = $1 WHERE state = 'pending'",
        reason,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE ci_unmeasured SET status = 'failed', due_at = NULL, problem = $1 WHERE status = 'pending'",
        reason,
    )
    .execute(tx)
    .await?;
    Ok(())
}

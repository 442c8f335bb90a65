//! Sessions of people in a browser. Each stands for the key that it was begun with, and ends with it.

use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use chrono::{DateTime, TimeDelta, Utc};

use crate::{Store, StoreError};

/// How long a session lasts at most.
pub const SESSION_MAX: TimeDelta = TimeDelta::days(7);
/// How long it lasts without a request.
pub const SESSION_IDLE_MAX: TimeDelta = TimeDelta::hours(12);
/// A request is noted only so often: reading a page must not write a row each time.
const SEEN_EVERY: TimeDelta = TimeDelta::minutes(5);
/// Sessions of one key at a time; the oldest ends when another is begun.
const SESSIONS_PER_KEY: i64 = 50;

/// A session that has not ended, with what its key allows.
#[derive(Debug, Clone)]
pub struct LiveSession {
    pub key: ApiKeyId,
    pub key_name: String,
    pub project: ProjectId,
    pub project_name: String,
    pub role: String,
    pub ends_at: DateTime<Utc>,
}

impl Store {
    /// Begins a session of a key, and forgets those that are over.
    pub async fn begin_session(
        &self,
        token_sha256: &[u8],
        key: ApiKeyId,
        real_now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"WITH over AS (
                   DELETE FROM sessions
                   WHERE ends_at < $3 OR last_seen_at < $4 OR token_sha256 IN (
                       SELECT token_sha256 FROM sessions WHERE key_id = $2 ORDER BY created_at DESC OFFSET $6)
               )
               INSERT INTO sessions (token_sha256, key_id, created_at, last_seen_at, ends_at) VALUES ($1, $2, $3, $3, $5)"#,
            token_sha256,
            key.0,
            real_now,
            real_now - SESSION_IDLE_MAX,
            real_now + SESSION_MAX,
            SESSIONS_PER_KEY - 1,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// The session of that token, unless it has ended, by time, by its key's expiry or by its revocation.
    pub async fn live_session(
        &self,
        token_sha256: &[u8],
        real_now: DateTime<Utc>,
    ) -> Result<Option<LiveSession>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT s.key_id, s.last_seen_at, k.name AS key_name, k.role, k.project_id, p.name AS project_name,
                      least(s.ends_at, k.expires_at) AS "ends_at!"
               FROM sessions s JOIN api_keys k ON k.id = s.key_id JOIN projects p ON p.id = k.project_id
               WHERE s.token_sha256 = $1 AND s.ends_at > $2 AND s.last_seen_at > $3
                     AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > $2)"#,
            token_sha256,
            real_now,
            real_now - SESSION_IDLE_MAX,
        )
        .fetch_optional(&self.pool)
        .await?;
        let Some(row) = row else { return Ok(None) };
        if real_now - row.last_seen_at > SEEN_EVERY {
            sqlx::query!(
                "UPDATE sessions SET last_seen_at = $2 WHERE token_sha256 = $1 AND last_seen_at < $2",
                token_sha256,
                real_now,
            )
            .execute(&self.pool)
            .await?;
        }
        Ok(Some(LiveSession {
            key: ApiKeyId(row.key_id),
            key_name: row.key_name,
            project: ProjectId(row.project_id),
            project_name: row.project_name,
            role: row.role,
            ends_at: row.ends_at,
        }))
    }

    /// Keeps a link that logs in with a key once, and forgets those that are over.
    pub async fn keep_login_link(
        &self,
        token_sha256: &[u8],
        key: ApiKeyId,
        ends_at: DateTime<Utc>,
        real_now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"WITH over AS (DELETE FROM login_links WHERE ends_at < $4)
               INSERT INTO login_links (token_sha256, key_id, ends_at) VALUES ($1, $2, $3)"#,
            token_sha256,
            key.0,
            ends_at,
            real_now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Uses up a link: the key that it logs in with, once, unless it is over or its key is.
    pub async fn use_login_link(
        &self,
        token_sha256: &[u8],
        real_now: DateTime<Utc>,
    ) -> Result<Option<ApiKeyId>, StoreError> {
        let key = sqlx::query_scalar!(
            r#"DELETE FROM login_links l USING api_keys k
               WHERE l.token_sha256 = $1 AND l.ends_at > $2 AND k.id = l.key_id
                 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > $2)
               RETURNING l.key_id"#,
            token_sha256,
            real_now,
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(key.map(ApiKeyId))
    }

    /// Ends a session; one that is over already stays so.
    pub async fn end_session(&self, token_sha256: &[u8]) -> Result<(), StoreError> {
        sqlx::query!("DELETE FROM sessions WHERE token_sha256 = $1", token_sha256)
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}

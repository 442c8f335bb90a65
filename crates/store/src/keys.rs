//! Projects and API keys.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::CapChange;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use crate::error::found_one;
use crate::{Store, StoreError};

/// A key as needed for authentication.
#[derive(Debug, Clone)]
pub struct StoredKey {
    pub project_id: ProjectId,
    pub role: String,
    pub secret_sha256: Vec<u8>,
}

/// A project with its running totals.
#[derive(Debug, Clone)]
pub struct Project {
    pub id: ProjectId,
    pub name: String,
    pub budget_usd: Option<Usd>,
    /// Per calendar month, UTC.
    pub monthly_budget_usd: Option<Usd>,
    pub reserved_usd: Usd,
    pub settled_usd: Usd,
    /// Maximum number of concurrent trials.
    pub concurrent_trials_max: Option<u32>,
}

/// A key to be stored, never with its secret.
#[derive(Debug)]
pub struct NewKey<'a> {
    pub id: ApiKeyId,
    pub name: &'a str,
    pub role: &'a str,
    pub secret_sha256: &'a [u8],
    pub expires_at: Option<DateTime<Utc>>,
}

/// A key as it is listed.
#[derive(Debug)]
pub struct ListedKey {
    pub id: ApiKeyId,
    pub project: String,
    pub name: String,
    pub role: String,
    pub created_at: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
    pub revoked_at: Option<DateTime<Utc>>,
    pub replaced_by: Option<ApiKeyId>,
}

impl Store {
    /// Finds the project of that name, or creates it with that budget; none is no cap.
    pub async fn ensure_project(
        &self,
        fresh: ProjectId,
        name: &str,
        budget: Option<Usd>,
        now: DateTime<Utc>,
    ) -> Result<ProjectId, StoreError> {
        let id = sqlx::query_scalar!(
            r#"INSERT INTO projects (id, name, budget_usd, created_at) VALUES ($1, $2, $3, $4)
               ON CONFLICT ON CONSTRAINT projects_name_key DO UPDATE SET name = excluded.name
               RETURNING id"#,
            fresh.0,
            name,
            budget.map(|usd| usd.0),
            now,
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(ProjectId(id))
    }

    pub async fn project(&self, id: ProjectId) -> Result<Option<Project>, StoreError> {
        let row = sqlx::query!(
            "SELECT name, budget_usd, monthly_budget_usd, reserved_usd, settled_usd, concurrent_trials_max FROM projects WHERE id = $1",
            id.0
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.map(|row| Project {
            id,
            name: row.name,
            budget_usd: row.budget_usd.map(Usd),
            monthly_budget_usd: row.monthly_budget_usd.map(Usd),
            reserved_usd: Usd(row.reserved_usd),
            settled_usd: Usd(row.settled_usd),
            concurrent_trials_max: row
                .concurrent_trials_max
                .and_then(|most| u32::try_from(most).ok()),
        }))
    }

    /// What new projects begin with, where nothing else is said.
    pub async fn default_project_budget(&self) -> Result<Usd, StoreError> {
        let usd = sqlx::query_scalar!("SELECT default_project_budget_usd FROM installation");
        Ok(Usd(usd.fetch_one(&self.pool).await?))
    }

    pub async fn set_default_project_budget(&self, budget: Usd) -> Result<(), StoreError> {
        sqlx::query!(
            r#"UPDATE installation SET default_project_budget_usd = $1
               WHERE default_project_budget_usd IS DISTINCT FROM $1"#,
            budget.0
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Changes a project's caps.
    pub async fn set_project_budgets(
        &self,
        id: ProjectId,
        total: CapChange,
        monthly: CapChange,
    ) -> Result<(), StoreError> {
        let done = sqlx::query!(
            r#"UPDATE projects
               SET budget_usd = CASE WHEN $2 THEN $3 ELSE budget_usd END,
                   monthly_budget_usd = CASE WHEN $4 THEN $5 ELSE monthly_budget_usd END
               WHERE id = $1"#,
            id.0,
            !total.stays(),
            total.usd().map(|usd| usd.0),
            !monthly.stays(),
            monthly.usd().map(|usd| usd.0),
        )
        .execute(&self.pool)
        .await?;
        found_one(&done, "projects", id)?;
        Ok(())
    }

    pub async fn set_project_limits(
        &self,
        id: ProjectId,
        concurrent_trials_max: Option<u32>,
    ) -> Result<(), StoreError> {
        let most = concurrent_trials_max.map(|most| i32::try_from(most).unwrap_or(i32::MAX));
        let done = sqlx::query!(
            "UPDATE projects SET concurrent_trials_max = $2 WHERE id = $1",
            id.0,
            most
        )
        .execute(&self.pool)
        .await?;
        found_one(&done, "projects", id)?;
        Ok(())
    }

    pub async fn insert_key(
        &self,
        project: ProjectId,
        key: &NewKey<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        insert(&mut *self.pool.acquire().await?, project, key, now).await
    }

    /// Makes a key in the place of another one, which is valid until then, or ends now. False, and nothing is made, if
    /// that one is over or replaced already: of two replacements at once, one is made.
    pub async fn replace_key(
        &self,
        project: ProjectId,
        old: ApiKeyId,
        until: DateTime<Utc>,
        key: &NewKey<'_>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        insert(&mut tx, project, key, now).await?;
        let ended = sqlx::query!(
            r#"UPDATE api_keys
               SET revoked_at = CASE WHEN $3 <= $4 THEN $4 END, replaced_by = $5,
                   expires_at = CASE WHEN $3 <= $4 THEN expires_at ELSE least(expires_at, $3) END
               WHERE id = $2 AND project_id = $1 AND revoked_at IS NULL AND replaced_by IS NULL
                 AND (expires_at IS NULL OR expires_at > $4)"#,
            project.0,
            old.0,
            until,
            now,
            key.id.0,
        )
        .execute(&mut *tx)
        .await?;
        if ended.rows_affected() == 0 {
            return Ok(false);
        }
        tx.commit().await?;
        Ok(true)
    }

    /// All keys of a project, or of all projects, oldest first.
    pub async fn keys(&self, project: Option<ProjectId>) -> Result<Vec<ListedKey>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT k.id, p.name AS project, k.name, k.role, k.created_at, k.expires_at, k.revoked_at, k.replaced_by
               FROM api_keys k JOIN projects p ON p.id = k.project_id
               WHERE $1::uuid IS NULL OR k.project_id = $1 ORDER BY p.name, k.created_at, k.id"#,
            project.map(|id| id.0),
        )
        .fetch_all(&self.pool)
        .await?;
        let keys = rows.into_iter().map(|row| ListedKey {
            id: ApiKeyId(row.id),
            project: row.project,
            name: row.name,
            role: row.role,
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
            replaced_by: row.replaced_by.map(ApiKeyId),
        });
        Ok(keys.collect())
    }

    /// Revokes a key; returns since when it is revoked, or `None` if there is no such key.
    pub async fn revoke_key(
        &self,
        id: ApiKeyId,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, StoreError> {
        let revoked_at = sqlx::query_scalar!(
            r#"UPDATE api_keys SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1
               RETURNING revoked_at AS "revoked_at!""#,
            id.0,
            now,
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(revoked_at)
    }

    /// Revokes a key of a project; false if it is the last valid one with the role admin. Two that are revoked at
    /// once do not both count on the other.
    pub async fn revoke_unless_last_admin(
        &self,
        project: ProjectId,
        id: ApiKeyId,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        sqlx::query!(
            "SELECT id FROM projects WHERE id = $1 FOR NO KEY UPDATE",
            project.0
        )
        .fetch_one(&mut *tx)
        .await?;
        let done = sqlx::query!(
            r#"UPDATE api_keys k SET revoked_at = coalesce(revoked_at, $3)
               WHERE id = $2 AND project_id = $1
                 AND (role <> 'admin' OR revoked_at IS NOT NULL OR expires_at <= $3
                      OR EXISTS (SELECT FROM api_keys o WHERE o.project_id = $1 AND o.id <> $2 AND o.role = 'admin'
                                 AND o.replaced_by IS NULL AND o.revoked_at IS NULL AND (o.expires_at IS NULL OR o.expires_at > $3)))"#,
            project.0,
            id.0,
            now,
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// A key that is neither revoked nor expired (in real time), cached for up to one second: a
    /// revocation takes effect within that time, and frequent requests do not query the database
    /// each time.
    pub async fn live_key(
        &self,
        id: ApiKeyId,
        real_now: DateTime<Utc>,
    ) -> Result<Option<StoredKey>, StoreError> {
        let is_fresh = |known: &KnownKey| {
            (TimeDelta::zero()..KEY_KNOWN_FOR).contains(&(real_now - known.read_at))
        };
        let is_live = |known: &KnownKey| {
            known
                .expires_at
                .is_none_or(|expires_at| expires_at > real_now)
        };
        {
            let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = keys.get(&id).filter(|known| is_fresh(known)) {
                return Ok(is_live(known).then(|| known.key.clone()));
            }
        }
        let row = sqlx::query!(
            r#"SELECT project_id, role, secret_sha256, expires_at FROM api_keys
               WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)"#,
            id.0,
            real_now,
        )
        .fetch_optional(&self.pool)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let key = StoredKey {
            project_id: ProjectId(row.project_id),
            role: row.role,
            secret_sha256: row.secret_sha256,
        };
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= KEYS_KNOWN_MAX {
            keys.clear();
        }
        keys.insert(
            id,
            KnownKey {
                key: key.clone(),
                expires_at: row.expires_at,
                read_at: real_now,
            },
        );
        Ok(Some(key))
    }
}

async fn insert(
    connection: &mut PgConnection,
    project: ProjectId,
    key: &NewKey<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"INSERT INTO api_keys (id, project_id, name, role, secret_sha256, created_at, expires_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7)"#,
        key.id.0,
        project.0,
        key.name,
        key.role,
        key.secret_sha256,
        now,
        key.expires_at,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// A recently read key. Unknown keys are not cached, because an attacker could send many.
#[derive(Debug)]
pub(super) struct KnownKey {
    key: StoredKey,
    expires_at: Option<DateTime<Utc>>,
    read_at: DateTime<Utc>,
}

const KEY_KNOWN_FOR: TimeDelta = TimeDelta::seconds(1);
const KEYS_KNOWN_MAX: usize = 10_000;

pub(super) type KnownKeys = Arc<Mutex<HashMap<ApiKeyId, KnownKey>>>;

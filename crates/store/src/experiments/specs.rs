//! Versioned workloads and instance profiles. Storing identical workload content under the same
//! name keeps the version.

use bakeoff_domain::ids::{ProfileId, ProjectId, WorkloadId};
use bakeoff_domain::spec::{ProfileSpec, WorkloadSpec};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::stored;
use crate::{Store, StoreError};

/// One version of a workload.
#[derive(Debug, Clone)]
pub struct StoredWorkload {
    pub id: WorkloadId,
    pub version: i32,
    pub spec: WorkloadSpec,
    pub created_at: DateTime<Utc>,
}

/// A new version of an instance profile.
#[derive(Debug, Clone, Copy)]
pub struct NewProfile<'a> {
    pub name: &'a str,
    pub instance_type: &'a str,
    pub spec: &'a ProfileSpec,
}

/// One version of an instance profile.
#[derive(Debug, Clone)]
pub struct StoredProfile {
    pub id: ProfileId,
    pub name: String,
    pub version: i32,
    pub instance_type: String,
    pub spec: ProfileSpec,
    pub created_at: DateTime<Utc>,
}

/// Stores a workload inside the caller's transaction: an equal latest version is reused, a
/// different one gets the next number.
pub(crate) async fn put_workload(
    tx: &mut PgConnection,
    project: ProjectId,
    fresh: Uuid,
    spec: &WorkloadSpec,
    now: DateTime<Utc>,
) -> Result<StoredWorkload, StoreError> {
    // Writers of the same name take turns, so that versions are dense and never collide.
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))",
        format!("workload/{project}/{}", spec.name)
    )
    .execute(&mut *tx)
    .await?;
    let latest = sqlx::query!(
        r#"SELECT id, version, spec, created_at FROM workloads
           WHERE project_id = $1 AND name = $2 ORDER BY version DESC LIMIT 1"#,
        project.0,
        spec.name,
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(row) = &latest
        && stored::read::<WorkloadSpec>(row.spec.clone(), "workloads", row.id, "spec")
            .is_ok_and(|latest| latest == *spec)
    {
        let (id, version, created_at) = (WorkloadId(row.id), row.version, row.created_at);
        return Ok(StoredWorkload {
            id,
            version,
            spec: spec.clone(),
            created_at,
        });
    }
    let version = latest.map_or(1, |row| row.version + 1);
    sqlx::query!(
        "INSERT INTO workloads (id, project_id, name, version, spec, created_at) VALUES ($1, $2, $3, $4, $5, $6)",
        fresh,
        project.0,
        spec.name,
        version,
        stored::write(spec)?,
        now,
    )
    .execute(&mut *tx)
    .await?;
    Ok(StoredWorkload {
        id: WorkloadId(fresh),
        version,
        spec: spec.clone(),
        created_at: now,
    })
}

impl Store {
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn workload(
        &self,
        project: ProjectId,
        id: WorkloadId,
    ) -> Result<Option<StoredWorkload>, StoreError> {
        let row = sqlx::query!(
            "SELECT version, spec, created_at FROM workloads WHERE id = $1 AND project_id = $2",
            id.0,
            project.0
        )
        .fetch_optional(&self.pool)
        .await?;
        row.map(|row| {
            let spec = stored::read(row.spec, "workloads", id, "spec")?;
            Ok(StoredWorkload {
                id,
                version: row.version,
                spec,
                created_at: row.created_at,
            })
        })
        .transpose()
    }

    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn create_workload(
        &self,
        project: ProjectId,
        fresh: Uuid,
        spec: &WorkloadSpec,
        now: DateTime<Utc>,
    ) -> Result<StoredWorkload, StoreError> {
        let mut tx = self.pool.begin().await?;
        let stored = put_workload(&mut tx, project, fresh, spec, now).await?;
        tx.commit().await?;
        Ok(stored)
    }

    /// Workloads, newest first, by keyset on the id.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn workloads(
        &self,
        project: ProjectId,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<StoredWorkload>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id, version, spec, created_at FROM workloads
               WHERE project_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3"#,
            project.0,
            before,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                let spec = stored::read(row.spec, "workloads", row.id, "spec")?;
                Ok(StoredWorkload {
                    id: WorkloadId(row.id),
                    version: row.version,
                    spec,
                    created_at: row.created_at,
                })
            })
            .collect()
    }

    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn create_profile(
        &self,
        project: ProjectId,
        fresh: Uuid,
        new: NewProfile<'_>,
        now: DateTime<Utc>,
    ) -> Result<StoredProfile, StoreError> {
        let NewProfile {
            name,
            instance_type,
            spec,
        } = new;
        let row = sqlx::query!(
            r#"INSERT INTO instance_profiles (id, project_id, name, version, instance_type, spec, created_at)
               SELECT $1, $2, $3, coalesce(max(version), 0) + 1, $4, $5, $6
               FROM instance_profiles WHERE project_id = $2 AND name = $3
               RETURNING version"#,
            fresh,
            project.0,
            name,
            instance_type,
            stored::write(spec)?,
            now,
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(StoredProfile {
            id: ProfileId(fresh),
            name: name.to_owned(),
            version: row.version,
            instance_type: instance_type.to_owned(),
            spec: spec.clone(),
            created_at: now,
        })
    }

    /// Profiles by id, of one project.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn profiles_by_id(
        &self,
        project: ProjectId,
        ids: &[Uuid],
    ) -> Result<Vec<StoredProfile>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id, name, version, instance_type, spec, created_at FROM instance_profiles
               WHERE project_id = $1 AND id = ANY($2)"#,
            project.0,
            ids,
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(StoredProfile {
                    id: ProfileId(row.id),
                    name: row.name,
                    version: row.version,
                    instance_type: row.instance_type,
                    spec: stored::read(row.spec, "instance_profiles", row.id, "spec")?,
                    created_at: row.created_at,
                })
            })
            .collect()
    }

    /// Ids of profiles, newest first, by keyset on the id.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn profile_ids(
        &self,
        project: ProjectId,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT id FROM instance_profiles
               WHERE project_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3"#,
            project.0,
            before,
            limit,
        )
        .fetch_all(&self.pool)
        .await?)
    }
}

//! Model packages: the row before the package, claims of those that are due, and what became of them.

use bakeoff_domain::ids::{ExperimentId, JobId, ModelPackageId, ProjectId, TrialId};
use bakeoff_domain::model_package::decide::{PackageFacts, PackageNext};
use bakeoff_domain::model_package::{Approval, ModelPackageRequest, RegistryState, version_of};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Store, StoreError, error, stored};

const TABLE: &str = "model_packages";

/// A model package as it begins.
#[derive(Debug)]
pub struct NewPackage<'a> {
    pub id: ModelPackageId,
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    pub trial_id: TrialId,
    pub job_id: JobId,
    pub region: &'a str,
    pub request: &'a ModelPackageRequest,
}

/// A stored model package.
#[derive(Debug, Clone)]
pub struct ModelPackage {
    pub id: ModelPackageId,
    pub experiment_id: ExperimentId,
    pub trial_id: TrialId,
    pub job_id: JobId,
    pub region: String,
    pub request: ModelPackageRequest,
    pub state: RegistryState,
    pub reason: Option<String>,
    pub arn: Option<String>,
    pub version: Option<u32>,
    pub approval: Approval,
    pub wanted_approval: Approval,
    pub approval_note: Option<String>,
    pub set_at: Option<DateTime<Utc>>,
    pub due_at: Option<DateTime<Utc>>,
    pub tries: u32,
    pub created_at: DateTime<Utc>,
    pub changed_at: DateTime<Utc>,
}

impl ModelPackage {
    pub fn facts(&self) -> PackageFacts {
        PackageFacts {
            state: self.state,
            tries: self.tries,
            asked_approval: self.request.approval,
            approval: self.approval,
            wanted_approval: self.wanted_approval,
            set_at: self.set_at,
        }
    }
}

struct Row {
    id: Uuid,
    experiment_id: Uuid,
    trial_id: Uuid,
    job_id: Uuid,
    region: String,
    request: serde_json::Value,
    state: String,
    reason: Option<String>,
    arn: Option<String>,
    version: Option<i32>,
    approval: String,
    wanted_approval: String,
    approval_note: Option<String>,
    set_at: Option<DateTime<Utc>>,
    due_at: Option<DateTime<Utc>>,
    tries: i32,
    created_at: DateTime<Utc>,
    changed_at: DateTime<Utc>,
}

impl TryFrom<Row> for ModelPackage {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let corrupt = |column| StoreError::corrupt(TABLE, row.id, column);
        let approval = |text: &str, column| Approval::parse(text).ok_or_else(|| corrupt(column));
        let version = row
            .version
            .map(|version| error::count(version, TABLE, row.id, "version"));
        Ok(Self {
            id: ModelPackageId(row.id),
            experiment_id: ExperimentId(row.experiment_id),
            trial_id: TrialId(row.trial_id),
            job_id: JobId(row.job_id),
            state: RegistryState::parse(&row.state).ok_or_else(|| corrupt("state"))?,
            approval: approval(&row.approval, "approval")?,
            wanted_approval: approval(&row.wanted_approval, "wanted_approval")?,
            version: version.transpose()?,
            tries: error::count(row.tries, TABLE, row.id, "tries")?,
            request: stored::read(row.request, TABLE, row.id, "request")?,
            region: row.region,
            reason: row.reason,
            arn: row.arn,
            approval_note: row.approval_note,
            set_at: row.set_at,
            due_at: row.due_at,
            created_at: row.created_at,
            changed_at: row.changed_at,
        })
    }
}

/// As [`Store::insert_model_package`], inside the caller's transaction.
pub(crate) async fn insert(
    tx: &mut PgConnection,
    new: &NewPackage<'_>,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let inserted = sqlx::query!(
        r#"INSERT INTO model_packages (id, project_id, experiment_id, trial_id, job_id, region, group_name, request, state,
                                       approval, wanted_approval, due_at, created_at, changed_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'registering', $9, $9, $10, $10, $10)
           ON CONFLICT (job_id, group_name) WHERE wanted_approval <> 'rejected' DO NOTHING"#,
        new.id.0,
        new.project_id.0,
        new.experiment_id.0,
        new.trial_id.0,
        new.job_id.0,
        new.region,
        new.request.group,
        stored::write(new.request)?,
        new.request.approval.as_str(),
        now,
    )
    .execute(tx)
    .await?;
    Ok(inserted.rows_affected() == 1)
}

/// As [`Store::restart_model_package`], likewise.
pub(crate) async fn restart(
    tx: &mut PgConnection,
    new: &NewPackage<'_>,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let restarted = sqlx::query!(
        r#"UPDATE model_packages
           SET state = 'registering', request = $3, approval = $4, wanted_approval = $4, approval_note = NULL, set_at = NULL,
               reason = NULL, due_at = $5, changed_at = $5, tries = greatest(tries, 1)
           WHERE id = $1 AND project_id = $2 AND state = 'failed'"#,
        new.id.0,
        new.project_id.0,
        stored::write(new.request)?,
        new.request.approval.as_str(),
        now,
    )
    .execute(tx)
    .await?;
    Ok(restarted.rows_affected() == 1)
}

impl Store {
    /// Commits a new package, due at once; false if the job's model is, or is becoming, a version of the
    /// group already.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn insert_model_package(
        &self,
        new: &NewPackage<'_>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut connection = self.pool.acquire().await?;
        insert(&mut connection, new, now).await
    }

    /// The package of a job's model in a group, unless it was rejected.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn model_package_of(
        &self,
        project: ProjectId,
        job: JobId,
        group: &str,
    ) -> Result<Option<ModelPackage>, StoreError> {
        sqlx::query_as!(
            Row,
            r#"SELECT id, experiment_id, trial_id, job_id, region, request, state, reason, arn, version, approval,
                      wanted_approval, approval_note, set_at, due_at, tries, created_at, changed_at
               FROM model_packages WHERE project_id = $1 AND job_id = $2 AND group_name = $3 AND wanted_approval <> 'rejected'"#,
            project.0,
            job.0,
            group,
        )
        .fetch_optional(&self.pool)
        .await?
        .map(ModelPackage::try_from)
        .transpose()
    }

    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn model_package(
        &self,
        project: ProjectId,
        id: ModelPackageId,
    ) -> Result<Option<ModelPackage>, StoreError> {
        sqlx::query_as!(
            Row,
            r#"SELECT id, experiment_id, trial_id, job_id, region, request, state, reason, arn, version, approval,
                      wanted_approval, approval_note, set_at, due_at, tries, created_at, changed_at
               FROM model_packages WHERE project_id = $1 AND id = $2"#,
            project.0,
            id.0,
        )
        .fetch_optional(&self.pool)
        .await?
        .map(ModelPackage::try_from)
        .transpose()
    }

    /// A page of a project's packages, newest first; of one group, or of all.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn model_packages(
        &self,
        project: ProjectId,
        group: Option<&str>,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ModelPackage>, StoreError> {
        sqlx::query_as!(
            Row,
            r#"SELECT id, experiment_id, trial_id, job_id, region, request, state, reason, arn, version, approval,
                      wanted_approval, approval_note, set_at, due_at, tries, created_at, changed_at
               FROM model_packages
               WHERE project_id = $1 AND ($2::text IS NULL OR group_name = $2) AND ($3::uuid IS NULL OR id < $3)
               ORDER BY id DESC LIMIT $4"#,
            project.0,
            group,
            before,
            limit,
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(ModelPackage::try_from)
        .collect()
    }

    /// Claims the package that is due first. If we crash, it is due again after `hold`.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_due_model_package(
        &self,
        region: &str,
        now: DateTime<Utc>,
        hold: TimeDelta,
    ) -> Result<Option<ModelPackage>, StoreError> {
        let row = sqlx::query_as!(
            Row,
            r#"WITH due AS (
                   SELECT id FROM model_packages WHERE due_at <= $1 AND region = $3 ORDER BY due_at LIMIT 1
                   FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE model_packages p SET due_at = $2, tries = p.tries + 1
               WHERE p.id = (SELECT id FROM due)
               RETURNING id, experiment_id, trial_id, job_id, region, request, state, reason, arn, version, approval,
                         wanted_approval, approval_note, set_at, due_at, tries, created_at, changed_at"#,
            now,
            now + hold,
            region,
        )
        .fetch_optional(&self.pool)
        .await?;
        row.map(ModelPackage::try_from).transpose()
    }

    /// Holds a claimed package anew, until `until`; false if somebody else has claimed it since.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn hold_model_package(
        &self,
        package: &ModelPackage,
        until: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let held = sqlx::query!(
            "UPDATE model_packages SET due_at = $3 WHERE id = $1 AND tries = $2 AND state = 'registering'",
            package.id.0,
            i32::try_from(package.tries).unwrap_or(i32::MAX),
            until,
        )
        .execute(&self.pool)
        .await?;
        Ok(held.rows_affected() == 1)
    }

    /// Writes what became of a claimed package, unless somebody else has claimed it since. What a person has
    /// asked for since the claim stays, and is due at once.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_model_package(
        &self,
        package: &ModelPackage,
        next: &PackageNext,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let version = next.arn.as_deref().and_then(version_of).map(i32::try_from);
        sqlx::query!(
            r#"UPDATE model_packages p
               SET state = $3, arn = coalesce($4, arn), version = coalesce($5, version), approval = $6, reason = left($7, 4000),
                   wanted_approval = CASE WHEN is_asked_anew THEN p.wanted_approval ELSE $10 END,
                   set_at = CASE WHEN is_asked_anew THEN NULL ELSE $11::timestamptz END,
                   due_at = CASE WHEN $3 = 'failed' THEN NULL WHEN is_asked_anew THEN $12 ELSE $13::timestamptz END,
                   changed_at = $12
               FROM (SELECT (wanted_approval, approval_note) IS DISTINCT FROM ($8, $9::text) AS is_asked_anew
                     FROM model_packages WHERE id = $1 FOR NO KEY UPDATE) before
               WHERE p.id = $1 AND p.tries = $2"#,
            package.id.0,
            i32::try_from(package.tries).unwrap_or(i32::MAX),
            next.state.as_str(),
            next.arn,
            version.and_then(Result::ok),
            next.approval.as_str(),
            next.reason,
            package.wanted_approval.as_str(),
            package.approval_note,
            next.wanted_approval.as_str(),
            next.set_at,
            now,
            next.due_at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Tries a package again that has failed, with a new request under its old id; false if it has not
    /// failed. It is looked for first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn restart_model_package(
        &self,
        new: &NewPackage<'_>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut connection = self.pool.acquire().await?;
        restart(&mut connection, new, now).await
    }

    /// Says how a package is to be approved; false if there is none, or it has failed.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn want_approval(
        &self,
        project: ProjectId,
        id: ModelPackageId,
        approval: Approval,
        note: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let changed = sqlx::query!(
            r#"UPDATE model_packages
               SET wanted_approval = $3, approval_note = $4, changed_at = $5, reason = NULL, set_at = NULL,
                   due_at = CASE WHEN state = 'registered' THEN $5 ELSE due_at END
               WHERE id = $2 AND project_id = $1 AND state <> 'failed'"#,
            project.0,
            id.0,
            approval.as_str(),
            note,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(changed.rows_affected() == 1)
    }
}

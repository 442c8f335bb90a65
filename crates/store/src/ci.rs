//! CI templates with their versions, and the deliveries that started something from them.

pub mod commit_statuses;
pub mod joining;
pub mod repositories;
pub mod runs;
pub mod unmeasured;
pub mod verdicts;
pub mod waits;

use bakeoff_domain::ci::{Event, Sender, Trigger};
use bakeoff_domain::ids::{CiRunId, ProjectId, TemplateId};
use bakeoff_domain::money::budget::TemplateCaps;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_domain::spec::ci::TemplateSettings;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Store, StoreError, error, stored};

pub(crate) const TABLE: &str = "ci_templates";
/// Characters of a ref.
const REF_MAX: usize = 250;

/// What CI may start.
#[derive(Debug, Clone)]
pub struct Template {
    pub id: TemplateId,
    pub project_id: ProjectId,
    pub name: String,
    pub version: u32,
    /// With references to what a trigger says.
    pub spec: ExperimentSpec,
    pub settings: TemplateSettings,
    pub secret_version: u32,
    /// Until when the secret before this one counts too.
    pub previous_secret_until: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub changed_at: DateTime<Utc>,
}

/// A version of a template as it is written.
#[derive(Debug, Clone, Copy)]
pub struct NewVersion<'a> {
    pub name: &'a str,
    pub spec: &'a ExperimentSpec,
    pub settings: &'a TemplateSettings,
}

impl NewVersion<'_> {
    fn caps(&self) -> TemplateCaps {
        self.settings.caps(self.spec.budget_usd)
    }
}

/// A delivery that starts something; its id counts once for a template.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    pub template: TemplateId,
    pub template_version: u32,
    pub id: &'a str,
    pub sender: Sender,
    pub event: Event,
    pub trigger: &'a Trigger,
    /// Hash of the commit and of what the template takes in ([`bakeoff_domain::ci::template::what_runs`]).
    pub what_runs: &'a str,
    /// The run that it starts, if it is new.
    pub run: CiRunId,
    /// It starts a run although there is one that measures the same.
    pub is_repeat: bool,
    /// Earlier runs of its branch without a verdict end.
    pub supersedes: bool,
    /// The template's settings say which repository is its own.
    pub is_repository_stated: bool,
}

struct Row {
    id: Uuid,
    project_id: Uuid,
    name: String,
    version: i32,
    spec: serde_json::Value,
    settings: serde_json::Value,
    secret_version: i32,
    previous_secret_until: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    changed_at: DateTime<Utc>,
}

impl TryFrom<Row> for Template {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let id = TemplateId(row.id);
        Ok(Self {
            id,
            project_id: ProjectId(row.project_id),
            name: row.name,
            version: error::count(row.version, TABLE, row.id, "version")?,
            spec: stored::read(row.spec, "ci_template_versions", id, "spec")?,
            settings: stored::read(row.settings, "ci_template_versions", id, "settings")?,
            secret_version: error::count(row.secret_version, TABLE, row.id, "secret_version")?,
            previous_secret_until: row.previous_secret_until,
            created_at: row.created_at,
            changed_at: row.changed_at,
        })
    }
}

impl Store {
    /// Stores a template as its first version.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn insert_template(
        &self,
        project: ProjectId,
        id: TemplateId,
        new: NewVersion<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let caps = new.caps();
        sqlx::query!(
            r#"INSERT INTO ci_templates (id, project_id, name, created_at, changed_at, runs_at_once, usd_per_day, usd_per_month)
               VALUES ($1, $2, $3, $4, $4, $5, $6, $7)"#,
            id.0,
            project.0,
            new.name,
            now,
            caps.runs_at_once.cast_signed(),
            caps.usd_per_day.0,
            caps.usd_per_month.0,
        )
        .execute(&mut *tx)
        .await?;
        insert_version(&mut tx, id, 1, new, now).await?;
        Ok(tx.commit().await?)
    }

    /// Stores a new version, which counts from now on; `None` if there is no such template.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn change_template(
        &self,
        project: ProjectId,
        id: TemplateId,
        new: NewVersion<'_>,
        now: DateTime<Utc>,
    ) -> Result<Option<u32>, StoreError> {
        let mut tx = self.pool.begin().await?;
        let caps = new.caps();
        let version = sqlx::query_scalar!(
            r#"UPDATE ci_templates
               SET version = version + 1, name = $3, changed_at = $4, runs_at_once = $5, usd_per_day = $6, usd_per_month = $7
               WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL RETURNING version"#,
            id.0,
            project.0,
            new.name,
            now,
            caps.runs_at_once.cast_signed(),
            caps.usd_per_day.0,
            caps.usd_per_month.0,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(version) = version else {
            return Ok(None);
        };
        insert_version(&mut tx, id, version, new, now).await?;
        tx.commit().await?;
        error::count(version, TABLE, id.0, "version").map(Some)
    }

    /// A template of any project by its id: a webhook's signature proves the right to use it. Not one that was
    /// deleted.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn template(&self, id: TemplateId) -> Result<Option<Template>, StoreError> {
        let row = sqlx::query_as!(
            Row,
            r#"SELECT t.id, t.project_id, t.name, t.version, v.spec, v.settings, t.secret_version, t.previous_secret_until,
                      t.created_at, t.changed_at
               FROM ci_templates t JOIN ci_template_versions v ON v.template_id = t.id AND v.version = t.version
               WHERE t.id = $1 AND t.deleted_at IS NULL"#,
            id.0
        );
        let row = row.fetch_optional(&self.pool).await?;
        row.map(Template::try_from).transpose()
    }

    /// An earlier version of a template, or the one that counts.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn template_version(
        &self,
        project: ProjectId,
        id: TemplateId,
        version: Option<u32>,
    ) -> Result<Option<Template>, StoreError> {
        let row = sqlx::query_as!(
            Row,
            r#"SELECT t.id, t.project_id, t.name, v.version, v.spec, v.settings, t.secret_version, t.previous_secret_until,
                      t.created_at, v.created_at AS changed_at
               FROM ci_templates t JOIN ci_template_versions v ON v.template_id = t.id
               WHERE t.id = $1 AND t.project_id = $2 AND t.deleted_at IS NULL AND v.version = coalesce($3, t.version)"#,
            id.0,
            project.0,
            version.map(|version| i32::try_from(version).unwrap_or(i32::MAX)),
        );
        let row = row.fetch_optional(&self.pool).await?;
        row.map(Template::try_from).transpose()
    }

    /// A page of a project's templates, newest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn templates(
        &self,
        project: ProjectId,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Template>, StoreError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT t.id, t.project_id, t.name, t.version, v.spec, v.settings, t.secret_version, t.previous_secret_until,
                      t.created_at, t.changed_at
               FROM ci_templates t JOIN ci_template_versions v ON v.template_id = t.id AND v.version = t.version
               WHERE t.project_id = $1 AND t.deleted_at IS NULL AND ($2::uuid IS NULL OR t.id < $2)
               ORDER BY t.id DESC LIMIT $3"#,
            project.0,
            before,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(Template::try_from).collect()
    }

    /// Gives a template its next secret; the one before counts until `until`. Returns the new one's number;
    /// `None` if there is no such template.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn rotate_secret(
        &self,
        project: ProjectId,
        id: TemplateId,
        until: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Option<u32>, StoreError> {
        let version = sqlx::query_scalar!(
            r#"UPDATE ci_templates SET secret_version = secret_version + 1, previous_secret_until = $3, changed_at = $4
               WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL RETURNING secret_version"#,
            id.0,
            project.0,
            until,
            now,
        )
        .fetch_optional(&self.pool)
        .await?;
        let version = version.map(|version| error::count(version, TABLE, id.0, "secret_version"));
        version.transpose()
    }

    /// Ends a template: it starts nothing any more, and its name is free. What it started stays. False if there is
    /// none.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn delete_template(
        &self,
        project: ProjectId,
        id: TemplateId,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let deleted = sqlx::query!(
            r#"UPDATE ci_templates SET deleted_at = $3, changed_at = $3
               WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL"#,
            id.0,
            project.0,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(deleted.rows_affected() == 1)
    }
}

/// As much of a ref as is stored.
fn git_ref(trigger: &Trigger) -> Option<String> {
    let reference = trigger.reference.as_ref()?;
    Some(reference.chars().take(REF_MAX).collect())
}

async fn insert_version(
    tx: &mut PgConnection,
    id: TemplateId,
    version: i32,
    new: NewVersion<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO ci_template_versions (template_id, version, spec, settings, created_at) VALUES ($1, $2, $3, $4, $5)",
        id.0,
        version,
        stored::write(new.spec)?,
        stored::write(new.settings)?,
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}

//! What CI has started for a commit: its experiments, one for each round, its verdict, and the runs that later ones
//! are compared with.

use bakeoff_domain::ci::gate::{Accepted, Judgement, Reading, Verdict};
use bakeoff_domain::ci::{Event, Sender};
use bakeoff_domain::ids::{CiRunId, ExperimentId, ProjectId, TemplateId};
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_domain::spec::ci::TemplateSettings;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::commit_statuses::{self, CommitStatus};
use super::{Delivery, git_ref};
use crate::{Store, StoreError, error, stored};

const TABLE: &str = "ci_runs";
/// Accepted runs that a baseline is made of, at most.
const ACCEPTED_MAX: i64 = 50;
/// Who accepts what passes, or stays open, on the baseline's branch.
pub(super) const RULE: &str = "rule";

/// What CI has started for a commit.
#[derive(Debug, Clone)]
pub struct CiRun {
    pub id: CiRunId,
    pub project_id: ProjectId,
    pub template_id: TemplateId,
    pub template_name: String,
    pub template_version: u32,
    pub settings: TemplateSettings,
    pub sender: Sender,
    pub event: Event,
    pub commit: String,
    pub reference: Option<String>,
    pub branch: Option<String>,
    pub pull_request: Option<u64>,
    /// Of each round.
    pub experiments: Vec<ExperimentId>,
    pub verdict: Option<Verdict>,
    pub judgement: Option<Judgement>,
    pub created_at: DateTime<Utc>,
    pub decided_at: Option<DateTime<Utc>>,
    pub acceptance: Option<Acceptance>,
    pub is_release: bool,
    /// Branches that came to the same commit later.
    pub other_branches: Vec<String>,
    /// The run that measures the same again.
    pub repeated_by: Option<CiRunId>,
    /// The run of a newer commit of its branch, and that commit.
    pub superseded_by: Option<CiRunId>,
    pub newer_commit: Option<String>,
    /// Without a verdict: why its experiment is paused, why a trial of it is not started, and whether a job runs.
    pub paused_reason: Option<String>,
    pub trial_reason: Option<String>,
    pub is_busy: bool,
    /// Nothing more is started for it.
    pub is_template_deleted: bool,
    /// Of the image that its trials run, once it was found in ECR.
    pub image_digest: Option<String>,
    /// What is shown of it beside its commit; `None` if its template tells nobody.
    pub commit_status: Option<CommitStatus>,
}

/// Why a run is a baseline of later ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    pub at: DateTime<Utc>,
    /// `rule`, or the API key that it was asked with.
    pub by: String,
    pub begins_level: bool,
}

/// Runs to list.
#[derive(Debug, Clone, Copy, Default)]
pub struct WhichRuns<'a> {
    pub template: Option<TemplateId>,
    pub commit: Option<&'a str>,
    pub verdict: Option<Verdict>,
}

struct Row {
    id: Uuid,
    project_id: Uuid,
    template_id: Uuid,
    template_name: String,
    template_version: i32,
    settings: serde_json::Value,
    sender: String,
    event: String,
    commit_sha: String,
    git_ref: Option<String>,
    branch: Option<String>,
    pull_request: Option<i64>,
    experiments: Vec<Uuid>,
    verdict: Option<String>,
    judgement: Option<serde_json::Value>,
    created_at: DateTime<Utc>,
    decided_at: Option<DateTime<Utc>>,
    accepted_at: Option<DateTime<Utc>>,
    accepted_by: Option<String>,
    begins_level: bool,
    is_release: bool,
    is_template_deleted: bool,
    status_state: Option<String>,
    status_attempts: Option<i32>,
    told_at: Option<DateTime<Utc>>,
    problem: Option<String>,
    image_digest: Option<String>,
    other_branches: Vec<String>,
    repeated_by: Option<Uuid>,
    superseded_by: Option<Uuid>,
    newer_commit: Option<String>,
    paused_reason: Option<String>,
    trial_reason: Option<String>,
    is_busy: Option<bool>,
}

impl TryFrom<Row> for CiRun {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let corrupt = |column| StoreError::corrupt(TABLE, row.id, column);
        let id = CiRunId(row.id);
        let verdict = row
            .verdict
            .as_deref()
            .map(|text| Verdict::parse(text).ok_or_else(|| corrupt("verdict")));
        let acceptance = row.accepted_at.zip(row.accepted_by);
        let judgement = row
            .judgement
            .map(|judgement| stored::read(judgement, TABLE, id, "judgement"));
        Ok(Self {
            id,
            project_id: ProjectId(row.project_id),
            template_id: TemplateId(row.template_id),
            template_name: row.template_name,
            template_version: error::count(
                row.template_version,
                TABLE,
                row.id,
                "template_version",
            )?,
            settings: stored::read(row.settings, "ci_template_versions", id, "settings")?,
            sender: Sender::parse(&row.sender).ok_or_else(|| corrupt("sender"))?,
            event: Event::parse(&row.event).ok_or_else(|| corrupt("event"))?,
            commit: row.commit_sha,
            reference: row.git_ref,
            branch: row.branch,
            pull_request: row
                .pull_request
                .and_then(|number| u64::try_from(number).ok()),
            experiments: row.experiments.into_iter().map(ExperimentId).collect(),
            verdict: verdict.transpose()?,
            judgement: judgement.transpose()?,
            created_at: row.created_at,
            decided_at: row.decided_at,
            acceptance: acceptance.map(|(at, by)| Acceptance {
                at,
                by,
                begins_level: row.begins_level,
            }),
            is_release: row.is_release,
            is_template_deleted: row.is_template_deleted,
            image_digest: row.image_digest,
            other_branches: row.other_branches,
            repeated_by: row.repeated_by.map(CiRunId),
            superseded_by: row.superseded_by.map(CiRunId),
            newer_commit: row.newer_commit,
            paused_reason: row.paused_reason,
            trial_reason: row.trial_reason,
            is_busy: row.is_busy.unwrap_or(false),
            commit_status: CommitStatus::read(
                row.id,
                row.status_state.as_deref(),
                row.status_attempts,
                row.told_at,
                row.problem,
            )?,
        })
    }
}

impl Store {
    /// A page of a project's runs, newest first; with an id, that one alone.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn ci_runs(
        &self,
        project: ProjectId,
        which: WhichRuns<'_>,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<CiRun>, StoreError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT r.id, r.project_id, r.template_id, t.name AS template_name, r.template_version, v.settings, r.sender, r.event,
                      r.commit_sha, r.git_ref, r.branch, r.pull_request,
                      ARRAY(SELECT o.experiment_id FROM ci_rounds o WHERE o.run_id = r.id ORDER BY o.round) AS "experiments!",
                      r.verdict, r.judgement, r.created_at, r.decided_at, r.accepted_at, r.accepted_by, r.begins_level,
                      t.release_run_id IS NOT DISTINCT FROM r.id AS "is_release!", t.deleted_at IS NOT NULL AS "is_template_deleted!",
                      s.state AS "status_state?", s.attempts AS "status_attempts?", s.told_at, s.problem,
                      (SELECT e.image_digest FROM experiments e WHERE e.id = r.experiment_id) AS image_digest,
                      r.other_branches, r.repeated_by, r.superseded_by,
                      (SELECT n.commit_sha FROM ci_runs n WHERE n.id = r.superseded_by) AS newer_commit,
                      w.paused_reason, w.trial_reason, w.is_busy AS "is_busy?"
               FROM ci_runs r
               LEFT JOIN ci_waits w ON w.run_id = r.id
               JOIN ci_templates t ON t.id = r.template_id
               JOIN ci_template_versions v ON v.template_id = r.template_id AND v.version = r.template_version
               LEFT JOIN ci_statuses s ON s.run_id = r.id
               WHERE r.project_id = $1 AND ($2::uuid IS NULL OR r.template_id = $2)
                 AND ($3::text IS NULL OR r.commit_sha = $3) AND ($4::text IS NULL OR r.verdict = $4)
                 AND ($5::uuid IS NULL OR r.id < $5)
               ORDER BY r.id DESC LIMIT $6"#,
            project.0,
            which.template.map(|template| template.0),
            which.commit,
            which.verdict.map(Verdict::as_str),
            before,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(CiRun::try_from).collect()
    }

    /// A run of a project.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn ci_run(
        &self,
        project: ProjectId,
        id: CiRunId,
    ) -> Result<Option<CiRun>, StoreError> {
        let row = sqlx::query_as!(
            Row,
            r#"SELECT r.id, r.project_id, r.template_id, t.name AS template_name, r.template_version, v.settings, r.sender, r.event,
                      r.commit_sha, r.git_ref, r.branch, r.pull_request,
                      ARRAY(SELECT o.experiment_id FROM ci_rounds o WHERE o.run_id = r.id ORDER BY o.round) AS "experiments!",
                      r.verdict, r.judgement, r.created_at, r.decided_at, r.accepted_at, r.accepted_by, r.begins_level,
                      t.release_run_id IS NOT DISTINCT FROM r.id AS "is_release!", t.deleted_at IS NOT NULL AS "is_template_deleted!",
                      s.state AS "status_state?", s.attempts AS "status_attempts?", s.told_at, s.problem,
                      (SELECT e.image_digest FROM experiments e WHERE e.id = r.experiment_id) AS image_digest,
                      r.other_branches, r.repeated_by, r.superseded_by,
                      (SELECT n.commit_sha FROM ci_runs n WHERE n.id = r.superseded_by) AS newer_commit,
                      w.paused_reason, w.trial_reason, w.is_busy AS "is_busy?"
               FROM ci_runs r
               LEFT JOIN ci_waits w ON w.run_id = r.id
               JOIN ci_templates t ON t.id = r.template_id
               JOIN ci_template_versions v ON v.template_id = r.template_id AND v.version = r.template_version
               LEFT JOIN ci_statuses s ON s.run_id = r.id
               WHERE r.id = $1 AND r.project_id = $2"#,
            id.0,
            project.0,
        );
        let row = row.fetch_optional(&self.pool).await?;
        row.map(CiRun::try_from).transpose()
    }

    /// The experiment of a template's version, with its references.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn spec_of_run(&self, run: &CiRun) -> Result<ExperimentSpec, StoreError> {
        let spec = sqlx::query_scalar!(
            "SELECT spec FROM ci_template_versions WHERE template_id = $1 AND version = $2",
            run.template_id.0,
            i32::try_from(run.template_version).unwrap_or(i32::MAX),
        );
        let spec = spec.fetch_one(&self.pool).await?;
        stored::read(spec, "ci_template_versions", run.template_id, "spec")
    }

    /// Accepted runs of a template's branch, newest first. Those of pull requests are none of them, even if a person
    /// has accepted them: what they changed comes to the branch with its own run.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn accepted_runs(
        &self,
        template: TemplateId,
        branch: &str,
    ) -> Result<Vec<Accepted>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id, readings AS "readings!", begins_level FROM ci_runs
               WHERE template_id = $1 AND accepted_at IS NOT NULL
                 AND (branch = $3 AND pull_request IS NULL AND event <> 'pull_request' OR $3 = ANY (other_branches))
               ORDER BY decided_at DESC, id DESC LIMIT $2"#,
            template.0,
            ACCEPTED_MAX,
            branch,
        );
        let mut accepted = Vec::new();
        for row in rows.fetch_all(&self.pool).await? {
            let id = CiRunId(row.id);
            // One that a newer version wrote must not hold up all others.
            match stored::read(row.readings, TABLE, id, "readings") {
                Ok(readings) => accepted.push(Accepted {
                    readings,
                    begins_level: row.begins_level,
                }),
                Err(error) => tracing::warn!(%error, run = %id, "left out of the baseline"),
            }
        }
        Ok(accepted)
    }

    /// Readings of a template's pinned release; none without one.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn release_readings(&self, template: TemplateId) -> Result<Vec<Reading>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT r.id, r.readings AS "readings!" FROM ci_runs r JOIN ci_templates t ON t.release_run_id = r.id
               WHERE t.id = $1 AND r.readings IS NOT NULL"#,
            template.0,
        );
        let row = row.fetch_optional(&self.pool).await?;
        let readings =
            row.map(|row| stored::read(row.readings, TABLE, CiRunId(row.id), "readings"));
        Ok(readings.transpose()?.unwrap_or_default())
    }

    /// Has an experiment's trials send their image as it is written: nothing tells its digest.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn stop_pinning(&self, experiment: ExperimentId) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE experiments SET pins_image = false WHERE id = $1 AND pins_image AND image_digest IS NULL",
            experiment.0,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Notes the digest that an experiment's image has; returns the one that counts, which is the first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn pin_image(
        &self,
        experiment: ExperimentId,
        digest: &str,
    ) -> Result<String, StoreError> {
        let counts = sqlx::query_scalar!(
            r#"UPDATE experiments SET image_digest = coalesce(image_digest, $2) WHERE id = $1
               RETURNING image_digest AS "digest!""#,
            experiment.0,
            digest,
        );
        Ok(counts.fetch_one(&self.pool).await?)
    }

    /// Pins the release that a template's runs are compared with beside their baseline, or none.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn pin_release(
        &self,
        project: ProjectId,
        template: TemplateId,
        run: Option<CiRunId>,
    ) -> Result<bool, StoreError> {
        let written = sqlx::query!(
            r#"UPDATE ci_templates SET release_run_id = $3
               WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL
                 AND ($3::uuid IS NULL OR EXISTS (SELECT FROM ci_runs r WHERE r.id = $3 AND r.template_id = $1
                                                  AND r.verdict IN ('passed', 'regressed', 'inconclusive')))"#,
            template.0,
            project.0,
            run.map(|run| run.0),
        );
        Ok(written.execute(&self.pool).await?.rows_affected() == 1)
    }
}

/// Writes the run that a delivery starts, in the transaction of its first experiment.
pub(super) async fn insert_run(
    tx: &mut PgConnection,
    delivery: &Delivery<'_>,
    project: ProjectId,
    experiment: ExperimentId,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let trigger = delivery.trigger;
    let branch = trigger.branch.as_ref();
    sqlx::query!(
        r#"INSERT INTO ci_runs (id, project_id, template_id, template_version, sender, event, commit_sha, git_ref, branch,
                                pull_request, experiment_id, created_at, what_runs, previous_commit, made_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, left($14, 64), $15)"#,
        delivery.run.0,
        project.0,
        delivery.template.0,
        i32::try_from(delivery.template_version).unwrap_or(i32::MAX),
        delivery.sender.as_str(),
        delivery.event.as_str(),
        trigger.commit,
        git_ref(trigger),
        branch.map(|branch| branch.chars().take(super::REF_MAX).collect::<String>()),
        trigger.pull_request.map(|number| i64::try_from(number).unwrap_or(i64::MAX)),
        experiment.0,
        now,
        delivery.what_runs,
        trigger.previous,
        trigger.made_at,
    )
    .execute(&mut *tx)
    .await?;
    insert_round(tx, delivery.run, 1, experiment).await?;
    await_image(tx, delivery.run, experiment).await?;
    commit_statuses::tell(tx, delivery.run, delivery.template, now).await?;
    Ok(())
}

/// Writes what a further round of a run starts, in the transaction of its experiment. `Missing` if somebody else has
/// begun it, or the run has its verdict.
pub(crate) async fn begin_round(
    tx: &mut PgConnection,
    run: CiRunId,
    round: u32,
    experiment: ExperimentId,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let round = i32::try_from(round).unwrap_or(i32::MAX);
    let template = sqlx::query_scalar!(
        r#"UPDATE ci_runs SET round = $2, experiment_id = $3 WHERE id = $1 AND round = $2 - 1 AND verdict IS NULL
             AND superseded_by IS NULL
           RETURNING template_id"#,
        run.0,
        round,
        experiment.0,
    );
    let Some(template) = template.fetch_optional(&mut *tx).await? else {
        return Err(StoreError::Missing {
            table: TABLE,
            id: run.to_string(),
        });
    };
    insert_round(tx, run, round, experiment).await?;
    await_image(tx, run, experiment).await?;
    commit_statuses::tell(tx, run, TemplateId(template), now).await?;
    Ok(())
}

/// Has an experiment wait for its image: for that of the first round, once it is known.
async fn await_image(
    tx: &mut PgConnection,
    run: CiRunId,
    experiment: ExperimentId,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"UPDATE experiments
           SET pins_image = true,
               image_digest = (SELECT e.image_digest FROM ci_rounds r JOIN experiments e ON e.id = r.experiment_id
                               WHERE r.run_id = $1 ORDER BY r.round LIMIT 1)
           WHERE id = $2"#,
        run.0,
        experiment.0,
    )
    .execute(tx)
    .await?;
    Ok(())
}

async fn insert_round(
    tx: &mut PgConnection,
    run: CiRunId,
    round: i32,
    experiment: ExperimentId,
) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO ci_rounds (run_id, round, experiment_id, is_counted) VALUES ($1, $2, $3, true)",
        run.0,
        round,
        experiment.0,
    )
    .execute(tx)
    .await?;
    Ok(())
}

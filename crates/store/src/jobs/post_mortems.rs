//! Post-mortems of failed jobs: which are due, what was found, and what is shown of them.

use std::collections::BTreeMap;

use bakeoff_domain::diagnosis::Diagnosis;
use bakeoff_domain::event::{Diagnosed, Event};
use bakeoff_domain::ids::{ExperimentId, JobId, ProjectId, TrialId};
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::log::LogLine;
use bakeoff_domain::sagemaker::observed::{RuleEvaluation, Transition};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::events::{self, EventSubject};
use crate::experiments::trials::{Attempt, Claimed};
use crate::{Store, StoreError, stored};

/// CloudWatch shows the last lines of a log some seconds after they were written.
const LOG_ARRIVES: TimeDelta = TimeDelta::seconds(30);

/// A failed job whose post-mortem is due.
#[derive(Debug, Clone)]
pub struct PostMortemDue {
    /// `None` if the column is unreadable; without it, the log group is unknown.
    pub kind: Option<JobKind>,
    pub job_id: JobId,
    pub trial_id: TrialId,
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    pub candidate: String,
    pub instance_type: String,
    pub attempt: u32,
    pub job_name: String,
    pub failure_reason: Option<String>,
    pub transitions: Vec<Transition>,
    pub rules: Vec<RuleEvaluation>,
    /// Whether its container may have written anything.
    pub has_started: bool,
    pub tries: u32,
}

/// What is known of a job beside its status.
#[derive(Debug, Clone, Default)]
pub struct Aftermath {
    pub model_s3_uri: Option<String>,
    pub rules: Vec<RuleEvaluation>,
    pub diagnosis: Option<Diagnosis>,
    pub lines: Vec<LogLine>,
}

/// Orders the post-mortem of an attempt that has just failed.
pub(crate) async fn order(
    tx: &mut PgConnection,
    trial: &Claimed,
    attempt: &Attempt,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"INSERT INTO post_mortems (job_id, project_id, experiment_id, trial_id, region, due_at)
           VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (job_id) DO NOTHING"#,
        attempt.id.0,
        trial.project_id.0,
        trial.experiment_id.0,
        trial.id.0,
        trial.region,
        now + LOG_ARRIVES,
    )
    .execute(tx)
    .await?;
    Ok(())
}

impl Store {
    /// Claims post-mortems that are due. If we crash, they are due again after `hold`.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_due_post_mortems(
        &self,
        region: &str,
        now: DateTime<Utc>,
        hold: TimeDelta,
        limit: i64,
    ) -> Result<Vec<PostMortemDue>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH due AS (
                   SELECT job_id FROM post_mortems WHERE due_at <= $1 AND region = $4 ORDER BY due_at LIMIT $3
                   FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE post_mortems p SET due_at = $2, tries = p.tries + 1
               FROM jobs j JOIN trials t ON t.id = j.trial_id
               WHERE p.job_id = ANY (ARRAY(SELECT job_id FROM due)) AND j.id = p.job_id
               RETURNING p.job_id, p.project_id, p.experiment_id, p.trial_id, p.tries, t.candidate, t.instance_type, t.job_kind,
                         j.number AS "number!", j.job_name, j.failure_reason, j.transitions::text AS "transitions!",
                         j.rules::text, j.started_at"#,
            now,
            now + hold,
            limit,
            region,
        )
        .fetch_all(&self.pool)
        .await?;
        let due = rows.into_iter().map(|row| PostMortemDue {
            job_id: JobId(row.job_id),
            trial_id: TrialId(row.trial_id),
            project_id: ProjectId(row.project_id),
            experiment_id: ExperimentId(row.experiment_id),
            kind: JobKind::parse(&row.job_kind),
            candidate: row.candidate,
            instance_type: row.instance_type,
            attempt: u32::try_from(row.number).unwrap_or(0),
            job_name: row.job_name,
            failure_reason: row.failure_reason,
            // What cannot be read says nothing; the rest still does.
            transitions: stored::read_text(&row.transitions, "jobs", row.job_id, "transitions")
                .unwrap_or_default(),
            rules: row
                .rules
                .and_then(|rules| stored::read_text(&rules, "jobs", row.job_id, "rules").ok())
                .unwrap_or_default(),
            has_started: row.started_at.is_some(),
            tries: u32::try_from(row.tries).unwrap_or(u32::MAX),
        });
        Ok(due.collect())
    }

    /// Writes a post-mortem and tells of it; a second one changes nothing.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_post_mortem(
        &self,
        due: &PostMortemDue,
        diagnosis: &Diagnosis,
        lines: &Vec<LogLine>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let changed = sqlx::query!(
            r#"UPDATE post_mortems SET due_at = NULL, summary = $2, diagnosis = $3, lines = $4
               WHERE job_id = $1 AND diagnosis IS NULL"#,
            due.job_id.0,
            diagnosis.summary,
            stored::write(diagnosis)?,
            stored::write(lines)?,
        )
        .execute(&mut *tx)
        .await?;
        let subject = EventSubject {
            project: due.project_id,
            experiment: due.experiment_id,
            trial: Some(due.trial_id),
        };
        let first = diagnosis.causes.first();
        let told = (changed.rows_affected() == 1).then(|| {
            subject.told(Event::TrialDiagnosed(Diagnosed {
                attempt: due.attempt,
                job_name: due.job_name.clone(),
                summary: diagnosis.summary.clone(),
                signature: first.map(|cause| cause.signature.clone()),
            }))
        });
        events::commit(tx, told.as_slice(), now).await
    }

    /// What is known of the jobs of some trials beside their status, by job.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn aftermath(
        &self,
        trials: &[Uuid],
    ) -> Result<BTreeMap<JobId, Aftermath>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT j.id AS "id!", j.model_s3_uri, j.rules::text, p.diagnosis::text AS "diagnosis?", p.lines::text AS "lines?"
               FROM jobs j LEFT JOIN post_mortems p ON p.job_id = j.id
               WHERE j.trial_id = ANY($1)
                 AND (p.diagnosis IS NOT NULL OR j.model_s3_uri IS NOT NULL OR j.rules IS NOT NULL)"#,
            trials,
        )
        .fetch_all(&self.pool)
        .await?;
        let found = rows.into_iter().map(|row| {
            let aftermath = Aftermath {
                model_s3_uri: row.model_s3_uri,
                rules: read(row.rules, row.id, "rules").unwrap_or_default(),
                diagnosis: read(row.diagnosis, row.id, "diagnosis"),
                lines: read(row.lines, row.id, "lines").unwrap_or_default(),
            };
            (JobId(row.id), aftermath)
        });
        Ok(found.collect())
    }

    /// The summaries of what is known of the failed jobs of an experiment's trials: of each, its last.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn failures_of(
        &self,
        experiments: &[Uuid],
    ) -> Result<BTreeMap<TrialId, String>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT DISTINCT ON (p.trial_id) p.trial_id AS "trial_id!", p.summary AS "summary!"
               FROM post_mortems p JOIN jobs j ON j.id = p.job_id
               WHERE p.experiment_id = ANY($1) AND p.summary IS NOT NULL
               ORDER BY p.trial_id, j.number DESC"#,
            experiments,
        )
        .fetch_all(&self.pool)
        .await?;
        let found = rows
            .into_iter()
            .map(|row| (TrialId(row.trial_id), row.summary));
        Ok(found.collect())
    }
}

/// A document that may be absent; one that a newer program wrote is left out.
fn read<T: stored::Document>(text: Option<String>, id: Uuid, column: &'static str) -> Option<T> {
    let read = stored::read_text(&text?, "post_mortems", id, column);
    read.inspect_err(|error| tracing::warn!(%error, "a post-mortem cannot be read"))
        .ok()
}

//! What is shown of CI runs beside their commits: whom a template's runs are told to, and what is still to be told. A
//! change that is to be shown writes it in its own transaction.

use bakeoff_domain::ci::commit_status::{CodeHost, Outcome, StatusTarget};
use bakeoff_domain::delivery::DeliveryState;
use bakeoff_domain::ids::{CiRunId, ProjectId, TemplateId};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Store, StoreError, error};

const TABLE: &str = "ci_status_targets";
/// Statuses of one template that are sent at the same time: a slow host must not hold up those of others.
const EACH_AT_ONCE: i64 = 2;
/// Claims in a row after which no request was sent, three minutes each: a day of processes that die.
const LOST_CLAIMS_MAX: i32 = 480;
const LOST: &str =
    "the service has ended each time before it could send it: look at its log, then send it again";
/// Characters of a problem that are kept.
const PROBLEM_MAX: usize = 2000;
/// Failed statuses that are as young as this are sent again with new credentials.
const AGAIN_WITHIN: TimeDelta = TimeDelta::days(7);

/// Whom a template's runs are told to, and with what.
#[derive(Debug, Clone)]
pub struct StoredTarget {
    pub target: StatusTarget,
    /// No webhook starts its runs.
    pub gate_only: bool,
    pub sealed_credentials: Vec<u8>,
    pub credentials_set_at: DateTime<Utc>,
    pub changed_at: DateTime<Utc>,
}

/// A status that is to be shown now.
#[derive(Debug, Clone, Copy)]
pub struct ClaimedStatus {
    pub run: CiRunId,
    pub project: ProjectId,
    pub template: TemplateId,
    pub revision: i32,
    pub claim: i32,
    /// Of this try of this revision, from 1.
    pub number: u32,
    /// The number of what shows it already.
    pub shown_as: Option<u64>,
    /// Its merge request, if another event has told of it.
    pub pull_request: Option<u64>,
}

/// What is shown of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    pub state: DeliveryState,
    pub attempts: u32,
    /// When the host took the last one.
    pub told_at: Option<DateTime<Utc>>,
    pub problem: Option<String>,
}

struct Row {
    host: String,
    api_url: String,
    repository: String,
    context: String,
    is_app: bool,
    comments: bool,
    gate_only: bool,
    sealed_credentials: Vec<u8>,
    credentials_set_at: DateTime<Utc>,
    changed_at: DateTime<Utc>,
}

impl Row {
    fn read(self, template: TemplateId) -> Result<StoredTarget, StoreError> {
        let host = CodeHost::parse(&self.host);
        Ok(StoredTarget {
            target: StatusTarget {
                host: host.ok_or_else(|| StoreError::corrupt(TABLE, template, "host"))?,
                api_url: self.api_url,
                repository: self.repository,
                context: self.context,
                is_app: self.is_app,
                comments: self.comments,
            },
            gate_only: self.gate_only,
            sealed_credentials: self.sealed_credentials,
            credentials_set_at: self.credentials_set_at,
            changed_at: self.changed_at,
        })
    }
}

impl Store {
    /// Sets whom a template's runs are told to. What has not arrived there, or was refused lately, is sent again; what was
    /// shown elsewhere, or by somebody else, is shown anew. False if there is no such template.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn set_status_target(
        &self,
        project: ProjectId,
        template: TemplateId,
        new: &StoredTarget,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let target = &new.target;
        let written = sqlx::query!(
            r#"INSERT INTO ci_status_targets (template_id, host, api_url, repository, context, is_app, comments,
                                              sealed_credentials, credentials_set_at, changed_at, gate_only)
               SELECT id, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12 FROM ci_templates
               WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL FOR NO KEY UPDATE
               ON CONFLICT (template_id) DO UPDATE
               SET host = $3, api_url = $4, repository = $5, context = $6, is_app = $7, comments = $8,
                   sealed_credentials = $9, credentials_set_at = $10, changed_at = $11, gate_only = $12"#,
            template.0,
            project.0,
            target.host.as_str(),
            target.api_url,
            target.repository,
            target.context,
            target.is_app,
            target.comments,
            new.sealed_credentials,
            new.credentials_set_at,
            new.changed_at,
            new.gate_only,
        );
        if written.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query!(
            r#"UPDATE ci_statuses s
               SET shown_as = NULL, revision = revision + CASE WHEN state = 'delivered' THEN 0 ELSE 1 END,
                   attempts = CASE WHEN state = 'delivered' THEN attempts ELSE 0 END,
                   due_at = CASE WHEN state <> 'delivered' AND r.created_at > $3 THEN $2 ELSE due_at END,
                   state = CASE WHEN state <> 'delivered' AND r.created_at > $3 THEN 'pending' ELSE state END
               FROM ci_runs r WHERE r.id = s.run_id AND r.template_id = $1"#,
            template.0,
            new.changed_at,
            new.changed_at - AGAIN_WITHIN,
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Whom a template's runs are told to; `None` if nobody is.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn status_target(
        &self,
        project: ProjectId,
        template: TemplateId,
    ) -> Result<Option<StoredTarget>, StoreError> {
        let row = sqlx::query_as!(
            Row,
            r#"SELECT s.host, s.api_url, s.repository, s.context, s.is_app, s.comments, s.gate_only, s.sealed_credentials,
                      s.credentials_set_at, s.changed_at
               FROM ci_status_targets s JOIN ci_templates t ON t.id = s.template_id
               WHERE t.id = $1 AND t.project_id = $2 AND t.deleted_at IS NULL"#,
            template.0,
            project.0,
        );
        let row = row.fetch_optional(&self.pool).await?;
        row.map(|row| row.read(template)).transpose()
    }

    /// The same for whoever sends: also of a template that was deleted, until its runs are told.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn target_of(
        &self,
        template: TemplateId,
    ) -> Result<Option<StoredTarget>, StoreError> {
        let row = sqlx::query_as!(
            Row,
            r#"SELECT host, api_url, repository, context, is_app, comments, gate_only, sealed_credentials, credentials_set_at, changed_at
               FROM ci_status_targets WHERE template_id = $1"#,
            template.0,
        );
        let row = row.fetch_optional(&self.pool).await?;
        row.map(|row| row.read(template)).transpose()
    }

    /// Forgets the credentials of deleted templates whose runs have all been told.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn forget_status_targets(&self) -> Result<u64, StoreError> {
        let forgotten = sqlx::query!(
            r#"DELETE FROM ci_status_targets s USING ci_templates t
               WHERE t.id = s.template_id AND t.deleted_at IS NOT NULL
                 AND NOT EXISTS (SELECT FROM ci_runs r WHERE r.template_id = t.id AND r.verdict IS NULL)
                 AND NOT EXISTS (SELECT FROM ci_statuses o JOIN ci_runs r ON r.id = o.run_id
                                 WHERE r.template_id = t.id AND o.due_at IS NOT NULL)"#,
        );
        Ok(forgotten.execute(&self.pool).await?.rows_affected())
    }

    /// Notes the merge request of a run that something else has started, and has it shown there too.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn note_pull_request(
        &self,
        run: CiRunId,
        number: u64,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"UPDATE ci_statuses
               SET pull_request = $2, revision = revision + 1, state = 'pending', attempts = 0, due_at = $3
               WHERE run_id = $1 AND pull_request IS DISTINCT FROM $2"#,
            run.0,
            i64::try_from(number).ok(),
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Forgets whom a template's runs are told to, and with what. False if nobody was.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn delete_status_target(
        &self,
        project: ProjectId,
        template: TemplateId,
    ) -> Result<bool, StoreError> {
        let deleted = sqlx::query!(
            r#"DELETE FROM ci_status_targets s USING ci_templates t
               WHERE t.id = s.template_id AND t.id = $1 AND t.project_id = $2"#,
            template.0,
            project.0,
        );
        Ok(deleted.execute(&self.pool).await?.rows_affected() == 1)
    }

    /// Shows a run once more. False if its template tells nobody.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn tell_again(
        &self,
        run: CiRunId,
        template: TemplateId,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let is_told = tell(&mut tx, run, template, now).await?;
        tx.commit().await?;
        Ok(is_told)
    }

    /// Takes statuses that are due, those that wait longest first, and holds them for a while: one run's are sent one
    /// after the other, and a process that dies leaves them to others.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_statuses(
        &self,
        now: DateTime<Utc>,
        hold: TimeDelta,
        limit: i64,
    ) -> Result<Vec<ClaimedStatus>, StoreError> {
        sqlx::query!(
            r#"UPDATE ci_statuses SET state = 'failed', due_at = NULL, lost_claims = 0, problem = $3
               WHERE due_at <= $1 AND (held_until IS NULL OR held_until <= $1) AND lost_claims >= $2"#,
            now,
            LOST_CLAIMS_MAX,
            LOST,
        )
        .execute(&self.pool)
        .await?;
        let rows = sqlx::query!(
            r#"WITH ranked AS (
                   SELECT s.run_id, s.due_at, row_number() OVER (PARTITION BY r.template_id ORDER BY s.due_at) AS place,
                          count(*) FILTER (WHERE s.held_until > $1) OVER (PARTITION BY r.template_id) AS held
                   FROM ci_statuses s JOIN ci_runs r ON r.id = s.run_id WHERE s.due_at <= $1),
               due AS (
                   SELECT s.run_id FROM ci_statuses s JOIN ranked ON ranked.run_id = s.run_id
                   WHERE ranked.place <= $4 AND ranked.held < $4 AND s.due_at <= $1
                     AND (s.held_until IS NULL OR s.held_until <= $1)
                   ORDER BY s.due_at LIMIT $3 FOR UPDATE OF s SKIP LOCKED)
               UPDATE ci_statuses s SET claims = s.claims + 1, lost_claims = s.lost_claims + 1, held_until = $2
               FROM due, ci_runs r WHERE s.run_id = due.run_id AND r.id = due.run_id
               RETURNING s.run_id, r.project_id, r.template_id, s.revision, s.claims, s.attempts, s.shown_as, s.pull_request"#,
            now,
            now + hold,
            limit,
            EACH_AT_ONCE,
        );
        let rows = rows.fetch_all(&self.pool).await?;
        let claimed = rows.into_iter().map(|row| {
            Ok(ClaimedStatus {
                run: CiRunId(row.run_id),
                project: ProjectId(row.project_id),
                template: TemplateId(row.template_id),
                revision: row.revision,
                claim: row.claims,
                number: error::count::<u32>(row.attempts, "ci_statuses", row.run_id, "attempts")?
                    + 1,
                shown_as: row.shown_as.and_then(|number| number.try_into().ok()),
                pull_request: row.pull_request.and_then(|number| number.try_into().ok()),
            })
        });
        claimed.collect()
    }

    /// Counts a try, which is made now. False if another process has claimed the status meanwhile.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn begin_status(&self, claimed: &ClaimedStatus) -> Result<bool, StoreError> {
        let begun = sqlx::query!(
            r#"UPDATE ci_statuses SET lost_claims = 0, attempts = CASE WHEN revision = $3 THEN attempts + 1 ELSE attempts END
               WHERE run_id = $1 AND claims = $2"#,
            claimed.run.0,
            claimed.claim,
            claimed.revision,
        );
        Ok(begun.execute(&self.pool).await?.rows_affected() == 1)
    }

    /// Whether no other process has claimed a status since: one that was held up may send what is older than what is shown.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn holds_status(&self, claimed: &ClaimedStatus) -> Result<bool, StoreError> {
        let holds = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM ci_statuses WHERE run_id = $1 AND claims = $2) AS "holds!""#,
            claimed.run.0,
            claimed.claim,
        );
        Ok(holds.fetch_one(&self.pool).await?)
    }

    /// Writes what has come of a try. What the run has become meanwhile is still to be told.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_status(
        &self,
        claimed: &ClaimedStatus,
        outcome: &Outcome,
        shown_as: Option<u64>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let (state, due_at, problem) = match outcome {
            Outcome::Taken => (DeliveryState::Delivered, None, None),
            Outcome::Again { at, why } => (DeliveryState::Pending, Some(*at), Some(why)),
            Outcome::Refused { why } => (DeliveryState::Failed, None, Some(why)),
        };
        sqlx::query!(
            r#"UPDATE ci_statuses
               SET held_until = NULL, shown_as = coalesce($4, shown_as), problem = $7,
                   told_at = CASE WHEN $5 = 'delivered' THEN $8 ELSE told_at END,
                   state = CASE WHEN revision = $3 THEN $5 ELSE state END,
                   due_at = CASE WHEN revision = $3 THEN $6 ELSE due_at END
               WHERE run_id = $1 AND claims = $2"#,
            claimed.run.0,
            claimed.claim,
            claimed.revision,
            shown_as.and_then(|number| i64::try_from(number).ok()),
            state.as_str(),
            due_at,
            cut_problem(problem),
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

impl CommitStatus {
    /// From the columns of a row, none of a run whose template told nobody.
    pub(super) fn read(
        run: Uuid,
        state: Option<&str>,
        attempts: Option<i32>,
        told_at: Option<DateTime<Utc>>,
        problem: Option<String>,
    ) -> Result<Option<Self>, StoreError> {
        let Some((state, attempts)) = state.zip(attempts) else {
            return Ok(None);
        };
        let corrupt = || StoreError::corrupt("ci_statuses", run, "state");
        Ok(Some(Self {
            state: DeliveryState::parse(state).ok_or_else(corrupt)?,
            attempts: error::count(attempts, "ci_statuses", run, "attempts")?,
            told_at,
            problem,
        }))
    }
}

/// As much of a problem as is kept.
pub(super) fn cut_problem(problem: Option<&String>) -> Option<String> {
    problem.map(|why| why.chars().take(PROBLEM_MAX).collect())
}

/// Has a run shown as it is after this transaction, if its template tells anybody.
pub(super) async fn tell(
    tx: &mut PgConnection,
    run: CiRunId,
    template: TemplateId,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let written = sqlx::query!(
        r#"INSERT INTO ci_statuses (run_id, due_at) SELECT $1, $3 FROM ci_status_targets WHERE template_id = $2
           ON CONFLICT (run_id) DO UPDATE
           SET revision = ci_statuses.revision + 1, state = 'pending', attempts = 0, due_at = $3"#,
        run.0,
        template.0,
        now,
    );
    Ok(written.execute(tx).await?.rows_affected() == 1)
}

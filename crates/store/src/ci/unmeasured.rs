//! Deliveries that start nothing although they are of a commit: kept for a while, and shown beside the commit, so that a
//! check that is required there ends.

use bakeoff_domain::ci::commit_status::Outcome;
use bakeoff_domain::ci::unmeasured::Unmeasured;
use bakeoff_domain::ci::{Event, Sender, Trigger};
use bakeoff_domain::delivery::DeliveryState;
use bakeoff_domain::ids::{ProjectId, TemplateId};
use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::commit_statuses::{CommitStatus, cut_problem};
use super::git_ref;
use crate::{Store, StoreError, error};

const TABLE: &str = "ci_unmeasured";
/// Characters of a reason that are kept.
const REASON_MAX: usize = 2000;

/// A delivery that starts nothing.
#[derive(Debug, Clone, Copy)]
pub struct NewUnmeasured<'a> {
    pub id: Uuid,
    pub template: TemplateId,
    pub delivery: &'a str,
    pub sender: Sender,
    pub event: Event,
    pub trigger: &'a Trigger,
    pub outcome: Unmeasured,
    pub reason: &'a str,
    /// When it is to be shown beside the commit, if at all.
    pub shown_at: Option<DateTime<Utc>>,
}

/// The same as it is stored.
#[derive(Debug, Clone)]
pub struct StoredUnmeasured {
    pub id: Uuid,
    pub delivery: String,
    pub sender: Sender,
    pub event: Event,
    pub commit: String,
    pub reference: Option<String>,
    pub branch: Option<String>,
    pub pull_request: Option<u64>,
    pub outcome: Unmeasured,
    pub reason: String,
    pub received_at: DateTime<Utc>,
    pub commit_status: Option<CommitStatus>,
}

/// One that is to be shown now.
#[derive(Debug, Clone)]
pub struct ClaimedUnmeasured {
    pub id: Uuid,
    pub template: TemplateId,
    pub claim: i32,
    /// Of this try, from 1.
    pub number: u32,
    pub commit: String,
    pub branch: Option<String>,
    pub outcome: Unmeasured,
    pub reason: String,
    pub received_at: DateTime<Utc>,
    /// A run of the commit is shown in its place.
    pub has_run: bool,
}

impl Store {
    /// Keeps a delivery that starts nothing; one that comes again is as it is now.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn note_unmeasured(
        &self,
        new: &NewUnmeasured<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let trigger = new.trigger;
        let reason: String = new.reason.chars().take(REASON_MAX).collect();
        sqlx::query!(
            r#"INSERT INTO ci_unmeasured (id, template_id, delivery_id, sender, event, commit_sha, git_ref, branch, pull_request,
                                          outcome, reason, received_at, status, due_at)
               SELECT $1, $2, $3, $4, $5, $6, $7, left($8, 250), $9, $10, $11, $12, CASE WHEN is_shown THEN 'pending' END,
                      CASE WHEN is_shown THEN $13::timestamptz END
               FROM (SELECT $13::timestamptz IS NOT NULL AND EXISTS (SELECT FROM ci_status_targets s WHERE s.template_id = $2)
                            AND NOT EXISTS (SELECT FROM ci_runs r WHERE r.template_id = $2 AND r.commit_sha = $6) AS is_shown) shown
               ON CONFLICT (template_id, delivery_id) DO UPDATE
               SET outcome = EXCLUDED.outcome, reason = EXCLUDED.reason, received_at = EXCLUDED.received_at,
                   status = EXCLUDED.status, due_at = EXCLUDED.due_at, attempts = 0, problem = NULL"#,
            new.id,
            new.template.0,
            new.delivery,
            new.sender.as_str(),
            new.event.as_str(),
            trigger.commit,
            git_ref(trigger),
            trigger.branch,
            trigger.pull_request.map(|number| i64::try_from(number).unwrap_or(i64::MAX)),
            new.outcome.as_str(),
            reason,
            now,
            new.shown_at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// A page of a template's deliveries that started nothing, newest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn unmeasured(
        &self,
        project: ProjectId,
        template: TemplateId,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<StoredUnmeasured>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT u.id, u.delivery_id, u.sender, u.event, u.commit_sha, u.git_ref, u.branch, u.pull_request, u.outcome,
                      u.reason, u.received_at, u.status, u.attempts, u.told_at, u.problem
               FROM ci_unmeasured u JOIN ci_templates t ON t.id = u.template_id
               WHERE u.template_id = $2 AND t.project_id = $1 AND ($3::uuid IS NULL OR u.id < $3)
               ORDER BY u.id DESC LIMIT $4"#,
            project.0,
            template.0,
            before,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        let read = rows.map(|row| {
            let corrupt = |column| StoreError::corrupt(TABLE, row.id, column);
            let attempts = row.status.as_ref().map(|_| row.attempts);
            Ok(StoredUnmeasured {
                id: row.id,
                delivery: row.delivery_id,
                sender: Sender::parse(&row.sender).ok_or_else(|| corrupt("sender"))?,
                event: Event::parse(&row.event).ok_or_else(|| corrupt("event"))?,
                commit: row.commit_sha,
                reference: row.git_ref,
                branch: row.branch,
                pull_request: row.pull_request.and_then(|number| number.try_into().ok()),
                outcome: Unmeasured::parse(&row.outcome).ok_or_else(|| corrupt("outcome"))?,
                reason: row.reason,
                received_at: row.received_at,
                commit_status: CommitStatus::read(
                    row.id,
                    row.status.as_deref(),
                    attempts,
                    row.told_at,
                    row.problem,
                )?,
            })
        });
        read.collect()
    }

    /// Takes those that are due, the oldest of each template, and holds them for a while: a process that dies leaves them
    /// to others.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_unmeasured(
        &self,
        now: DateTime<Utc>,
        hold: TimeDelta,
        limit: i64,
    ) -> Result<Vec<ClaimedUnmeasured>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH due AS (
                   SELECT u.id FROM ci_unmeasured u
                   WHERE u.due_at <= $1 AND (u.held_until IS NULL OR u.held_until <= $1)
                     AND NOT EXISTS (SELECT FROM ci_unmeasured o WHERE o.template_id = u.template_id AND o.due_at <= $1
                                     AND (o.due_at, o.id) < (u.due_at, u.id))
                   ORDER BY u.due_at LIMIT $3 FOR UPDATE SKIP LOCKED)
               UPDATE ci_unmeasured u SET claims = u.claims + 1, held_until = $2 FROM due WHERE u.id = due.id
               RETURNING u.id, u.template_id, u.claims, u.attempts, u.commit_sha, u.branch, u.outcome, u.reason, u.received_at,
                         EXISTS (SELECT FROM ci_runs r WHERE r.template_id = u.template_id AND r.commit_sha = u.commit_sha)
                             AS "has_run!""#,
            now,
            now + hold,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        let claimed = rows.map(|row| {
            let outcome = Unmeasured::parse(&row.outcome);
            Ok(ClaimedUnmeasured {
                id: row.id,
                template: TemplateId(row.template_id),
                claim: row.claims,
                number: error::count::<u32>(row.attempts, TABLE, row.id, "attempts")? + 1,
                commit: row.commit_sha,
                branch: row.branch,
                outcome: outcome.ok_or_else(|| StoreError::corrupt(TABLE, row.id, "outcome"))?,
                reason: row.reason,
                received_at: row.received_at,
                has_run: row.has_run,
            })
        });
        claimed.collect()
    }

    /// Writes what has come of a try; nothing if it was claimed again meanwhile.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_unmeasured(
        &self,
        claimed: &ClaimedUnmeasured,
        outcome: &Outcome,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let (state, due_at, problem) = match outcome {
            Outcome::Taken => (DeliveryState::Delivered, None, None),
            Outcome::Again { at, why } => (DeliveryState::Pending, Some(*at), Some(why)),
            Outcome::Refused { why } => (DeliveryState::Failed, None, Some(why)),
        };
        sqlx::query!(
            r#"UPDATE ci_unmeasured
               SET held_until = NULL, attempts = attempts + 1, status = $3, due_at = $4, problem = $5,
                   told_at = CASE WHEN $3 = 'delivered' THEN $6 ELSE told_at END
               WHERE id = $1 AND claims = $2 AND status = 'pending'"#,
            claimed.id,
            claimed.claim,
            state.as_str(),
            due_at,
            cut_problem(problem),
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Forgets those that came before a moment; returns how many.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn forget_unmeasured(
        &self,
        before: DateTime<Utc>,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let forgotten = sqlx::query!(
            r#"DELETE FROM ci_unmeasured WHERE id IN (
                   SELECT id FROM ci_unmeasured WHERE received_at < $1 ORDER BY received_at LIMIT $2 FOR UPDATE SKIP LOCKED)"#,
            before,
            limit,
        );
        Ok(forgotten.execute(&self.pool).await?.rows_affected())
    }
}

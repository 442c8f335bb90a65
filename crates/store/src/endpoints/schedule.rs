//! The end of an endpoint at AWS, as stored: when, whether AWS has confirmed it, and why not.

use bakeoff_domain::event::Event;
use bakeoff_domain::ids::{EndpointId, ExperimentId, ProjectId, TrialId};
use chrono::{DateTime, Utc};

use crate::events::{self, EventSubject};
use crate::experiments::trials::Claimed;
use crate::{Store, StoreError, retried};

/// The end at AWS of an endpoint's job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredEnd {
    /// As AWS has confirmed it.
    pub at: Option<DateTime<Utc>>,
    pub is_in_doubt: bool,
    /// When AWS was last asked.
    pub tried_at: Option<DateTime<Utc>>,
    /// Why it is not as it should be.
    pub trouble: Option<String>,
    pub is_refused: bool,
}

/// The confirmed end of an endpoint's job that is being created, or was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstEnd {
    pub at: DateTime<Utc>,
    /// Whether its create was sent, and not refused: the job may exist.
    pub is_create_sent: bool,
}

/// The claim that an endpoint was read with: what an older one decides is not written.
#[derive(Debug, Clone, Copy)]
pub struct EndpointClaim {
    pub id: EndpointId,
    pub claims: i64,
}

/// Why an end at AWS is not as it should be.
#[derive(Debug, Clone, Copy)]
pub struct EndTrouble<'a> {
    /// As it is told: a sentence.
    pub why: &'a str,
    /// A definite refusal, which is an alarm.
    pub is_refusal: bool,
    /// There is no schedule any more.
    pub is_gone: bool,
}

impl Store {
    /// The confirmed end of a trial's job that is an endpoint.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn scheduled_end(
        &self,
        trial: TrialId,
        job_name: &str,
    ) -> Result<Option<FirstEnd>, StoreError> {
        let found = sqlx::query_as!(
            FirstEnd,
            r#"SELECT scheduled_end_at AS "at!", sent_job IS NOT DISTINCT FROM scheduled_job AS "is_create_sent!"
               FROM endpoints WHERE trial_id = $1 AND scheduled_job = $2 AND scheduled_end_at IS NOT NULL"#,
            trial.0,
            job_name,
        );
        Ok(found.fetch_optional(&self.pool).await?)
    }

    /// Records the end of a job that is about to be created, once AWS has confirmed it.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_first_end(
        &self,
        trial: TrialId,
        job_name: &str,
        at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"UPDATE endpoints
               SET scheduled_end_at = $3, scheduled_job = $2, schedule_in_doubt = false, schedule_tried_at = $4,
                   schedule_trouble = NULL, schedule_refused_at = NULL
               WHERE trial_id = $1 AND scheduled_job IS DISTINCT FROM $2"#,
            trial.0,
            job_name,
            at,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Writes, before a create is sent, that its job may exist from now on. False if that was written before: another
    /// create of it may be under way, whatever becomes of this one.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_create_sent(
        &self,
        trial: TrialId,
        job_name: &str,
    ) -> Result<bool, StoreError> {
        let sent = sqlx::query!(
            "UPDATE endpoints SET sent_job = $2 WHERE trial_id = $1 AND scheduled_job = $2 AND sent_job IS DISTINCT FROM $2",
            trial.0,
            job_name,
        );
        Ok(sent.execute(&self.pool).await?.rows_affected() == 1)
    }

    /// Takes that back: the create was refused, and no other one was sent.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_create_refused(
        &self,
        trial: TrialId,
        job_name: &str,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE endpoints SET sent_job = NULL WHERE trial_id = $1 AND sent_job = $2",
            trial.0,
            job_name,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Writes, before a change is sent, that its outcome is not known; false if another one has claimed the endpoint.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn doubt_scheduled_end(
        &self,
        endpoint: EndpointClaim,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let doubted = sqlx::query!(
            "UPDATE endpoints SET schedule_in_doubt = true, schedule_tried_at = $3 WHERE id = $1 AND claims = $2",
            endpoint.id.0,
            endpoint.claims,
            now,
        );
        Ok(doubted.execute(&self.pool).await?.rows_affected() == 1)
    }

    /// Records an end that AWS has confirmed. False if another one has claimed the endpoint meanwhile: what was sent may
    /// have undone what that one sent, so it is sent again.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_scheduled_end(
        &self,
        endpoint: EndpointClaim,
        job_name: &str,
        at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let recorded = sqlx::query!(
            r#"UPDATE endpoints
               SET scheduled_end_at = $3, scheduled_job = $4, schedule_in_doubt = false, schedule_tried_at = $5,
                   schedule_trouble = NULL, schedule_refused_at = NULL
               WHERE id = $1 AND claims = $2 AND ended_at IS NULL"#,
            endpoint.id.0,
            endpoint.claims,
            at,
            job_name,
            now,
        );
        if recorded.execute(&self.pool).await?.rows_affected() == 1 {
            return Ok(true);
        }
        sqlx::query!(
            "UPDATE endpoints SET schedule_in_doubt = true, due_at = least(due_at, $2) WHERE id = $1 AND ended_at IS NULL",
            endpoint.id.0,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(false)
    }

    /// Forgets the end of a job that is over: its schedule is deleted.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn forget_scheduled_end(
        &self,
        trial: TrialId,
        job_name: &str,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"UPDATE endpoints SET scheduled_end_at = NULL, scheduled_job = NULL, schedule_in_doubt = false, schedule_trouble = NULL
               WHERE trial_id = $1 AND scheduled_job = $2"#,
            trial.0,
            job_name,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Tells that AWS refuses to schedule the end of a trial's job, of which no row says more.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn tell_end_refused(
        &self,
        trial: &Claimed,
        job_name: &str,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let told = Event::TrialEndRefused {
            job_name: job_name.to_owned(),
            reason: why.to_owned(),
        };
        let tx = self.pool.begin().await?;
        events::commit(tx, &[EventSubject::from(trial).told(told)], now).await
    }

    /// Records why the end of a trial's endpoint is not as it should be; the first refusal is told.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_end_trouble(
        &self,
        trial: TrialId,
        trouble: EndTrouble<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let row = sqlx::query!(
                r#"SELECT e.id, e.project_id, e.experiment_id, e.schedule_refused_at,
                          (SELECT job_name FROM jobs WHERE trial_id = e.trial_id ORDER BY number DESC LIMIT 1) AS job_name
                   FROM endpoints e WHERE e.trial_id = $1 FOR NO KEY UPDATE OF e"#,
                trial.0,
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(row) = row else { return Ok(()) };
            sqlx::query!(
                r#"UPDATE endpoints
                   SET schedule_trouble = left($2, 1000), schedule_tried_at = $3,
                       scheduled_end_at = CASE WHEN $5 THEN NULL ELSE scheduled_end_at END,
                       scheduled_job = CASE WHEN $5 THEN NULL ELSE scheduled_job END,
                       schedule_refused_at = CASE WHEN $4 THEN coalesce(schedule_refused_at, $3) ELSE schedule_refused_at END
                   WHERE id = $1"#,
                row.id,
                trouble.why,
                now,
                trouble.is_refusal,
                trouble.is_gone,
            )
            .execute(&mut *tx)
            .await?;
            let is_news = trouble.is_refusal && row.schedule_refused_at.is_none();
            let told = is_news.then(|| {
                let subject = EventSubject {
                    project: ProjectId(row.project_id),
                    experiment: ExperimentId(row.experiment_id),
                    trial: Some(trial),
                };
                subject.told(Event::TrialEndRefused {
                    job_name: row.job_name.unwrap_or_default(),
                    reason: trouble.why.to_owned(),
                })
            });
            let told: Vec<_> = told.into_iter().collect();
            events::commit(tx, &told, now).await
        };
        retried(transaction).await
    }
}

//! Records job observations that lead to no decision; the job is polled again later.

use bakeoff_domain::event::{Event, StatusNews};
use bakeoff_domain::ids::{ExperimentId, JobId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::state::AttemptPhase;
use bakeoff_domain::sagemaker::observed::{Actual, ObservedJob};
use bakeoff_domain::sagemaker::requested;
use bakeoff_planner::plan::TrialPlan;
use bakeoff_planner::render::request;
use chrono::{DateTime, Utc};

use crate::error::found_one;
use crate::events::{self, EventSubject, NewEvent};
use crate::experiments::trials::{Attempt, Claimed};
use crate::jobs::attempts::{
    Applied, Due, Lease, POSTPONED_ALARM, account, advance, living_state, record_job,
};
use crate::jobs::warm_pools;
use crate::stored;
use crate::{Store, StoreError, retried};

impl Store {
    /// Compares the settings that a running attempt requested with those that an event reports;
    /// once.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn compare_settings(
        &self,
        attempt: JobId,
        actual: &Actual,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let row = sqlx::query!(
            r#"UPDATE jobs j SET is_compared = true FROM trials t
               WHERE j.id = $1 AND t.id = j.trial_id AND NOT j.is_compared
               RETURNING j.job_name, j.project_id, j.experiment_id AS "experiment_id!", j.trial_id AS "trial_id!", t.plan"#,
            attempt.0,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(()) };
        // A plan that cannot be read has already raised an alarm.
        let plan = stored::read::<TrialPlan>(row.plan, "trials", row.trial_id, "plan").ok();
        let Some(request) = plan.as_ref().and_then(TrialPlan::training) else {
            return Ok(());
        };
        let trial = TrialId(row.trial_id);
        let request = request::for_attempt(
            request,
            &row.job_name,
            &attempt.to_string(),
            &trial.to_string(),
        );
        let subject = EventSubject {
            project: ProjectId(row.project_id),
            experiment: ExperimentId(row.experiment_id),
            trial: Some(trial),
        };
        let differences = requested::differences(&request, actual);
        let events: Vec<NewEvent> = differences
            .iter()
            .map(|difference| subject.told(difference.into()))
            .collect();
        events::commit(tx, &events, now).await
    }

    /// Postpones an attempt: nothing came of it yet, so it stays as it is and is polled again.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn postpone(
        &self,
        trial: &Claimed,
        attempt: &Attempt,
        due: Due<'_>,
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let done = sqlx::query!(
                "UPDATE jobs SET postponed = postponed + 1 WHERE id = $1",
                attempt.id.0
            )
            .execute(&mut *tx)
            .await?;
            found_one(&done, "jobs", attempt.id)?;
            let state = living_state(trial, attempt);
            if !advance(&mut tx, trial, state, due, Lease::Release, now).await? {
                return Ok(Applied::Stale);
            }
            // Report the first wait, and raise an alarm when it lasts.
            let is_told = attempt.postponed == 0 || attempt.postponed == POSTPONED_ALARM;
            let waiting = is_told.then(|| Event::TrialWaiting {
                reason: due.reason.unwrap_or_default().to_owned(),
                is_long: attempt.postponed == POSTPONED_ALARM,
            });
            let waiting = waiting.map(|event| EventSubject::from(trial).told(event));
            events::commit(tx, waiting.as_slice(), now).await?;
            Ok(Applied::Done)
        };
        retried(transaction).await
    }

    /// Quarantines an attempt that was cancelled or refused while a create may have been under way:
    /// it keeps its reservation until it is due.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn quarantine(
        &self,
        trial: &Claimed,
        attempt: &Attempt,
        due: Due<'_>,
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            sqlx::query!(
                "UPDATE jobs SET state = 'quarantined', quarantine_until = $2 WHERE id = $1 AND state = 'planned'",
                attempt.id.0,
                due.at,
            )
            .execute(&mut *tx)
            .await?;
            let state = living_state(trial, attempt);
            if !advance(&mut tx, trial, state, due, Lease::Release, now).await? {
                return Ok(Applied::Stale);
            }
            tx.commit().await?;
            Ok(Applied::Done)
        };
        retried(transaction).await
    }

    /// Records an observation and schedules the next one at `at`. `absent` counts consecutive
    /// observations that found no job.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_look(
        &self,
        trial: &Claimed,
        attempt: &Attempt,
        seen: Option<&ObservedJob>,
        absent: u32,
        at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let done = sqlx::query!(
                "UPDATE jobs SET absent = $2 WHERE id = $1",
                attempt.id.0,
                i32::try_from(absent).unwrap_or(i32::MAX)
            )
            .execute(&mut *tx)
            .await?;
            found_one(&done, "jobs", attempt.id)?;
            // The warm pool is tracked from now on, even while the job's bill is still pending.
            let over = seen.filter(|job| job.status.is_over() && job.started_at.is_some());
            if let Some((job, ended_at)) = over.and_then(|job| Some((job, job.ended_at?))) {
                let account = account(trial, attempt);
                warm_pools::job_ended(&mut tx, &account, Some(ended_at), Some(job), now).await?;
            }
            let state = living_state(trial, attempt);
            let is_still_quarantined =
                seen.is_none() && matches!(attempt.phase, AttemptPhase::Quarantined { .. });
            let due = if is_still_quarantined {
                Due::still(at)
            } else {
                Due::at(at)
            };
            if !advance(&mut tx, trial, state, due, Lease::Release, now).await? {
                return Ok(Applied::Stale);
            }
            let mut events = Vec::new();
            if let Some(job) = seen {
                let recorded = record_job(&mut tx, trial, attempt, job).await?;
                events.extend(recorded.differences);
                let status = || {
                    Event::TrialStatus(StatusNews {
                        attempt: attempt.number,
                        status: job.status.as_str().to_owned(),
                        secondary_status: job.secondary_status.clone(),
                    })
                };
                events.extend(
                    recorded
                        .is_news
                        .then(|| EventSubject::from(trial).told(status())),
                );
            }
            events::commit(tx, &events, now).await?;
            Ok(Applied::Done)
        };
        retried(transaction).await
    }
}

//! The end at AWS of a job that SageMaker itself never ends: it is scheduled before the job is created, and the
//! schedule is deleted after it. An endpoint's is moved by [`crate::tasks::deployer`] while it serves.

use bakeoff_domain::endpoint::scheduled_end::{
    NO_ROLE, REFUSED, REQUIRED, no_end, usd_per_day_absent,
};
use bakeoff_domain::lifecycle::state::AttemptPhase;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::schedule::{ScheduledAction, ScheduledEnd, first_end};
use chrono::{DateTime, TimeDelta, Utc};

use super::claimed_trial::ClaimedTrial;
use bakeoff_store::StoreError;
use bakeoff_store::endpoints::EndTrouble;
use bakeoff_store::experiments::trials::Attempt;

/// AWS refuses an end in the past, and a call takes a while.
const SOON: TimeDelta = TimeDelta::minutes(5);

/// Part of the refusal of an end that has passed, as the simulated region words it: AWS's own wording is assumed to
/// have it, and has not been seen.
const PAST: &str = "in the past";

/// Why nothing is created without an end at AWS.
fn required(why: &str) -> AwsError {
    AwsError::Rejected {
        code: "ScheduledEndRequired".to_owned(),
        message: format!("{why}. {REQUIRED}"),
    }
}

impl ClaimedTrial<'_> {
    /// Reads the confirmed end of an endpoint's job.
    pub(super) async fn load_scheduled_end(&mut self) -> Result<(), StoreError> {
        if self.trial.kind == JobKind::Endpoint
            && let Some(attempt) = &self.attempt
        {
            let store = &self.app.store;
            let end = store
                .scheduled_end(self.trial.id, &attempt.job_name)
                .await?;
            self.ends_at = end.map(|end| end.at);
            self.is_sent = end.is_none_or(|end| end.is_create_sent);
        }
        Ok(())
    }

    /// Has AWS end a job, before it is created: no crash leaves one without an end. An error stands for the reply to
    /// the create, which is then not sent.
    pub(super) async fn schedule_end(
        &mut self,
        attempt: &Attempt,
        now: DateTime<Utc>,
    ) -> Result<Result<(), AwsError>, StoreError> {
        let Some(action) = ScheduledAction::of(self.trial.kind) else {
            return Ok(Ok(()));
        };
        let settings = &self.app.settings;
        let Some(role) = &settings.scheduler_role_arn else {
            let is_required = settings.require_scheduled_end;
            return Ok(if is_required {
                Err(required(NO_ROLE))
            } else {
                Ok(())
            });
        };
        if let Some(at) = self.ends_at {
            let end = ScheduledEnd {
                action,
                job_name: attempt.job_name.clone(),
                at,
                role_arn: role.clone(),
            };
            return Ok(self.still_ends(attempt, &end).await);
        }
        // Of one that waited for longer, the end is not in the past: no create was sent before its end was scheduled.
        let longest = self.trial.billed_seconds_max;
        let planned = first_end(action, attempt.planned_at, longest);
        let at = if planned > now + SOON {
            planned
        } else {
            first_end(action, now, longest)
        };
        let end = ScheduledEnd {
            action,
            job_name: attempt.job_name.clone(),
            at,
            role_arn: role.clone(),
        };
        let (store, trial) = (&self.app.store, self.trial.id);
        match self.app.place.aws.schedule_end(&end).await {
            Ok(at) => {
                store
                    .record_first_end(trial, &attempt.job_name, at, now)
                    .await?;
                self.ends_at = Some(at);
                Ok(Ok(()))
            }
            // Nothing is concluded: the create waits.
            Err(error @ (AwsError::Throttled(_) | AwsError::Unknown(_) | AwsError::Expired(_))) => {
                Ok(Err(error))
            }
            // To AWS, our future is past. With such a clock nothing is created that bills until it is deleted.
            Err(AwsError::Rejected { message, .. }) if message.contains(PAST) => {
                let why =
                    format!("this machine's clock is behind AWS's: CreateSchedule: {message}");
                Ok(Err(AwsError::Throttled(why)))
            }
            Err(refusal) if settings.require_scheduled_end => Ok(Err(required(&format!(
                "{REFUSED}: CreateSchedule: {refusal}"
            )))),
            Err(refusal) => {
                let why = format!(
                    "{}; CreateSchedule: {refusal}",
                    self.costs_of_absence(attempt)
                );
                tracing::warn!(job = attempt.job_name, why, "a job has no end at AWS");
                self.tell_refusal(attempt, &why, now).await?;
                Ok(Ok(()))
            }
        }
    }

    /// Sends a create; of an endpoint, whether it may be carried out is written around it, because a crash in between must
    /// not lose it. A later create that is refused says nothing of an earlier one whose answer was lost.
    pub(super) async fn send_create(
        &mut self,
        attempt: &Attempt,
    ) -> Result<Result<(), AwsError>, StoreError> {
        if self.trial.kind != JobKind::Endpoint {
            return self.send(attempt).await;
        }
        let (store, trial) = (&self.app.store, self.trial.id);
        let is_first = store.record_create_sent(trial, &attempt.job_name).await?;
        let reply = self.send(attempt).await?;
        let may_exist = matches!(
            reply,
            Ok(()) | Err(AwsError::Unknown(_) | AwsError::AlreadyExists(_))
        );
        self.is_sent = may_exist || !is_first;
        if !self.is_sent {
            store
                .record_create_refused(trial, &attempt.job_name)
                .await?;
        }
        Ok(reply)
    }

    /// Whether the end that an earlier claim has scheduled is still ahead. A schedule that is gone was carried out: what that
    /// claim may have created has ended, whatever our clock says, and the same name again would have a second life, without
    /// an end.
    async fn still_ends(&self, attempt: &Attempt, end: &ScheduledEnd) -> Result<(), AwsError> {
        if self.planned_here == Some(attempt.id) {
            return Ok(());
        }
        match self.app.place.aws.scheduled_end(end).await {
            Err(AwsError::NotFound(_)) => {
                let why = format!(
                    "the schedule of its end ({}) is gone: AWS has carried it out, or somebody has deleted it; nothing is created \
                     under this name again",
                    end.at
                );
                Err(AwsError::Throttled(why))
            }
            Err(error @ (AwsError::Throttled(_) | AwsError::Unknown(_) | AwsError::Expired(_))) => {
                Err(error)
            }
            // Who may not ask has been told an end, and cannot know better.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Once for an endpoint, and for each attempt of a transform.
    async fn tell_refusal(
        &self,
        attempt: &Attempt,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let store = &self.app.store;
        if self.trial.kind == JobKind::Endpoint {
            let trouble = EndTrouble {
                why,
                is_refusal: true,
                is_gone: false,
            };
            store
                .record_end_trouble(self.trial.id, trouble, now)
                .await?;
        } else if self.planned_here == Some(attempt.id) {
            store
                .tell_end_refused(self.trial, &attempt.job_name, why, now)
                .await?;
        }
        Ok(())
    }

    fn costs_of_absence(&self, attempt: &Attempt) -> String {
        let plan = self.trial.plan.as_ref();
        let job = plan.and_then(|plan| plan.job.as_ref());
        let count = job.map_or(1, Job::instance_count);
        no_end(usd_per_day_absent(attempt.usd_per_hour, count))
    }

    /// Deletes the schedule of a job that is over. What may not be deleted ends nothing, and deletes itself. When it was
    /// to end is forgotten only once the end is booked: it may be the only thing that says when that was.
    pub(super) async fn unschedule_end(&self, attempt: &Attempt) -> Result<(), AwsError> {
        if self.app.settings.scheduler_role_arn.is_none() && self.ends_at.is_none() {
            return Ok(());
        }
        match self.app.place.aws.unschedule_end(&attempt.job_name).await {
            Err(
                error @ (AwsError::Denied(_)
                | AwsError::Rejected { .. }
                | AwsError::LimitExceeded(_)
                | AwsError::AlreadyExists(_)
                | AwsError::NotFound(_)),
            ) => {
                tracing::warn!(%error, job = attempt.job_name, "its schedule is left behind");
                Ok(())
            }
            done => done,
        }
    }

    /// When AWS has ended an endpoint that is not found, as well as that is known: at the end that was scheduled. One
    /// that was being updated then was refused until that was over, but has cost no more than is reserved.
    pub(super) fn ended_by_schedule(
        &self,
        attempt: &Attempt,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let end = self.ends_at.filter(|end| *end <= now)?;
        let is_changing = matches!(
            attempt.secondary_status.as_deref(),
            Some("Updating" | "RollingBack" | "SystemUpdating")
        );
        if !is_changing {
            return Some(end);
        }
        let start = attempt.started_at.unwrap_or(attempt.planned_at);
        let longest = i64::try_from(self.trial.billed_seconds_max).unwrap_or_default();
        let latest = start + TimeDelta::seconds(longest);
        Some(latest.max(end).min(now))
    }

    /// When an endpoint began to be billed: of one whose creation nobody confirmed, if AWS has ended it since, when it
    /// was planned, or as long before its end as is reserved: no create was sent before its end was scheduled.
    pub(super) fn billed_from(
        &self,
        attempt: &Attempt,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let unconfirmed = match attempt.phase {
            AttemptPhase::Planned | AttemptPhase::Quarantined { .. } => {
                self.ends_at.filter(|end| self.is_sent && *end <= now)
            }
            AttemptPhase::Running | AttemptPhase::Over(_) => None,
        };
        let longest = i64::try_from(self.trial.billed_seconds_max).unwrap_or_default();
        let earliest = |end| attempt.planned_at.max(end - TimeDelta::seconds(longest));
        attempt.started_at.or_else(|| unconfirmed.map(earliest))
    }
}

//! Works on one claimed trial: looks, and carries out the decision.

use bakeoff_domain::ids::JobId;
use bakeoff_domain::lifecycle::decide::{
    self, AfterCreate, AttemptFacts, Decision, Ending, Look, after_create, after_rejection,
};
use bakeoff_domain::lifecycle::orphan::Sighting;
use bakeoff_domain::lifecycle::queue::QuotaPool;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::measure::cloudwatch;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed;
use bakeoff_domain::sagemaker::observed::{JobStatus, ObservedJob};
use bakeoff_domain::sagemaker::request::TrainingJobRequest;
use bakeoff_domain::sagemaker::requested;
use bakeoff_planner::plan::TrialPlan;
use bakeoff_planner::render::attempt::{self, Names};
use bakeoff_planner::render::request;
use chrono::{DateTime, TimeDelta, Utc};

use super::{EARLIER_JOB, EARLIER_JOB_HOLDS, HeldSince, UNREADABLE};
use crate::app::App;
use crate::auth::push_token;
use crate::aws::JobOperations;
use bakeoff_process::crash;
use bakeoff_store::StoreError;
use bakeoff_store::experiments::trials::{Attempt, Claimed};
use bakeoff_store::jobs::attempts::{Applied, Due, Running, StopRefusal};
use bakeoff_store::jobs::settling::Settlement;

/// How often the trials of a tuning job are read while it runs.
const TRIALS_EVERY: TimeDelta = TimeDelta::minutes(5);

/// The state in the course of one claim.
pub(super) struct ClaimedTrial<'a> {
    pub(super) app: &'a App,
    pub(super) trial: &'a Claimed,
    pub(super) attempt: Option<Attempt>,
    pub(super) seen: Look,
    pub(super) held_since: &'a HeldSince,
    /// The attempt planned by this very claim: no other process can have sent its create.
    pub(super) planned_here: Option<JobId>,
    /// The image of that attempt, if it is not the one that the claim has read.
    pub(super) image: Option<String>,
    /// When AWS itself ends the job of that attempt, as it has confirmed.
    pub(super) ends_at: Option<DateTime<Utc>>,
    /// Whether its create may have been carried out, as far as that is known of an endpoint.
    pub(super) is_sent: bool,
}

impl ClaimedTrial<'_> {
    pub(super) fn facts(&self) -> Option<AttemptFacts> {
        self.attempt.as_ref().map(|attempt| AttemptFacts {
            phase: attempt.phase,
            failures: self.trial.failures,
            over_quota: self.trial.over_quota,
            no_capacity: self.trial.no_capacity,
            give_up_at: self.trial.give_up_at,
            longest_billed_seconds: self.trial.billed_seconds_max,
            is_limited: self.trial.kind.is_limited(),
            marker: attempt.id.to_string(),
            absent: attempt.absent,
            postponed: attempt.postponed,
            may_be_under_way: self.planned_here != Some(attempt.id),
            started_at: attempt.started_at,
            runtime_limit: self.runtime_limit(),
            // Of its trials, a listing tells nothing.
            look_every: (self.trial.kind == JobKind::Tuning).then_some(TRIALS_EVERY),
            waits: observed::waits(&attempt.transitions),
            ends_at: self.ends_at,
            is_sent: self.is_sent,
        })
    }

    pub(super) async fn look(&mut self) {
        let Some(attempt) = &self.attempt else { return };
        self.seen = match self
            .app
            .place
            .aws
            .describe(self.trial.kind, &attempt.job_name)
            .await
        {
            Ok(job) => {
                self.check_tags(attempt, &job).await;
                Look::Job(Box::new(job))
            }
            Err(AwsError::NotFound(_)) => match self.deleted(attempt) {
                Some(job) => Look::Job(Box::new(job)),
                None => Look::Absent,
            },
            Err(error) => Look::NoAnswer(error.to_string()),
        };
    }

    /// An endpoint that is gone after its deletion was accepted: since then it is not billed. If nobody heard that it
    /// was, several looks that find nothing say so, and its end is when that was asked for, or was scheduled: an estimate.
    fn deleted(&self, attempt: &Attempt) -> Option<ObservedJob> {
        let now = self.app.clock.now();
        let start = self.billed_from(attempt, now)?;
        if self.trial.kind != JobKind::Endpoint {
            return None;
        }
        let is_deleting = attempt.job_status.as_deref() == Some(JobStatus::Stopping.as_str());
        let is_sure = attempt.absent >= self.app.settings.policy.absent_max;
        let told = attempt.modified_at.filter(|_| is_deleting);
        // AWS's own end may have come before ours was asked for: whichever was first is when it ended.
        let supposed = [
            attempt.delete_asked_at,
            self.ended_by_schedule(attempt, now),
        ];
        let supposed = supposed.into_iter().flatten().min();
        let end = told.or(supposed.filter(|_| is_sure))?;
        let job = ObservedJob {
            marker: Some(attempt.id.to_string()),
            ..ObservedJob::deleted(&attempt.job_name, start, end)
        };
        // A listing tells of the deletion, but the start is known only from a look.
        if told.is_some() && attempt.is_compared {
            return Some(job);
        }
        Some(ObservedJob {
            training_seconds: None,
            billable_seconds: None,
            ..job
        })
    }

    /// SageMaker stops no batch transform by itself.
    fn runtime_limit(&self) -> Option<TimeDelta> {
        let plan = self.trial.plan.as_ref()?;
        let Some(Job::Transform(request)) = &plan.job else {
            return None;
        };
        Some(TimeDelta::seconds(i64::from(request.max_runtime_seconds)))
    }

    /// Checks tags at the first look, and only for a sample of jobs. A failed read is not repeated.
    async fn check_tags(&self, attempt: &Attempt, job: &ObservedJob) {
        let plan = self.trial.plan.as_ref();
        let Some(request) = plan.and_then(TrialPlan::training) else {
            return;
        };
        if attempt.is_compared || !requested::is_sampled(attempt.id) {
            return;
        }
        let Ok(tags) = self.app.place.aws.tags(&job.arn).await else {
            return;
        };
        if let Some(missing) = requested::missing_tags(request, &tags)
            && let Err(error) = self
                .app
                .store
                .record_ignored_setting(self.trial, &missing, self.app.clock.now())
                .await
        {
            tracing::info!(%error, trial = %self.trial.id, "reporting missing tags failed");
        }
    }

    fn job(&self) -> Option<&ObservedJob> {
        match &self.seen {
            Look::Job(job) => Some(job),
            Look::NotLooked | Look::Absent | Look::NoAnswer(_) => None,
        }
    }

    /// Acts and applies. True if the same claim has a next step.
    pub(super) async fn carry_out(
        &mut self,
        decision: Decision,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let store = &self.app.store;
        match (decision, self.attempt.clone()) {
            (Decision::Plan, _) => self.plan(now).await,
            (Decision::Create, Some(attempt)) => self.create(&attempt, now).await,
            (Decision::Adopt, Some(attempt)) => self.record_running(&attempt, now).await,
            (Decision::Stop, Some(attempt)) => self.stop(&attempt, now).await,
            (Decision::LookAgain { at }, Some(attempt)) => {
                let absent = match self.seen {
                    Look::Absent => attempt.absent + 1,
                    Look::Job(_) => 0,
                    // No answer says nothing against what earlier looks found.
                    Look::NotLooked | Look::NoAnswer(_) => attempt.absent,
                };
                store
                    .record_look(self.trial, &attempt, self.job(), absent, at, now)
                    .await?;
                Ok(false)
            }
            (Decision::Quarantine { until }, Some(attempt)) => {
                let why = "cancelled; waiting to confirm that no job exists";
                store
                    .quarantine(self.trial, &attempt, Due::because(until, why), now)
                    .await?;
                Ok(false)
            }
            (Decision::End(ending), Some(attempt)) => {
                self.settle(&attempt, &ending, None, now).await
            }
            (Decision::Retry { ending, at }, Some(attempt)) => {
                self.settle(&attempt, &ending, Some(at), now).await
            }
            (Decision::EndUnstarted { reason }, _) => {
                store
                    .end_without_attempt(self.trial, TrialState::Stopped, &reason, now)
                    .await?;
                Ok(false)
            }
            (
                Decision::Nothing
                | Decision::Create
                | Decision::Adopt
                | Decision::Stop
                | Decision::LookAgain { .. }
                | Decision::Quarantine { .. }
                | Decision::End(_)
                | Decision::Retry { .. },
                _,
            ) => {
                store
                    .release_lease(self.trial, now + self.app.settings.policy.poll, None)
                    .await?;
                Ok(false)
            }
        }
    }

    /// Sends the request of this attempt.
    pub(super) async fn send(&self, attempt: &Attempt) -> Result<Result<(), AwsError>, StoreError> {
        let (marker, trial) = (attempt.id.to_string(), self.trial.id.to_string());
        let (aws, name) = (&self.app.place.aws, &attempt.job_name);
        let holds = self.held_since.holds(self.app.settings.lease);
        let names = Names {
            job: name,
            marker: &marker,
            trial: &trial,
            labels: &self.trial.labels,
        };
        // An attempt is planned only from a request; without one the lease expires, and the log
        // names the row.
        let template = self.trial.plan.as_ref().and_then(|plan| plan.job.as_ref());
        let template =
            template.ok_or_else(|| StoreError::corrupt("trials", self.trial.id, "plan"))?;
        let mut job = attempt::job(template, names);
        if let Job::Training(request) = &mut job {
            self.report(request);
            if let Some(image) = &self.image {
                request.image.clone_from(image);
            }
        }
        Ok(aws.create(&job, holds).await)
    }

    /// Adds what its script needs to push metrics.
    fn report(&self, request: &mut TrainingJobRequest) {
        request.metrics_time_series = self.app.settings.sagemaker_metrics;
        if let Some(url) = &self.app.settings.public_url {
            let token = push_token::of(&self.app.settings.secret_key, self.trial.id);
            request
                .environment
                .insert(request::URL_VARIABLE.to_owned(), url.clone());
            request
                .environment
                .insert(request::PUSH_TOKEN_VARIABLE.to_owned(), token);
        }
    }

    async fn create(&mut self, attempt: &Attempt, now: DateTime<Utc>) -> Result<bool, StoreError> {
        // The create may have been sent before: adopt its job if there is one, otherwise park the
        // trial.
        if self.trial.plan.is_none() {
            let until = now + self.app.settings.policy.quarantine;
            let due = Due::because(until, UNREADABLE);
            self.app
                .store
                .quarantine(self.trial, attempt, due, now)
                .await?;
            return Ok(false);
        }
        if let Some((at, why)) = self.is_held_back(now).await? {
            self.app
                .store
                .release_lease(self.trial, at, Some(&why))
                .await?;
            return Ok(false);
        }
        let scheduled = self.schedule_end(attempt, now).await?;
        let operation = JobOperations::of(self.trial.kind).create;
        if let Err(wait) = self.app.place.aws.take(operation) {
            self.app
                .store
                .release_lease(self.trial, now + wait, None)
                .await?;
            return Ok(false);
        }
        // Fencing cannot reach AWS: send a create only while the lease is certainly still ours.
        if self.held_since.elapsed() * 2 > self.app.settings.lease {
            self.app.store.release_lease(self.trial, now, None).await?;
            return Ok(false);
        }
        let reply = match scheduled {
            Ok(()) => self.send_create(attempt).await?,
            Err(error) => Err(error),
        };
        self.learn_of_quota(&reply, now).await?;
        let Some(facts) = self.facts() else {
            return Ok(false);
        };
        let policy = &self.app.settings.policy;
        let mut after = after_create(reply, &facts, now, policy);
        if let AfterCreate::Rejected { ending, again_at } = after {
            self.look().await;
            after = after_rejection(ending, again_at, &self.seen, &facts, now, policy);
        }
        match after {
            AfterCreate::Running => self.record_running(attempt, now).await,
            AfterCreate::LookFirst => {
                self.look().await;
                Ok(true)
            }
            AfterCreate::Postpone { at, why } => {
                self.app
                    .store
                    .postpone(self.trial, attempt, Due::because(at, &why), now)
                    .await?;
                Ok(false)
            }
            AfterCreate::Hold { until, why } => {
                let why = format!("{why}; waiting to confirm that no earlier create arrives");
                self.app
                    .store
                    .quarantine(self.trial, attempt, Due::because(until, &why), now)
                    .await?;
                Ok(false)
            }
            AfterCreate::Rejected { ending, again_at } => {
                self.settle(attempt, &ending, again_at, now).await
            }
        }
    }

    /// Only one job of a trial runs at a time. An earlier job that cannot be stopped or described
    /// within [`EARLIER_JOB_HOLDS`] has raised its alarm, and the trial continues without it.
    pub(super) async fn has_earlier_job(&self, now: DateTime<Utc>) -> Result<bool, StoreError> {
        self.app
            .store
            .has_unsettled_orphan(self.trial.id, now - EARLIER_JOB_HOLDS)
            .await
    }

    /// Why no job may be created now, whatever requests it, and when to try again.
    async fn is_held_back(
        &self,
        now: DateTime<Utc>,
    ) -> Result<Option<(DateTime<Utc>, String)>, StoreError> {
        let soon = now + self.app.settings.policy.poll;
        if !self.app.fence.may_act(now) {
            let why = "held back: this database may be a copy; the fence is not confirmed";
            return Ok(Some((soon, why.to_owned())));
        }
        // In another account the job would run unwatched.
        if let Err(error) = crate::tasks::confirm_account(self.app).await? {
            return Ok(Some((soon, format!("held back: {error}"))));
        }
        // Repeat a create that may already have been sent in any case: its job must be found.
        let is_fresh = self.planned_here.is_some();
        Ok((is_fresh && self.has_earlier_job(now).await?).then(|| (soon, EARLIER_JOB.to_owned())))
    }

    async fn record_running(
        &self,
        attempt: &Attempt,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let settings = &self.app.settings;
        // Launching and warming up produce no useful metrics.
        let metrics_at = settings
            .metrics_interval
            .filter(|_| self.trial.kind == JobKind::Training)
            .map(|interval| settings.metrics_slot(now + interval * 2));
        let due_at = if self.trial.stop_requested {
            now
        } else {
            now + settings.policy.net
        };
        let running = Running {
            due_at,
            metrics_at,
            started_at: self.job().and_then(|job| job.started_at),
        };
        let applied = self
            .app
            .store
            .record_running(self.trial, attempt, running, now)
            .await?;
        crash::point("after_running");
        if applied == Applied::Stale {
            self.tell_late_create(attempt, now).await?;
        }
        Ok(false)
    }

    /// The job runs, but another holder has moved the trial on. That holder adopts the job, unless it has given the
    /// attempt up as never created: then only this process knows of the job. One that has settled the attempt by its
    /// job's end has seen the job, and what is shown of it later is the watcher's to classify.
    async fn tell_late_create(
        &self,
        attempt: &Attempt,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let (store, kind, name) = (&self.app.store, self.trial.kind, &attempt.job_name);
        let record = store.attempt_record(attempt.id).await?;
        let settled = record.and_then(|record| record.settled);
        if settled.is_some_and(|attempt| !attempt.never_created) {
            return Ok(());
        }
        let region = &self.trial.region;
        let is_new = store.record_orphan(region, kind, name, Sighting::Orphan, now);
        if is_new.await? {
            tracing::error!(
                job = name,
                "create succeeded after its attempt had ended; stopping the job"
            );
        }
        Ok(())
    }

    /// A refusal for the quota holds back its quota pool, for every trial waiting in it.
    async fn learn_of_quota(
        &self,
        reply: &Result<(), AwsError>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let Err(AwsError::LimitExceeded(_)) = reply else {
            return Ok(());
        };
        let quota_pool = QuotaPool {
            instance_type: self.trial.instance_type.clone(),
            usage: self.trial.usage(),
        };
        let policy = &self.app.settings.policy;
        let until = now + policy.backoff_after(self.trial.over_quota, &quota_pool.instance_type);
        self.app
            .store
            .hold_quota_pool(&self.trial.region, &quota_pool, until, now)
            .await
    }

    /// Sends the stop. When an endpoint's deletion was asked for is written before, because a crash must not lose it,
    /// and after: a process that stood still in between sent it later, and until then it was billed. What was not
    /// carried out ends nothing: then it is as it was before. Once AWS has said that it is gone, asking again does not
    /// move its end, where one is known: AWS may also not show yet what it has created.
    async fn send_stop(&self, attempt: &Attempt) -> Result<Result<(), AwsError>, StoreError> {
        let App { store, clock, .. } = self.app;
        let kind = self.trial.kind;
        let is_known = attempt.absent > 0 && attempt.delete_asked_at.is_some();
        let may_end_it = kind == JobKind::Endpoint && !is_known;
        if may_end_it {
            let asked_at = Some(clock.now());
            store.asks_deletion(attempt.id, asked_at).await?;
        }
        let reply = self.app.place.aws.stop(kind, &attempt.job_name).await;
        if may_end_it {
            let asked_at = match &reply {
                Ok(()) | Err(AwsError::Unknown(_)) => Some(clock.now()),
                Err(_) => attempt.delete_asked_at,
            };
            store.asks_deletion(attempt.id, asked_at).await?;
        }
        Ok(reply)
    }

    /// A failed stop is retried soon; after an accepted one, the job is polled when it should be
    /// over.
    async fn stop(&mut self, attempt: &Attempt, now: DateTime<Utc>) -> Result<bool, StoreError> {
        let mut at = now + decide::STOP_TAKES;
        let mut is_gone = false;
        if !self.app.fence.may_stop(now) {
            at = now + self.app.settings.policy.poll;
            tracing::error!(
                job = attempt.job_name,
                "not stopped: this database may be a copy; the fence is not confirmed"
            );
        } else if let Err(error) = self.send_stop(attempt).await? {
            tracing::info!(%error, job = attempt.job_name, "stop not accepted; retrying");
            at = now + self.app.settings.policy.poll / 2;
            is_gone = matches!(error, AwsError::NotFound(_));
            self.tell_stop_refusal(attempt, &error, now).await?;
        } else if self.trial.kind == JobKind::Endpoint {
            // SageMaker tells when its deletion began only while that lasts.
            self.look().await;
        }
        // No answer says nothing against what earlier looks found.
        let absent = match self.seen {
            _ if is_gone => attempt.absent + 1,
            Look::NoAnswer(_) => attempt.absent,
            Look::NotLooked | Look::Absent | Look::Job(_) => 0,
        };
        self.app
            .store
            .record_look(self.trial, attempt, self.job(), absent, at, now)
            .await?;
        Ok(false)
    }

    /// An alarm, since the job goes on being billed. One that is not there any more is not.
    async fn tell_stop_refusal(
        &self,
        attempt: &Attempt,
        error: &AwsError,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        if matches!(error, AwsError::NotFound(_)) {
            return Ok(());
        }
        let job = &attempt.job_name;
        let why = format!("its job {job} is not stopped, and goes on being billed: {error}");
        let refusal = StopRefusal {
            why: &why,
            is_definite: matches!(error, AwsError::Denied(_)),
        };
        let store = &self.app.store;
        store
            .record_stop_refusal(self.trial, attempt, refusal, now)
            .await
    }

    /// Deletes what a job leaves behind, before its end is written: nobody would look for it afterwards. What may not
    /// be deleted stays; it costs nothing.
    async fn clean_up(&self, attempt: &Attempt) -> Result<Result<(), AwsError>, StoreError> {
        let kind = self.trial.kind;
        if !kind.has_model() || !self.app.fence.may_stop(self.app.clock.now()) {
            return Ok(Ok(()));
        }
        if let Err(error) = self.unschedule_end(attempt).await {
            return Ok(Err(error));
        }
        let revisions = self.app.store.endpoint_revisions_of(self.trial.id).await?;
        let aws = &self.app.place.aws;
        let done = aws.clean_up(kind, &attempt.job_name, revisions).await;
        Ok(match done {
            Err(error @ (AwsError::Denied(_) | AwsError::Rejected { .. })) => {
                tracing::warn!(%error, job = attempt.job_name, "its model or configuration is left behind");
                Ok(())
            }
            done => done,
        })
    }

    async fn settle(
        &self,
        attempt: &Attempt,
        ending: &Ending,
        again_at: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        // An attempt without a job of its own must not take data from somebody else's job of that
        // name.
        let job = ending.billable_seconds.and(self.job());
        let ended_at = job.and_then(|job| job.ended_at).unwrap_or(now);
        if let Err(error) = self.clean_up(attempt).await? {
            let at = now + self.app.settings.policy.poll;
            let why = format!("its model or its schedule cannot be deleted yet: {error}");
            let store = &self.app.store;
            store.release_lease(self.trial, at, Some(&why)).await?;
            return Ok(false);
        }
        let metrics_at = self
            .app
            .settings
            .metrics_slot(ended_at + cloudwatch::FINAL_AFTER);
        let metrics_at = (self.trial.kind == JobKind::Training).then_some(metrics_at);
        crash::point("before_settle");
        let settlement = Settlement {
            ending,
            seen: job,
            again_at,
            metrics_at,
        };
        self.app
            .store
            .settle(self.trial, attempt, settlement, now)
            .await?;
        crash::point("after_settle");
        if self.trial.kind == JobKind::Endpoint {
            let store = &self.app.store;
            store
                .forget_scheduled_end(self.trial.id, &attempt.job_name)
                .await?;
        }
        Ok(false)
    }
}

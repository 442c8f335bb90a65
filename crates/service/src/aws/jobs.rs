//! Jobs of every kind: created, described, stopped, listed. What has several parts in SageMaker, an endpoint or a
//! transform job with its model, is one job here.

use std::collections::BTreeMap;

use bakeoff_domain::ports::{ClaimHolds, EndpointUpdate, JobPage, PageRequest};
use bakeoff_domain::sagemaker::endpoint::{
    EndpointRequest, MARKER_TAG, ModelRequest, revision_name,
};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::ObservedJob;
use bakeoff_domain::sagemaker::request;
use bakeoff_domain::sagemaker::tuning::TunedTrials;
use bakeoff_domain::spec::pipeline::endpoint::SmokeTest;

use super::{Aws, JobOperations, LIST_PAGES_MAX, Operation};
use bakeoff_process::crash;

/// The account in an ARN: `arn:partition:service:region:account:resource`.
pub(super) fn account_of(arn: &str) -> Option<&str> {
    arn.split(':').nth(4).filter(|account| !account.is_empty())
}

/// A part of ours that exists already was made by an earlier try: its name is ours alone.
fn made(reply: Result<(), AwsError>) -> Result<(), AwsError> {
    match reply {
        Err(AwsError::AlreadyExists(_)) => Ok(()),
        reply => reply,
    }
}

/// What is not there need not be deleted.
fn gone(reply: Result<(), AwsError>) -> Result<(), AwsError> {
    match reply {
        Err(AwsError::NotFound(_)) => Ok(()),
        reply => reply,
    }
}

/// What was created a moment ago may not be visible yet (SageMaker is eventually consistent): nothing has
/// happened, and it is asked for again.
fn visible_later(reply: Result<(), AwsError>) -> Result<(), AwsError> {
    match reply {
        Err(AwsError::NotFound(what)) => {
            Err(AwsError::Throttled(format!("not visible yet: {what}")))
        }
        reply => reply,
    }
}

impl Aws {
    /// Creates a job. The caller has already taken a permit from the limiter, so nothing here waits, except for
    /// the parts that come before.
    pub async fn create(&self, job: &Job, holds: ClaimHolds) -> Result<(), AwsError> {
        self.create_parts(job).await?;
        crash::point("before_create");
        let mut reply = self.ports.jobs.create(job, holds).await;
        crash::point("after_create");
        if job.kind().has_model() {
            reply = visible_later(reply);
        }
        let reply = self.count(JobOperations::of(job.kind()).create, reply, 0);
        self.refused_by_ours(reply).await
    }

    /// In another account our role and our model are refused, and nothing is wrong with the request.
    async fn refused_by_ours(&self, reply: Result<(), AwsError>) -> Result<(), AwsError> {
        if matches!(reply, Err(AwsError::Rejected { .. })) {
            self.doubt_account();
            self.confirm_account().await?;
        }
        reply
    }

    /// What must be there before a job is created.
    async fn create_parts(&self, job: &Job) -> Result<(), AwsError> {
        match job {
            Job::Training(_) | Job::Processing(_) | Job::Tuning(_) => Ok(()),
            Job::Transform(request) => {
                self.create_model(&request.job_name, &request.model, &request.tags)
                    .await
            }
            Job::Endpoint(request) => self.create_revision(&request.job_name, request).await,
        }
    }

    async fn create_model(
        &self,
        name: &str,
        model: &ModelRequest,
        tags: &BTreeMap<String, String>,
    ) -> Result<(), AwsError> {
        self.wait_for(Operation::CreateModel).await?;
        let reply = self.ports.endpoints.create_model(name, model, tags).await;
        crash::point("after_model");
        let reply = self.count(Operation::CreateModel, reply, 0);
        made(self.refused_by_ours(reply).await)
    }

    /// The model and the configuration of a revision of an endpoint.
    pub async fn create_revision(
        &self,
        name: &str,
        request: &EndpointRequest,
    ) -> Result<(), AwsError> {
        self.create_model(name, &request.model, &request.tags)
            .await?;
        self.wait_for(Operation::CreateEndpointConfig).await?;
        let reply = self.ports.endpoints.create_config(name, request).await;
        crash::point("after_config");
        let reply = self.count(Operation::CreateEndpointConfig, reply, 0);
        made(visible_later(self.refused_by_ours(reply).await))
    }

    /// Has an endpoint serve another revision, whose parts exist.
    pub async fn update_endpoint(&self, update: EndpointUpdate<'_>) -> Result<(), AwsError> {
        self.wait_for(Operation::UpdateEndpoint).await?;
        crash::point("before_update");
        let reply = self.ports.endpoints.update(update).await;
        crash::point("after_update");
        let reply = self.count(Operation::UpdateEndpoint, reply, 0);
        visible_later(self.refused_by_ours(reply).await)
    }

    pub async fn invoke(&self, endpoint: &str, test: &SmokeTest) -> Result<Vec<u8>, AwsError> {
        self.wait_for(Operation::InvokeEndpoint).await?;
        let reply = self.ports.endpoints.invoke(endpoint, test).await;
        self.count(Operation::InvokeEndpoint, reply, 0)
    }

    /// Deletes the parts that a job leaves behind, after it: configurations, then models. Safe to repeat.
    /// `revisions`: of an endpoint, those beside the first.
    pub async fn clean_up(
        &self,
        kind: JobKind,
        job_name: &str,
        revisions: u32,
    ) -> Result<(), AwsError> {
        if !kind.has_model() {
            return Ok(());
        }
        let has_config = kind == JobKind::Endpoint;
        for revision in 0..=revisions {
            let name = revision_name(job_name, revision);
            if has_config {
                self.wait_for(Operation::DeleteEndpointConfig).await?;
                let reply = self.ports.endpoints.delete_config(&name).await;
                gone(self.count(Operation::DeleteEndpointConfig, reply, 0))?;
                crash::point("after_delete_config");
            }
            self.wait_for(Operation::DeleteModel).await?;
            let reply = self.ports.endpoints.delete_model(&name).await;
            gone(self.count(Operation::DeleteModel, reply, 0))?;
        }
        Ok(())
    }

    /// Describes a job. A job that is not found does not exist: the account has been confirmed. A
    /// job of that name in another account is not ours, and says nothing about ours.
    pub async fn describe(&self, kind: JobKind, job_name: &str) -> Result<ObservedJob, AwsError> {
        let operation = JobOperations::of(kind).describe;
        self.wait_for(operation).await?;
        let reply = self.ports.jobs.describe(kind, job_name).await;
        let reply = self.count(operation, reply, 0);
        self.is_believed(&reply).await?;
        let mut job = reply?;
        match kind {
            JobKind::Training | JobKind::Processing | JobKind::Transform => {}
            JobKind::Tuning => self.look_at_trials(&mut job).await?,
            // Its marker is a tag.
            JobKind::Endpoint => {
                let tags = self.tags(&job.arn).await?;
                job.marker = tags.get(MARKER_TAG).map(|marker| request::marker(marker));
            }
        }
        Ok(job)
    }

    /// Whether an answer is about the account of this installation.
    async fn is_believed(&self, reply: &Result<ObservedJob, AwsError>) -> Result<(), AwsError> {
        let job = match reply {
            Err(AwsError::NotFound(_)) => return self.confirm_account().await,
            Err(_) => return Ok(()),
            Ok(job) => job,
        };
        let account = account_of(&job.arn);
        let Some(account) = account.filter(|account| !self.may_own(account)) else {
            return Ok(());
        };
        self.doubt_account();
        Err(AwsError::Denied(format!(
            "the job of that name is in account {account}, which is not this installation's"
        )))
    }

    /// Adds the trials of a tuning job, and what they were billed once it is over.
    async fn look_at_trials(&self, job: &mut ObservedJob) -> Result<(), AwsError> {
        let name = job.job_name.clone();
        let ask = |token| self.ports.jobs.trials(&name, token);
        let mut trials = self
            .pages(
                Operation::ListTrainingJobsForHyperParameterTuningJob,
                LIST_PAGES_MAX,
                ask,
            )
            .await?;
        let is_over = job.status.is_over();
        // What spot saved is told of each trial alone.
        if is_over && job.actual.spot == Some(true) {
            for trial in trials.iter_mut().filter(|trial| trial.ended_at.is_some()) {
                self.wait_for(Operation::DescribeTrainingJob).await?;
                let told = self.ports.jobs.describe(JobKind::Training, &trial.job_name);
                let told = told.await;
                let told = self.count(Operation::DescribeTrainingJob, told, 0)?;
                let billed = told.billable_seconds;
                trial.billed_seconds = billed.unwrap_or(trial.billed_seconds);
            }
        }
        job.started_at = trials.iter().filter_map(|trial| trial.started_at).min();
        let trials = TunedTrials { trials };
        if is_over {
            job.billable_seconds = Some(trials.billed_seconds());
        }
        job.tuned = Some(trials);
        Ok(())
    }

    /// Stops a job; an endpoint is deleted.
    pub async fn stop(&self, kind: JobKind, job_name: &str) -> Result<(), AwsError> {
        let operation = JobOperations::of(kind).stop;
        self.wait_for(operation).await?;
        crash::point("before_stop");
        let reply = self.ports.jobs.stop(kind, job_name).await;
        crash::point("after_stop");
        self.count(operation, reply, 0)
    }

    pub async fn end_pool(&self, job_name: &str) -> Result<(), AwsError> {
        self.wait_for(Operation::UpdateTrainingJob).await?;
        crash::point("before_end_pool");
        let reply = self.ports.jobs.end_pool(job_name).await;
        crash::point("after_end_pool");
        self.count(Operation::UpdateTrainingJob, reply, 0)
    }

    /// Lists one page of our jobs of a kind.
    pub async fn list(&self, kind: JobKind, page: &PageRequest) -> Result<JobPage, AwsError> {
        let operation = JobOperations::of(kind).list;
        self.wait_for(operation).await?;
        let reply = self.ports.jobs.list(kind, page).await;
        self.count(operation, reply, 0)
    }

    pub async fn tags(&self, arn: &str) -> Result<BTreeMap<String, String>, AwsError> {
        self.wait_for(Operation::ListTags).await?;
        self.count(Operation::ListTags, self.ports.jobs.tags(arn).await, 0)
    }
}

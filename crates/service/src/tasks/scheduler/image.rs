//! The image of a CI run: a webhook may come before the image that is built from its commit, and a tag can be moved.
//! Until the image is there, the trials wait; then all of them run it by its digest.

use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::image::{EcrImage, ImageUri};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, TimeDelta, Utc};

use super::claimed_trial::ClaimedTrial;
use bakeoff_store::StoreError;
use bakeoff_store::jobs::attempts::Due;

/// How long an image is waited for, from the trial's creation: builds take minutes; one that has failed comes never.
const PATIENCE: TimeDelta = TimeDelta::hours(2);

/// What is known of an image.
enum Image {
    /// Sent as it is written: nothing is to be looked up.
    AsWritten,
    /// By its digest.
    Pinned(String),
    /// It is not there.
    Absent,
    /// Nobody has said whether it is there, and why.
    NoAnswer(String),
}

impl ClaimedTrial<'_> {
    /// Has a plan send its image by its digest. False if the image is not there: the trial waits, or has ended.
    pub(super) async fn has_image(
        &mut self,
        plan: &mut TrialPlan,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        match self.image(plan).await? {
            Image::AsWritten => Ok(true),
            Image::Pinned(image) => {
                if let Some(Job::Training(request)) = &mut plan.job {
                    request.image.clone_from(&image);
                }
                self.image = Some(image);
                Ok(true)
            }
            Image::Absent => self.wait_for_image(plan, now).await.map(|()| false),
            Image::NoAnswer(why) => self.ask_again(&why, now).await.map(|()| false),
        }
    }

    /// Looks an image up, once for an experiment.
    async fn image(&self, plan: &TrialPlan) -> Result<Image, StoreError> {
        let Some(request) = plan.training().filter(|_| self.trial.pins_image) else {
            return Ok(Image::AsWritten);
        };
        let written = ImageUri(request.image.clone());
        let region = &self.trial.region;
        let found = written.parts();
        let Some(found) = found.filter(|one| !one.is_digest() && one.region == region) else {
            return self.as_written().await;
        };
        let digest = match &self.trial.image_digest {
            Some(digest) => digest.clone(),
            None => match self.looked_up(&found).await {
                Ok(digest) => {
                    let store = &self.app.store;
                    store.pin_image(self.trial.experiment_id, &digest).await?
                }
                Err(Image::AsWritten) => return self.as_written().await,
                Err(instead) => return Ok(instead),
            },
        };
        let host = request.image.split('/').next().unwrap_or_default();
        Ok(Image::Pinned(format!(
            "{host}/{}@{digest}",
            found.repository
        )))
    }

    /// No trial of the experiment looks for its image any more, and none waits for it.
    async fn as_written(&self) -> Result<Image, StoreError> {
        let store = &self.app.store;
        store.stop_pinning(self.trial.experiment_id).await?;
        Ok(Image::AsWritten)
    }

    /// The digest that ECR tells, or what is known instead.
    async fn looked_up(&self, image: &EcrImage<'_>) -> Result<String, Image> {
        match self.app.place.aws.image_digest(image).await {
            Ok(digest) => digest.ok_or(Image::Absent),
            Err(AwsError::NotFound(_)) => Err(Image::Absent),
            Err(error @ (AwsError::Denied(_) | AwsError::Rejected { .. })) => {
                tracing::warn!(%error, trial = %self.trial.id, "an image cannot be looked up; sent as it is written");
                Err(Image::AsWritten)
            }
            Err(error) => Err(Image::NoAnswer(format!("waits for ECR: {error}"))),
        }
    }

    /// An image that does not come ends the trial.
    async fn wait_for_image(&self, plan: &TrialPlan, now: DateTime<Utc>) -> Result<(), StoreError> {
        let image = plan.training().map(|request| request.image.as_str());
        let why = format!(
            "waits for its image: {} is not in ECR",
            image.unwrap_or_default()
        );
        if now < self.trial.created_at + PATIENCE {
            return self.ask_again(&why, now).await;
        }
        let reason = format!(
            "its image did not appear: {} was not in ECR {} hours after the commit; once it is, start the commit again with bakeoff gate",
            image.unwrap_or_default(),
            PATIENCE.num_hours()
        );
        self.app
            .store
            .end_without_attempt(self.trial, TrialState::Failed, &reason, now)
            .await?;
        Ok(())
    }

    /// The experiment's other trials wait with it.
    async fn ask_again(&self, why: &str, now: DateTime<Utc>) -> Result<(), StoreError> {
        let due = Due::because(now + self.app.settings.policy.poll, why);
        self.app
            .store
            .requeue(self.trial, due, Usd::ZERO, now)
            .await?;
        Ok(())
    }
}

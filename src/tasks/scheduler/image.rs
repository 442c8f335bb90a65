//! The image of a CI run: a webhook may come before the image that is built from its commit, and a tag can be moved.
//! Until the image is there, the trials wait; then all of them run it by its digest.

use bakeoff_domain::doctor::ImageUri;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, TimeDelta, Utc};

use super::hand::Hand;
use crate::store::StoreError;
use crate::store::jobs::attempts::Due;

/// How long an image is waited for, from the trial's creation: builds take minutes; one that has failed comes never.
const PATIENCE: TimeDelta = TimeDelta::hours(2);

/// What is known of an image.
enum Image {
    /// Sent as it is written: nothing is to be looked up.
    AsWritten,
    /// By its digest.
    Pinned(String),
    /// It is not there, and why.
    NotYet(String),
}

impl Hand<'_> {
    /// Has a plan send its image by its digest. False if the image is not there: the trial waits, or has ended.
    pub(super) async fn has_image(
        &mut self,
        plan: &mut TrialPlan,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        match self.image(plan).await? {
            Image::AsWritten => Ok(true),
            Image::Pinned(image) => {
                if let Some(request) = &mut plan.request {
                    request.image.clone_from(&image);
                }
                self.image = Some(image);
                Ok(true)
            }
            Image::NotYet(why) => {
                self.wait_for_image(plan, &why, now).await?;
                Ok(false)
            }
        }
    }

    /// Looks an image up, once for an experiment.
    async fn image(&self, plan: &TrialPlan) -> Result<Image, StoreError> {
        let Some(request) = plan.request.as_ref().filter(|_| self.trial.pins_image) else {
            return Ok(Image::AsWritten);
        };
        let written = ImageUri(request.image.clone());
        let region = &self.trial.region;
        let found = written.parts();
        let Some(found) = found.filter(|one| !one.is_digest() && one.region == region) else {
            return Ok(Image::AsWritten);
        };
        let digest = match &self.trial.image_digest {
            Some(digest) => digest.clone(),
            None => match self.app.place.aws.image_digest(&found).await {
                Ok(Some(digest)) => {
                    let store = &self.app.store;
                    store.pin_image(self.trial.experiment_id, &digest).await?
                }
                Ok(None) | Err(AwsError::NotFound(_)) => {
                    let why = format!("waits for its image: {} is not in ECR", request.image);
                    return Ok(Image::NotYet(why));
                }
                Err(error @ (AwsError::Denied(_) | AwsError::Rejected { .. })) => {
                    tracing::warn!(%error, trial = %self.trial.id, "an image cannot be looked up; sent as it is written");
                    return Ok(Image::AsWritten);
                }
                Err(error) => return Ok(Image::NotYet(format!("waits for ECR: {error}"))),
            },
        };
        let host = request.image.split('/').next().unwrap_or_default();
        Ok(Image::Pinned(format!(
            "{host}/{}@{digest}",
            found.repository
        )))
    }

    /// The experiment's other trials wait with it; an image that does not come ends the trial.
    async fn wait_for_image(
        &self,
        plan: &TrialPlan,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let store = &self.app.store;
        if now >= self.trial.created_at + PATIENCE {
            let reason = format!("{why}, {} hours after the commit", PATIENCE.num_hours());
            store
                .end_without_attempt(self.trial, TrialState::Failed, &reason, now)
                .await?;
            return Ok(());
        }
        let due = Due::because(now + self.app.settings.policy.poll, why);
        let worst = plan
            .worst_case
            .map_or(Usd::ZERO, |worst| worst.training_usd);
        store.requeue(self.trial, due, worst, now).await?;
        Ok(())
    }
}

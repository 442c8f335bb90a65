//! API views of CI templates and of what their webhooks answer.

use std::collections::BTreeMap;

use bakeoff_domain::ci::unmeasured::Unmeasured;
use bakeoff_domain::ci::{Event, Sender, Trigger};
use bakeoff_domain::ids::{CiRunId, ExperimentId, TemplateId};
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_domain::spec::ci::TemplateSettings;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::commit_status::CommitStatusOfRun;
use bakeoff_store::ci::Template;
use bakeoff_store::ci::unmeasured::StoredUnmeasured;

/// What CI may start.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiTemplate {
    pub id: TemplateId,
    pub name: String,
    /// Counts from 1.
    pub version: u32,
    /// Takes in what a trigger says where it names it: `${ci.commit}`.
    pub spec: ExperimentSpec,
    pub settings: TemplateSettings,
    /// Counts from 1; grows with each rotation.
    pub secret_version: u32,
    /// Until when the secret before this one counts too.
    pub previous_secret_until: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub changed_at: DateTime<Utc>,
}

impl From<Template> for CiTemplate {
    fn from(template: Template) -> Self {
        Self {
            id: template.id,
            name: template.name,
            version: template.version,
            spec: template.spec,
            settings: template.settings,
            secret_version: template.secret_version,
            previous_secret_until: template.previous_secret_until,
            created_at: template.created_at,
            changed_at: template.changed_at,
        }
    }
}

/// A template's secret, which is shown only once: it is derived from the installation's key and never stored.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiSecret {
    pub id: TemplateId,
    pub name: String,
    pub secret_version: u32,
    /// For our own signature, for GitHub's "Secret", and for GitLab's "Secret token".
    pub secret: String,
    /// The same for GitLab's "Signing token".
    pub signing_token: String,
    /// Where GitHub is to send its webhooks, below this service's address.
    pub github_path: String,
    /// Likewise of GitLab.
    pub gitlab_path: String,
    /// Until when the secret before this one counts too.
    pub previous_secret_until: Option<DateTime<Utc>>,
}

/// When the secret before this one ceases to count.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct RotateSecret {
    /// Hours from now, 0 to 720; 24 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap_hours: Option<u32>,
}

/// A template to store, or a new version of one.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NewTemplate {
    pub name: String,
    /// At least one member that changes what runs must name `${ci.commit}`, `${ci.short_commit}`, `${ci.image}` or
    /// `${ci.source_s3_uri}`.
    pub spec: ExperimentSpec,
    #[serde(default)]
    pub settings: TemplateSettings,
}

/// The body of a CI trigger in our own form.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiTrigger {
    /// Unique for each delivery, 1 to 255 characters. It is part of the signed body, so nobody can
    /// replay the body under another id.
    pub delivery_id: String,
    /// The commit's SHA, 7 to 64 digits.
    pub commit: String,
    /// `refs/heads/main`, `refs/tags/v1`.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<u64>,
    /// The training image built from the commit: by digest, or with a tag that has the commit in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The sources of that commit: `s3://bucket/…/sourcedir.tar.gz`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_s3_uri: Option<String>,
    /// Those that the template takes in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hyperparameters: BTreeMap<String, String>,
    /// Measures the commit again although there is a run that measures the same, and pays for it again. Otherwise that
    /// run is joined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeat: bool,
}

impl From<CiTrigger> for Trigger {
    fn from(told: CiTrigger) -> Self {
        Self {
            commit: told.commit,
            reference: told.reference,
            branch: told.branch,
            pull_request: told.pull_request,
            image: told.image,
            source_s3_uri: told.source_s3_uri,
            hyperparameters: told.hyperparameters,
            previous: None,
            made_at: None,
            repository: None,
        }
    }
}

/// What a delivery has led to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiStarted {
    /// The experiment that it started, now or before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experiment_id: Option<ExperimentId>,
    /// The run that follows it to its verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<CiRunId>,
    /// True when nothing new was started: this delivery was seen before, or another one has told of the same commit with
    /// the same inputs, and `run_id` is its run.
    pub duplicate: bool,
    /// Why it starts nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored: Option<String>,
}

/// A delivery of a commit that is not measured.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiNotMeasured {
    pub delivery_id: String,
    pub sender: Sender,
    pub event: Event,
    pub commit: String,
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    pub branch: Option<String>,
    pub pull_request: Option<u64>,
    /// `ignored` by the template's own settings, shown as a success; `refused` until something is mended, shown as an error.
    pub outcome: Unmeasured,
    /// Why it is not measured.
    pub reason: String,
    pub received_at: DateTime<Utc>,
    /// What is shown of it at GitHub or GitLab; null where nothing is: no commit status is set, a run of the commit is
    /// shown, or it is left to `bakeoff gate`.
    pub commit_status: Option<CommitStatusOfRun>,
}

impl From<StoredUnmeasured> for CiNotMeasured {
    fn from(stored: StoredUnmeasured) -> Self {
        Self {
            delivery_id: stored.delivery,
            sender: stored.sender,
            event: stored.event,
            commit: stored.commit,
            reference: stored.reference,
            branch: stored.branch,
            pull_request: stored.pull_request,
            outcome: stored.outcome,
            reason: stored.reason,
            received_at: stored.received_at,
            commit_status: stored.commit_status.map(Into::into),
        }
    }
}

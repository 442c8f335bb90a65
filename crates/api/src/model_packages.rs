//! API views of models in SageMaker's Model Registry, and what is asked for.

use std::collections::BTreeMap;

use bakeoff_domain::ids::{ExperimentId, JobId, ModelPackageId, TrialId};
use bakeoff_domain::model_package::{Approval, RegistryState};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A trial's model as a new version of a model package group
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RegisterModel {
    /// The trial (of a full run, usually) whose last job left the model; of a tuning, its best trial's is meant.
    pub trial_id: TrialId,
    /// ModelPackageGroupName; the group is created if there is none.
    pub group: String,
    /// The image that serves the model (ECR URI); training images do not serve.
    pub image: String,
    /// ModelPackageDescription; says where the model comes from when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Environment of the container, at most 16 variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// SupportedContentTypes; `application/json` when absent.
    #[serde(default = "json")]
    pub content_types: Vec<String>,
    /// SupportedResponseMIMETypes; `application/json` when absent.
    #[serde(default = "json")]
    pub response_types: Vec<String>,
    /// GiB of the weights as they are served; of all parameters in 16 bits (32 if it was trained so) when
    /// absent. Fewer if the container quantises them. Of a tuned model they are only known from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_gib: Option<f64>,
    /// Types that an endpoint of it may run on; each must serve, and hold the weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub realtime_instance_types: Vec<String>,
    /// Types that a batch transform of it may run on; likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transform_instance_types: Vec<String>,
    /// CustomerMetadataProperties beside those that say where the model comes from.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// ModelApprovalStatus at first; `pending` when absent.
    #[serde(default = "pending")]
    pub approval: Approval,
}

fn json() -> Vec<String> {
    vec!["application/json".to_owned()]
}

fn pending() -> Approval {
    Approval::Pending
}

/// Whether a model may be deployed
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ApproveModel {
    /// `approved` or `rejected`.
    pub approval: Approval,
    /// Why (ApprovalDescription), one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A model of a trial as a version in SageMaker's Model Registry.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ModelPackage)]
pub struct ModelPackageView {
    pub id: ModelPackageId,
    pub experiment_id: ExperimentId,
    pub trial_id: TrialId,
    pub job_id: JobId,
    pub region: String,
    pub group: String,
    /// Once it is registered.
    pub version: Option<u32>,
    /// ModelPackageArn, once it is registered.
    pub arn: Option<String>,
    pub state: RegistryState,
    /// Why it failed, or what the next try waits for.
    pub reason: Option<String>,
    /// As SageMaker had it when it was last looked at: after registering it, and after each change made here. What
    /// is changed in SageMaker itself is not followed.
    pub approval: Approval,
    /// As it was last asked for; SageMaker gets it within seconds.
    pub wanted_approval: Approval,
    pub approval_note: Option<String>,
    /// When something is done about it next; absent when nothing is.
    pub next_try_at: Option<DateTime<Utc>>,
    pub description: String,
    pub image: String,
    pub model_s3_uri: String,
    /// What was measured, as JSON (ModelMetrics.ModelQuality).
    pub statistics_s3_uri: String,
    pub environment: BTreeMap<String, String>,
    pub content_types: Vec<String>,
    pub response_types: Vec<String>,
    pub realtime_instance_types: Vec<String>,
    pub transform_instance_types: Vec<String>,
    /// CustomerMetadataProperties, with where the model comes from (`bakeoff:…`).
    pub metadata: BTreeMap<String, String>,
    pub created_at: DateTime<Utc>,
    pub changed_at: DateTime<Utc>,
}

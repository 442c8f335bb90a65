//! What a person writes of an endpoint and of a batch transform job. What is wrong with one is said in
//! [`crate::endpoint::check`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::ModelPackageId;
pub use crate::sagemaker::endpoint::SmokeTest;

/// What is served: an approved version of the Model Registry, or an image and a model
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServedSpec {
    /// A version that is approved; while nobody has decided about it, a pipeline waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_package_id: Option<ModelPackageId>,
    /// ECR URI of an image that serves; together with `model_s3_uri`, instead of a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// A `model.tar.gz`, or a prefix with an uncompressed model that ends with a slash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_s3_uri: Option<String>,
    /// For the container; not together with a version, which brings its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// A SageMaker endpoint: it runs, and costs, until its time to live is over or somebody deletes it
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndpointSpec {
    /// What it serves.
    pub model: ServedSpec,
    pub instance_type: String,
    /// 1 to 100.
    #[serde(default = "crate::spec::default::one")]
    pub instance_count: u32,
    /// How long it serves before it is deleted, 1 to 720; 4 when absent. It can be extended.
    #[serde(default = "four")]
    pub time_to_live_hours: u32,
    /// How long its container may take to download the model, and again to be ready, 60 to 3600; 900 when absent.
    #[serde(default = "quarter_of_an_hour")]
    pub startup_seconds: u32,
    /// GB, 1 to 512; what SageMaker gives when absent. Not on types with disks of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_size_gb: Option<u32>,
    /// Execution role of the model; the pipeline's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_arn: Option<String>,
    /// A request that is sent once it serves, and after every update: if the answer is wrong, a new endpoint is
    /// deleted, and an update is rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoke_test: Option<SmokeTest>,
    /// Size of the weights as they are served, where it is not known from a trial: they must fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_gib: Option<f64>,
}

/// A SageMaker batch transform job
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransformSpec {
    /// What it uses.
    pub model: ServedSpec,
    pub instance_type: String,
    /// 1 to 100.
    #[serde(default = "crate::spec::default::one")]
    pub instance_count: u32,
    /// A prefix with the inputs.
    pub input_s3_uri: String,
    /// A folder of the pipeline's own when absent: `<input key>.out` for each input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_s3_uri: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<String>,
    /// Each line of an input is a record (SplitType and AssembleWith Line).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub split_lines: bool,
    /// As many records in a request as fit (BatchStrategy MultiRecord).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi_record: bool,
    /// Requests at a time to each instance; SageMaker chooses when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// MB, at most 100 together with all concurrent ones; 6 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_payload_mb: Option<u32>,
    /// JSON path of what is sent of a record (InputFilter).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_filter: Option<String>,
    /// JSON path of what is kept (OutputFilter).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_filter: Option<String>,
    /// Each output carries its input (JoinSource).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub join_input: bool,
    /// At most 12 variables for the container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// SageMaker has no limit of its own, so this service stops it then; one hour when absent. It is what is
    /// reserved.
    #[serde(default = "an_hour")]
    pub max_runtime_seconds: u32,
    /// Execution role of the model; the pipeline's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_arn: Option<String>,
    /// Size of the weights as they are served, where it is not known from a trial: they must fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_gib: Option<f64>,
}

fn four() -> u32 {
    4
}

fn quarter_of_an_hour() -> u32 {
    900
}

fn an_hour() -> u32 {
    3600
}

//! Models that serve: an endpoint as requested (CreateModel, CreateEndpointConfig, CreateEndpoint), and a batch
//! transform job (CreateModel, CreateTransformJob). Wire formats belong to the AWS crate; what a person writes is
//! in [`crate::spec::pipeline`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Tag that marks an endpoint as ours: the id of its job. An endpoint has no environment of its own.
pub const MARKER_TAG: &str = "bakeoff:job";
/// The only variant of our endpoints.
pub const VARIANT: &str = "AllTraffic";

/// What an endpoint or a transform job serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelSource {
    /// A version in the Model Registry, by its ARN.
    Package(String),
    /// An image and the model that it loads.
    Container(ModelContainer),
}

/// An image and a `model.tar.gz`, or a prefix with an uncompressed model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelContainer {
    pub image: String,
    /// An object, or a prefix that ends with a slash.
    pub model_s3_uri: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// CreateModel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRequest {
    pub source: ModelSource,
    pub role_arn: String,
}

/// An endpoint: its model, its configuration and itself, which share one name at first. An update has a name of
/// its own for the model and the configuration, see [`revision_name`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRequest {
    /// At most 63 characters.
    pub job_name: String,
    pub model: ModelRequest,
    pub instance_type: String,
    pub instance_count: u32,
    /// How long it serves, seconds: it is deleted then.
    pub time_to_live_seconds: u32,
    /// ContainerStartupHealthCheckTimeoutInSeconds and ModelDataDownloadTimeoutInSeconds, 60 to 3600.
    pub startup_seconds: u32,
    /// Not on types with disks of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_size_gb: Option<u32>,
    /// For people, IAM and cost reports.
    pub tags: BTreeMap<String, String>,
}

/// The name of the model and configuration of an endpoint's revision; the first has the endpoint's.
pub fn revision_name(endpoint: &str, revision: u32) -> String {
    if revision == 0 {
        endpoint.to_owned()
    } else {
        format!("{endpoint}-{revision}")
    }
}

/// Revisions of one endpoint: their names must not be longer than 63 characters.
pub const REVISIONS_MAX: u32 = 999;

/// How the records of an input are told apart (SplitType and AssembleWith).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Split {
    None,
    Line,
}

impl Split {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Line => "Line",
        }
    }
}

/// A batch transform job, with the model that it uses, which has its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransformJobRequest {
    /// At most 63 characters.
    pub job_name: String,
    pub model: ModelRequest,
    pub instance_type: String,
    pub instance_count: u32,
    /// SageMaker has no limit of its own: it is stopped then.
    pub max_runtime_seconds: u32,
    /// A prefix with the inputs.
    pub input_s3_uri: String,
    /// A folder: `<input key>.out` for each input.
    pub output_s3_uri: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_payload_mb: Option<u32>,
    /// BatchStrategy MultiRecord: as many records in a request as fit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_multi_record: bool,
    /// DataProcessing: JSON paths, and whether an output carries its input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_filter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_filter: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joins_input: bool,
    pub environment: BTreeMap<String, String>,
    /// For people, IAM and cost reports.
    pub tags: BTreeMap<String, String>,
}

/// A request to an endpoint, and what its answer must contain
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SmokeTest {
    /// At most 100 KB.
    pub body: String,
    #[serde(default = "json")]
    pub content_type: String,
    /// A text that the answer must contain; any answer will do when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
}

fn json() -> String {
    "application/json".to_owned()
}

//! A SageMaker processing job as requested (CreateProcessingJob), and what may be asked of one. Wire formats
//! belong to the AWS crate; what a person writes is in [`crate::spec::pipeline`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An input: objects below an S3 prefix, or one object, copied to a folder before the container starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessingInput {
    pub name: String,
    pub s3_uri: String,
    pub local_path: String,
    /// ShardedByS3Key: each instance gets a part of the objects.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_sharded: bool,
}

/// An output: a folder that is copied to S3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessingOutput {
    pub name: String,
    pub s3_uri: String,
    pub local_path: String,
    /// Copied while the job runs, not only at its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_continuous: bool,
}

/// A CreateProcessingJob request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessingJobRequest {
    /// At most 63 characters, unique among the processing jobs of an account and region.
    pub job_name: String,
    pub image: String,
    /// ContainerEntrypoint; the image's own when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    pub role_arn: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub volume_size_gb: u32,
    pub inputs: Vec<ProcessingInput>,
    pub outputs: Vec<ProcessingOutput>,
    pub environment: BTreeMap<String, String>,
    pub max_runtime_seconds: u32,
    /// For people, IAM and cost reports.
    pub tags: BTreeMap<String, String>,
}

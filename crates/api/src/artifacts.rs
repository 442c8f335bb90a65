//! API views of what a trial's jobs left in S3.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A file that a job left.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = OutputFile)]
pub struct OutputFileView {
    pub s3_uri: String,
    pub bytes: u64,
    pub written_at: DateTime<Utc>,
}

/// What one attempt's job left.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = AttemptArtifacts)]
pub struct AttemptArtifactsView {
    pub number: u32,
    pub job_name: String,
    /// The model, as SageMaker reports it once it is uploaded.
    pub model_s3_uri: Option<String>,
    /// Files below the job's output prefix, at most 1000.
    pub files: Vec<OutputFileView>,
    /// The job in AWS's console.
    pub console_url: String,
    /// The model in AWS's console.
    pub model_console_url: Option<String>,
}

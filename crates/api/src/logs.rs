//! API views of job logs.

use bakeoff_domain::sagemaker::log::LogLine;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A line of a job's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LogLine)]
pub struct LogLineView {
    pub at: DateTime<Utc>,
    /// The host that wrote it, such as `algo-1`.
    pub host: String,
    /// The CloudWatch log stream. A restart of the job begins new ones.
    pub stream: String,
    pub message: String,
}

impl From<LogLine> for LogLineView {
    fn from(line: LogLine) -> Self {
        Self {
            host: line.host().to_owned(),
            at: line.at,
            stream: line.stream,
            message: line.message,
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A part of a job's log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = LogPart)]
pub struct LogPartView {
    /// The attempt whose job wrote it.
    pub attempt: u32,
    pub job_name: String,
    /// By time, over all hosts.
    pub lines: Vec<LogLineView>,
    /// Leads to what comes after, also to lines that are not written yet. Empty once the job is over
    /// and everything was read.
    pub next_page_token: Option<String>,
    /// Whether this is everything that there is by now.
    pub is_at_end: bool,
    /// Streams that were not read, because the job has more than 512: name a host to read its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out_streams: u32,
    /// The log in AWS's console.
    pub console_url: String,
}

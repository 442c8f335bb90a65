//! S3 locations of a job: its input channels and its checkpoints.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One input channel of a training job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Channel {
    pub name: String,
    pub s3_uri: String,
    /// Size of the data, GB, if it is downloaded completely before training (File mode): the
    /// download time is billed, and therefore reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_gb: Option<u32>,
}

/// Where checkpoints go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointSpec {
    /// Each attempt writes below its trial's own prefix.
    pub s3_uri: String,
    #[serde(default = "default_checkpoint_path")]
    pub local_path: String,
    /// How often the script saves: a checkpoint older than twice this raises an alarm.
    #[serde(default = "default_checkpoint_interval")]
    pub interval_seconds: u32,
}

fn default_checkpoint_interval() -> u32 {
    1800
}

fn default_checkpoint_path() -> String {
    "/opt/ml/checkpoints".to_owned()
}

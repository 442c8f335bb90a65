//! API views of a trial's checkpoints.

use bakeoff_domain::checkpoint::Writer;
use bakeoff_domain::checkpoint::cost::Loss;
use bakeoff_domain::checkpoint::keep::KeptFor;
use bakeoff_domain::money::Usd;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a checkpoint is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointState {
    Complete,
    /// It was written to within the last five minutes.
    BeingWritten,
    Incomplete,
    /// Its layout is not known, or it is a single file: it may be copied by whoever knows that it is whole.
    Unknown,
}

/// One checkpoint in S3.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Checkpoint)]
pub struct CheckpointView {
    /// The folder or file below the prefix.
    pub name: String,
    pub s3_uri: String,
    pub writer: Writer,
    pub step: Option<u64>,
    pub state: CheckpointState,
    /// What it lacks, if it is not whole.
    pub missing: Option<String>,
    pub bytes: u64,
    pub objects: u32,
    pub written_at: DateTime<Utc>,
    /// Estimated: S3 Standard at $0.023 per GB-month.
    pub usd_per_month: Usd,
    /// Whether the writer's state names it as the best.
    pub is_best: bool,
}

/// A trial's checkpoints.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Checkpoints)]
pub struct CheckpointsView {
    /// Where the trial's jobs save to, and are restored from.
    pub s3_uri: String,
    /// The oldest step first.
    pub checkpoints: Vec<CheckpointView>,
    /// Of all objects below the prefix: a restart restores all of them.
    pub bytes: u64,
    /// Estimated: S3 Standard at $0.023 per GB-month.
    pub usd_per_month: Usd,
    /// Seconds between the two newest whole ones, as they were written.
    pub seen_interval_seconds: Option<u32>,
    /// What an interruption costs by the time between checkpoints; empty where the type has no price.
    pub losses: Vec<LossView>,
    /// When the prefix may be too large to be restored.
    pub warning: Option<String>,
    pub console_url: Option<String>,
}

view! {
    /// What an interruption costs when checkpoints are this far apart.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = CheckpointLoss)]
    pub struct LossView of Loss {
        pub interval_seconds: u32,
        /// Expected, at the price that the trial was planned with: half an interval is paid for again.
        pub expected_usd: Usd,
        /// Just before the next checkpoint.
        pub most_usd: Usd,
    }
}

/// The checkpoint to copy.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyCheckpoint {
    /// Its name in the list.
    pub checkpoint: String,
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CopyState {
    /// Ask again to see how far it is.
    Copying,
    /// A full run can go on from it.
    Done,
}

/// A copy of one checkpoint alone.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = CheckpointCopy)]
pub struct CopyView {
    pub checkpoint: String,
    pub step: Option<u64>,
    /// The prefix of the copy.
    pub s3_uri: String,
    pub state: CopyState,
    pub objects: u32,
    pub copied_objects: u32,
    pub bytes: u64,
    pub copied_bytes: u64,
    /// Estimated: S3 Standard at $0.023 per GB-month.
    pub usd_per_month: Usd,
}

/// Which checkpoints to keep.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneCheckpoints {
    /// The newest whole ones to keep, 1 to 1000.
    pub keep: u32,
    /// Only say what would be deleted.
    #[serde(default = "yes")]
    pub dry_run: bool,
}

fn yes() -> bool {
    true
}

/// What becomes of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = CheckpointFate)]
pub struct CheckpointFateView {
    pub name: String,
    pub step: Option<u64>,
    pub bytes: u64,
    /// Empty for one that is deleted.
    pub kept_for: Option<KeptFor>,
}

/// What was deleted, or would be.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = PrunedCheckpoints)]
pub struct PrunedView {
    pub dry_run: bool,
    /// The oldest step first.
    pub checkpoints: Vec<CheckpointFateView>,
    /// Bytes that are freed.
    pub freed_bytes: u64,
    /// Objects that are gone; 0 in a dry run.
    pub deleted_objects: u64,
}

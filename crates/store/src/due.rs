//! Lag of the background tasks: when their oldest pending work became due.

use chrono::{DateTime, Utc};

use crate::{Store, StoreError};

/// For each task with a queue, when the oldest due work that no replica holds became due (domain
/// clock); none where nothing is queued. Failed work is due again after its hold.
#[derive(Debug, Clone)]
pub struct OldestDue {
    scheduler: Option<DateTime<Utc>>,
    pools: Option<DateTime<Utc>>,
    checkpoints: Option<DateTime<Utc>>,
    ingester: Option<DateTime<Utc>>,
    post_mortem: Option<DateTime<Utc>>,
}

impl OldestDue {
    /// The value for a task, by name; none for a task without a queue.
    pub fn of(&self, task: &str) -> Option<Option<DateTime<Utc>>> {
        match task {
            "scheduler" => Some(self.scheduler),
            "warm_pools" => Some(self.pools),
            "checkpoints" => Some(self.checkpoints),
            "ingester" => Some(self.ingester),
            "post_mortem" => Some(self.post_mortem),
            _ => None,
        }
    }

    /// When the oldest work of each task became due.
    pub fn all(&self) -> impl Iterator<Item = DateTime<Utc>> {
        let Self {
            scheduler,
            pools,
            checkpoints,
            ingester,
            post_mortem,
        } = self;
        [*scheduler, *pools, *checkpoints, *ingester, *post_mortem]
            .into_iter()
            .flatten()
    }
}

impl Store {
    /// Reads the head of each queue's index, of the work in a region.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn oldest_due(&self, region: &str) -> Result<OldestDue, StoreError> {
        Ok(sqlx::query_as!(
            OldestDue,
            r#"SELECT (SELECT min(due_at) FROM trials
                       WHERE (state IN ('submitting', 'running', 'stopping')
                              OR (state IN ('queued', 'parked') AND stop_requested_at IS NOT NULL))
                         AND lease_expires_at IS NULL AND region = $1) AS scheduler,
                      (SELECT min(due_at) FROM warm_pools
                       WHERE due_at IS NOT NULL AND lease_expires_at IS NULL AND region = $1) AS pools,
                      (SELECT min(checkpoint_due_at) FROM jobs
                       WHERE checkpoint_due_at IS NOT NULL AND trial_id IS NOT NULL AND region = $1) AS checkpoints,
                      (SELECT min(metrics_due_at) FROM jobs
                       WHERE metrics_due_at IS NOT NULL AND trial_id IS NOT NULL AND region = $1) AS ingester,
                      (SELECT min(due_at) FROM post_mortems WHERE due_at IS NOT NULL AND region = $1) AS post_mortem"#,
            region,
        )
        .fetch_one(&self.pool)
        .await?)
    }
}

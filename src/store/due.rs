//! How far behind the background tasks are: when their oldest work became due.

use chrono::{DateTime, Utc};

use crate::store::{Store, StoreError};

/// When the oldest work of each task with a queue became due that is in nobody's hands (domain
/// clock); none where nothing is queued. What failed is due again after its hold.
#[derive(Debug, Clone)]
pub struct OldestDue {
    scheduler: Option<DateTime<Utc>>,
    pools: Option<DateTime<Utc>>,
    checkpoints: Option<DateTime<Utc>>,
    ingester: Option<DateTime<Utc>>,
}

impl OldestDue {
    /// Of a task by its name; none of one without a queue.
    pub fn of(&self, task: &str) -> Option<Option<DateTime<Utc>>> {
        match task {
            "scheduler" => Some(self.scheduler),
            "pools" => Some(self.pools),
            "checkpoints" => Some(self.checkpoints),
            "ingester" => Some(self.ingester),
            _ => None,
        }
    }
}

impl Store {
    /// One look at the head of each queue's index.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn oldest_due(&self) -> Result<OldestDue, StoreError> {
        Ok(sqlx::query_as!(
            OldestDue,
            r#"SELECT (SELECT min(due_at) FROM trials
                       WHERE (state IN ('submitting', 'running', 'stopping')
                              OR (state IN ('queued', 'parked') AND stop_requested_at IS NOT NULL))
                         AND lease_expires_at IS NULL) AS scheduler,
                      (SELECT min(due_at) FROM warm_pools WHERE due_at IS NOT NULL AND lease_expires_at IS NULL) AS pools,
                      (SELECT min(checkpoint_due_at) FROM attempts WHERE checkpoint_due_at IS NOT NULL) AS checkpoints,
                      (SELECT min(metrics_due_at) FROM attempts WHERE metrics_due_at IS NOT NULL) AS ingester"#
        )
        .fetch_one(&self.pool)
        .await?)
    }
}

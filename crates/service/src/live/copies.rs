//! Copies of checkpoints that this process is making. What is done of one is in S3, so one that ends with
//! its process goes on when somebody asks for it again, and nothing is stored here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bakeoff_domain::sagemaker::error::AwsError;

use crate::aws::Aws;
use crate::live::artifacts::{CheckpointCopy, copy_missing};

/// Copies that a process makes at once.
const AT_ONCE: usize = 4;

/// The copies under way, by where they go; an ended one is left out, unless it failed.
#[derive(Debug, Clone, Default)]
pub struct Copies(Arc<Mutex<BTreeMap<String, Option<AwsError>>>>);

/// What became of a wish for a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyStart {
    /// It is under way, now or already.
    UnderWay,
    /// Others are, and no more are begun.
    Busy,
    /// It failed since the last wish; the next one begins again.
    Failed(AwsError),
}

impl Copies {
    /// Begins a copy, unless it is under way.
    pub fn start(&self, aws: Arc<Aws>, chosen: CheckpointCopy) -> CopyStart {
        let to = chosen.to.clone();
        {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match all.get(&to) {
                Some(None) => return CopyStart::UnderWay,
                Some(Some(_)) => {
                    let error = all.remove(&to).flatten();
                    return error.map_or(CopyStart::UnderWay, CopyStart::Failed);
                }
                None if all.values().filter(|ended| ended.is_none()).count() >= AT_ONCE => {
                    return CopyStart::Busy;
                }
                None => drop(all.insert(to.clone(), None)),
            }
        }
        let copies = self.clone();
        tokio::spawn(async move {
            let ended = copy_missing(&aws, &chosen).await;
            tracing::info!(to, ?ended, "a copy of a checkpoint ended");
            let mut all = copies.0.lock().unwrap_or_else(PoisonError::into_inner);
            match ended {
                Ok(()) => drop(all.remove(&to)),
                Err(error) => drop(all.insert(to, Some(error))),
            }
        });
        CopyStart::UnderWay
    }
}

//! The region as the protocols see it: the world behind a lock, the time, and the objects in S3.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bakeoff_domain::clock::Timescale;
use chrono::{DateTime, TimeDelta, Utc};

use crate::world::World;
use crate::world::objects;

/// A handle for the wire layers: the world behind a lock, and the time.
#[derive(Clone)]
pub(crate) struct Region {
    world: Arc<Mutex<World>>,
    scale: Timescale,
    /// Set when time is stepped manually.
    manual: Option<Arc<Mutex<DateTime<Utc>>>>,
    s3_root: Arc<PathBuf>,
}

impl Region {
    /// Time runs on a scale, or stands still at `manual` until it is advanced.
    pub(crate) fn new(
        world: World,
        scale: Timescale,
        manual: Option<DateTime<Utc>>,
        s3_root: PathBuf,
    ) -> Self {
        Self {
            world: Arc::new(Mutex::new(world)),
            scale,
            manual: manual.map(|moment| Arc::new(Mutex::new(moment))),
            s3_root: Arc::new(s3_root),
        }
    }

    /// Whether time moves by itself.
    pub(crate) fn runs(&self) -> bool {
        self.manual.is_none()
    }

    /// The current virtual time.
    #[expect(
        clippy::disallowed_methods,
        reason = "the region's one look at real time"
    )]
    pub(crate) fn now(&self) -> DateTime<Utc> {
        match &self.manual {
            Some(moment) => *moment.lock().unwrap_or_else(PoisonError::into_inner),
            None => self.scale.at(Utc::now()),
        }
    }

    /// Steps a manual clock; returns false when time runs by itself.
    pub(crate) fn advance(&self, by: TimeDelta) -> bool {
        self.manual
            .as_ref()
            .map(|moment| *moment.lock().unwrap_or_else(PoisonError::into_inner) += by)
            .is_some()
    }

    /// What was scheduled for before now has happened, whoever looks.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.run_schedules(self.now());
        act(&mut world)
    }

    /// Like `with`, and passes a time later than that of every previous holder of the lock.
    pub(crate) fn with_time<T>(&self, act: impl FnOnce(&mut World, DateTime<Utc>) -> T) -> T {
        self.with(|world| act(world, self.now()))
    }

    /// The folder that holds the buckets.
    pub(crate) fn s3_root(&self) -> &std::path::Path {
        &self.s3_root
    }

    /// The file that backs an S3 object.
    pub(crate) fn object_path(&self, uri: &str) -> Option<PathBuf> {
        let rest = uri
            .strip_prefix("s3://")
            .filter(|rest| !rest.contains(".."))?;
        Some(self.s3_root.join(rest))
    }

    /// Whether an object exists under an S3 prefix; SageMaker refuses a job whose input has none.
    pub(crate) fn has_object(&self, uri: &str) -> bool {
        let Some((bucket, prefix)) = uri
            .strip_prefix("s3://")
            .map(|rest| rest.split_once('/').unwrap_or((rest, "")))
        else {
            return false;
        };
        let root = self.s3_root.join(bucket);
        let is_safe = !bucket.is_empty() && !uri.contains("..");
        is_safe && objects::any_file(&root, &root, prefix)
    }
}

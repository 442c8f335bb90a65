//! Instances of one type that train together.

use super::InstanceType;

/// Instances of one type that train together.
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a> {
    pub instance: &'a InstanceType,
    /// Number of instances; zero is treated as one.
    pub count: u32,
}

impl Cluster<'_> {
    /// Accelerators of all instances together; an instance without any counts as one.
    pub fn accelerators(&self) -> u32 {
        self.instance
            .accelerator_count
            .max(1)
            .saturating_mul(self.count.max(1))
    }
}

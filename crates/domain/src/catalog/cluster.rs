//! Instances of one type that train together.

use super::InstanceType;

/// Instances of one type that train together.
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a> {
    pub instance: &'a InstanceType,
    /// Instances; zero is taken for one.
    pub count: u32,
}

impl Cluster<'_> {
    /// Of all instances together; one where an instance has none.
    pub fn accelerators(&self) -> u32 {
        self.instance
            .accelerator_count
            .max(1)
            .saturating_mul(self.count.max(1))
    }
}

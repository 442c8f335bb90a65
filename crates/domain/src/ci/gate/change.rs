//! By how much a figure of a commit is worse.

use serde::{Deserialize, Deserializer, Serialize};

/// The most that a figure is said to be worse by.
pub(super) const PERCENT_MAX: f64 = 1e9;

/// By how much a figure is worse, percent; negative if it is better.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Change {
    #[serde(deserialize_with = "bounded")]
    pub percent: f64,
    /// The bounds that the verdict rests on, each one-sided.
    #[serde(deserialize_with = "bounded")]
    pub low_percent: f64,
    #[serde(deserialize_with = "bounded")]
    pub high_percent: f64,
}

/// Earlier versions wrote an infinity, which is null in JSON.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let percent = Option::<f64>::deserialize(deserializer)?;
    Ok(percent.unwrap_or(PERCENT_MAX))
}

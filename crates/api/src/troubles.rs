//! API views of what was found wrong with a trial while it ran.

use bakeoff_domain::diagnosis::fruitless::{
    DoubtfulUnit, IdleAccelerators, LossNotFinite, MetricPattern, UnmatchedPatterns,
};
use bakeoff_domain::money::Usd;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::findings::OperationView;

/// Patterns that met no line of a log
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = UnmatchedPatterns)]
pub struct UnmatchedPatternsView {
    /// Lines that were read.
    pub lines: u32,
    pub patterns: Vec<MetricPatternView>,
    /// The last that look like a metric.
    pub last_lines: Vec<String>,
    /// A patch of the experiment's spec (RFC 6902), with patterns that would have met them.
    pub patch: Vec<OperationView>,
    /// Other patterns meet its lines, or its speed was read from another trial's log: it goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_read_otherwise: bool,
}

/// A pattern, and the metric that it was to read
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = MetricPattern)]
pub struct MetricPatternView {
    pub name: String,
    pub regex: String,
}

impl From<UnmatchedPatterns> for UnmatchedPatternsView {
    fn from(none: UnmatchedPatterns) -> Self {
        let UnmatchedPatterns {
            lines,
            patterns,
            last_lines,
            patch,
            is_read_otherwise,
        } = none;
        let pattern = |MetricPattern { name, regex }| MetricPatternView { name, regex };
        Self {
            lines,
            patterns: patterns.into_iter().map(pattern).collect(),
            last_lines,
            patch: patch.into_iter().map(Into::into).collect(),
            is_read_otherwise,
        }
    }
}

view! {
    /// A loss that is not finite
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = LossNotFinite)]
    pub struct LossNotFiniteView of LossNotFinite {
        /// The line that says so; empty if the script sent it.
        pub line: Option<String>,
    }
}

view! {
    /// A speed that fits its prediction in another unit only
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = DoubtfulUnit)]
    pub struct DoubtfulUnitView of DoubtfulUnit {
        pub tokens_per_second: f64,
        pub predicted_low: f64,
        pub predicted_high: f64,
        /// What it probably is.
        pub likely: String,
    }
}

view! {
    /// Accelerators that do nothing
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = IdleAccelerators)]
    pub struct IdleAcceleratorsView of IdleAccelerators {
        pub minutes: u32,
        pub utilization_percent: f64,
        pub usd_per_hour: Usd,
    }
}

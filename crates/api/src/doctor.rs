//! API views of the checks of an installation.

use bakeoff_domain::doctor::{Check, CheckName, CheckState};
use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::spec::ExperimentSpec;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a first job needs, checked.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Checkup {
    pub region: String,
    /// The experiment whose role, image, buckets and types were looked at, because none were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_experiment: Option<ExperimentId>,
    /// No check failed. Those that could not be made do not count.
    pub ok: bool,
    pub checks: Vec<CheckView>,
    /// The proof of everything, for `POST /v1/experiments`: a job that runs one command in the image on
    /// the cheapest type that may run, for some cents. Absent without role, image or output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<ExperimentSpec>,
    pub as_of: DateTime<Utc>,
}

view! {
    /// One check.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Check)]
    pub struct CheckView of Check {
        pub name: CheckName,
        /// Which bucket, role or image; absent where there is only one thing it can be.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub subject: String,
        pub state: CheckState,
        pub detail: String,
        /// The line that mends it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub fix: Option<String>,
    }
}

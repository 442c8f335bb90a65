//! What starts a CI template, and with what: user input. What it means is in [`crate::ci::template`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which deliveries start a template, and with what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateSettings {
    /// Branches whose pushes start it, each a name or a prefix with a `*` at its end; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<String>,
    /// Whether pull requests and merge requests start it, those of forks excepted.
    #[serde(default)]
    pub pull_requests: bool,
    /// Hyperparameters of a trigger that names none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hyperparameters: BTreeMap<String, String>,
}

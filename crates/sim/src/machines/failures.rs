//! How training scripts fail: what SageMaker then reports, and what the script printed last.

use std::sync::LazyLock;

use bakeoff_domain::embedded;
use serde::Deserialize;

/// One way to fail, as the texts of real failures.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct ScriptFailure {
    pub(crate) name: String,
    /// Share of the work that is done before.
    pub(crate) at_share: f64,
    /// FailureReason.
    pub(crate) reason: String,
    /// The last lines of the log.
    pub(crate) lines: Vec<String>,
}

pub(crate) fn all() -> &'static [ScriptFailure] {
    static ALL: LazyLock<Vec<ScriptFailure>> = LazyLock::new(|| {
        let text = include_str!("../../data/script_failures.json");
        embedded::json("script_failures.json", text)
    });
    &ALL
}

pub(crate) fn named(name: &str) -> Option<&'static ScriptFailure> {
    all().iter().find(|failure| failure.name == name)
}

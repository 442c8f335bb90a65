//! The register of rules: for each rule, what it checks, how severe a breach is, the fix, the
//! source, an example that breaks the rule and one that keeps it. The data is in
//! `data/lint_rules.json`; the checks are in [`crate::lint`].

pub mod document_kind;

use std::sync::LazyLock;

use bakeoff_domain::embedded;
use bakeoff_domain::finding::{Finding, Severity};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::document_kind::Kind;

/// One rule of the linter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Stable id, `spot-needs-max-wait`.
    pub id: String,
    pub severity: Severity,
    /// The kinds of document that can break it.
    pub documents: Vec<Kind>,
    /// What must hold.
    pub checks: String,
    /// What to change when it does not.
    pub fix: String,
    /// Where the rule comes from.
    pub source: String,
    /// Documents that break and keep the rule, as merge patches (RFC 7396) on the example document
    /// of their kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example: Option<Example>,
}

/// Changes to a valid document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Example {
    pub document: Kind,
    /// With these changes the rule is broken.
    pub fails: Value,
    /// With these changes the rule holds; empty if no change is needed.
    #[serde(default)]
    pub passes: Value,
}

#[derive(Deserialize)]
struct Register {
    documents: serde_json::Map<String, Value>,
    rules: Vec<Rule>,
}

static REGISTER: LazyLock<Register> = LazyLock::new(|| {
    embedded::json(
        "lint_rules.json",
        include_str!("../../data/lint_rules.json"),
    )
});

/// Every rule, in the order of the register.
pub fn all() -> &'static [Rule] {
    &REGISTER.rules
}

/// The valid document of a kind, which the examples change.
pub fn example(kind: Kind) -> Value {
    REGISTER
        .documents
        .get(kind.as_str())
        .cloned()
        .unwrap_or_default()
}

/// A breach of a rule, with severity, fix and source from the register.
pub fn found(id: &str, pointer: impl Into<String>) -> Finding {
    let rule = REGISTER.rules.iter().find(|rule| rule.id == id);
    let finding = Finding::new(
        id,
        rule.map_or(Severity::Error, |rule| rule.severity),
        pointer,
    );
    match rule {
        Some(rule) => finding
            .says(rule.checks.clone())
            .fix(rule.fix.clone())
            .source(&rule.source),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_register_is_read_and_its_ids_are_its_own() {
        let text: Value = serde_json::from_str(include_str!("../../data/lint_rules.json")).unwrap();
        let _: Vec<Rule> = serde_json::from_value(text["rules"].clone()).unwrap();
        let mut ids: Vec<&str> = all().iter().map(|rule| rule.id.as_str()).collect();
        assert!(ids.len() > 80, "{}", ids.len());
        ids.sort_unstable();
        let before = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), before);
    }
}

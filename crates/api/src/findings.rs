//! API views of the linter: its rules and its findings.

use bakeoff_domain::finding::{Finding, Operation, Severity};
use bakeoff_planner::lint::Kind;
use bakeoff_planner::rules::{Example, Rule};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// One finding of the linter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Finding)]
pub struct FindingView {
    /// Stable rule id, such as `spot-max-wait-below-max-runtime`.
    pub rule: String,
    pub severity: Severity,
    /// JSON pointer (RFC 6901) into the checked document.
    pub pointer: String,
    pub message: String,
    /// How to fix it.
    pub fix: String,
    /// The source that the rule is based on.
    pub source: String,
    /// JSON Patch that fixes the document and preserves its intent; empty when a person must
    /// choose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patch: Vec<OperationView>,
}

impl From<Finding> for FindingView {
    fn from(finding: Finding) -> Self {
        let Finding {
            rule,
            severity,
            pointer,
            message,
            fix,
            source,
            patch,
            ..
        } = finding;
        Self {
            rule,
            severity,
            pointer,
            message,
            fix,
            source,
            patch: patch.into_iter().map(Into::into).collect(),
        }
    }
}

view! {
    /// One operation of a JSON Patch (RFC 6902).
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Operation)]
    pub struct OperationView of Operation {
        /// `add` (replaces an existing value) or `remove`.
        pub op: String,
        pub path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Object)]
        pub value: Option<Value>,
    }
}

view! {
    /// One rule of the linter.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Rule)]
    pub struct RuleView of Rule {
        /// Stable id, such as `spot-needs-max-wait`.
        pub id: String,
        pub severity: Severity,
        /// The kinds of document that the rule checks.
        pub documents: Vec<Kind>,
        /// What must hold.
        pub checks: String,
        /// What to change when the rule is broken.
        pub fix: String,
        /// The source that the rule is based on.
        pub source: String,
        /// Documents that break and satisfy the rule, as merge patches (RFC 7396) on the example
        /// document of their kind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub example: Option<ExampleView> as maybe,
    }
}

view! {
    /// Changes to a valid document.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Example)]
    pub struct ExampleView of Example {
        pub document: Kind,
        /// Changes that break the rule.
        #[schema(value_type = Object)]
        pub fails: Value,
        /// Changes that satisfy the rule; empty when none are needed.
        #[serde(default)]
        #[schema(value_type = Object)]
        pub passes: Value,
    }
}

/// The linter's result for one document.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LintView {
    pub kind: Kind,
    /// Whether the document has no finding that would stop a job.
    pub passed: bool,
    pub findings: Vec<FindingView>,
    /// The document with every patch applied, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    pub fixed: Option<serde_json::Value>,
}

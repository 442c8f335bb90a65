//! Places in documents: what is said of a part is moved to where the part stands.

use bakeoff_domain::finding::Finding;

/// Moves a pointer, and the paths of its patch, from one prefix to another.
pub(super) fn moved(finding: &mut Finding, from: &str, to: &str) {
    let change = |pointer: &mut String| {
        if let Some(rest) = pointer.strip_prefix(from) {
            *pointer = format!("{to}{rest}");
        }
    };
    change(&mut finding.pointer);
    for operation in &mut finding.patch {
        change(&mut operation.path);
    }
}

/// What a check says of a document: each rule with its pointer.
#[cfg(test)]
pub(super) fn told_by(
    check: impl Fn(&serde_json::Value, &mut Vec<Finding>),
    document: &serde_json::Value,
) -> Vec<(String, String)> {
    let mut findings = Vec::new();
    check(document, &mut findings);
    findings
        .into_iter()
        .map(|one| (one.rule, one.pointer))
        .collect()
}

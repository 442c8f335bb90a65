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

//! A finding: one result of the linter. The rules are in `planner::rules`, their checks in `planner::lint`; the service turns
//! findings into HTTP errors.

pub mod flaws;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A member's name as a part of a JSON pointer (RFC 6901).
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Messages as one sentence: `a; b`, whether or not they end with a full stop.
pub fn joined<'a>(messages: impl Iterator<Item = &'a str>) -> String {
    messages
        .map(|message| message.trim_end_matches('.'))
        .collect::<Vec<_>>()
        .join("; ")
}

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Probably not intended, but it runs anyway.
    Warning,
    /// This candidate cannot run as configured: its trials are refused, the others continue.
    Refused,
    /// The request is invalid: nothing is started.
    Error,
}

/// One operation of a JSON Patch (RFC 6902).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// `add` (which replaces an existing value) or `remove`.
    pub op: String,
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

impl Operation {
    /// Sets a member, whether or not it exists.
    pub fn set(path: &str, value: impl Into<Value>) -> Self {
        Self {
            op: "add".to_owned(),
            path: path.to_owned(),
            value: Some(value.into()),
        }
    }

    pub fn remove(path: &str) -> Self {
        Self {
            op: "remove".to_owned(),
            path: path.to_owned(),
            value: None,
        }
    }
}

/// One result of the linter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable rule id, such as `spot-max-wait-below-max-runtime`.
    pub rule: String,
    pub severity: Severity,
    /// JSON pointer (RFC 6901) into the document that was checked.
    pub pointer: String,
    pub message: String,
    /// What to change.
    pub fix: String,
    /// Where the rule comes from.
    pub source: String,
    /// A fix that preserves the intent, as a JSON Patch on the document; empty when a person must
    /// choose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patch: Vec<Operation>,
    /// For a pointer outside any candidate: the indices of the candidates the finding was raised
    /// for; empty means all.
    #[serde(skip)]
    pub candidates: BTreeSet<usize>,
}

/// The one refusal that is of a trial only: its full run has a budget of its own.
pub const BUDGET_BELOW_TRIAL: &str = "budget-below-trial";

impl Finding {
    pub fn new(rule: &str, severity: Severity, pointer: impl Into<String>) -> Self {
        Self {
            rule: rule.to_owned(),
            severity,
            pointer: pointer.into(),
            message: String::new(),
            fix: String::new(),
            source: String::new(),
            patch: Vec::new(),
            candidates: BTreeSet::new(),
        }
    }

    /// Whether the finding concerns the candidate with this index, through its own part of the
    /// document or through something it shares.
    pub fn concerns(&self, candidate: usize) -> bool {
        match self.candidate() {
            Some(place) => place == candidate.to_string(),
            None => self.candidates.is_empty() || self.candidates.contains(&candidate),
        }
    }

    /// Whether the finding keeps a candidate from running: a refusal or error in its own part of
    /// the document, or a refusal of something it shares. An error in a shared part keeps the whole
    /// experiment from running.
    pub fn refuses(&self, candidate: usize) -> bool {
        let stops = self.severity == Severity::Refused
            || (self.severity > Severity::Refused && self.candidate().is_some());
        stops && self.concerns(candidate)
    }

    /// The candidate index in the pointer, if it points into a candidate.
    pub fn candidate(&self) -> Option<&str> {
        self.pointer
            .strip_prefix("/candidates/")
            .and_then(|rest| rest.split('/').next())
    }

    #[must_use]
    pub fn patch(mut self, patch: Vec<Operation>) -> Self {
        self.patch = patch;
        self
    }

    #[must_use]
    pub fn says(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    #[must_use]
    pub fn source(mut self, source: &str) -> Self {
        source.clone_into(&mut self.source);
        self
    }
}

/// The most findings reported for one document.
pub const FINDINGS_MAX: usize = 200;

/// Keeps the first findings of a document. If some are dropped, the last one kept says so and takes
/// the highest severity among those dropped.
pub fn capped(mut findings: Vec<Finding>) -> Vec<Finding> {
    if findings.len() <= FINDINGS_MAX {
        return findings;
    }
    let rest = findings.split_off(FINDINGS_MAX - 1);
    let worst = rest
        .iter()
        .map(|finding| finding.severity)
        .max()
        .unwrap_or(Severity::Info);
    findings.push(
        Finding::new("more-findings", worst, "")
            .says(format!(
                "there is more to say than these {} findings",
                findings.len()
            ))
            .fix("fix these first"),
    );
    findings
}

/// Longer words are not treated as misspelt names.
const WORD_MAX: usize = 64;

/// Up to `most` of `names` within a third of the word's length in edits (Levenshtein), nearest
/// first.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>, most: usize) -> Vec<&'a str> {
    let length = word.chars().count();
    if length > WORD_MAX {
        return Vec::new();
    }
    let limit = (length / 3).max(2);
    // The difference in length is a lower bound on the number of edits.
    let similar = names.filter(|name| name.chars().count().abs_diff(length) <= limit);
    let mut scored: Vec<(usize, &str)> = similar
        .map(|name| (distance(word, name), name))
        .filter(|(edits, _)| *edits <= limit)
        .collect();
    scored.sort_unstable();
    scored.dedup();
    scored
        .into_iter()
        .take(most)
        .map(|(_, name)| name)
        .collect()
}

/// Levenshtein distance, one row at a time.
pub fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.chars().count()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = i;
        let mut west = i + 1;
        let mut next = Vec::with_capacity(row.len());
        next.push(west);
        for (b, north) in right.chars().zip(row.iter().skip(1)) {
            let here = (diagonal + usize::from(a != b))
                .min(north + 1)
                .min(west + 1);
            diagonal = *north;
            west = here;
            next.push(here);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn the_last_of_too_many_findings_is_as_bad_as_those_left_out() {
        let of = |severity| Finding::new("rule", severity, "/x");
        let few = vec![of(Severity::Error); FINDINGS_MAX];
        assert_eq!(capped(few.clone()), few);
        let mut many = vec![of(Severity::Info); 300];
        many.push(of(Severity::Refused));
        let capped = capped(many);
        assert_eq!(
            (capped.len(), capped[FINDINGS_MAX - 1].severity),
            (FINDINGS_MAX, Severity::Refused)
        );
    }

    #[test]
    fn what_is_long_has_no_neighbours() {
        let word = "a".repeat(WORD_MAX + 1);
        assert!(nearest(&word, [word.as_str()].into_iter(), 3).is_empty());
    }

    #[test]
    fn what_is_far_is_not_offered() {
        assert_eq!(
            nearest("budget_us", ["budget_usd", "name"].into_iter(), 3),
            ["budget_usd"]
        );
        assert!(nearest("zebra", ["budget_usd"].into_iter(), 3).is_empty());
    }
}

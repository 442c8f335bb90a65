//! A finding: one result of the linter. What the rules are is in `planner::lint`; how a finding
//! becomes an HTTP error is the service's business.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Probably not what was meant; it runs all the same.
    Warning,
    /// This candidate cannot run as it is configured: its trials are refused, the others go on.
    Refused,
    /// The request makes no sense: nothing is started.
    Error,
}

/// One operation of a JSON Patch (RFC 6902).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// `add` (which replaces what is there) or `remove`.
    pub op: String,
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    pub value: Option<Value>,
}

impl Operation {
    /// Sets a member, whether it is there or not.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// Stable rule id, `spot-max-wait-below-max-runtime`.
    pub rule: String,
    pub severity: Severity,
    /// JSON pointer (RFC 6901) into the document that was checked.
    pub pointer: String,
    pub message: String,
    /// What to change.
    pub fix: String,
    /// Where the rule comes from.
    pub source: String,
    /// What mends it without loss of what was meant, as a JSON Patch on the document; empty when a
    /// person must choose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patch: Vec<Operation>,
    /// Where the place belongs to no candidate: the candidates that it was found for, by their
    /// numbers; empty for all.
    #[serde(skip)]
    pub candidates: BTreeSet<usize>,
}

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

    /// Whether it is about a candidate, by its number: about its own place, or about something that
    /// it shares.
    pub fn concerns(&self, candidate: usize) -> bool {
        match self.candidate() {
            Some(place) => place == candidate.to_string(),
            None => self.candidates.is_empty() || self.candidates.contains(&candidate),
        }
    }

    /// Whether it keeps a candidate from running: what is wrong with its own place, or a refusal of
    /// what it shares. An error of what is shared keeps the whole experiment from running.
    pub fn refuses(&self, candidate: usize) -> bool {
        let stops = self.severity == Severity::Refused
            || (self.severity > Severity::Refused && self.candidate().is_some());
        stops && self.concerns(candidate)
    }

    /// The number in its place, when that belongs to a candidate.
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

/// Findings that are reported of one document.
pub const FINDINGS_MAX: usize = 200;

/// The first findings of a document; where there are more, the last one says so and is as bad as
/// the worst that was left out.
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
            .fix("mend these first"),
    );
    findings
}

/// What is longer is no misspelt name.
const WORD_MAX: usize = 64;

/// Up to `most` of `names` within a third of the word's length in edits (Levenshtein), nearest
/// first.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>, most: usize) -> Vec<&'a str> {
    let length = word.chars().count();
    if length > WORD_MAX {
        return Vec::new();
    }
    let limit = (length / 3).max(2);
    // Names of another length need as many edits at least.
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

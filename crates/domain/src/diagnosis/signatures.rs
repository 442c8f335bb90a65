//! Signatures of failures: patterns in what SageMaker reports and in logs, each with its source and a
//! sample that it must match (`data/failure_signatures.json`).

use std::sync::LazyLock;

use regex::{Captures, Regex, RegexBuilder};
use serde::Deserialize;

use crate::embedded;
use crate::sagemaker::log::one_line;

/// What a match says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Cause,
    /// It follows from something else.
    Symptom,
    /// It says only that something failed.
    General,
}

/// Where a signature is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    FailureReason,
    /// A container's log; its lines also appear in failure reasons.
    Log,
    /// The answer to a request.
    Request,
    /// The answer to an invocation of an endpoint.
    Endpoint,
    /// The log of single records of a batch transform.
    TransformLog,
}

/// What a machine can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemedyKind {
    LessAcceleratorMemory,
    LessHostMemory,
    LargerVolume,
    FewerWorkers,
    NcclDebug,
    Efa,
}

/// A pattern and what it means.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    pub id: String,
    pub seen_in: Place,
    pub role: Role,
    #[serde(deserialize_with = "compiled")]
    pub pattern: Regex,
    /// With `$1` for what the pattern's first group matched.
    pub cause: String,
    pub advice: String,
    #[serde(default)]
    pub remedy: Option<RemedyKind>,
    /// A machine is defective: another one may not be.
    #[serde(default)]
    pub is_hardware: bool,
    /// Where it was seen, or is documented.
    pub source: String,
    /// A text that it was seen in.
    pub sample: String,
}

fn compiled<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Regex, D::Error> {
    let pattern = String::deserialize(from)?;
    RegexBuilder::new(&pattern)
        .multi_line(true)
        .build()
        .map_err(serde::de::Error::custom)
}

/// All signatures.
pub fn all() -> &'static [Signature] {
    static ALL: LazyLock<Vec<Signature>> = LazyLock::new(|| {
        let text = include_str!("../../data/failure_signatures.json");
        embedded::json("failure_signatures.json", text)
    });
    &ALL
}

/// A signature and what it matched.
#[derive(Debug)]
pub struct Match<'a> {
    pub signature: &'static Signature,
    text: &'a str,
    captures: Captures<'a>,
}

impl Match<'_> {
    /// The line that matched.
    pub fn line(&self) -> &str {
        let at = self.captures.get(0).map_or(0, |found| found.start());
        let (before, after) = self.text.split_at(at);
        let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        let end = after
            .find('\n')
            .map_or(self.text.len(), |newline| at + newline);
        self.text.get(begin..end).unwrap_or(self.text)
    }

    /// The cause, with what was captured.
    pub fn cause(&self) -> String {
        let mut cause = String::new();
        self.captures.expand(&self.signature.cause, &mut cause);
        one_line(&cause)
    }
}

/// Matches in a failure reason, or in the answer to a request.
pub fn in_reason(reason: &str) -> impl Iterator<Item = Match<'_>> {
    matches(reason, |one| match one.seen_in {
        Place::FailureReason | Place::Request => true,
        // It has a few words of the log, without the lines around them.
        Place::Log => one.role == Role::Cause,
        Place::Endpoint | Place::TransformLog => false,
    })
}

/// Matches in a line of a log.
pub fn in_log(line: &str) -> impl Iterator<Item = Match<'_>> {
    matches(line, |one| one.seen_in == Place::Log)
}

fn matches(text: &str, may_be: impl Fn(&Signature) -> bool) -> impl Iterator<Item = Match<'_>> {
    all().iter().filter_map(move |signature| {
        let captures = may_be(signature)
            .then(|| signature.pattern.captures(text))
            .flatten()?;
        Some(Match {
            signature,
            text,
            captures,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each is found in the text that it was seen in, and is the likeliest thing said of it there.
    #[test]
    fn every_signature_is_found_in_its_sample() {
        for one in all() {
            let hits: Vec<&Signature> = matches(&one.sample, |other| other.seen_in == one.seen_in)
                .map(|hit| hit.signature)
                .collect();
            assert!(hits.iter().any(|hit| hit.id == one.id), "{}", one.id);
            let better = hits.iter().filter(|hit| hit.role < one.role);
            assert_eq!(better.count(), 0, "{}: {hits:?}", one.id);
            assert!(
                one.cause.len() > 10 && one.advice.len() > 10 && !one.source.is_empty(),
                "{}",
                one.id
            );
            assert!(
                !one.cause.ends_with('.') && !one.advice.ends_with('.'),
                "{}",
                one.id
            );
        }
        let mut ids: Vec<&str> = all().iter().map(|one| one.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ids.len(), all().len()), (47, 47));
    }

    #[test]
    fn groups_are_filled_in() {
        let text =
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has";
        let hit = in_log(text).next().unwrap();
        assert_eq!(
            hit.cause(),
            "An accelerator ran out of memory: 2.50 GiB more did not fit"
        );
    }
}

//! Signatures of failures: patterns in what SageMaker reports and in logs, each with its source and a
//! sample that it must match (`data/failure_signatures.json`).

use std::sync::LazyLock;

use regex::{Captures, Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use serde::{Deserialize, Serialize};

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

/// What kind of thing failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    AcceleratorMemory,
    HostMemory,
    SharedMemory,
    Disk,
    /// This type of accelerator cannot run this code.
    UnsupportedAccelerator,
    DriverOrLibrary,
    Network,
    Rendezvous,
    /// Stopped from outside.
    Stopped,
    Crash,
    Checkpoint,
    Numerics,
    S3Access,
    HubAccess,
    Dependency,
    Data,
    Hardware,
    NoAccelerator,
    Configuration,
    /// The script's own exception, whatever it is.
    Exception,
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
    #[serde(default)]
    pub class: Option<Class>,
    #[serde(deserialize_with = "compiled")]
    pub pattern: Regex,
    /// Signatures that say less than this one where both are found.
    #[serde(default)]
    pub over: Vec<String>,
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
    /// A text that looks like it, and that it must not match.
    #[serde(default)]
    pub counter_sample: Option<String>,
}

fn compiled<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Regex, D::Error> {
    let pattern = String::deserialize(from)?;
    RegexBuilder::new(&pattern)
        .multi_line(true)
        .build()
        .map_err(serde::de::Error::custom)
}

/// Words of which each failure that a signature knows has at least one: where a log is too long to be read, its lines with
/// them are.
pub const WORDS: [&str; 29] = [
    "rror",
    "ERROR",
    "xception",
    "Traceback",
    "ailed",
    "ailure",
    "atal",
    "fault",
    "Killed",
    "dumped",
    "SIG",
    "exitcode",
    "MPI_ABORT",
    "NaN",
    "nan",
    "ut of memory",
    "OOM",
    "No space",
    "Xid",
    "imeout",
    "timed out",
    "watchdog",
    "NCCL WARN",
    "ot found",
    "annot",
    "mismatch",
    "state_dict",
    "capability",
    "nvalid",
];

/// All signatures.
pub fn all() -> &'static [Signature] {
    static ALL: LazyLock<Vec<Signature>> = LazyLock::new(|| {
        let text = include_str!("../../data/failure_signatures.json");
        embedded::json("failure_signatures.json", text)
    });
    &ALL
}

pub fn by_id(id: &str) -> Option<&'static Signature> {
    all().iter().find(|one| one.id == id)
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
    matches(reason, all().iter(), |one| match one.seen_in {
        Place::FailureReason | Place::Request => true,
        // It has a few words of the log, without the lines around them.
        Place::Log => {
            let is_crash = one.class == Some(Class::Crash) && one.id != "cuda-crashed";
            one.role == Role::Cause || is_crash
        }
        Place::Endpoint | Place::TransformLog => false,
    })
}

/// Matches in a line of a log.
pub fn in_log(line: &str) -> impl Iterator<Item = Match<'_>> {
    // One pass says which can match: a log has thousands of lines, and nearly all match none.
    static SET: LazyLock<(RegexSet, Vec<&'static Signature>)> = LazyLock::new(|| {
        let of_log: Vec<&Signature> = all()
            .iter()
            .filter(|one| one.seen_in == Place::Log)
            .collect();
        let patterns = of_log.iter().map(|one| one.pattern.as_str());
        let set = RegexSetBuilder::new(patterns)
            .multi_line(true)
            .size_limit(SET_BYTES_MAX)
            .dfa_size_limit(SET_BYTES_MAX)
            .build();
        let set = set.unwrap_or_else(|error| embedded::unreadable("failure_signatures", &error));
        (set, of_log)
    });
    let (set, of_log) = &*SET;
    let likely = set.matches(line).into_iter();
    let likely = likely.filter_map(|at| of_log.get(at).copied());
    matches(line, likely, |_| true)
}

/// The most that the patterns of a log may take, compiled together, and what is kept of them while they run: with too
/// little of that, matching is seven times slower.
const SET_BYTES_MAX: usize = 64 * 1024 * 1024;

fn matches(
    text: &str,
    among: impl Iterator<Item = &'static Signature>,
    may_be: impl Fn(&Signature) -> bool,
) -> impl Iterator<Item = Match<'_>> {
    among.filter_map(move |signature| {
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

    /// CloudWatch's filter pattern has at most 1,024 characters.
    #[test]
    fn every_failure_has_one_of_the_words_that_are_searched_for() {
        let in_log = all().iter().filter(|one| one.seen_in == Place::Log);
        for one in in_log.filter(|one| one.role == Role::Cause) {
            let has_one = WORDS.iter().any(|word| one.sample.contains(word));
            assert!(has_one, "{}: {}", one.id, one.sample);
        }
        let length: usize = WORDS.iter().map(|word| word.len() + 4).sum();
        assert!(length <= 1_024);
    }

    /// Each is found in the text that it was seen in, and is the likeliest thing said of it there.
    #[test]
    fn every_signature_is_found_in_its_sample() {
        for one in all() {
            let hits: Vec<&Signature> = matches(&one.sample, all().iter(), |other| {
                other.seen_in == one.seen_in
            })
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
        assert_eq!((ids.len(), all().len()), (144, 144));
    }

    #[test]
    fn none_is_found_in_what_only_looks_like_it_or_in_a_healthy_log() {
        for one in all() {
            if let Some(text) = &one.counter_sample {
                assert!(!one.pattern.is_match(text), "{}: {text}", one.id);
            }
            for other in &one.over {
                assert!(by_id(other).is_some(), "{} is over {other}", one.id);
            }
        }
        let healthy = [
            include_str!("healthy/jax_lm.txt"),
            include_str!("healthy/keras_cnn.txt"),
            include_str!("healthy/lgb.txt"),
            include_str!("healthy/sk.txt"),
            include_str!("healthy/xgb.txt"),
        ];
        for line in healthy.iter().flat_map(|log| log.lines()) {
            let found: Vec<&str> = in_log(line).map(|hit| hit.signature.id.as_str()).collect();
            assert!(found.is_empty(), "{line}: {found:?}");
        }
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

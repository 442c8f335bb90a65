//! Why a job failed: what SageMaker reports and the end of its log, turned into causes with advice and,
//! where a machine can do it, a change to the candidate's profile. Pure; who reads the log, and when, is
//! the service's matter.

pub mod fruitless;
pub mod live;
pub mod profiler;
mod remedy;
pub mod signatures;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::catalog::InstanceType;
use crate::diagnosis::remedy::Remedy;
use crate::diagnosis::signatures::{Match, Role, Signature};
use crate::finding::Operation;
use crate::sagemaker::log::{LogLine, one_line};
use crate::sagemaker::observed::{RuleEvaluation, Transition};
use crate::spec::ProfileSpec;

/// What is known of a job that failed.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub failure_reason: Option<&'a str>,
    /// The end of each stream, by time; `None` where the log could not be read.
    pub lines: Option<&'a [LogLine]>,
    pub transitions: &'a [Transition],
    /// Results of the debugger's and profiler's rules.
    pub rules: &'a [RuleEvaluation],
    pub instance: Option<&'static InstanceType>,
    pub profile: Option<&'a ProfileSpec>,
}

/// Where a finding was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clue {
    pub seen_in: SeenIn,
    /// The log stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<DateTime<Utc>>,
    /// The line itself.
    pub text: String,
}

named! {
    /// What a finding of a diagnosis was seen in
    SeenIn {
        /// SageMaker's FailureReason.
        FailureReason = "failure_reason",
        Log = "log",
        /// The secondary status transitions.
        Transitions = "transitions",
        /// A rule of the debugger or profiler.
        Rule = "rule",
    }
}

/// One cause, or what is known instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Stable id, such as `accelerator-memory-exhausted`.
    pub signature: String,
    pub cause: String,
    pub advice: String,
    /// Where the signature comes from.
    pub source: String,
    pub clue: Clue,
    /// A change to the candidate's profile (JSON Patch, RFC 6902); empty where a person must choose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patch: Vec<Operation>,
    /// The change in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The likeliest cause and what to do, in one sentence or two.
    pub summary: String,
    /// The likeliest first.
    pub causes: Vec<Cause>,
    /// Whether the log was read; without it, this rests on what SageMaker reports.
    pub is_log_read: bool,
}

impl Diagnosis {
    /// Whether the likeliest cause is that an accelerator's memory did not suffice: the same profile on the same type
    /// fails again.
    pub fn is_out_of_accelerator_memory(&self) -> bool {
        let first = self.causes.first();
        first.is_some_and(|cause| cause.signature.starts_with("accelerator-memory-exhausted"))
    }
}

/// Finds the causes of a failure.
///
/// SageMaker's reason comes first, then the earliest line of any stream, because what fails later is
/// often a consequence. Symptoms and generalities stand behind causes, and behind all of them what its
/// process survived: a script that searches for its batch size catches the error that it provokes.
pub fn diagnose(evidence: &Evidence<'_>) -> Diagnosis {
    let mut found: Vec<Found> = of_texts(evidence);
    let rules = evidence.rules.iter().filter(|rule| rule.has_found_issues());
    found.extend(rules.map(|rule| Found::new(Role::Symptom, of_rule(rule))));
    found.extend(silent(evidence).map(|cause| Found::new(Role::Cause, cause)));
    found.sort_by_key(|one| (one.was_survived, one.role));
    let mut causes: Vec<Cause> = Vec::new();
    for Found { cause, .. } in found {
        if causes.iter().all(|one| one.signature != cause.signature) {
            causes.push(cause);
        }
    }
    Diagnosis {
        summary: summary(evidence, causes.first()),
        causes,
        is_log_read: evidence.lines.is_some(),
    }
}

/// A cause, and what it counts for.
struct Found {
    role: Role,
    cause: Cause,
    was_survived: bool,
}

impl Found {
    fn new(role: Role, cause: Cause) -> Self {
        Self {
            role,
            cause,
            was_survived: false,
        }
    }
}

/// What is found in SageMaker's reason, and then in the log, line by line.
fn of_texts(evidence: &Evidence<'_>) -> Vec<Found> {
    let reason = evidence.failure_reason.unwrap_or_default();
    let in_reason = signatures::in_reason(reason).map(|hit| {
        let clue = Clue::bare(SeenIn::FailureReason, hit.line());
        Found::new(hit.signature.role, evidence.cause(&hit, clue))
    });
    let lines = evidence.lines.unwrap_or_default();
    let rests = rests(lines);
    let in_log = lines.iter().zip(rests).flat_map(|(line, rest)| {
        signatures::in_log(&line.message).map(move |hit| {
            let clue = Clue {
                seen_in: SeenIn::Log,
                stream: Some(line.stream.clone()),
                at: Some(line.at),
                text: one_line(hit.line()),
            };
            Found {
                was_survived: rest.is_long(),
                ..Found::new(hit.signature.role, evidence.cause(&hit, clue))
            }
        })
    });
    in_reason.chain(in_log).collect()
}

/// What a stream holds after a line.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    lines: usize,
    /// Minutes that have lines, and the earliest of them.
    minutes: usize,
    minute: Option<i64>,
}

impl Rest {
    /// Whether its processes went on, minute by minute: what follows from a failure comes within
    /// seconds, or is a silence that ends in the outcry of those that waited.
    fn is_long(self) -> bool {
        self.lines >= SURVIVED_LINES && self.minutes >= SURVIVED_MINUTES
    }
}

const SURVIVED_LINES: usize = 20;
const SURVIVED_MINUTES: usize = 10;

/// The rest of its stream for each of these lines.
fn rests(lines: &[LogLine]) -> Vec<Rest> {
    let mut streams: BTreeMap<&str, Rest> = BTreeMap::new();
    let mut rests: Vec<Rest> = lines
        .iter()
        .rev()
        .map(|line| {
            let rest = streams.entry(&line.stream).or_default();
            let own = *rest;
            let minute = Some(line.at.timestamp().div_euclid(60));
            rest.lines += 1;
            if rest.minute != minute {
                (rest.minutes, rest.minute) = (rest.minutes + 1, minute);
            }
            own
        })
        .collect();
    rests.reverse();
    rests
}

impl Clue {
    fn bare(seen_in: SeenIn, text: &str) -> Self {
        Self {
            seen_in,
            stream: None,
            at: None,
            text: one_line(text),
        }
    }
}

impl Evidence<'_> {
    fn cause(&self, hit: &Match<'_>, clue: Clue) -> Cause {
        let Signature { id, source, .. } = hit.signature;
        let remedy = hit.signature.remedy.zip(self.profile);
        let remedy = remedy.and_then(|(kind, profile)| Remedy::of(kind, profile, self.instance));
        let Remedy { patch, change } = remedy.unwrap_or_default();
        Cause {
            signature: id.clone(),
            cause: hit.cause(),
            advice: hit.signature.advice.clone(),
            source: source.clone(),
            clue,
            patch,
            change,
        }
    }
}

fn of_rule(rule: &RuleEvaluation) -> Cause {
    Cause {
        signature: "rule-found-issues".to_owned(),
        cause: format!("The rule {} found issues", rule.name),
        advice: "Read the rule's report below the output prefix (rule-output)".to_owned(),
        source: "SageMaker API, DescribeTrainingJob".to_owned(),
        clue: Clue {
            at: rule.modified_at,
            ..Clue::bare(SeenIn::Rule, &rule.details)
        },
        patch: Vec::new(),
        change: None,
    }
}

/// A container that never wrote a line did not start.
fn silent(evidence: &Evidence<'_>) -> Option<Cause> {
    let reason = evidence.failure_reason?;
    let is_internal = reason.starts_with("InternalServerError");
    let has_trained = evidence
        .transitions
        .iter()
        .any(|transition| transition.status == "Training");
    let is_empty = evidence.lines.is_some_and(<[LogLine]>::is_empty);
    (is_internal && has_trained && is_empty).then(|| Cause {
        signature: "container-never-wrote".to_owned(),
        cause: "The job reached training and its container never wrote a line".to_owned(),
        advice: "Check that the image starts (its entry point and platform), and that the checkpoint prefix is not \
                 too large to be restored"
            .to_owned(),
        source: "SageMaker developer guide, troubleshooting".to_owned(),
        clue: Clue::bare(SeenIn::Transitions, "Training, with no log stream"),
        patch: Vec::new(),
        change: None,
    })
}

fn summary(evidence: &Evidence<'_>, first: Option<&Cause>) -> String {
    if let Some(cause) = first {
        let what = cause.change.as_ref().unwrap_or(&cause.advice);
        return format!("{}. {what}.", cause.cause.trim_end_matches('.'));
    }
    let last = evidence.lines.and_then(<[LogLine]>::last);
    match (last, evidence.failure_reason) {
        (Some(line), _) => format!(
            "No known cause matches. The last line of its log: {}",
            one_line(&line.message)
        ),
        (None, Some(reason)) => format!("No known cause matches: {}", one_line(reason)),
        (None, None) => "SageMaker gives no reason, and there is no log.".to_owned(),
    }
}

#[cfg(test)]
mod tests;

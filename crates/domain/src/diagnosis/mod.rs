//! Why a job failed: what SageMaker reports and the end of its log, turned into causes with advice and,
//! where a machine can do it, a change to the candidate's profile. Pure; who reads the log, and when, is
//! the service's matter.

pub mod fruitless;
mod hits;
mod launcher;
mod line;
pub mod live;
pub mod profiler;
mod raised;
mod remedy;
pub mod signatures;
mod weighing;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::catalog::InstanceType;
use crate::diagnosis::remedy::Remedy;
use crate::diagnosis::signatures::Signature;
use crate::diagnosis::weighing::{Weighed, WeighedMatch, weigh};
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

named! {
    /// What happened to an error after it was raised
    Standing {
        /// Nothing survived it.
        Live = "live",
        /// The script handled it, and went on to another.
        Handled = "handled",
        /// A launcher ended the process because of another.
        CleanedUp = "cleaned_up",
        /// The training went on after it.
        Survived = "survived",
    }
}

impl Standing {
    fn is_live(self) -> bool {
        self == Self::Live
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_live(standing: &Standing) -> bool {
    standing.is_live()
}

fn live() -> Standing {
    Standing::Live
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
    /// What became of the error.
    #[serde(default = "live", skip_serializing_if = "is_live")]
    pub standing: Standing,
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
        first.is_some_and(|cause| {
            cause.standing.is_live() && cause.signature.starts_with("accelerator-memory-exhausted")
        })
    }

    /// Whether the likeliest cause is a defective machine: the same job may run on another one.
    pub fn is_of_hardware(&self) -> bool {
        let first = self.causes.first();
        first.is_some_and(|cause| {
            cause.standing.is_live()
                && signatures::by_id(&cause.signature).is_some_and(|one| one.is_hardware)
        })
    }
}

/// Finds the causes of a failure.
///
/// What nothing survived comes first, the specific before the general; then the exception that ended the process, what
/// follows from other failures, and last what was handled or survived: a script that searches for its batch size catches
/// the error that it provokes. Where only generalities are known, the log's last line leads.
pub fn diagnose(evidence: &Evidence<'_>) -> Diagnosis {
    let Weighed { found, last_line } = weigh(evidence);
    let mut causes: Vec<Cause> = Vec::new();
    let has_words = evidence.failure_reason.is_some() || !found.is_empty();
    let last_line = last_line.filter(|_| has_words);
    causes.extend(last_line.map(|(line, clue)| log_ends(&line, clue)));
    let known = found.iter().take_while(|one| one.says_something());
    let (known, rest) = found.split_at(known.count());
    causes.extend(known.iter().map(|one| evidence.cause(one)));
    causes.extend(silent(evidence));
    let rules = evidence.rules.iter().filter(|rule| rule.has_found_issues());
    causes.extend(rules.map(of_rule));
    causes.extend(rest.iter().map(|one| evidence.cause(one)));
    Diagnosis {
        summary: summary(evidence, causes.first()),
        causes,
        is_log_read: evidence.lines.is_some(),
    }
}

/// The fallback when no signature explains the failure.
fn log_ends(line: &str, clue: Clue) -> Cause {
    Cause {
        signature: "log-ends".to_owned(),
        cause: format!("The script ended with an error; its log ends with: {line}"),
        advice: "Read the lines above it in its log".to_owned(),
        source: "its log".to_owned(),
        clue,
        patch: Vec::new(),
        change: None,
        standing: Standing::Live,
    }
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
    fn cause(&self, found: &WeighedMatch) -> Cause {
        let Signature { id, source, .. } = found.signature;
        // A machine changes nothing for what was no cause.
        let remedy = found.signature.remedy.filter(|_| found.standing.is_live());
        let remedy = remedy.zip(self.profile);
        let remedy = remedy.and_then(|(kind, profile)| Remedy::of(kind, profile, self.instance));
        let Remedy { patch, change } = remedy.unwrap_or_default();
        Cause {
            signature: id.clone(),
            cause: found.cause.clone(),
            advice: found.signature.advice.clone(),
            source: source.clone(),
            clue: found.clue.clone(),
            patch,
            change,
            standing: found.standing,
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
        standing: Standing::Live,
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
        standing: Standing::Live,
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

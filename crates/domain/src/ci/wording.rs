//! A gate's verdict in words: one line for a commit status and an event, a sentence for each figure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::gate::{Change, Judged, Judgement, Verdict};
use crate::ids::CiRunId;
use crate::spec::ci::Measure;

/// Characters of a commit status's description that GitHub takes.
const LINE_MAX: usize = 140;
/// Digits of a commit in a sentence.
const SHORT: usize = 12;

/// What a gate has said of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CiNews {
    pub run: CiRunId,
    pub template: String,
    pub commit: String,
    pub verdict: Verdict,
    /// The verdict in one line.
    pub summary: String,
}

impl fmt::Display for CiNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commit = self.commit.get(..SHORT).unwrap_or(&self.commit);
        write!(f, "{commit} in {}: {}", self.template, self.summary)
    }
}

impl Measure {
    /// A figure with its unit.
    pub fn shown(self, figure: f64) -> String {
        match self {
            Self::UsdPerMillionTokens => format!("${figure:.4} per million tokens"),
            Self::TokensPerSecond => format!("{figure:.0} tokens/s"),
            Self::PeakGpuMemoryPercent => format!("{figure:.1} % of a GPU's memory at the peak"),
            Self::TrainLoss => format!("training loss {figure:.4}"),
            Self::ValidationLoss => format!("validation loss {figure:.4}"),
            Self::TrainingUsd => format!("${figure:.2} per trial"),
        }
    }

    /// What a change for the worse is called.
    fn worse(self, percent: f64) -> &'static str {
        let is_worse = percent >= 0.0;
        match (self, is_worse) {
            (Self::UsdPerMillionTokens | Self::TrainingUsd, true) => "dearer",
            (Self::UsdPerMillionTokens | Self::TrainingUsd, false) => "cheaper",
            (Self::TokensPerSecond, true) => "slower",
            (Self::TokensPerSecond, false) => "faster",
            (Self::PeakGpuMemoryPercent | Self::TrainLoss | Self::ValidationLoss, true) => "higher",
            (Self::PeakGpuMemoryPercent | Self::TrainLoss | Self::ValidationLoss, false) => "lower",
        }
    }
}

impl Change {
    fn words(&self, measure: Measure) -> String {
        let by = if self.percent.abs() < 0.05 {
            format!("no {}", measure.worse(0.0))
        } else {
            format!(
                "{:.1} % {}",
                self.percent.abs(),
                measure.worse(self.percent)
            )
        };
        format!("{by} [{:+.1}, {:+.1}]", self.low_percent, self.high_percent)
    }
}

impl Judged {
    /// What was measured, and how it compares, in one sentence.
    pub fn sentence(&self) -> String {
        let Some(measured) = self.measured else {
            return format!(
                "{}: no trial has reported {}: define a metric for it, or take the limit out",
                self.candidate,
                self.measure.as_str()
            );
        };
        let measured = format!("{}: {}", self.candidate, self.measure.shown(measured));
        let Some(change) = &self.change else {
            return format!("{measured}, with nothing to compare it with yet");
        };
        let other = self.baseline_trials.map_or_else(
            || format!("than the number {}", self.baseline.unwrap_or_default()),
            |trials| format!("than {trials} earlier"),
        );
        let is_better = change.high_percent < -self.worse_by_percent;
        let hint = if is_better {
            "; accept it as a level to hold later commits to it"
        } else {
            ""
        };
        format!("{measured}, {} {other}{hint}", change.words(self.measure))
    }

    /// Why it is neither passed nor regressed, and what to do about that.
    fn why_open(&self) -> String {
        if self.measured.is_none() || self.change.is_none() {
            return self.sentence();
        }
        let spread = self.spread_percent.unwrap_or_default();
        if self.is_unconfirmed {
            return format!("{}, in one trial alone", self.sentence());
        }
        let spread = if self.is_spread_assumed {
            format!("trials are taken to differ by {spread:.1} % until five are known")
        } else {
            format!("trials differ by {spread:.1} %")
        };
        format!("{}: {spread}", self.sentence())
    }
}

impl Judgement {
    /// The verdict in one line of at most 140 characters.
    pub fn summary(&self) -> String {
        let word = self.verdict.as_str();
        let first = self.limits.iter().find(|one| one.verdict == self.verdict);
        let line = match (self.verdict, first) {
            (Verdict::Error, judged) => match (self.unmeasured.first(), judged) {
                (Some(one), _) => {
                    format!("{word}: {} was not measured: {}", one.candidate, one.why)
                }
                (None, Some(one)) => format!("{word}: {}", one.sentence()),
                (None, None) => format!("{word}: nothing was measured"),
            },
            (Verdict::Inconclusive, Some(one)) => format!("{word}: {}", one.why_open()),
            (Verdict::Passed | Verdict::Regressed, Some(one)) => {
                format!("{word}: {}", one.sentence())
            }
            (_, None) => format!("{word}: its trials have completed; the template has no gate"),
        };
        cut(&line)
    }
}

/// As much of a line as fits, with a sign that something is missing.
pub(super) fn cut(line: &str) -> String {
    if line.chars().count() <= LINE_MAX {
        return line.to_owned();
    }
    let kept: String = line.chars().take(LINE_MAX - 1).collect();
    format!("{}…", kept.trim_end())
}

//! A gate's verdict in words: one line for a commit status and an event, a sentence for each figure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::gate::{Change, FREEDOM_MIN, Judged, Judgement, Verdict};
use crate::ids::CiRunId;
use crate::number::of_items;
use crate::spec::ci::Measure;

/// More trials than that are not worth a number.
const MORE_MAX: usize = 50;
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

    /// Without a word for a direction that nobody knows.
    fn open(&self) -> String {
        let percent = if self.percent.abs() < 0.05 {
            "0.0".to_owned()
        } else {
            format!("{:+.1}", self.percent)
        };
        let (low, high) = (self.low_percent, self.high_percent);
        format!("change {percent} % ({low:+.1} to {high:+.1}, + is worse)")
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
        let is_open = self.verdict == Verdict::Inconclusive;
        let than = if is_open { "against" } else { "than" };
        let other = self.baseline_trials.map_or_else(
            || format!("{than} the number {}", self.baseline.unwrap_or_default()),
            |trials| format!("{than} {trials} earlier"),
        );
        if is_open {
            let (change, settled) = (change.open(), self.settled_by());
            let limit = self.worse_by_percent;
            return format!("{measured}, {change} {other}, limit {limit} %: {settled}");
        }
        let is_better = change.high_percent < -self.worse_by_percent;
        let hint = if is_better {
            "; accept it as a level to hold later commits to it"
        } else {
            ""
        };
        format!("{measured}, {} {other}{hint}", change.words(self.measure))
    }

    /// What would settle a figure that is neither passed nor regressed: trials, as long as they differ as they do now.
    fn settled_by(&self) -> String {
        if self.is_unconfirmed {
            return "cannot tell yet, since one trial alone is worse; another trial of the commit settles it"
                .to_owned();
        }
        let (own, others) = (self.trials, self.baseline_trials.unwrap_or_default());
        let spread = self.spread_percent.unwrap_or_default();
        if self.is_spread_assumed {
            let known = own.saturating_sub(1) + others.saturating_sub(1);
            let more = FREEDOM_MIN.saturating_sub(known).max(1);
            return format!(
                "cannot tell yet, since trials are taken to differ by {spread:.1} % until more are known; {} would show how much they do",
                more_trials(more)
            );
        }
        let own = self
            .trials_needed(0)
            .map(|more| format!("about {} of the commit settle it", more_trials(more)));
        let both = || {
            let more = self.trials_needed(1)?;
            let trials = more_trials(more);
            Some(format!(
                "about {trials} of the commit and as many of the baseline settle it"
            ))
        };
        let more = own.or_else(both).unwrap_or_else(|| {
            format!("more than {MORE_MAX} more trials of the commit would be needed")
        });
        format!("cannot tell yet, since trials differ by {spread:.1} %; {more}")
    }

    /// How many more trials of the commit, and `beside` as many of the baseline for each, bring its bounds to one side of
    /// the limit; `None` if too many.
    fn trials_needed(&self, beside: usize) -> Option<usize> {
        let change = self.change?;
        let half = (change.high_percent - change.low_percent) / 2.0;
        // It passes below the limit, and has regressed above it once it is above nothing.
        let room = if change.percent > self.worse_by_percent {
            change.percent
        } else {
            self.worse_by_percent - change.percent
        };
        let others = self.baseline_trials.filter(|trials| *trials > 0);
        let variances = |more: usize| {
            let own = 1.0 / of_items((self.trials + more).max(1));
            own + others.map_or(0.0, |trials| 1.0 / of_items(trials + more * beside))
        };
        let now = variances(0);
        (1..=MORE_MAX).find(|more| half * (variances(*more) / now).sqrt() < room)
    }
}

/// A number of trials beside those that there are.
fn more_trials(count: usize) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} more trial{s}")
}

impl Judgement {
    /// The verdict in one line.
    pub fn summary(&self) -> String {
        let word = self.verdict.as_str();
        let first = self.limits.iter().find(|one| one.verdict == self.verdict);
        match (self.verdict, first) {
            (Verdict::Error, judged) => match (self.unmeasured.first(), judged) {
                (Some(one), _) if one.is_run() => one.why.clone(),
                (Some(one), _) => {
                    format!("{word}: {} was not measured: {}", one.candidate, one.why)
                }
                (None, Some(one)) => format!("{word}: {}", one.sentence()),
                (None, None) => format!("{word}: nothing was measured"),
            },
            (Verdict::Passed | Verdict::Regressed | Verdict::Inconclusive, Some(one)) => {
                format!("{word}: {}", one.sentence())
            }
            (_, None) => format!("{word}: its trials have completed; the template has no gate"),
        }
    }
}

/// As much of a line as fits, with a sign that something is missing.
pub(super) fn cut(line: &str, most: usize) -> String {
    if line.chars().count() <= most {
        return line.to_owned();
    }
    let kept: String = line.chars().take(most - 1).collect();
    format!("{}…", kept.trim_end())
}

//! The gate: whether a commit is worse than those before it, by a two-sample comparison of trials with a margin.
//! Trials of different commits run on different hosts, so that the spread between trials counts, and not the interval
//! within one: intervals within trials that do not overlap call 29 to 46 % of equal commits worse.
//!
//! It starts nothing and reads nothing: the service loads readings and carries the verdict on.

mod change;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

pub use self::change::Change;
use self::change::PERCENT_MAX;
use crate::finding::flaws::Flaw;
use crate::money::Usd;
use crate::number::of_items;
use crate::spec::ci::{GateLimit, GateSettings, Measure};

/// Share of equal commits that may be called worse, over all figures, candidates and rounds of a commit. With a
/// baseline that moves on passed and inconclusive runs, 4 % keeps the observed share below 5 %.
const ALPHA: f64 = 0.04;
/// Degrees of freedom from which on a spread is known well enough to be used.
pub(super) const FREEDOM_MIN: usize = 4;
/// The spread while it is not known: short jobs differ by 2 to 3 % between hosts. What starting costs, and what spot
/// interrupts, differs more.
const SPREAD_ASSUMED: f64 = 0.03;
const SPREAD_ASSUMED_OF_STARTS: f64 = 0.10;
/// Less is luck: repeats on one machine differ by 0.1 %.
const SPREAD_MIN: f64 = 0.002;
const TRIALS: std::ops::RangeInclusive<u32> = 5..=50;
const ROUNDS: std::ops::RangeInclusive<u32> = 1..=3;
/// The candidate of what concerns all of them.
const RUN: &str = "the run";
/// Trials that must be worse by the margin, each by itself: a machine that stalls looks like a commit that is slower, and is
/// rarely met twice.
const CONFIRMED_BY: usize = 2;

named! {
    /// What a gate says of a commit.
    Verdict {
        /// No figure is worse by its margin.
        Passed = "passed",
        /// A figure is worse by more than its margin, and by more than trials differ.
        Regressed = "regressed",
        /// Trials differ too much, or there is too little to compare with.
        Inconclusive = "inconclusive",
        /// Nothing was measured.
        Error = "error",
    }
}

/// The figures of one trial that has completed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    pub candidate: String,
    /// Hash of all that was the same for every commit: readings with another one say nothing about each other.
    pub comparable: String,
    /// Billed instance-hours for a million tokens.
    pub hours_per_million_tokens: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub peak_gpu_memory_percent: Option<f64>,
    pub train_loss: Option<f64>,
    pub validation_loss: Option<f64>,
    /// Billed instance-hours, without those of attempts that failed.
    pub billed_hours: Option<f64>,
    pub is_spot: bool,
    /// Price of an instance-hour.
    pub usd_per_hour: Option<Usd>,
}

impl Reading {
    /// A figure without a price.
    fn unpriced(&self, measure: Measure) -> Option<f64> {
        let figure = match measure {
            Measure::UsdPerMillionTokens => self.hours_per_million_tokens,
            Measure::TokensPerSecond => self.tokens_per_second,
            Measure::PeakGpuMemoryPercent => self.peak_gpu_memory_percent,
            Measure::TrainLoss => self.train_loss,
            Measure::ValidationLoss => self.validation_loss,
            Measure::TrainingUsd => self.billed_hours,
        };
        figure.filter(|figure| figure.is_finite() && *figure > 0.0)
    }
}

/// Readings of the commits before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Baseline {
    /// Those to compare with, newest first.
    pub level: Vec<Reading>,
    /// Others before them, at another level that somebody has accepted a change from: they tell of the spread alone.
    pub before: Vec<Vec<Reading>>,
    /// Of the pinned release.
    pub release: Vec<Reading>,
}

/// A run that was accepted as a baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    pub readings: Vec<Reading>,
    /// Somebody has accepted that it is worse, or better: those before it are at another level.
    pub begins_level: bool,
}

impl Baseline {
    /// From accepted runs, newest first: of each candidate, so many trials of the newest level.
    pub fn of(accepted: Vec<Accepted>, trials: u32, release: Vec<Reading>) -> Self {
        let mut groups: Vec<Vec<Reading>> = vec![Vec::new()];
        for run in accepted {
            if let Some(group) = groups.last_mut() {
                group.extend(run.readings);
            }
            if run.begins_level {
                groups.push(Vec::new());
            }
        }
        let mut groups = groups.into_iter();
        let mut counts: BTreeMap<(String, String), u32> = BTreeMap::new();
        let mut level = groups.next().unwrap_or_default();
        level.retain(|one| {
            let count = counts
                .entry((one.candidate.clone(), one.comparable.clone()))
                .or_default();
            *count += 1;
            *count <= trials
        });
        Self {
            level,
            before: groups.collect(),
            release,
        }
    }
}

/// How one figure of one candidate compares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    pub candidate: String,
    pub measure: Measure,
    pub verdict: Verdict,
    /// Geometric means; dollars at the newest price.
    pub measured: Option<f64>,
    pub baseline: Option<f64>,
    pub change: Option<Change>,
    pub worse_by_percent: f64,
    pub trials: usize,
    /// None for a number.
    pub baseline_trials: Option<usize>,
    /// Standard deviation between trials, percent.
    pub spread_percent: Option<f64>,
    /// There are too few trials to know it.
    pub is_spread_assumed: bool,
    /// Worse because of one trial alone, which another one has to confirm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unconfirmed: bool,
    /// Against the pinned release, beside the verdict: many small steps add up.
    pub release: Option<Change>,
}

/// What the gate says, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    pub verdict: Verdict,
    pub limits: Vec<Judged>,
    /// Candidates of which a trial has not completed, and why.
    pub unmeasured: Vec<Unmeasured>,
    /// Another round could tell more.
    pub is_worth_another: bool,
}

/// A candidate of which a trial has not completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmeasured {
    pub candidate: String,
    pub why: String,
    /// False of one that a race has stopped, which only experiments without a gate have.
    pub has_failed: bool,
}

impl Unmeasured {
    /// Of a run as a whole, for a reason of its own: `why` says it all.
    pub fn run(why: impl Into<String>) -> Self {
        Self {
            candidate: RUN.to_owned(),
            why: why.into(),
            has_failed: true,
        }
    }

    /// Whether it is the run as a whole, and not one of its candidates.
    pub fn is_run(&self) -> bool {
        self.candidate == RUN
    }

    /// Somebody has cancelled the experiment: what is left of it is no verdict.
    pub fn cancelled() -> Self {
        Self {
            candidate: "the experiment".to_owned(),
            why: "somebody has cancelled it".to_owned(),
            has_failed: true,
        }
    }
}

impl Judgement {
    /// A run that ends without a figure, for a reason of its own.
    pub fn ended(why: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Error,
            limits: Vec::new(),
            unmeasured: vec![Unmeasured::run(why)],
            is_worth_another: false,
        }
    }
}

/// Judges the trials of a commit, of all rounds so far.
pub fn judge(
    settings: Option<&GateSettings>,
    readings: &[Reading],
    unmeasured: Vec<Unmeasured>,
    baseline: &Baseline,
) -> Judgement {
    let limits = settings.map_or(&[][..], |settings| &settings.limits);
    let rounds = settings.map_or(1, |settings| settings.rounds);
    let mut candidates: Vec<&str> = readings.iter().map(|one| one.candidate.as_str()).collect();
    candidates.sort_unstable();
    candidates.dedup();
    let comparisons = candidates.len() * limits.len();
    let alpha = ALPHA / of_items(comparisons.max(1)) / f64::from(rounds.max(1));
    let judged: Vec<Judged> = candidates
        .iter()
        .flat_map(|candidate| limits.iter().map(move |limit| (*candidate, limit)))
        .map(|(candidate, limit)| figure(candidate, limit, readings, baseline, alpha))
        .collect();
    let verdict = overall(&judged, readings.is_empty(), &unmeasured);
    Judgement {
        verdict,
        is_worth_another: verdict == Verdict::Inconclusive && judged.iter().any(is_open),
        limits: judged,
        unmeasured,
    }
}

/// Whether more trials could decide a figure: there is something to compare it with.
fn is_open(one: &Judged) -> bool {
    one.verdict == Verdict::Inconclusive && one.change.is_some()
}

/// The verdict of all figures together.
fn overall(judged: &[Judged], is_empty: bool, unmeasured: &[Unmeasured]) -> Verdict {
    let has = |verdict| judged.iter().any(|one| one.verdict == verdict);
    if has(Verdict::Regressed) {
        Verdict::Regressed
    } else if is_empty || has(Verdict::Error) || unmeasured.iter().any(|one| one.has_failed) {
        Verdict::Error
    } else if has(Verdict::Inconclusive) {
        Verdict::Inconclusive
    } else {
        Verdict::Passed
    }
}

/// Logarithms of a figure of a candidate that compare with each other.
fn logs(readings: &[Reading], like: &Reading, measure: Measure) -> Vec<f64> {
    let is_like =
        |one: &&Reading| one.candidate == like.candidate && one.comparable == like.comparable;
    let figures = readings.iter().filter(is_like);
    figures
        .filter_map(|one| one.unpriced(measure))
        .map(f64::ln)
        .collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / of_items(values.len()))
}

/// Sum of squares about the mean, and its degrees of freedom.
fn squares(values: &[f64]) -> (f64, usize) {
    let Some(mean) = mean(values) else {
        return (0.0, 0);
    };
    let sum = values.iter().map(|value| (value - mean).powi(2)).sum();
    (sum, values.len() - 1)
}

/// The spread between trials, and how well it is known.
#[derive(Debug, Clone, Copy)]
struct Spread {
    sd: f64,
    freedom: usize,
    /// What it is taken to be at least while there are too few trials.
    assumed: f64,
}

impl Spread {
    /// Pooled over groups with means of their own.
    fn of(groups: &[Vec<f64>], assumed: f64) -> Self {
        let all = groups.iter().map(|group| squares(group));
        let (sum, freedom) = all.fold((0.0, 0), |(a, b), (sum, freedom)| (a + sum, b + freedom));
        let sd = if freedom == 0 {
            0.0
        } else {
            (sum / of_items(freedom)).sqrt()
        };
        Self {
            sd,
            freedom,
            assumed,
        }
    }

    fn is_assumed(self) -> bool {
        self.freedom < FREEDOM_MIN
    }

    fn sd(self) -> f64 {
        let least = if self.is_assumed() {
            self.assumed
        } else {
            SPREAD_MIN
        };
        self.sd.max(least)
    }

    /// How far a bound of that one-sided level is away, for a difference whose variance is so many times that of a
    /// trial.
    fn half_width(self, alpha: f64, variances: f64) -> f64 {
        let student = StudentsT::new(0.0, 1.0, of_items(self.freedom)).ok();
        let student = student.map_or(0.0, |student| student.inverse_cdf(1.0 - alpha));
        let seen = student * self.sd.max(SPREAD_MIN);
        let least = if self.is_assumed() {
            self.assumed * Normal::standard().inverse_cdf(1.0 - alpha)
        } else {
            0.0
        };
        variances.sqrt() * seen.max(least)
    }
}

/// A difference of logarithms with its bounds.
#[derive(Debug, Clone, Copy)]
struct Difference {
    by: f64,
    half_width: f64,
}

impl Difference {
    fn change(self) -> Change {
        // JSON has no infinity.
        let percent = |by: f64| (by.exp_m1() * 100.0).min(PERCENT_MAX);
        Change {
            percent: percent(self.by),
            low_percent: percent(self.by - self.half_width),
            high_percent: percent(self.by + self.half_width),
        }
    }

    fn verdict(self, margin: f64) -> Verdict {
        if self.by > margin && self.by > self.half_width {
            Verdict::Regressed
        } else if self.by + self.half_width < margin {
            Verdict::Passed
        } else {
            Verdict::Inconclusive
        }
    }
}

fn figure(
    candidate: &str,
    limit: &GateLimit,
    readings: &[Reading],
    baseline: &Baseline,
    alpha: f64,
) -> Judged {
    let measure = limit.measure;
    let mut judged = Judged {
        candidate: candidate.to_owned(),
        measure,
        verdict: Verdict::Inconclusive,
        measured: None,
        baseline: limit.baseline,
        change: None,
        worse_by_percent: limit.worse_by_percent,
        trials: 0,
        baseline_trials: limit.baseline.is_none().then_some(0),
        spread_percent: None,
        is_spread_assumed: true,
        is_unconfirmed: false,
        release: None,
    };
    let newest = readings.iter().rfind(|one| one.candidate == candidate);
    let Some((newest, new)) = newest.map(|newest| (newest, logs(readings, newest, measure))) else {
        return judged;
    };
    let Some(own) = mean(&new) else {
        // It trained, and nobody reported this.
        judged.verdict = Verdict::Error;
        return judged;
    };
    let of = |group: &[Reading]| logs(group, newest, measure);
    let level = of(&baseline.level);
    let mut groups: Vec<Vec<f64>> = baseline.before.iter().map(|one| of(one)).collect();
    groups.extend([level.clone(), new.clone()]);
    let trial = Trials {
        is_more_worse: measure != Measure::TokensPerSecond,
        mean: own,
        count: new.len(),
        spread: Spread::of(&groups, assumed(newest, measure)),
        alpha,
    };
    let rate = rate(newest, measure);
    judged.trials = trial.count;
    judged.measured = rate.map(|rate| own.exp() * rate);
    judged.spread_percent = Some(trial.spread.sd() * 100.0);
    judged.is_spread_assumed = trial.spread.is_assumed();
    let (other, inverse) = if let Some(number) = limit.baseline {
        (rate.map(|rate| (number / rate).ln()), 0.0)
    } else {
        judged.baseline_trials = Some(level.len());
        judged.baseline = mean(&level)
            .zip(rate)
            .map(|(other, rate)| other.exp() * rate);
        (mean(&level), 1.0 / of_items(level.len().max(1)))
    };
    if let Some(other) = other {
        compare(
            &mut judged,
            &trial,
            &new,
            trial.difference(other, inverse),
            other,
        );
    }
    judged.release = trial
        .against(&of(&baseline.release))
        .map(Difference::change);
    judged
}

/// Sets what comes of the difference between a commit's trials, `new`, and what they are compared with, `other`.
fn compare(judged: &mut Judged, trial: &Trials, new: &[f64], difference: Difference, other: f64) {
    let margin = (judged.worse_by_percent / 100.0).ln_1p();
    judged.change = Some(difference.change());
    judged.verdict = difference.verdict(margin);
    let worse = new.iter().filter(|one| trial.worse(**one, other) > margin);
    if judged.verdict == Verdict::Regressed && worse.count() < CONFIRMED_BY {
        (judged.verdict, judged.is_unconfirmed) = (Verdict::Inconclusive, true);
    }
}

/// The trials of a commit, for one figure.
struct Trials {
    is_more_worse: bool,
    mean: f64,
    count: usize,
    spread: Spread,
    alpha: f64,
}

impl Trials {
    /// Against the mean of others; `None` of none.
    fn against(&self, others: &[f64]) -> Option<Difference> {
        let other = mean(others)?;
        Some(self.difference(other, 1.0 / of_items(others.len())))
    }

    /// By how much a figure is worse than another, both as logarithms.
    fn worse(&self, figure: f64, other: f64) -> f64 {
        if self.is_more_worse {
            figure - other
        } else {
            other - figure
        }
    }

    /// `inverse`: one divided by the number of the others' trials.
    fn difference(&self, other: f64, inverse: f64) -> Difference {
        let variances = 1.0 / of_items(self.count) + inverse;
        Difference {
            by: self.worse(self.mean, other),
            half_width: self.spread.half_width(self.alpha, variances),
        }
    }
}

/// What trials are taken to differ by, until it is known.
fn assumed(reading: &Reading, measure: Measure) -> f64 {
    if reading.is_spot || measure == Measure::TrainingUsd {
        SPREAD_ASSUMED_OF_STARTS
    } else {
        SPREAD_ASSUMED
    }
}

/// What a figure is multiplied by to be shown: dollars at one price for all.
fn rate(reading: &Reading, measure: Measure) -> Option<f64> {
    match measure {
        Measure::UsdPerMillionTokens | Measure::TrainingUsd => reading
            .usd_per_hour
            .map(Usd::as_f64)
            .filter(|rate| *rate > 0.0),
        Measure::TokensPerSecond
        | Measure::PeakGpuMemoryPercent
        | Measure::TrainLoss
        | Measure::ValidationLoss => Some(1.0),
    }
}

impl GateSettings {
    /// Whether a run becomes a baseline by itself; `is_merged`: it is of no pull request. Inconclusive ones do too: a
    /// baseline of passed runs alone keeps only those that were lucky, and calls most of the others worse.
    pub fn accepts(&self, verdict: Verdict, branch: Option<&str>, is_merged: bool) -> bool {
        is_merged
            && branch == Some(self.baseline_branch.as_str())
            && matches!(verdict, Verdict::Passed | Verdict::Inconclusive)
    }

    /// What is wrong with them; pointers are into the settings.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        if self.limits.is_empty() {
            flaws.push(Flaw::new(
                "/gate/limits",
                "is empty: every run would pass",
                "name a measure, for example {\"measure\": \"usd_per_million_tokens\"}",
            ));
        }
        flaws.extend(self.wrong_limits());
        for (name, value, range) in [
            ("baseline_trials", self.baseline_trials, TRIALS),
            ("rounds", self.rounds, ROUNDS),
        ] {
            if !range.contains(&value) {
                flaws.push(Flaw::new(
                    format!("/gate/{name}"),
                    format!("is not within {} to {}", range.start(), range.end()),
                    "leave it out for the usual number",
                ));
            }
        }
        if !(1..=250).contains(&self.baseline_branch.len()) {
            flaws.push(Flaw::new(
                "/gate/baseline_branch",
                "does not have 1 to 250 characters",
                "name the branch: main",
            ));
        }
        flaws
    }

    fn wrong_limits(&self) -> Vec<Flaw> {
        let (mut flaws, mut seen) = (Vec::new(), Vec::new());
        for (index, limit) in self.limits.iter().enumerate() {
            if seen.contains(&limit.measure) {
                flaws.push(Flaw::new(
                    format!("/gate/limits/{index}/measure"),
                    format!("{} is there twice", limit.measure.as_str()),
                    "keep one of the two",
                ));
            }
            seen.push(limit.measure);
            if !(0.0..=100.0).contains(&limit.worse_by_percent) {
                flaws.push(Flaw::new(
                    format!("/gate/limits/{index}/worse_by_percent"),
                    "is not within 0 to 100",
                    "3 is what can be told apart with ten trials that differ by 2 %",
                ));
            }
            let is_number = |number: f64| number.is_finite() && number > 0.0;
            if limit.baseline.is_some_and(|number| !is_number(number)) {
                flaws.push(Flaw::new(
                    format!("/gate/limits/{index}/baseline"),
                    "is not above 0",
                    "write the figure to compare with, or leave it out to compare with earlier runs",
                ));
            }
        }
        flaws
    }
}

#[cfg(test)]
mod tests;

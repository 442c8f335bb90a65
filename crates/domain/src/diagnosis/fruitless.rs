//! Whether a running trial teaches anything: patterns that meet no line of its log, a loss that is no number, a speed
//! whose unit is another, accelerators that idle. Pure; each kind is told once of a trial.

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::finding::Operation;
use crate::measure::detector::{LoggedNumber, Pattern, proposals, readings};
use crate::measure::metric::{Meaning, MetricDefinition};
use crate::measure::steady::Bucket;
use crate::money::Usd;
use crate::sagemaker::log::one_line;

/// Training with log lines, but without a reading, after which a trial teaches nothing.
pub const SILENT_FOR: TimeDelta = TimeDelta::minutes(10);
/// The same where other patterns meet its lines: a speed may be printed every few hundred steps.
const SLOW_FOR: TimeDelta = TimeDelta::minutes(30);
/// Training at no utilisation after which accelerators idle.
pub const IDLE_FOR: TimeDelta = TimeDelta::minutes(15);
/// Utilisation of an accelerator below which it idles, percent.
const IDLE_PERCENT: f64 = 5.0;
/// Lines that look like a metric, so that it is no accident that no pattern meets one.
const LINES_MIN: usize = 3;
/// Buckets of utilisation, so that it is no single gap.
const BUCKETS_MIN: usize = 3;
/// Lines that are shown.
const SHOWN: usize = 3;
/// How far a speed must be from its prediction for its unit to be doubted, and how near it must be in another unit.
const FAR: f64 = 50.0;
const NEAR: f64 = 2.0;

named! {
    /// What is wrong with a trial that runs
    TroubleKind {
        NoReadings = "no_readings",
        LossNotFinite = "loss_not_finite",
        UnitDoubtful = "unit_doubtful",
        AcceleratorsIdle = "accelerators_idle",
    }
}

/// Patterns that met no line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnmatchedPatterns {
    /// Lines that were read.
    pub lines: u32,
    pub patterns: Vec<MetricPattern>,
    /// The last that look like a metric.
    pub last_lines: Vec<String>,
    /// A patch of the experiment's spec, with patterns that would have met them.
    pub patch: Vec<Operation>,
    /// Other patterns meet its lines, or its speed was read from another trial's log: it may only be slow, and goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_read_otherwise: bool,
}

/// A pattern, and the metric that it was to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricPattern {
    pub name: String,
    pub regex: String,
}

/// A loss that is not finite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossNotFinite {
    /// The line that says so; empty if a script sent it.
    pub line: Option<String>,
}

/// A speed that fits its prediction in another unit only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DoubtfulUnit {
    pub tokens_per_second: f64,
    pub predicted_low: f64,
    pub predicted_high: f64,
    /// What it probably is.
    pub likely: String,
}

/// Accelerators that do nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdleAccelerators {
    pub minutes: u32,
    pub utilization_percent: f64,
    pub usd_per_hour: Usd,
}

impl fmt::Display for UnmatchedPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns = self.patterns.iter().map(|one| format!("`{}`", one.regex));
        let patterns: Vec<String> = patterns.collect();
        write!(
            f,
            "no line of {} in its log met {}; the last that looks like a metric is `{}`",
            self.lines,
            patterns.join(" or "),
            self.last_lines.last().map_or("", String::as_str)
        )?;
        let values = self.patch.iter().filter_map(|one| one.value.as_ref());
        let proposed =
            values.filter_map(|value| value.as_str().or_else(|| value["regex"].as_str()));
        let proposed: Vec<String> = proposed.map(|regex| format!("`{regex}`")).collect();
        if !proposed.is_empty() {
            write!(f, ", which {} would have met", proposed.join(" and "))?;
        }
        Ok(())
    }
}

impl fmt::Display for LossNotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.line {
            Some(line) => write!(f, "its loss is no number: `{line}`"),
            None => f.write_str("its loss is no number"),
        }
    }
}

impl fmt::Display for DoubtfulUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tokens_per_second,
            predicted_low,
            predicted_high,
            likely,
        } = self;
        write!(
            f,
            "it reports {tokens_per_second:.1} tokens/s, and {predicted_low:.0} to {predicted_high:.0} are predicted: \
             these are probably {likely}"
        )
    }
}

impl fmt::Display for IdleAccelerators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            minutes,
            utilization_percent,
            usd_per_hour,
        } = self;
        write!(
            f,
            "its accelerators idle: at most {utilization_percent:.1} % busy for {minutes} minutes, at {usd_per_hour} an hour"
        )
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum Trouble {
    NoReadings(UnmatchedPatterns),
    LossNotFinite(LossNotFinite),
    UnitDoubtful(DoubtfulUnit),
    AcceleratorsIdle(IdleAccelerators),
}

impl Trouble {
    pub fn kind(&self) -> TroubleKind {
        match self {
            Self::NoReadings(_) => TroubleKind::NoReadings,
            Self::LossNotFinite(_) => TroubleKind::LossNotFinite,
            Self::UnitDoubtful(_) => TroubleKind::UnitDoubtful,
            Self::AcceleratorsIdle(_) => TroubleKind::AcceleratorsIdle,
        }
    }
}

/// Facts about a trial that trains.
#[derive(Debug, Clone, Copy)]
pub struct RunningTrial<'a> {
    pub training_since: DateTime<Utc>,
    pub now: DateTime<Utc>,
    pub definitions: &'a [MetricDefinition],
    /// Whether anything was reported that a speed follows from.
    pub has_speed: bool,
    /// The same of another trial of the experiment, whose patterns are the same.
    pub has_speed_elsewhere: bool,
    /// Of what was reported.
    pub loss: Option<ReportedLoss>,
    /// The end of its log, oldest first; `None` if it was not read.
    pub lines: Option<&'a [String]>,
    /// Measured, where the script reports tokens.
    pub tokens_per_second: Option<f64>,
    /// Ends of its predicted interval.
    pub predicted: Option<PredictedSpeed>,
    pub sequence_length: u32,
    /// Of its accelerators, percent, oldest first.
    pub utilization: &'a [Bucket],
    /// Of all its instances.
    pub usd_per_hour: Usd,
}

/// The losses that were reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedLoss {
    /// Whether the last is finite, or one of few that are not.
    pub is_finite: bool,
    pub last_at: DateTime<Utc>,
}

/// The interval of a predicted speed, tokens per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedSpeed {
    pub low: f64,
    pub expected: f64,
    pub high: f64,
}

/// Whether its log is to be read: it has trained for a while, and what it reports says too little.
pub fn needs_log(trial: &RunningTrial<'_>) -> bool {
    let has_run = trial.now - trial.training_since >= SILENT_FOR;
    let has_loss = |one: &MetricDefinition| one.meaning == Meaning::TrainLoss;
    // A pattern of digits does not meet a loss that is no number.
    let is_stale = |loss: ReportedLoss| trial.now - loss.last_at >= SILENT_FOR;
    let lacks_loss = trial.loss.is_none_or(is_stale) && trial.definitions.iter().any(has_loss);
    has_run && (!trial.has_speed || lacks_loss)
}

/// Everything that is wrong with it now.
pub fn troubles(trial: &RunningTrial<'_>) -> Vec<Trouble> {
    let all = [
        no_readings(trial).map(Trouble::NoReadings),
        loss_not_finite(trial).map(Trouble::LossNotFinite),
        doubtful_unit(trial).map(Trouble::UnitDoubtful),
        idle(trial).map(Trouble::AcceleratorsIdle),
    ];
    all.into_iter().flatten().collect()
}

/// No pattern of a speed meets any line of a log that has lines which look like a metric. Where one does, the readings
/// are only late.
fn no_readings(trial: &RunningTrial<'_>) -> Option<UnmatchedPatterns> {
    let lines = trial.lines.filter(|_| !trial.has_speed)?;
    if trial.now - trial.training_since < SILENT_FOR {
        return None;
    }
    let speeds = trial
        .definitions
        .iter()
        .filter(|one| one.meaning.is_speed());
    let speeds: Vec<&MetricDefinition> = speeds.collect();
    let patterns: Vec<Pattern> = trial.definitions.iter().filter_map(Pattern::of).collect();
    let met = |one: &Pattern| lines.iter().any(|line| one.value(line).is_some());
    let is_speed_met = patterns
        .iter()
        .any(|one| one.meaning.is_speed() && met(one));
    let is_read_otherwise = trial.has_speed_elsewhere || patterns.iter().any(met);
    let is_too_soon = is_read_otherwise && trial.now - trial.training_since < SLOW_FOR;
    let alike: Vec<&String> = lines
        .iter()
        .filter(|line| looks_like_metric(line))
        .collect();
    // What cannot be read here may be read by SageMaker.
    let is_readable = patterns.len() == trial.definitions.len();
    if speeds.is_empty() || !is_readable || is_speed_met || is_too_soon || alike.len() < LINES_MIN {
        return None;
    }
    let last = alike.iter().rev().take(SHOWN).rev();
    Some(UnmatchedPatterns {
        lines: u32::try_from(lines.len()).unwrap_or(u32::MAX),
        patterns: speeds
            .iter()
            .map(|one| MetricPattern {
                name: one.name.clone(),
                regex: one.regex.clone(),
            })
            .collect(),
        last_lines: last.map(|line| one_line(line)).collect(),
        patch: patch(trial.definitions, &patterns, lines),
        is_read_otherwise,
    })
}

fn looks_like_metric(line: &str) -> bool {
    !readings(line).is_empty()
}

/// The patterns that would have met the lines, in place of those of the same meaning, or beside them.
fn patch(
    definitions: &[MetricDefinition],
    patterns: &[Pattern],
    lines: &[String],
) -> Vec<Operation> {
    let proposed = proposals(lines.iter().map(String::as_str), patterns);
    let of_use = |one: &MetricDefinition| {
        one.meaning.is_speed() || definitions.iter().any(|own| own.meaning == one.meaning)
    };
    let wanted = proposed.into_iter().filter(of_use);
    let operations = wanted.map(|one| {
        let own = definitions
            .iter()
            .position(|own| own.meaning == one.meaning);
        match own {
            Some(place) => Operation::set(&format!("/workload/metrics/{place}/regex"), one.regex),
            None => Operation::set("/workload/metrics/-", serde_json::json!(one)),
        }
    });
    operations.collect()
}

/// Finds a loss that is not finite: one that a script sent, or the last few in the log.
fn loss_not_finite(trial: &RunningTrial<'_>) -> Option<LossNotFinite> {
    if trial.loss.is_some_and(|loss| !loss.is_finite) {
        return Some(LossNotFinite { line: None });
    }
    let lines = trial.lines.unwrap_or_default();
    let losses = lines.iter().rev().filter_map(|line| {
        let mut own = readings(line).into_iter();
        let is_own = |one: &LoggedNumber<'_>| one.is_usual && one.meaning == Meaning::TrainLoss;
        let last = own.rfind(is_own)?;
        Some((line, last.value))
    });
    // One bad step is skipped by a scaler of gradients; the last few are not.
    let last: Vec<(&String, f64)> = losses.take(LINES_MIN).collect();
    let is_lost = last.len() == LINES_MIN && last.iter().all(|(_, value)| !value.is_finite());
    let (line, _) = last.first().filter(|_| is_lost)?;
    Some(LossNotFinite {
        line: Some(one_line(line)),
    })
}

fn doubtful_unit(trial: &RunningTrial<'_>) -> Option<DoubtfulUnit> {
    let (measured, predicted) = (trial.tokens_per_second?, trial.predicted?);
    let PredictedSpeed {
        low,
        expected,
        high,
    } = predicted;
    let is_far = measured > 0.0 && (measured * FAR <= low || measured >= high * FAR);
    let is_near = |factor: f64| {
        let ratio = measured * factor / expected;
        (1.0 / NEAR..=NEAR).contains(&ratio)
    };
    let length = f64::from(trial.sequence_length);
    let units = [
        (length, "samples per second, called tokens per second"),
        (1000.0, "tokens per millisecond, called tokens per second"),
        (
            1.0 / 1000.0,
            "a rate in which milliseconds were taken for seconds",
        ),
        (
            1.0 / length,
            "tokens per second that were multiplied by the sequence length once more",
        ),
    ];
    let likely = units.into_iter().find(|(factor, _)| is_near(*factor));
    let (_, likely) = likely.filter(|_| is_far)?;
    Some(DoubtfulUnit {
        tokens_per_second: measured,
        predicted_low: low,
        predicted_high: high,
        likely: likely.to_owned(),
    })
}

/// The newest quarter of an hour of training, in which nothing was done.
fn idle(trial: &RunningTrial<'_>) -> Option<IdleAccelerators> {
    let last = trial.utilization.last()?.last_at;
    let from = last - IDLE_FOR;
    // What came late says nothing of now.
    if from < trial.training_since || trial.now - last > IDLE_FOR {
        return None;
    }
    let recent = trial.utilization.iter().filter(|one| one.last_at >= from);
    let recent: Vec<&Bucket> = recent.collect();
    let reaches_back = recent
        .first()
        .is_some_and(|one| one.start_at <= from + TimeDelta::minutes(5));
    let most = recent.iter().map(|one| one.max).fold(0.0, f64::max);
    (reaches_back && recent.len() >= BUCKETS_MIN && most < IDLE_PERCENT).then(|| IdleAccelerators {
        minutes: u32::try_from(IDLE_FOR.num_minutes()).unwrap_or(u32::MAX),
        utilization_percent: most,
        usd_per_hour: trial.usd_per_hour,
    })
}

#[cfg(test)]
mod tests;

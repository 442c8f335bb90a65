//! Tokens per second of a run: as its script reports them, or else derived from samples, steps or
//! finished steps. It says which; the interval is that of the series it rests on.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::measure::derived::TrainingShape;
use crate::measure::eta::Progress;
use crate::measure::metric;
use crate::measure::pace::{Batch, Pace, pace};
use crate::measure::steady::{Bucket, SPAN_MIN, Steady, steady_batches};
use crate::number::{NORMAL_975, real, whole};

named! {
    /// What a speed in tokens per second rests on, the best first
    SpeedBasis {
        /// The script reports tokens per second.
        TokensPerSecond = "tokens_per_second",
        /// The script reports tokens per second of one accelerator: × accelerators.
        TokensPerSecondPerDevice = "tokens_per_second_per_device",
        /// Samples per second × sequence length: tokens of padding count.
        SamplesPerSecond = "samples_per_second",
        /// Optimizer steps per second × tokens per step.
        StepsPerSecond = "steps_per_second",
        /// Finished optimizer steps over wall time × tokens per step: evaluations, checkpoints and
        /// stalls count as time.
        Steps = "steps",
        /// Tokens trained so far, over wall time.
        TokensSeen = "tokens_seen",
    }
}

/// What is known of how fast a run is.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpeedFigures<'a> {
    pub tokens_per_second: Option<&'a Steady>,
    pub tokens_per_second_per_device: Option<&'a Steady>,
    pub samples_per_second: Option<&'a Steady>,
    pub steps_per_second: Option<&'a Steady>,
    /// Finished steps over time, in any order.
    pub progress: &'a [Progress],
    /// Tokens trained so far over time, in any order.
    pub tokens_seen: &'a [Progress],
}

/// A speed in tokens per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    pub steady: Steady,
    pub basis: SpeedBasis,
}

/// The speed by the best of the figures; `None` if there are too few, or if the shape does not say
/// how many tokens a sample or a step has.
pub fn speed(figures: SpeedFigures<'_>, shape: &TrainingShape<'_>) -> Option<Speed> {
    // A script that reports zeros for long enough has no speed.
    let is_speed = |speed: &Speed| speed.steady.mean.is_finite() && speed.steady.mean > 0.0;
    best(figures, shape).filter(is_speed)
}

fn best(figures: SpeedFigures<'_>, shape: &TrainingShape<'_>) -> Option<Speed> {
    let scaled = |steady: &Steady, tokens: f64, basis| Speed {
        steady: Steady {
            mean: steady.mean * tokens,
            half_width: steady.half_width * tokens,
            ..steady.clone()
        },
        basis,
    };
    if let Some(steady) = figures.tokens_per_second {
        return Some(scaled(steady, 1.0, SpeedBasis::TokensPerSecond));
    }
    if let Some(steady) = figures.tokens_per_second_per_device {
        let accelerators = f64::from(shape.accelerators);
        return Some(scaled(
            steady,
            accelerators,
            SpeedBasis::TokensPerSecondPerDevice,
        ));
    }
    if let Some((steady, tokens)) = figures.samples_per_second.zip(shape.tokens_per_sample()) {
        return Some(scaled(steady, tokens, SpeedBasis::SamplesPerSecond));
    }
    let tokens_per_step = shape.tokens_per_step();
    if let Some((steady, tokens)) = figures.steps_per_second.zip(tokens_per_step) {
        return Some(scaled(steady, tokens, SpeedBasis::StepsPerSecond));
    }
    let over_time = |reports: &[Progress]| {
        let times = || reports.iter().map(|report| report.at);
        let span = times().max()? - times().min()?;
        of_progress(reports).filter(|_| span >= SPAN_MIN)
    };
    let by_steps = tokens_per_step.zip(over_time(figures.progress));
    if let Some((tokens, steady)) = by_steps {
        return Some(scaled(&steady, tokens, SpeedBasis::Steps));
    }
    let steady = over_time(figures.tokens_seen)?;
    Some(scaled(&steady, 1.0, SpeedBasis::TokensSeen))
}

/// The least that a batch holds: a report that comes sooner says more of rounding than of speed.
const BATCH_STEPS: i64 = 5;
const BATCH: TimeDelta = TimeDelta::seconds(20);

/// Steps per second of wall time, from reports of finished steps: consecutive batches of at least
/// 5 steps and 20 seconds, then as any series. A step that goes back is a resume: the time in
/// between was not spent on new steps.
pub fn of_progress(reports: &[Progress]) -> Option<Steady> {
    let stretches = stretches(reports);
    let batches: Vec<Batch> = stretches.iter().map(Stretch::batch).collect();
    let (dropped, pace) = steady_batches(&batches)?;
    let count = u32::try_from(batches.len() - dropped).ok()?;
    Some(Steady {
        mean: pace.per_second,
        half_width: pace.half_width,
        points: count,
        buckets: count,
        buckets_dropped: u32::try_from(dropped).ok()?,
        from_at: stretches.get(dropped)?.from,
        until_at: stretches.last()?.until,
    })
}

/// Steps over time in the buckets of a series: those that its points carry, or those that it counts. Of tokens seen, the
/// tokens.
pub fn progress(metric: &str, buckets: &[Bucket]) -> Vec<Progress> {
    let counts = matches!(metric, metric::STEP | metric::TOKENS_SEEN);
    let carries =
        metric != metric::TOKENS_SEEN && buckets.iter().any(|bucket| bucket.last_step.is_some());
    if !carries && !counts {
        return Vec::new();
    }
    let step = |bucket: &Bucket| {
        if carries {
            bucket.last_step.map(i64::from)
        } else {
            whole(bucket.last)
        }
    };
    let report = |bucket: &Bucket| {
        Some(Progress {
            at: bucket.last_at,
            step: step(bucket)?,
        })
    };
    buckets.iter().filter_map(report).collect()
}

/// Stretches slower than this share of the usual one are a slow start, as long as nothing faster came
/// before them.
const SLOW_START: f64 = 0.9;

/// Finished steps per second of all wall time after a slow start: evaluations, checkpoints and stalls
/// count as time. Unlike [`of_progress`], it never picks a calm part of the run.
pub fn goodput(reports: &[Progress]) -> Option<Pace> {
    let batches: Vec<Batch> = stretches(reports).iter().map(Stretch::batch).collect();
    let mut rates: Vec<f64> = batches.iter().map(Batch::rate).collect();
    rates.sort_by(f64::total_cmp);
    let slow = SLOW_START * rates.get(rates.len() / 2)?;
    let is_slow = |batch: &&Batch| batch.rate() < slow;
    let start = batches.iter().take(batches.len() / 2).take_while(is_slow);
    pace(batches.get(start.count()..)?)
}

/// The share of the wall time that a run spends on steps, at the speed of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SteppingShare {
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
}

/// The least standard deviation where everything that recurs is said to have taken place: stalls
/// belong to nobody's intervals (assumed).
const NAMED_SD: f64 = 0.015;

impl SteppingShare {
    /// The share assumed before a script's steps have been observed for long. It counts as much as
    /// half an hour of one trial.
    pub const ASSUMED: Self = Self {
        mean: 0.95,
        sd: 0.03,
    };

    /// The share where everything that recurs does so at intervals `factor` times as long.
    #[must_use]
    pub fn at_longer_intervals(self, factor: f64) -> Self {
        let lost = (1.0 / self.mean - 1.0) / factor;
        let mean = 1.0 / (1.0 + lost);
        Self {
            mean,
            sd: (self.sd * (mean / self.mean).powi(2) / factor).max(NAMED_SD),
        }
    }
}

/// Shares beyond these are no shares: the counts of steps and the speed do not mean the same, as
/// where a script counts micro-batches, or reports the speed of one accelerator. The commonest such
/// factor is two.
pub const SHARE_MIN: f64 = 0.6;
/// The same of a trial that does more often what recurs: it may lose most of its time to it.
pub const SHARE_MIN_OFTEN: f64 = 0.25;
const SHARE_MAX: f64 = 1.05;
/// The least standard deviation: the next hours may hold what these did not.
const SHARE_SD_LEAST: f64 = 0.01;
/// Evaluations and checkpoints come once in many minutes: a short window holds one too many or, as at
/// the start of a run, none at all. What that adds for half an hour, as a standard deviation; it falls
/// as time goes on.
const UNSEEN_SD: f64 = 0.03;
const UNSEEN_SECONDS: f64 = 1800.0;

/// What a run's finished steps say beside the speed of its steps; an error if they do not fit together.
pub fn stepping_share(
    steps: &Pace,
    speed: &Steady,
    tokens_per_step: f64,
    share_min: f64,
) -> Result<SteppingShare, Contradiction> {
    let mean = steps.per_second * tokens_per_step / speed.mean;
    let sd = steps.half_width / steps.per_second / NORMAL_975;
    let unseen = steps.seconds.map_or(0.0, unseen_sd);
    if (share_min..=SHARE_MAX).contains(&mean) {
        Ok(SteppingShare {
            mean: mean.min(1.0),
            sd: (mean * sd).hypot(unseen).max(SHARE_SD_LEAST),
        })
    } else {
        Err(Contradiction)
    }
}

/// What the pauses that a window of so many seconds has not seen add to the uncertainty of their
/// share, as a standard deviation.
pub fn unseen_sd(seconds: f64) -> f64 {
    UNSEEN_SD * UNSEEN_SECONDS / seconds.max(1.0)
}

/// Steps and speed do not mean the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contradiction;

/// The time between two reports, with the steps done in it.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    from: DateTime<Utc>,
    until: DateTime<Utc>,
    steps: i64,
}

impl Stretch {
    fn is_whole(&self) -> bool {
        self.steps >= BATCH_STEPS && self.until - self.from >= BATCH
    }

    fn batch(&self) -> Batch {
        Batch {
            done: real(self.steps.unsigned_abs()),
            seconds: (self.until - self.from).as_seconds_f64(),
        }
    }
}

/// Consecutive stretches; one that stays too short, at the end or before a resume, is left out.
/// A time without steps is a part of the stretch in which the next step ends, or else of the last.
fn stretches(reports: &[Progress]) -> Vec<Stretch> {
    let mut sorted = reports.to_vec();
    sorted.sort_by_key(|report| report.at);
    let mut all: Vec<Stretch> = Vec::new();
    let mut open: Option<Stretch> = None;
    for pair in sorted.windows(2) {
        let [a, b] = pair else { continue };
        if b.step < a.step {
            open = None;
            continue;
        }
        let grown = match open {
            Some(stretch) => Stretch {
                until: b.at,
                steps: stretch.steps + b.step - a.step,
                ..stretch
            },
            None => Stretch {
                from: a.at,
                until: b.at,
                steps: b.step - a.step,
            },
        };
        open = Some(grown);
        if grown.is_whole() {
            all.push(grown);
            open = None;
        }
    }
    // A run that ends in an evaluation has spent that time too.
    if let (Some(rest), Some(last)) = (open.filter(|rest| rest.steps == 0), all.last_mut())
        && last.until == rest.from
    {
        last.until = rest.until;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::model::ModelShape;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn model() -> ModelShape {
        serde_json::from_value(serde_json::json!({
            "layers": 2, "hidden": 64, "heads": 4, "vocabulary": 1000, "sequence_length": 100
        }))
        .unwrap()
    }

    /// 100 tokens a sample, 1,000 a step.
    fn shape(model: &ModelShape) -> TrainingShape<'_> {
        TrainingShape {
            model: Some(model),
            global_batch: Some(10),
            accelerators: 1,
            peak_tflops: None,
            accelerator_gib: None,
            epoch_tokens: None,
            planned_steps: None,
            usd_per_hour: None,
            billed_share: None,
        }
    }

    /// A tenth of the time at intervals of a fifth is 2.2 % at the whole ones, whatever happened in
    /// between.
    #[test]
    fn pauses_are_projected_to_longer_intervals() {
        let seen = SteppingShare {
            mean: 0.9,
            sd: 0.05,
        };
        let whole = seen.at_longer_intervals(5.0);
        assert!((whole.mean - 1.0 / (1.0 + 0.1 / 0.9 / 5.0)).abs() < 1e-12);
        assert!((0.015..0.016).contains(&whole.sd), "{whole:?}");
        let same = seen.at_longer_intervals(1.0);
        assert!((same.mean - seen.mean).abs() < 1e-12 && (same.sd - seen.sd).abs() < 1e-12);
    }

    fn steady(mean: f64) -> Steady {
        Steady {
            mean,
            half_width: mean / 50.0,
            points: 20,
            buckets: 4,
            buckets_dropped: 0,
            from_at: at(0),
            until_at: at(1200),
        }
    }

    fn reports(steps: &[i64]) -> Vec<Progress> {
        let report = |(minute, step): (i64, &i64)| Progress {
            at: at(300 * minute),
            step: *step,
        };
        (0..).zip(steps).map(report).collect()
    }

    #[test]
    fn the_best_figure_counts_and_says_which_it_is() {
        let (model, progress) = (model(), reports(&[0, 30, 60, 90, 120, 150]));
        let (tokens, samples, steps) = (steady(900.0), steady(9.5), steady(1.1));
        let mut figures = SpeedFigures {
            tokens_per_second: Some(&tokens),
            samples_per_second: Some(&samples),
            steps_per_second: Some(&steps),
            progress: &progress,
            ..SpeedFigures::default()
        };
        let said = |figures| {
            let found = speed(figures, &shape(&model)).unwrap();
            (found.basis, found.steady.mean)
        };
        assert_eq!(said(figures), (SpeedBasis::TokensPerSecond, 900.0));
        figures.tokens_per_second = None;
        assert_eq!(said(figures), (SpeedBasis::SamplesPerSecond, 950.0));
        figures.samples_per_second = None;
        assert_eq!(said(figures), (SpeedBasis::StepsPerSecond, 1100.0));
        figures.steps_per_second = None;
        assert_eq!(said(figures), (SpeedBasis::Steps, 100.0));
        let unknown = TrainingShape {
            global_batch: None,
            ..shape(&model)
        };
        assert_eq!(speed(figures, &unknown), None);
    }

    /// An evaluation of five minutes in every twenty costs a fifth of the speed.
    #[test]
    fn time_without_steps_counts_as_time() {
        let model = model();
        let steps = [0, 30, 60, 90, 120, 120, 150, 180, 210, 240, 240];
        let progress = reports(&steps);
        let figures = SpeedFigures {
            progress: &progress,
            ..SpeedFigures::default()
        };
        let found = speed(figures, &shape(&model)).unwrap().steady;
        assert!((found.mean - 80.0).abs() < 1e-9, "{found:?}");
        assert!(found.mean + found.half_width > 100.0, "and widens it");
    }

    #[test]
    fn a_resume_is_not_a_negative_speed_and_a_slow_start_is_warm_up() {
        let model = model();
        let progress = reports(&[0, 3, 33, 63, 93, 60, 90, 120, 150]);
        let figures = SpeedFigures {
            progress: &progress,
            ..SpeedFigures::default()
        };
        let found = speed(figures, &shape(&model)).unwrap().steady;
        assert_eq!(found.buckets_dropped, 1);
        assert!((found.mean - 100.0).abs() < 1e-9, "{found:?}");
        let few = SpeedFigures {
            progress: &progress[..4],
            ..figures
        };
        assert_eq!(speed(few, &shape(&model)), None);
    }

    /// A hung script may report zeros for ever.
    #[test]
    fn zeros_are_no_speed() {
        let (model, stuck) = (model(), steady(0.0));
        let figures = SpeedFigures {
            tokens_per_second: Some(&stuck),
            ..SpeedFigures::default()
        };
        assert_eq!(speed(figures, &shape(&model)), None);
    }

    /// 5 minutes a report, 30 steps each, and an evaluation as long as that in every fourth; the first
    /// report is of a slow start.
    #[test]
    fn what_pauses_take_is_a_share_of_the_time() {
        let steps = [
            0, 12, 42, 72, 102, 102, 132, 162, 192, 192, 222, 252, 282, 282,
        ];
        let pace = goodput(&reports(&steps)).unwrap();
        let by_steps = 3.0 * 30.0 / 4.0 / 300.0;
        assert!(
            (pace.per_second - by_steps).abs() < 0.04 * by_steps,
            "{pace:?}"
        );
        // While it does steps: 30 in 5 minutes, of 1,000 tokens.
        let share = stepping_share(&pace, &steady(100.0), 1000.0, SHARE_MIN).unwrap();
        assert!((share.mean - 0.75).abs() < 0.03, "{share:?}");
        assert!(share.sd > 0.02);
    }

    #[test]
    fn a_speed_that_means_something_else_has_no_share() {
        let pace = goodput(&reports(&[0, 30, 60, 90, 120, 150])).unwrap();
        let share = |speed: f64| stepping_share(&pace, &steady(speed), 1000.0, SHARE_MIN);
        assert!((share(100.0).unwrap().mean - 1.0).abs() < 1e-9);
        // Of one of eight accelerators; of micro-batches; of both halves of a pair; and of nothing.
        for speed in [12.5, 400.0, 200.0, 0.0] {
            assert_eq!(share(speed), Err(Contradiction), "{speed}");
        }
    }
}

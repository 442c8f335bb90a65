//! The figures that follow from one body alone, and what is odd about them. The service derives the same from all that
//! it has stored; here they tell the sender at once what was understood.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta};

use super::report::Note;
use super::{Batch, Point};
use crate::measure::derived::TrainingShape;
use crate::measure::eta::Progress;
use crate::measure::metric;
use crate::measure::speed::{self, Speed, SpeedFigures};
use crate::measure::steady::{BUCKET_SECONDS, Bucket, Steady, steady};
use crate::number::whole;

/// Buckets of a series that is younger than this are of one minute.
const YOUNG: TimeDelta = TimeDelta::minutes(40);
const MINUTE: i64 = 60;
/// A rate and the steps over the clock differ by evaluations and checkpoints; from this factor on, they are not of the
/// same thing.
const CONTRADICTS_FROM: f64 = 1.5;
/// As many equal losses are no training.
const CONSTANT_FROM: usize = 20;

/// Points of each metric, oldest first.
struct BySeries<'a>(BTreeMap<&'a str, Vec<&'a Point>>);

impl<'a> BySeries<'a> {
    fn of(batch: &'a Batch) -> Self {
        let mut series: BTreeMap<&str, Vec<&Point>> = BTreeMap::new();
        for point in &batch.points {
            let name = batch.names.get(point.name).map_or("", String::as_str);
            let name = metric::standard(name).map_or(name, |standard| standard.name);
            series.entry(name).or_default().push(point);
        }
        for points in series.values_mut() {
            points.sort_by_key(|point| (point.at, point.step));
        }
        Self(series)
    }

    fn buckets(&self, name: &str) -> Vec<Bucket> {
        let Some(points) = self.0.get(name) else {
            return Vec::new();
        };
        let span = points
            .first()
            .zip(points.last())
            .map(|(first, last)| last.at - first.at);
        let is_young = span.is_some_and(|span| span < YOUNG);
        let width = if is_young { MINUTE } else { BUCKET_SECONDS };
        let mut buckets: Vec<Bucket> = Vec::new();
        for point in points.iter().filter(|point| point.value.is_finite()) {
            let start = point.at.timestamp().div_euclid(width) * width;
            let start_at = DateTime::from_timestamp(start, 0).unwrap_or(point.at);
            match buckets
                .last_mut()
                .filter(|bucket| bucket.start_at == start_at)
            {
                Some(bucket) => add(bucket, point),
                None => buckets.push(Bucket {
                    start_at,
                    points: 1,
                    mean: point.value,
                    min: point.value,
                    max: point.value,
                    last_at: point.at,
                    last_step: point.step,
                    last: point.value,
                }),
            }
        }
        buckets
    }

    fn steady(&self, name: &str) -> Option<Steady> {
        steady(&self.buckets(name))
    }

    /// Steps over time, of the series with the most points that carry them.
    fn progress(&self) -> Vec<Progress> {
        // Points that are no number are in no bucket.
        let carries = |point: &&&Point| point.step.is_some() && point.value.is_finite();
        let carrying = |points: &[&Point]| points.iter().filter(carries).count();
        let best = self.0.iter().max_by_key(|(_, points)| carrying(points));
        match best.filter(|(_, points)| carrying(points) > 0) {
            Some((name, _)) => speed::progress(name, &self.buckets(name)),
            None => speed::progress(metric::STEP, &self.buckets(metric::STEP)),
        }
    }
}

fn add(bucket: &mut Bucket, point: &Point) {
    let before = f64::from(bucket.points);
    bucket.points += 1;
    bucket.mean = (bucket.mean * before + point.value) / (before + 1.0);
    bucket.min = bucket.min.min(point.value);
    bucket.max = bucket.max.max(point.value);
    (bucket.last_at, bucket.last_step, bucket.last) = (point.at, point.step, point.value);
}

/// Tokens per second that follow from a batch alone; `None` if it is too short, or does not say.
pub fn speed(batch: &Batch, shape: &TrainingShape<'_>) -> Option<Speed> {
    reported(&BySeries::of(batch), shape)
}

/// Tokens per second by the steps alone, over the clock.
fn by_steps(series: &BySeries<'_>, shape: &TrainingShape<'_>) -> Option<Speed> {
    let figures = SpeedFigures {
        progress: &series.progress(),
        ..SpeedFigures::default()
    };
    speed::speed(figures, shape)
}

fn reported(series: &BySeries<'_>, shape: &TrainingShape<'_>) -> Option<Speed> {
    let steady = |name: &str| series.steady(name);
    let tokens = steady(metric::TOKENS_PER_SECOND);
    let per_device = steady(metric::TOKENS_PER_SECOND_PER_DEVICE);
    let samples = steady(metric::SAMPLES_PER_SECOND);
    let steps = steady(metric::STEPS_PER_SECOND);
    let figures = SpeedFigures {
        tokens_per_second: tokens.as_ref(),
        tokens_per_second_per_device: per_device.as_ref(),
        samples_per_second: samples.as_ref(),
        steps_per_second: steps.as_ref(),
        progress: &series.progress(),
        tokens_seen: &speed::progress(metric::TOKENS_SEEN, &series.buckets(metric::TOKENS_SEEN)),
    };
    speed::speed(figures, shape)
}

/// The last step that a batch has.
pub fn last_step(batch: &Batch) -> Option<i64> {
    let carried = batch.points.iter().filter_map(|point| point.step).max();
    carried.map(i64::from).or_else(|| {
        let series = BySeries::of(batch);
        whole(series.0.get(metric::STEP)?.last()?.value)
    })
}

/// What cannot be, or is not likely: a step beyond the plan, a speed beyond the chip's peak, a loss that does not change.
pub fn check(batch: &Batch, shape: &TrainingShape<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut note = |rule: &str, detail| {
        let rule = rule.to_owned();
        notes.push(Note { rule, detail });
    };
    if let Some((last, planned)) = last_step(batch).zip(shape.planned_steps)
        && last > planned
    {
        note(
            "step-beyond-plan",
            format!(
                "its last step is {last}, and {planned} were planned: does it count micro-steps?"
            ),
        );
    }
    let series = BySeries::of(batch);
    if let Some(speed) = reported(&series, shape)
        && let Some(mfu) = shape.derive(Some(speed.steady.mean)).mfu_percent
        && mfu > 100.0
    {
        note(
            "speed-beyond-peak",
            format!(
                "{:.0} tokens/s would be {mfu:.0} % of what its accelerators can do at their peak: it counts something \
                 else than tokens of the whole job, or the run's model, batch or machines are not those it was given",
                speed.steady.mean
            ),
        );
    }
    if let Some((reported, by_steps)) = reported(&series, shape).zip(by_steps(&series, shape)) {
        let (reported, by_steps) = (reported.steady.mean, by_steps.steady.mean);
        let times = reported / by_steps;
        if !(1.0 / CONTRADICTS_FROM..=CONTRADICTS_FROM).contains(&times) {
            note(
                "rates-contradict-steps",
                format!(
                    "it reports {reported:.0} tokens/s, and its steps over its clock make {by_steps:.0} ({times:.2} \
                     times): one of them is of one device, of micro-steps, or of another batch than the run has"
                ),
            );
        }
    }
    if let Some([first, rest @ ..]) = series.0.get(metric::TRAIN_LOSS).map(Vec::as_slice)
        && rest.len() >= CONSTANT_FROM
        && rest.iter().all(|point| is_same(point.value, first.value))
    {
        note(
            "constant-loss",
            format!(
                "its training loss is {} at each of {} points: nothing is learnt, or it is not the loss",
                first.value,
                rest.len() + 1
            ),
        );
    }
    notes
}

fn is_same(one: f64, other: f64) -> bool {
    one.to_bits() == other.to_bits()
}

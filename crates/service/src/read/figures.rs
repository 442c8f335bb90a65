//! Figures of trials and external runs: for each metric the preferred series, its steady mean and
//! its latest value. Three queries, however many subjects; points are read only of young series.

use std::collections::{BTreeMap, BTreeSet};

use bakeoff_domain::diagnosis::fruitless::ReportedLoss;
use bakeoff_domain::measure::derived::TrainingShape;
use bakeoff_domain::measure::eta::Progress;
use bakeoff_domain::measure::metric::{self, Source};
use bakeoff_domain::measure::pace::Pace;
use bakeoff_domain::measure::speed::{self, Speed, SpeedBasis, SpeedFigures};
use bakeoff_domain::measure::steady::{Bucket, Steady, steady};
use bakeoff_domain::number::whole;
use bakeoff_domain::ranking::outcome::Pauses;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use bakeoff_store::series::Series;
use bakeoff_store::{Store, StoreError};

/// Metrics that tables show as steady means; all others are shown as latest values.
const STEADY: [&str; 8] = [
    metric::TOKENS_PER_SECOND,
    metric::TOKENS_PER_SECOND_PER_DEVICE,
    metric::SAMPLES_PER_SECOND,
    metric::STEPS_PER_SECOND,
    metric::GPU_UTILIZATION,
    metric::GPU_MEMORY_UTILIZATION,
    metric::GPU_MEMORY_USED,
    metric::GPU_MEMORY_TOTAL,
];
/// Metrics that are speeds.
const SPEEDS: [&str; 4] = [
    metric::TOKENS_PER_SECOND,
    metric::TOKENS_PER_SECOND_PER_DEVICE,
    metric::SAMPLES_PER_SECOND,
    metric::STEPS_PER_SECOND,
];
/// Losses that are no number, so that it is no single bad step, and one in how many of all: a scaler of gradients skips
/// a step now and then, for as long as the training lasts.
const NON_FINITE_MIN: i64 = 3;
const NON_FINITE_SHARE: i64 = 200;
const LAST: [&str; 4] = [
    metric::TRAIN_LOSS,
    metric::VALIDATION_LOSS,
    metric::STEP,
    metric::TOKENS_SEEN,
];

/// Figures of several subjects.
#[derive(Debug, Default)]
pub struct Figures {
    /// The preferred series of each subject, only a handful.
    series: BTreeMap<Uuid, Vec<Series>>,
    steady: BTreeMap<i32, Option<Steady>>,
    /// Buckets of unsettled series, whose subjects may still be running, and of those whose subjects
    /// have no other speed.
    buckets: BTreeMap<i32, Vec<Bucket>>,
}

/// Selects one series per subject and metric: the one from the best source that has points. The
/// input is ordered by subject and metric, and the order is kept.
pub fn preferred(series: Vec<Series>) -> Vec<Series> {
    let mut best: Vec<Series> = Vec::with_capacity(series.len());
    for one in series.into_iter().filter(|one| one.points > 0) {
        match best
            .last_mut()
            .filter(|last| (last.subject_id, &last.metric) == (one.subject_id, &one.metric))
        {
            Some(last) if one.source < last.source => *last = one,
            Some(_) => {}
            None => best.push(one),
        }
    }
    best
}

fn has_steps(series: &Series) -> bool {
    series.last_step.is_some() || series.metric == metric::STEP
}

/// Of the series that say something of steps, the one with the most is believed: first those whose
/// points carry them.
fn rank(series: &Series) -> (bool, i64) {
    (series.last_step.is_some(), series.points)
}

/// The series that speeds are derived from: of each subject whose script reports no speed, one that says something of
/// steps, and the tokens that it has seen, also when they are settled.
fn stepping_without_speed(series: &[Series]) -> BTreeSet<i32> {
    let has_speed: BTreeSet<Uuid> = series
        .iter()
        .filter(|one| SPEEDS.contains(&one.metric.as_str()))
        .map(|one| one.subject_id)
        .collect();
    let mut best: BTreeMap<Uuid, &Series> = BTreeMap::new();
    let counts_tokens =
        |one: &&Series| one.metric == metric::TOKENS_SEEN && !has_speed.contains(&one.subject_id);
    let of_tokens = series.iter().filter(counts_tokens).map(|one| one.id);
    for one in series {
        if !has_steps(one) || has_speed.contains(&one.subject_id) {
            continue;
        }
        let held = best.entry(one.subject_id).or_insert(one);
        if rank(one) > rank(held) {
            *held = one;
        }
    }
    best.into_values()
        .map(|one| one.id)
        .chain(of_tokens)
        .collect()
}

impl Figures {
    pub async fn load(store: &Store, subjects: &[Uuid]) -> Result<Self, StoreError> {
        if subjects.is_empty() {
            return Ok(Self::default());
        }
        let wanted: Vec<String> = STEADY
            .iter()
            .chain(&LAST)
            .map(|name| (*name).to_owned())
            .collect();
        let series = preferred(store.series_of(subjects, Some(&wanted)).await?);
        let is_needed = |one: &Series| {
            STEADY.contains(&one.metric.as_str())
                || one.metric == metric::STEP
                || one.last_step.is_some()
        };
        let stepping = stepping_without_speed(&series);
        let unsettled: Vec<i32> = series
            .iter()
            .filter(|one| stepping.contains(&one.id) || (one.steady.is_none() && is_needed(one)))
            .map(|one| one.id)
            .collect();
        let buckets = if unsettled.is_empty() {
            BTreeMap::new()
        } else {
            store.buckets(&unsettled).await?
        };
        let figure = |one: &Series| match &one.steady {
            Some(settled) => settled.clone(),
            None => buckets.get(&one.id).and_then(|buckets| steady(buckets)),
        };
        let steady = series.iter().map(|one| (one.id, figure(one))).collect();
        let mut by_subject: BTreeMap<Uuid, Vec<Series>> = BTreeMap::new();
        for one in series {
            by_subject.entry(one.subject_id).or_default().push(one);
        }
        Ok(Self {
            series: by_subject,
            steady,
            buckets,
        })
    }

    fn series(&self, subject: Uuid, metric: &str) -> Option<&Series> {
        self.of(subject).find(|one| one.metric == metric)
    }

    pub fn steady(&self, subject: Uuid, metric: &str) -> Option<&Steady> {
        self.steady.get(&self.series(subject, metric)?.id)?.as_ref()
    }

    /// Tokens per second, by the best of what is known.
    pub fn speed(&self, subject: Uuid, shape: &TrainingShape<'_>) -> Option<Speed> {
        let progress = self.progress(subject);
        let tokens_seen = self.tokens_seen(subject);
        let figures = SpeedFigures {
            tokens_per_second: self.steady(subject, metric::TOKENS_PER_SECOND),
            tokens_per_second_per_device: self
                .steady(subject, metric::TOKENS_PER_SECOND_PER_DEVICE),
            samples_per_second: self.steady(subject, metric::SAMPLES_PER_SECOND),
            steps_per_second: self.steady(subject, metric::STEPS_PER_SECOND),
            progress: &progress,
            tokens_seen: &tokens_seen,
        };
        speed::speed(figures, shape)
    }

    /// Tokens trained so far over time, where no speed is reported.
    fn tokens_seen(&self, subject: Uuid) -> Vec<Progress> {
        let series = self.series(subject, metric::TOKENS_SEEN);
        let buckets = series.and_then(|one| self.buckets.get(&one.id));
        buckets.map_or_else(Vec::new, |buckets| {
            speed::progress(metric::TOKENS_SEEN, buckets)
        })
    }

    /// Where the points behind a speed come from.
    pub fn speed_source(&self, subject: Uuid, basis: SpeedBasis) -> Option<Source> {
        match basis {
            SpeedBasis::TokensPerSecond => self.source(subject, metric::TOKENS_PER_SECOND),
            SpeedBasis::SamplesPerSecond => self.source(subject, metric::SAMPLES_PER_SECOND),
            SpeedBasis::StepsPerSecond => self.source(subject, metric::STEPS_PER_SECOND),
            SpeedBasis::TokensPerSecondPerDevice => {
                self.source(subject, metric::TOKENS_PER_SECOND_PER_DEVICE)
            }
            SpeedBasis::Steps => self.stepping(subject).map(|one| one.source),
            SpeedBasis::TokensSeen => self.source(subject, metric::TOKENS_SEEN),
        }
    }

    pub fn mean(&self, subject: Uuid, metric: &str) -> Option<f64> {
        self.steady(subject, metric).map(|steady| steady.mean)
    }

    pub fn last(&self, subject: Uuid, metric: &str) -> Option<f64> {
        self.series(subject, metric)?
            .last_value
            .filter(|value| value.is_finite())
    }

    pub fn source(&self, subject: Uuid, metric: &str) -> Option<Source> {
        Some(self.series(subject, metric)?.source)
    }

    fn of(&self, subject: Uuid) -> impl Iterator<Item = &Series> {
        self.series.get(&subject).into_iter().flatten()
    }

    /// Whether anything was reported that a speed follows from.
    pub fn reports_speed(&self, subject: Uuid) -> bool {
        self.of(subject)
            .any(|one| SPEEDS.contains(&one.metric.as_str()) || has_steps(one))
    }

    /// Of the training loss that was reported last. A validation on nothing has no loss either, and says nothing of the
    /// training.
    pub fn reported_loss(&self, subject: Uuid) -> Option<ReportedLoss> {
        let one = self.series(subject, metric::TRAIN_LOSS)?;
        let is_finite = one.last_value.is_some_and(f64::is_finite);
        let few = NON_FINITE_MIN.max(one.points / NON_FINITE_SHARE);
        Some(ReportedLoss {
            is_finite: is_finite || one.non_finite < few,
            last_at: one.last_at?,
        })
    }

    /// The steady mean of what the script calls tokens per second.
    pub fn reported_tokens_per_second(&self, subject: Uuid) -> Option<f64> {
        self.mean(subject, metric::TOKENS_PER_SECOND)
    }

    /// Utilisation of its accelerators while it runs, oldest first.
    pub fn utilization(&self, subject: Uuid) -> Vec<Bucket> {
        let series = self.series(subject, metric::GPU_UTILIZATION);
        let buckets = series.and_then(|one| self.buckets.get(&one.id));
        buckets.cloned().unwrap_or_default()
    }

    pub fn first_at(&self, subject: Uuid) -> Option<DateTime<Utc>> {
        self.of(subject).filter_map(|one| one.first_at).min()
    }

    pub fn last_at(&self, subject: Uuid) -> Option<DateTime<Utc>> {
        self.of(subject).filter_map(|one| one.last_at).max()
    }

    /// Steps completed: from the points of the newest series that carries steps, otherwise from the
    /// step metric.
    pub fn step(&self, subject: Uuid) -> Option<i64> {
        let carried = self
            .of(subject)
            .filter(|one| one.last_step.is_some())
            .max_by_key(|one| one.last_at);
        let carried = carried.and_then(|one| one.last_step).map(i64::from);
        carried.or_else(|| whole(self.last(subject, metric::STEP)?))
    }

    /// Steps over time; only for subjects that may still be running, and those whose speed rests on
    /// it.
    pub fn progress(&self, subject: Uuid) -> Vec<Progress> {
        let Some(one) = self.stepping(subject) else {
            return Vec::new();
        };
        let buckets = self.buckets.get(&one.id).map_or(&[][..], Vec::as_slice);
        speed::progress(&one.metric, buckets)
    }

    /// The series that steps were reported by, whether it is settled or not.
    pub fn reporting_steps(&self, subject: Uuid) -> Option<&Series> {
        self.stepping_among(subject, |_| true)
    }

    /// What is known of a subject's time between steps.
    pub fn pauses(
        &self,
        subject: Uuid,
        shape: &TrainingShape<'_>,
        intervals_divided_by: Option<f64>,
    ) -> Pauses {
        let share_min = intervals_divided_by.map_or(speed::SHARE_MIN, |_| speed::SHARE_MIN_OFTEN);
        let known = || {
            let speed = self.speed(subject, shape)?;
            if matches!(speed.basis, SpeedBasis::Steps | SpeedBasis::TokensSeen) {
                return Some(Pauses::InSpeed);
            }
            let pace = self.pace(subject)?;
            let tokens_per_step = shape.tokens_per_step()?;
            let stepping = speed::stepping_share(&pace, &speed.steady, tokens_per_step, share_min);
            Some(stepping.map_or(Pauses::Contradictory, Pauses::Apart))
        };
        known().unwrap_or_default()
    }

    /// Finished steps over time: of the same series, whether it is settled or not.
    fn pace(&self, subject: Uuid) -> Option<Pace> {
        let stepping = self.of(subject).filter(|one| has_steps(one));
        let one = stepping.max_by_key(|one| rank(one))?;
        let of_buckets = || {
            let buckets = self.buckets.get(&one.id)?;
            speed::goodput(&speed::progress(&one.metric, buckets))
        };
        one.pace.or_else(of_buckets)
    }

    /// The series that steps over time are read from: one that carries steps, or else the step
    /// metric.
    fn stepping(&self, subject: Uuid) -> Option<&Series> {
        self.stepping_among(subject, |one| self.buckets.contains_key(&one.id))
    }

    /// Of the usable series whose points carry steps, the one with the most; otherwise the step metric.
    fn stepping_among(
        &self,
        subject: Uuid,
        is_usable: impl Fn(&Series) -> bool,
    ) -> Option<&Series> {
        let carrying = self
            .of(subject)
            .filter(|one| one.last_step.is_some() && is_usable(one));
        carrying
            .max_by_key(|one| one.points)
            .or_else(|| self.series(subject, metric::STEP))
    }
}

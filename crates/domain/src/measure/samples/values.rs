//! What a number is: the metric that a name means, its conversion, and how devices combine.

use crate::measure::metric::{self, without_device};

/// How a number becomes the standard metric's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conversion {
    /// Seconds a step become steps a second.
    PerSeconds,
    /// Milliseconds a step become steps a second.
    PerMilliseconds,
}

impl Conversion {
    pub(super) fn apply(self, number: f64) -> f64 {
        match self {
            Self::PerSeconds => 1.0 / number,
            Self::PerMilliseconds => 1000.0 / number,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::PerSeconds => "seconds a step, stored as steps a second",
            Self::PerMilliseconds => "milliseconds a step, stored as steps a second",
        }
    }
}

const SECONDS_PER_STEP: [&str; 20] = [
    "step_time",
    "step_time_s",
    "step_time_seconds",
    "seconds_per_step",
    "sec_per_step",
    "sec/step",
    "s/step",
    "s/it",
    "time_per_step",
    "iteration_time",
    "iteration-time",
    "iter_time",
    "iter time (s)",
    "elapsed time per iteration (s)",
    "time_per_iteration",
    "seconds_per_iteration",
    "train_step_timing in s",
    "train_step_timing",
    "time_metrics/end_to_end(s)",
    "step_duration",
];
const MILLISECONDS_PER_STEP: [&str; 8] = [
    "step_time_ms",
    "ms_per_step",
    "ms/step",
    "iter_time_ms",
    "iteration_time_ms",
    "time_per_iteration_ms",
    "elapsed time per iteration (ms)",
    "elapsed_time_per_iteration_ms",
];

fn conversion(name: &str) -> Option<Conversion> {
    let lower = name.to_ascii_lowercase();
    let bare = metric::without_folder(&lower);
    let is_in = |list: &[&str]| list.contains(&lower.as_str()) || list.contains(&bare);
    if is_in(&SECONDS_PER_STEP) {
        return Some(Conversion::PerSeconds);
    }
    is_in(&MILLISECONDS_PER_STEP).then_some(Conversion::PerMilliseconds)
}

/// What the numbers of a column are.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Value {
    /// The name under which they are stored.
    pub(super) name: String,
    pub(super) conversion: Option<Conversion>,
    /// The device in the name: `3` of `system.gpu.3.temp`.
    pub(super) device: Option<String>,
}

impl Value {
    pub(super) fn of(name: &str) -> Self {
        if let Some(conversion) = conversion(name) {
            return Self {
                name: metric::STEPS_PER_SECOND.to_owned(),
                conversion: Some(conversion),
                device: None,
            };
        }
        let (name, device) = match without_device(name) {
            Some(shared) => (shared, Some(name.to_owned())),
            None => (name.to_owned(), None),
        };
        Self {
            name,
            conversion: None,
            device,
        }
    }

    /// How the numbers are converted, in words.
    pub(super) fn converted(&self) -> Option<&'static str> {
        self.conversion.map(Conversion::in_words)
    }

    pub(super) fn standard(&self) -> Option<&'static str> {
        metric::standard(&self.name).map(|standard| standard.name)
    }

    /// Seconds that a step took, where this says so.
    pub(super) fn seconds_per_step(&self, number: f64) -> Option<f64> {
        let seconds = 1.0 / self.conversion?.apply(number);
        (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
    }
}

/// Whether devices add up to the job's figure; all others are averaged.
pub(super) fn adds_up(name: &str) -> bool {
    let standard = metric::standard(name).map(|standard| standard.name);
    matches!(
        standard,
        Some(
            metric::TOKENS_PER_SECOND
                | metric::SAMPLES_PER_SECOND
                | metric::TOKENS_SEEN
                | metric::SAMPLES_SEEN
        )
    )
}

/// Whether a record is Hugging Face's summary of the whole run, which has its runtime and no loss of a step.
pub(super) fn is_total_at_end<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let (mut has_runtime, mut has_loss) = (false, false);
    for name in names {
        match name.rsplit(['/', '.']).next().unwrap_or(name) {
            "train_runtime" => has_runtime = true,
            "loss" | "eval_loss" => has_loss = true,
            _ => {}
        }
    }
    has_runtime && !has_loss
}

//! Forecasts for a candidate before it has run: speed, hours and dollars, each with a 90 %
//! interval. Predicted, never measured; the speed law is in [`crate::predict`].

use bakeoff_domain::catalog;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::is_sound;
use bakeoff_domain::lifecycle::spot::SAVING_PERCENT_MAX;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::Price;
use bakeoff_domain::number::NORMAL_95;
use bakeoff_domain::spec::measurement::Measurement;
use bakeoff_domain::spec::{Candidate, ExperimentSpec, PurchaseOption, WorkloadSpec};
use serde::{Deserialize, Serialize};

use crate::predict::billed::BesideSteps;
use crate::predict::{self, Calibration, Case, Seconds};
use crate::setup::Setup;

/// A figure with its 90 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub expected: f64,
    pub high: f64,
}

impl Interval {
    /// About an expected figure, given the standard deviation of its logarithm.
    pub fn about(expected: f64, log_sd: f64) -> Self {
        let factor = (NORMAL_95 * log_sd).exp();
        Self {
            low: expected / factor,
            expected,
            high: expected * factor,
        }
    }

    /// Standard deviation of the figure's logarithm.
    pub fn log_sd(&self) -> f64 {
        (self.high / self.low).ln() / (2.0 * NORMAL_95)
    }
}

/// Dollars with their interval. For spot only the bounds are known: the saving is known only at the
/// end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UsdInterval {
    pub low: Usd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Usd>,
    pub high: Usd,
}

/// The forecast for one candidate. All figures are predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Over all accelerators.
    pub tokens_per_second: Interval,
    /// Standard deviation of the speed's logarithm, as far as all candidates share it: how far this
    /// code is from the code that the law was fitted to. Empty in plans from before it was stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_log_sd: Option<f64>,
    /// Model FLOP utilisation at the expected speed, 0 to 100.
    pub mfu_percent: f64,
    /// How the time of a micro-step is spent.
    pub seconds_per_micro_step: Seconds,
    /// All that is billed for training on the trial's tokens: downloads and start, steps and what recurs between them, and
    /// the upload.
    pub trial_hours: Interval,
    pub full_run_hours: Interval,
    /// At the price in force; empty when the price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_usd: Option<UsdInterval>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_run_usd: Option<UsdInterval>,
    /// True when a measurement of this type was used.
    pub is_rescaled: bool,
    /// The sources of the law, and what it does not model here.
    pub basis: Vec<String>,
}

/// Calibrates the law with the experiment's measurements, first with those of other versions of the
/// code. Measurements that cannot be read as a setting are skipped; the linter reports them.
pub fn calibrated(spec: &ExperimentSpec) -> Calibration {
    let mut calibration = Calibration::shipped();
    let described = |workload: &&WorkloadSpec| is_sound(&workload.model);
    let Some(workload) = spec.workload.as_ref().filter(described) else {
        return calibration;
    };
    let (own, earlier): (Vec<&Measurement>, Vec<&Measurement>) =
        (spec.measurements.iter()).partition(|one| is_of_this_code(one, workload));
    for measurement in &earlier {
        learn(&mut calibration, workload, measurement);
    }
    if !earlier.is_empty() {
        calibration.change_code();
    }
    for measurement in own {
        learn(&mut calibration, workload, measurement);
    }
    calibration
}

fn is_of_this_code(measurement: &Measurement, workload: &WorkloadSpec) -> bool {
    let version = measurement.code_version.as_ref();
    version.is_none_or(|version| *version == workload.code_version)
}

fn learn(calibration: &mut Calibration, workload: &WorkloadSpec, measurement: &Measurement) {
    let Some(instance) = catalog::find(&measurement.instance_type) else {
        return;
    };
    let setup = Setup {
        model: &workload.model,
        profile: &measurement.profile,
        precision: workload.precision,
        cluster: Cluster {
            instance,
            count: measurement.instance_count,
        },
    };
    if let Some(case) = Case::new(setup) {
        calibration.learn(&case, measurement.tokens_per_second);
    }
}

/// The forecast for a candidate under its setup; `None` if the catalog lacks a figure that speed depends on.
pub(crate) fn forecast(
    spec: &ExperimentSpec,
    candidate: Candidate<'_>,
    setup: Setup<'_>,
    option: PurchaseOption,
    price: Option<&Price>,
    calibration: &Calibration,
    beside: BesideSteps,
) -> Option<Forecast> {
    let workload = candidate.workload;
    let case = Case::new(setup)?;
    let [low, expected, high] = calibration.tokens_per_second(&case);
    if !(low.is_finite() && high.is_finite() && low > 0.0) {
        return None;
    }
    let tokens_per_second = Interval {
        low,
        expected,
        high,
    };
    let trial_hours = beside.hours(workload.trial_tokens, tokens_per_second);
    let full_run_hours = beside.hours(workload.total_tokens, tokens_per_second);
    let count = candidate.spec.instance_count;
    let dollars = |hours: Interval| usd(hours, count, price?, option);
    Some(Forecast {
        tokens_per_second,
        shared_log_sd: Some(calibration.shared_sd()),
        mfu_percent: 100.0 * expected * workload.model.flops_per_token()
            / (case.setting.accelerators * case.hardware.peak),
        seconds_per_micro_step: calibration.seconds(&case.hardware, &case.setting),
        trial_usd: dollars(trial_hours),
        full_run_usd: dollars(full_run_hours),
        trial_hours,
        full_run_hours,
        is_rescaled: spec
            .measurements
            .iter()
            .any(|one| one.instance_type == candidate.spec.instance_type),
        basis: basis(spec, &case, option, beside),
    })
}

impl Forecast {
    /// The same for a trial that does something else between its steps than the full run does.
    pub(crate) fn of_trial(
        self,
        beside: BesideSteps,
        candidate: Candidate<'_>,
        price: Option<&Price>,
        option: PurchaseOption,
    ) -> Self {
        let hours = beside.hours(candidate.workload.trial_tokens, self.tokens_per_second);
        let count = candidate.spec.instance_count;
        Self {
            trial_hours: hours,
            trial_usd: price.and_then(|price| usd(hours, count, price, option)),
            ..self
        }
    }
}

fn usd(hours: Interval, count: u32, price: &Price, option: PurchaseOption) -> Option<UsdInterval> {
    let at = |hours: f64, rate: Usd| Usd::from_f64(hours * f64::from(count) * rate.as_f64());
    let high = at(hours.high, price.ceiling())?;
    let saved = 1.0 - f64::from(SAVING_PERCENT_MAX) / 100.0;
    Some(match option {
        PurchaseOption::OnDemand => UsdInterval {
            low: at(hours.low, price.usd_per_hour)?,
            expected: Some(at(hours.expected, price.usd_per_hour)?),
            high,
        },
        PurchaseOption::Spot => UsdInterval {
            low: at(hours.low * saved, price.usd_per_hour)?,
            expected: None,
            high,
        },
    })
}

fn basis(
    spec: &ExperimentSpec,
    case: &Case<'_>,
    option: PurchaseOption,
    beside: BesideSteps,
) -> Vec<String> {
    let mut all = vec![format!(
        "predicted: physical model with coefficients fitted to {}",
        predict::source()
    )];
    if predict::type_sd(case.kind) > 0.0 {
        all.push(format!(
            "{} is not among the measured chips: its data sheet is used, and the interval is wider",
            case.kind
        ));
    }
    let applies = |(name, effect): (&&str, &f64)| (*effect > 0.0).then(|| name.replace('_', " "));
    let effects: Vec<String> = predict::EFFECT_NAMES
        .iter()
        .zip(&case.effects)
        .filter_map(applies)
        .collect();
    if !effects.is_empty() {
        all.push(format!(
            "{}: the average effect in {} published runs of {} sources",
            effects.join(", "),
            predict::published_rows(),
            predict::published_sources().len()
        ));
    }
    all.push(of_measurements(spec));
    all.push(beside.basis());
    if option == PurchaseOption::Spot {
        all.push(
            "spot has no price: 10 to 100 % of the on-demand price, without interruptions"
                .to_owned(),
        );
    }
    all
}

/// What is known of the code.
fn of_measurements(spec: &ExperimentSpec) -> String {
    if spec.measurements.is_empty() {
        return "no run of this code is known, and codes differ: the interval is that of published codes"
            .to_owned();
    }
    let is_other = |one: &&Measurement| {
        let workload = spec.workload.as_ref();
        workload.is_some_and(|workload| !is_of_this_code(one, workload))
    };
    let other = spec.measurements.iter().filter(is_other).count();
    let of_other = if other > 0 {
        format!(
            ", {other} of other versions of the code, which may be 10 % faster or slower (assumed)"
        )
    } else {
        String::new()
    };
    format!(
        "includes {} measured run(s) of this workload{of_other}",
        spec.measurements.len()
    )
}

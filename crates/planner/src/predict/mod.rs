//! Predicts how fast a training run will be: time per micro-step from the catalog's physics (matrix
//! products, attention, memory traffic, communication), with ten coefficients that were fitted to
//! measured runs and are shipped with their provenance and uncertainty. Every answer is an
//! interval. A measured run moves the coefficients, and so rescales the predictions for its type
//! and, with less certainty, for others. What the fitted code does not do (model parallelism, LoRA,
//! offload, FP16, chips without BF16) has an average effect of its own, learnt from runs that others
//! published, and how far one code is from another was learnt there, too.

pub(crate) mod billed;
mod case;
pub mod fit;
pub mod forecast;
mod model;
pub mod strategy;

pub use self::case::{Case, hardware};
pub use self::model::{
    COUNT, EFFECT_NAMES, EFFECTS, Effects, Model, NAMES, published_rows, published_sources, source,
};

use bakeoff_domain::number::of_items;
use serde::{Deserialize, Serialize};

/// One accelerator and how it reaches the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hardware {
    /// Dense 16-bit FLOP/s.
    pub peak: f64,
    /// Memory bandwidth, bytes/s.
    pub bandwidth: f64,
    /// Bytes/s to the other accelerators of the instance, both directions together.
    pub link: f64,
    /// Network bytes/s: its share of the instance's, one direction.
    pub network: f64,
    pub per_instance: f64,
}

/// The properties of a training run that speed depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    pub parameters: f64,
    /// Parameters in the matrices of one layer.
    pub layer_parameters: f64,
    pub layers: f64,
    pub hidden: f64,
    pub vocabulary: f64,
    pub sequence_length: f64,
    pub accelerators: f64,
    /// Sequences per accelerator in one micro-step.
    pub micro_batch: f64,
    pub accumulation: f64,
    /// How often 2 bytes per parameter cross the wire in each micro-step.
    pub collectives: f64,
    /// The same between instances, where groups that hold copies of the states exchange gradients
    /// only.
    pub collectives_between: f64,
    /// Whether layers are recomputed, and whether attention is.
    pub recomputes: bool,
    pub recomputes_attention: bool,
    pub is_fp8: bool,
    /// FLOP per parameter and token in matrix products: 6, or 4 with frozen weights. Recomputation
    /// is added to this.
    pub products: f64,
    /// Parameters whose optimiser state each accelerator updates.
    pub optimised: f64,
    /// Bytes per number, relative to 16 bits.
    pub width: f64,
    /// Bytes that each accelerator moves in a micro-step to unpack frozen weights of 4 or 8 bits.
    pub unpacked_bytes: f64,
    /// Accelerators that share one micro-batch: tensor × pipeline × context.
    pub split: f64,
    pub tensor: f64,
    pub pipeline: f64,
    pub context: f64,
    /// Bytes of keys, values and their gradients that each accelerator passes on in one micro-step,
    /// if sequences are split.
    pub context_bytes: f64,
    /// Seconds of each micro-step, and of each optimiser step, spent waiting for the host.
    pub host_per_micro_step: f64,
    pub host_per_step: f64,
}

/// Kernel launches: seconds per layer and micro-step.
const LAUNCH: f64 = 3e-4;
/// Latency of a ring across instances: seconds per accelerator, layer and collective.
const HOP: f64 = 1e-6;
/// Seconds of an optimiser step on top of its memory traffic.
const STEP: f64 = 5e-3;
/// Share of the network bandwidth that collectives reach.
const NETWORK_EFFICIENCY: f64 = 0.8;
/// How sharply the slower of computing and network dominates.
const OVERLAP: f64 = 4.0;
/// Peak of an A100, the reference chip for efficiency.
const YARDSTICK_PEAK: f64 = 312e12;

/// Seconds of one micro-step on each accelerator, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    pub matrix_products: f64,
    pub attention: f64,
    /// Elementwise operations, logits, and unpacking frozen weights: memory traffic.
    pub memory: f64,
    /// Within the instance, not overlapped with computing.
    pub communication: f64,
    /// Between instances, before overlap with computing.
    pub network: f64,
    pub latency: f64,
    pub optimiser: f64,
    /// Waiting for the host (offload) and for other stages (pipeline).
    pub waiting: f64,
    /// Total of all causes.
    pub total: f64,
}

/// Seconds of a micro-step in which the chips themselves are busy.
struct Computing {
    matrix_products: f64,
    attention: f64,
    memory: f64,
}

fn computing(theta: &[f64; COUNT], hardware: &Hardware, setting: &Setting) -> Computing {
    let [
        gemm,
        gemm_peak,
        attention,
        attention_peak,
        element,
        logit,
        recompute,
        fp8,
        ..,
    ] = theta.map(f64::exp);
    let Setting {
        layers,
        hidden,
        vocabulary,
        ..
    } = *setting;
    let tokens = setting.micro_batch * setting.sequence_length;
    let again = if setting.recomputes {
        1.0 + recompute / 3.0
    } else {
        1.0
    };
    let big = (hardware.peak / YARDSTICK_PEAK).max(1.0);
    let fp8_gain = if setting.is_fp8 { fp8 } else { 1.0 };
    let gemm_peak = hardware.peak * big.powf(-gemm_peak.min(0.95)) * fp8_gain;
    let attention_peak = hardware.peak * big.powf(-attention_peak.min(0.95));
    let wide = setting.layer_parameters / (12.0 * hidden * hidden);
    let share = 1.0 / setting.split;
    // Recomputation is a forward pass: 2 of the 6.
    let of_layers = setting.products + 6.0 * (again - 1.0);
    let body =
        of_layers * setting.layer_parameters * layers + setting.products * vocabulary * hidden;
    let matrix_products = gemm * body * tokens / gemm_peak * share;
    let attention_again = if setting.recomputes_attention {
        4.0 / 3.0
    } else {
        again
    };
    let attention =
        attention * 12.0 * layers * hidden * setting.sequence_length * attention_again * tokens
            / attention_peak
            * share;
    let memory = (element * layers * hidden * wide * again + logit * vocabulary) * tokens
        / hardware.bandwidth
        * share
        + setting.unpacked_bytes / hardware.bandwidth;
    Computing {
        matrix_products,
        attention,
        memory,
    }
}

/// Time of one micro-step with these coefficients (as logarithms).
pub fn seconds(theta: &[f64; COUNT], hardware: &Hardware, setting: &Setting) -> Seconds {
    let [.., communication, straggle] = theta.map(f64::exp);
    let Setting {
        layers,
        hidden,
        accelerators: n,
        collectives,
        parameters,
        ..
    } = *setting;
    let tokens = setting.micro_batch * setting.sequence_length;
    let nodes = (n / hardware.per_instance).ceil();
    let crosses = if nodes > 1.0 { 1.0 } else { 0.0 };
    let share = setting.context / setting.split;
    let is_ring_inside = setting.tensor * setting.context <= hardware.per_instance;
    let [ring_inside, ring_between] = if is_ring_inside {
        [setting.context_bytes, 0.0]
    } else {
        [0.0, setting.context_bytes]
    };
    let Computing {
        matrix_products,
        attention,
        memory,
    } = computing(theta, hardware, setting);
    let bytes = collectives * 2.0 * parameters * share;
    let bytes_between = setting.collectives_between * 2.0 * parameters * share;
    let network = (crosses * bytes_between / hardware.per_instance + ring_between)
        / (NETWORK_EFFICIENCY * hardware.network);
    let computing = matrix_products + attention + memory;
    let both = (computing.powf(OVERLAP) + network.powf(OVERLAP)).powf(1.0 / OVERLAP);
    let both = both * (1.0 + straggle * nodes.log2());
    // Tensor parallel: four all-reduces of the layer's activations, six with recomputation.
    let reduces = if setting.recomputes { 6.0 } else { 4.0 };
    let of_tensor = reduces * 2.0 * 2.0 * setting.width * tokens * hidden * layers
        / (setting.pipeline * setting.context)
        * (setting.tensor - 1.0)
        / setting.tensor;
    let inside = bytes * (n - 1.0) / n + of_tensor + ring_inside;
    let communication = communication * inside / hardware.link;
    let latency = LAUNCH * layers / setting.pipeline
        + crosses * HOP * layers * setting.collectives_between * n;
    let optimiser = (16.0 * setting.optimised / hardware.bandwidth + STEP) / setting.accumulation;
    let host = setting.host_per_micro_step + setting.host_per_step / setting.accumulation;
    let busy = both + communication + latency;
    // The pipeline fills and drains once per step.
    let bubble = busy * (setting.pipeline - 1.0) / setting.accumulation;
    let total = busy + bubble + optimiser + host;
    Seconds {
        matrix_products,
        attention,
        memory,
        communication,
        network,
        latency,
        optimiser,
        waiting: bubble + host,
        total,
    }
}

/// Logarithm of tokens/s per accelerator.
pub fn log_speed(theta: &[f64; COUNT], hardware: &Hardware, setting: &Setting) -> f64 {
    let tokens = setting.micro_batch * setting.sequence_length / setting.split;
    (tokens / seconds(theta, hardware, setting).total).ln()
}

/// Derivatives of [`log_speed`] by the logarithms of the coefficients, by central differences.
pub fn gradient(theta: &[f64; COUNT], hardware: &Hardware, setting: &Setting) -> [f64; COUNT] {
    const STEP: f64 = 1e-5;
    let mut all = [0.0; COUNT];
    for (index, slope) in all.iter_mut().enumerate() {
        let moved = |by: f64| {
            let mut theta = *theta;
            if let Some(value) = theta.get_mut(index) {
                *value += by;
            }
            log_speed(&theta, hardware, setting)
        };
        *slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
    }
    all
}

/// Half-width of intervals in standard deviations: the 90 % quantile of grouped cross-validation.
const QUANTILE: f64 = 1.65;
/// Scatter of measured runs about any smooth law, in logarithms.
const NOISE: f64 = 0.025;
/// Uncertainty of a measurement that is supplied, in logarithms.
const MEASURED: f64 = 0.03;
const MEASURED_FP8: f64 = 0.06;
/// How far one type's speed can be from a law that fits the others, if it is of the same kind as
/// the fitted types.
pub const TYPE: f64 = 0.05;
/// The same for a type that is among the fitted ones.
const KNOWN_TYPE: f64 = 0.03;
/// How far a user's code can be from the measured code in the same setting: the root mean square of how far 15 sources
/// of published runs are from the law, each predicted without it, is 0.36.
pub const IMPLEMENTATION: f64 = 0.36;
/// Scatter of one code's runs about the law where it does what the fitted code does not.
pub const UNFITTED: f64 = 0.12;
/// The same where it does what the fitted code does, too, for a code that is not the fitted one.
const SCATTER: f64 = 0.08;
/// How far one version of a code may be from the one before (assumed), in logarithms.
const VERSION: f64 = 0.10;
/// How far coefficients may differ between types: attention, elements, logits, communication.
const DRIFT: [(usize, f64); 4] = [(2, 0.10), (4, 0.10), (5, 0.10), (8, 0.30)];

/// The law updated with later measurements: the coefficients, a factor for the code, and one for
/// each measured type, jointly Gaussian in logarithms.
#[derive(Debug, Clone)]
pub struct Calibration {
    theta: [f64; COUNT],
    /// Logarithm of the factor that all types share, because the code differs from the measured
    /// one.
    code: f64,
    /// Logarithms of the effects.
    effects: [f64; EFFECTS],
    /// Measured kinds of accelerator, with the logarithm of their factor.
    kinds: Vec<(String, f64)>,
    /// Covariance of the coefficients, the code's factor, the effects and the types' factors.
    covariance: Vec<Vec<f64>>,
    /// Scatter of runs about this law, beside [`NOISE`].
    scatter: f64,
    /// Settings that were measured.
    measured: Vec<Measured>,
}

/// A measured setting: it needs no law.
#[derive(Debug, Clone)]
struct Measured {
    kind: String,
    setting: Setting,
    hardware: Hardware,
    /// Logarithm of tokens/s per accelerator.
    log_speed: f64,
}

impl Calibration {
    /// The product's calibration before any measurement.
    pub fn shipped() -> Self {
        Self::new(Model::shipped(), IMPLEMENTATION)
    }

    /// A calibration without measurements. `code_sd`: how far the code may be from the code that
    /// the law was fitted to, in logarithms.
    pub fn new(model: &Model, code_sd: f64) -> Self {
        let of_law = model.covariance.iter();
        let of_law = of_law.map(|row| [&row[..], &[0.0; 1 + EFFECTS]].concat());
        let of_code = [&[0.0; COUNT][..], &[code_sd * code_sd], &[0.0; EFFECTS]].concat();
        let of_effects = model.effects.covariance.iter();
        let of_effects = of_effects.map(|row| [&[0.0; COUNT + 1][..], row].concat());
        Self {
            theta: model.theta,
            code: 0.0,
            effects: model.effects.mean,
            kinds: Vec::new(),
            covariance: of_law.chain([of_code]).chain(of_effects).collect(),
            scatter: if code_sd > 0.0 { SCATTER } else { 0.0 },
            measured: Vec::new(),
        }
    }

    /// Standard deviation, as a logarithm, of what does not set one type's prediction apart: the
    /// code's factor, which all share, and the scatter, which whoever compares types has counted as
    /// the spread of a code between them.
    pub fn shared_sd(&self) -> f64 {
        let variance = self.covariance.get(COUNT).and_then(|row| row.get(COUNT));
        let of_code = variance.copied().unwrap_or(0.0).max(0.0).sqrt();
        of_code.hypot(self.scatter)
    }

    /// The same law without the doubt about the code: for code that is as well tuned as what is known
    /// of it, or else as the code that the law was fitted to.
    #[must_use]
    pub fn of_tuned_code(&self) -> Self {
        let mut tuned = self.clone();
        for row in &mut tuned.covariance {
            row.get_mut(COUNT)
                .into_iter()
                .for_each(|value| *value = 0.0);
        }
        tuned
            .covariance
            .get_mut(COUNT)
            .into_iter()
            .for_each(|row| row.fill(0.0));
        tuned.scatter = 0.0;
        tuned
    }

    /// Derivatives of the logarithm of the speed by every uncertain quantity.
    fn slopes(&self, case: &Case<'_>) -> Vec<f64> {
        let own = self
            .kinds
            .iter()
            .map(|(name, _)| if name == case.kind { 1.0 } else { 0.0 });
        gradient(&self.theta, &case.hardware, &case.setting)
            .into_iter()
            .chain([1.0])
            .chain(case.effects)
            .chain(own)
            .collect()
    }

    /// Updates the law with one measured run: one step of a Kalman filter.
    pub fn measure(&mut self, case: &Case<'_>, type_sd: f64, tokens_per_second_each: f64) {
        self.allow_for(case.kind, type_sd);
        let noise = if case.setting.is_fp8 {
            MEASURED_FP8
        } else {
            MEASURED
        };
        let noise = noise.hypot(self.scatter.max(case.extra));
        let slopes = self.slopes(case);
        let surprise = tokens_per_second_each.ln() - self.log_speed(case);
        self.measured.push(Measured {
            kind: case.kind.to_owned(),
            setting: case.setting,
            hardware: case.hardware,
            log_speed: tokens_per_second_each.ln(),
        });
        let spread: Vec<f64> = self
            .covariance
            .iter()
            .map(|row| dot(row, &slopes))
            .collect();
        let total = dot(&spread, &slopes) + noise * noise;
        let gain: Vec<f64> = spread.iter().map(|value| value / total).collect();
        let factors = self.kinds.iter_mut().map(|(_, factor)| factor);
        for (value, gain) in self
            .theta
            .iter_mut()
            .chain([&mut self.code])
            .chain(&mut self.effects)
            .chain(factors)
            .zip(&gain)
        {
            *value += gain * surprise;
        }
        for (row, gain) in self.covariance.iter_mut().zip(&gain) {
            for (value, spread) in row.iter_mut().zip(&spread) {
                *value -= gain * spread;
            }
        }
    }

    /// Forgets, after runs of earlier versions of the code, what those versions alone can say: the next
    /// may be faster or slower on all types, and no setting of it has been measured.
    pub fn change_code(&mut self) {
        self.add_variance(COUNT, VERSION * VERSION);
        self.measured.clear();
    }

    /// Widens the law before a type is first measured: by the type's own factor and, the first time,
    /// by how far coefficients differ between types.
    fn allow_for(&mut self, kind: &str, type_sd: f64) {
        let is_new = type_sd > 0.0;
        if is_new && self.kinds.is_empty() {
            for (index, sd) in DRIFT {
                self.add_variance(index, sd * sd);
            }
        }
        if self.factor(kind).is_none() {
            let sd = if is_new {
                type_sd.max(TYPE)
            } else {
                KNOWN_TYPE
            };
            self.add_kind(kind, sd);
        }
    }

    /// Adds a type that is measured for the first time.
    fn add_kind(&mut self, kind: &str, sd: f64) {
        self.kinds.push((kind.to_owned(), 0.0));
        self.covariance.iter_mut().for_each(|row| row.push(0.0));
        self.covariance.push(vec![0.0; self.covariance.len() + 1]);
        self.add_variance(self.covariance.len() - 1, sd.powi(2));
    }

    fn add_variance(&mut self, index: usize, variance: f64) {
        if let Some(value) = self
            .covariance
            .get_mut(index)
            .and_then(|row| row.get_mut(index))
        {
            *value += variance;
        }
    }

    fn factor(&self, kind: &str) -> Option<f64> {
        self.kinds
            .iter()
            .find(|(name, _)| name == kind)
            .map(|(_, factor)| *factor)
    }

    fn log_speed(&self, case: &Case<'_>) -> f64 {
        log_speed(&self.theta, &case.hardware, &case.setting)
            + self.code
            + dot(&self.effects, &case.effects)
            + self.factor(case.kind).unwrap_or(0.0)
    }

    /// Tokens/s per accelerator with its 90 % interval: low, expected, high. `type_sd`: how far a
    /// type that was never measured may be from the law, in logarithms.
    pub fn speed(&self, case: &Case<'_>, type_sd: f64) -> [f64; 3] {
        if let Some(measured) = self.measured(case) {
            let half = QUANTILE * NOISE.hypot(MEASURED);
            return [measured - half, measured, measured + half].map(f64::exp);
        }
        let slopes = self.slopes(case);
        let spread: Vec<f64> = self
            .covariance
            .iter()
            .map(|row| dot(row, &slopes))
            .collect();
        let of_type = if self.factor(case.kind).is_some() {
            0.0
        } else {
            type_sd
        };
        let variance = NOISE * NOISE
            + dot(&spread, &slopes).max(0.0)
            + of_type * of_type
            + case.extra.max(self.scatter).powi(2);
        let half = QUANTILE * variance.sqrt();
        let middle = self.log_speed(case);
        [(middle - half).exp(), middle.exp(), (middle + half).exp()]
    }

    /// The mean logarithm of the speeds measured in exactly this setting.
    fn measured(&self, case: &Case<'_>) -> Option<f64> {
        let is_same = |one: &&Measured| {
            one.kind == case.kind && one.setting == case.setting && one.hardware == case.hardware
        };
        let same = self.measured.iter().filter(is_same);
        let logs: Vec<f64> = same.map(|one| one.log_speed).collect();
        (!logs.is_empty()).then(|| logs.iter().sum::<f64>() / of_items(logs.len()))
    }

    /// Time of one micro-step by the current estimate.
    pub fn seconds(&self, hardware: &Hardware, setting: &Setting) -> Seconds {
        seconds(&self.theta, hardware, setting)
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

/// Uncertainty for a chip that is not among the fitted ones (A100, H100), in logarithms: small for
/// their closest relatives.
pub fn type_sd(accelerator: &str) -> f64 {
    let is = |name: &str| accelerator.contains(name);
    match () {
        () if is("A100") || is("H100") => 0.0,
        () if is("H200") => TYPE,
        () => 0.30,
    }
}

impl Calibration {
    /// Tokens/s of all accelerators together: low, expected, high.
    pub fn tokens_per_second(&self, case: &Case<'_>) -> [f64; 3] {
        let each = self.speed(case, type_sd(case.kind));
        each.map(|speed| speed * case.setting.accelerators)
    }

    /// Updates the law with a measured run, given tokens/s of all accelerators together.
    pub fn learn(&mut self, case: &Case<'_>, tokens_per_second: f64) {
        let each = tokens_per_second / case.setting.accelerators;
        if each.is_finite() && each > 0.0 {
            self.measure(case, type_sd(case.kind), each);
        }
    }
}

#[cfg(test)]
mod tests;

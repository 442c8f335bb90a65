//! What the product ships of the speed law: its coefficients, the average effects of what the fitted
//! code does not do, and what both were learnt from. The law itself is in [`crate::predict`].

use std::sync::LazyLock;

use bakeoff_domain::embedded;
use serde::Deserialize;

/// Number of fitted coefficients.
pub const COUNT: usize = 10;
/// Names of the coefficients, in the order of the fit.
pub const NAMES: [&str; COUNT] = [
    "gemm",
    "gemm_peak_exponent",
    "attention",
    "attention_peak_exponent",
    "element_bytes",
    "logit_bytes",
    "recompute",
    "fp8_gain",
    "communication",
    "straggle",
];

/// Number of [`Effects`].
pub const EFFECTS: usize = 6;
/// Names of the effects, in the order of the fit.
pub const EFFECT_NAMES: [&str; EFFECTS] = [
    "model_parallel",
    "no_bf16_chip",
    "fp16",
    "lora",
    "activation_offload",
    "cpu_offload",
];

/// Average effects on the speed, as logarithms, of what the code that the law was fitted to does not
/// do, and their covariance.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Effects {
    pub mean: [f64; EFFECTS],
    pub covariance: [[f64; EFFECTS]; EFFECTS],
}

/// Logarithms of the coefficients, and their covariance.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    pub theta: [f64; COUNT],
    pub covariance: [[f64; COUNT]; COUNT],
    pub effects: Effects,
}

#[derive(Deserialize)]
struct ShippedFile {
    throughput: ShippedModel,
    effects: ShippedEffects,
}

#[derive(Deserialize)]
struct ShippedModel {
    coefficients: std::collections::BTreeMap<String, f64>,
    covariance: [[f64; COUNT]; COUNT],
    source: String,
}

#[derive(Deserialize)]
struct ShippedEffects {
    means: std::collections::BTreeMap<String, f64>,
    covariance: [[f64; EFFECTS]; EFFECTS],
    rows: usize,
    sources: Vec<String>,
}

const FILE: &str = "coefficients.json";

/// The shipped model and what it was fitted to.
struct Shipped {
    model: Model,
    source: String,
    published_rows: usize,
    published_sources: Vec<String>,
}

static SHIPPED: LazyLock<Shipped> = LazyLock::new(|| {
    let file: ShippedFile = embedded::json(FILE, include_str!("../../data/coefficients.json"));
    let ShippedModel {
        coefficients,
        covariance,
        source,
    } = file.throughput;
    let missing = |name: &str| embedded::unreadable(FILE, &format!("{name} is missing"));
    let value = |name: &str| {
        coefficients
            .get(name)
            .map_or_else(|| missing(name), |value| value.ln())
    };
    let effects = file.effects;
    let mean = |name: &str| {
        effects
            .means
            .get(name)
            .copied()
            .unwrap_or_else(|| missing(name))
    };
    Shipped {
        model: Model {
            theta: NAMES.map(value),
            covariance,
            effects: Effects {
                mean: EFFECT_NAMES.map(mean),
                covariance: effects.covariance,
            },
        },
        source,
        published_rows: effects.rows,
        published_sources: effects.sources,
    }
});

impl Model {
    /// The model that the product ships.
    pub fn shipped() -> &'static Self {
        &SHIPPED.model
    }
}

/// The source of the shipped coefficients.
pub fn source() -> &'static str {
    &SHIPPED.source
}

/// The number of published runs that the effects were learnt from.
pub fn published_rows() -> usize {
    SHIPPED.published_rows
}

/// The sources of those runs, by their short names.
pub fn published_sources() -> &'static [String] {
    &SHIPPED.published_sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_is_read() {
        let shipped: ShippedFile =
            embedded::json(FILE, include_str!("../../data/coefficients.json"));
        assert_eq!(shipped.throughput.coefficients.len(), COUNT);
        assert!(
            NAMES
                .iter()
                .all(|name| shipped.throughput.coefficients.contains_key(*name))
        );
        assert!(source().contains("llm-foundry"));
        assert_eq!(shipped.effects.means.len(), EFFECTS);
        assert_eq!(published_sources().len(), shipped.effects.sources.len());
    }
}

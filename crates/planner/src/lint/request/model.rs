//! Whether the figures of a model can be those of one.

use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::finding::Finding;

use super::DIMENSION_MAX;
use crate::rules::found;

/// Far beyond what has been trained: 256 is the widest head in use, and 512 the most experts.
const HEAD_DIM_MAX: u32 = 4096;
const EXPERTS_MAX: u32 = 4096;

/// The shortest sequence of a decoder: a single token is what a model without any has.
const SEQUENCE_MIN: u32 = 2;

/// Checks the model's own figures.
pub(super) fn model_shape(shape: &ModelShape, findings: &mut Vec<Finding>) {
    if shape.is_described() {
        described(shape, "/workload/model", findings);
    } else {
        measured_only(shape, findings);
    }
}

/// Checks a model that is described by its layers.
pub(in crate::lint) fn described(shape: &ModelShape, at: &str, findings: &mut Vec<Finding>) {
    if shape.total_parameters.is_some() {
        findings.push(
            found("model-shape", format!("{at}/total_parameters"))
                .says("total_parameters is given beside layers, from which parameters are counted")
                .fix("omit total_parameters, or everything else but sequence_length"),
        );
    }
    for (field, value, least) in [
        ("layers", shape.layers, 1),
        ("hidden", shape.hidden, 1),
        ("heads", shape.heads, 1),
        ("vocabulary", shape.vocabulary, 1),
        ("sequence_length", shape.sequence_length, SEQUENCE_MIN),
    ] {
        if !(least..=DIMENSION_MAX).contains(&value) {
            let what = if value < least {
                format!("{field} is missing, or below {least}")
            } else {
                format!("{field} is {value}")
            };
            findings.push(
                found("model-shape", format!("{at}/{field}"))
                    .says(what)
                    .fix("use the model's own figure"),
            );
        }
    }
    splits(shape, at, findings);
    let own = [
        ("kv_heads", shape.kv_heads, shape.heads),
        ("head_dim", shape.head_dim, HEAD_DIM_MAX),
        ("experts", shape.experts, EXPERTS_MAX),
        (
            "experts_per_token",
            shape.experts_per_token,
            shape.experts.unwrap_or(0),
        ),
        ("intermediate", shape.intermediate, DIMENSION_MAX),
        ("lora_rank", shape.lora_rank, shape.hidden),
    ];
    for (field, value, most) in own {
        if value.is_some_and(|value| !(1..=most).contains(&value)) {
            findings.push(
                found("model-shape", format!("{at}/{field}"))
                    .says(format!("{field} is not between 1 and {most}"))
                    .fix("use the model's own figure, or omit it"),
            );
        }
    }
}

/// Attention splits the hidden size among its heads, and its heads among those of keys and values.
fn splits(shape: &ModelShape, at: &str, findings: &mut Vec<Finding>) {
    let is_split = |whole: u32, parts: u32| parts == 0 || whole.is_multiple_of(parts);
    if shape.head_dim.is_none() && !is_split(shape.hidden, shape.heads) {
        findings.push(
            found("model-shape", format!("{at}/heads"))
                .says(format!(
                    "{} heads do not share a hidden size of {} evenly",
                    shape.heads, shape.hidden
                ))
                .fix("use the model's own figure, or give head_dim"),
        );
    }
    if let Some(kv_heads) = shape.kv_heads.filter(|own| *own <= shape.heads)
        && !is_split(shape.heads, kv_heads)
    {
        findings.push(
            found("model-shape", format!("{at}/kv_heads"))
                .says(format!(
                    "{} heads do not share {kv_heads} heads of keys and values evenly",
                    shape.heads
                ))
                .fix("use the model's own figure"),
        );
    }
}

/// The most parameters of a model that is not described, ten times what has been trained.
const PARAMETERS_MAX: u64 = 10_000_000_000_000;

/// Checks a model without layers: nothing is computed from it but the transfer of its weights.
fn measured_only(shape: &ModelShape, findings: &mut Vec<Finding>) {
    let pointer = "/workload/model";
    let given = shape.total_parameters;
    if given.is_none_or(|count| !(1..=PARAMETERS_MAX).contains(&count)) {
        findings.push(
            found("model-shape", format!("{pointer}/total_parameters"))
                .says(given.map_or_else(
                    || "neither layers nor total_parameters are given".to_owned(),
                    |count| format!("total_parameters is {count}"),
                ))
                .fix(
                    "describe a decoder by layers, hidden, heads, vocabulary and sequence_length, and any other model by its total_parameters",
                ),
        );
    }
    if !(1..=DIMENSION_MAX).contains(&shape.sequence_length) {
        findings.push(
            found("model-shape", format!("{pointer}/sequence_length"))
                .says(format!("sequence_length is {}", shape.sequence_length))
                .fix("use the model's own figure, or omit it: a token is then a sample"),
        );
    }
    let of_decoders = ModelShape {
        sequence_length: shape.sequence_length,
        total_parameters: given,
        ..ModelShape::default()
    };
    if *shape != of_decoders {
        findings.push(
            found("model-shape", pointer)
                .says("a figure of a decoder (such as lora_rank or kv_heads) is given without its layers")
                .fix("give layers, hidden, heads and vocabulary too, or only total_parameters and sequence_length"),
        );
    }
    findings.push(found("model-measured-only", pointer));
}

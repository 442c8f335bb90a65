//! Whether the figures of a model can be those of one.

use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::finding::Finding;

use super::DIMENSION_MAX;
use crate::lint::rules::found;

/// Far beyond what has been trained: 256 is the widest head in use, and 512 the most experts.
const HEAD_DIM_MAX: u32 = 4096;
const EXPERTS_MAX: u32 = 4096;

/// Checks the model's own figures.
pub(super) fn model_shape(shape: &ModelShape, findings: &mut Vec<Finding>) {
    for (field, value) in [
        ("layers", shape.layers),
        ("hidden", shape.hidden),
        ("heads", shape.heads),
        ("vocabulary", shape.vocabulary),
        ("sequence_length", shape.sequence_length),
    ] {
        if !(1..=DIMENSION_MAX).contains(&value) {
            findings.push(
                found("model-shape", format!("/workload/model/{field}"))
                    .says(format!("{field} is {value}"))
                    .fix("use the model's own figure"),
            );
        }
    }
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
                found("model-shape", format!("/workload/model/{field}"))
                    .says(format!("{field} is not between 1 and {most}"))
                    .fix("use the model's own figure, or omit it"),
            );
        }
    }
}

//! Counts the parameters and floating-point operations of a decoder-only transformer from its
//! shape. `planner::predict::fit` predicts speed and memory from them;
//! [`crate::ranking::recommend`] works from measurements.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::number::real;

/// The shape of a decoder-only transformer. Any other model (an encoder, a vision model) is given by
/// its `total_parameters` alone, without layers: it is measured and compared, and nothing is predicted
/// for it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct ModelShape {
    /// Transformer layers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub layers: u32,
    /// Model width.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hidden: u32,
    /// Attention heads.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub heads: u32,
    /// Key-value heads (grouped-query attention); `heads` when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<u32>,
    /// Width of an attention head; `hidden / heads` when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<u32>,
    /// Width of the MLP, or of each expert; when empty, a plain MLP of 4 × hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intermediate: Option<u32>,
    /// Whether the MLP is gated (SwiGLU, GeGLU: three matrices) or plain (two); gated when empty and
    /// `intermediate` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gated_mlp: Option<bool>,
    /// Experts of each layer of a mixture of experts (MoE); a dense model when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<u32>,
    /// Experts that each token passes through; 2 when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts_per_token: Option<u32>,
    /// Vocabulary size.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vocabulary: u32,
    /// Whether input and output embeddings share their weights.
    #[serde(default)]
    pub tied_embeddings: bool,
    /// Tokens per sequence; a decoder needs it. For a model that does not read tokens, leave it empty:
    /// it is 1 then, and a token is a sample (an image, a row), also in `total_tokens` and in dollars per
    /// million.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sequence_length: u32,
    /// Parameters of a model that is not described by its layers. Its weights are transferred, and
    /// that time is billed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_parameters: Option<u64>,
    /// Rank of the LoRA adapters; empty when every weight is trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<u32>,
}

fn one() -> u32 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// Experts that a token passes through where a model does not say: Mixtral's.
const EXPERTS_PER_TOKEN: u32 = 2;

impl ModelShape {
    /// Whether the model is described by its layers; otherwise it is only measured.
    pub fn is_described(&self) -> bool {
        [self.layers, self.hidden, self.heads, self.vocabulary]
            .iter()
            .any(|count| *count > 0)
    }

    /// GPT-2 and MPT style: a plain MLP of 4 × hidden, biases, and learned positions.
    fn is_classic(&self) -> bool {
        self.intermediate.is_none()
            && self.gated_mlp.is_none()
            && self.kv_heads.is_none_or(|heads| heads == self.heads)
            && self.head_dim.is_none()
    }

    /// Parameters of one layer's attention matrices.
    fn attention_parameters(&self) -> f64 {
        let h = f64::from(self.hidden);
        let heads = f64::from(self.heads);
        let width = self.head_dim.map_or(h, |dim| f64::from(dim) * heads);
        let kv_share = f64::from(self.kv_heads.unwrap_or(self.heads)) / heads;
        h * width * (2.0 + 2.0 * kv_share)
    }

    /// Parameters of one MLP, or of one expert.
    fn mlp_parameters(&self) -> f64 {
        let h = f64::from(self.hidden);
        let width = self.intermediate.map_or(4.0 * h, f64::from);
        let is_gated = self.gated_mlp.unwrap_or(self.intermediate.is_some());
        h * width * if is_gated { 3.0 } else { 2.0 }
    }

    /// MLPs that a layer holds, and that a token passes through.
    fn mlps(&self) -> (f64, f64) {
        let Some(experts) = self.experts else {
            return (1.0, 1.0);
        };
        let per_token = self.experts_per_token.unwrap_or(EXPERTS_PER_TOKEN);
        (f64::from(experts), f64::from(per_token.min(experts)))
    }

    /// Parameters of one layer's matrices: `12h²` for a plain transformer.
    pub fn layer_parameters(&self) -> f64 {
        let (held, _) = self.mlps();
        self.attention_parameters() + held * self.mlp_parameters()
    }

    /// The same as far as a token passes through them: all but the experts that it is not sent to.
    pub fn active_layer_parameters(&self) -> f64 {
        let (_, passed) = self.mlps();
        self.attention_parameters() + passed * self.mlp_parameters()
    }

    /// Width of the MLPs that a token passes through, over that of the model; 4 for a plain one.
    pub fn mlp_width(&self) -> f64 {
        let (_, passed) = self.mlps();
        let h = f64::from(self.hidden);
        passed * self.intermediate.map_or(4.0, |width| f64::from(width) / h)
    }

    /// Total parameters. GPT-2/MPT style (biases, learned positions) is
    /// `L(12h² + 13h) + Vh + sh + 2h`, plus the head's `Vh` when it is not tied, after Narayanan et
    /// al. 2021 (arXiv 2104.04473). Otherwise Llama/Qwen style, with a router for experts.
    pub fn parameters(&self) -> f64 {
        if let Some(given) = self.total_parameters.filter(|_| !self.is_described()) {
            return real(given);
        }
        let [layers, h, vocabulary, s] = [
            self.layers,
            self.hidden,
            self.vocabulary,
            self.sequence_length,
        ]
        .map(f64::from);
        let embeddings = if self.tied_embeddings { 1.0 } else { 2.0 } * vocabulary * h;
        let router = self.experts.map_or(0.0, |experts| h * f64::from(experts));
        if self.is_classic() {
            return layers * (self.layer_parameters() + router + 13.0 * h)
                + embeddings
                + s * h
                + 2.0 * h;
        }
        let kv_share = f64::from(self.kv_heads.unwrap_or(self.heads)) / f64::from(self.heads);
        let biases = h * (1.0 + 2.0 * kv_share);
        layers * (self.layer_parameters() + router + biases + 2.0 * h) + embeddings + h
    }

    /// The parameters that a token passes through: all, but for the experts that it is not sent to.
    pub fn active_parameters(&self) -> f64 {
        let idle = self.layer_parameters() - self.active_layer_parameters();
        self.parameters() - f64::from(self.layers) * idle
    }

    /// Parameters with gradients and optimiser state: all of them, or only the LoRA adapters on the
    /// four attention matrices.
    pub fn trainable_parameters(&self) -> f64 {
        match self.lora_rank {
            None => self.parameters(),
            Some(rank) => {
                let h = f64::from(self.hidden);
                let kv_share =
                    f64::from(self.kv_heads.unwrap_or(self.heads)) / f64::from(self.heads);
                f64::from(self.layers) * f64::from(rank) * (4.0 * h + 2.0 * (h + h * kv_share))
            }
        }
    }

    /// Training FLOP per token: `6N + 12Lhs` (no causal halving, after llm-foundry), with the
    /// parameters that a token passes through. When the base
    /// weights are frozen, `4N + 12Lhs`: weight gradients are skipped, activation gradients are
    /// not.
    pub fn flops_per_token(&self) -> f64 {
        let n = self.active_parameters();
        let width = self.head_dim.map_or(f64::from(self.hidden), |dim| {
            f64::from(dim) * f64::from(self.heads)
        });
        let attention = f64::from(self.layers) * width * f64::from(self.sequence_length);
        if self.lora_rank.is_some() {
            4.0 * n + 12.0 * attention
        } else {
            6.0 * n + 12.0 * attention
        }
    }
}

/// Whether predictions can be computed from a shape.
pub fn is_sound(model: &ModelShape) -> bool {
    let counts = [
        model.layers,
        model.hidden,
        model.heads,
        model.vocabulary,
        model.sequence_length,
    ];
    counts.iter().all(|count| (1..=100_000_000).contains(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpt_7b_is_counted_exactly() {
        let mpt = ModelShape {
            layers: 32,
            hidden: 4096,
            heads: 32,
            kv_heads: None,
            intermediate: None,
            vocabulary: 50_368,
            tied_embeddings: true,
            sequence_length: 2048,
            lora_rank: None,
            ..ModelShape::default()
        };
        assert!((mpt.parameters() - 6_658_859_008.0).abs() < 0.5);
    }

    #[test]
    fn qwen_2_5_7b_has_its_published_7_62_billion() {
        let qwen = ModelShape {
            layers: 28,
            hidden: 3584,
            heads: 28,
            kv_heads: Some(4),
            intermediate: Some(18_944),
            vocabulary: 152_064,
            tied_embeddings: false,
            sequence_length: 2048,
            lora_rank: None,
            ..ModelShape::default()
        };
        assert!(
            (qwen.parameters() / 7.615_6e9 - 1.0).abs() < 0.001,
            "{}",
            qwen.parameters()
        );
    }

    /// Document 003 calls this one "1B".
    #[test]
    fn the_one_billion_model_of_the_documents_has_0_76_billion() {
        let shape = ModelShape {
            layers: 24,
            hidden: 1536,
            heads: 24,
            kv_heads: None,
            intermediate: None,
            vocabulary: 50_000,
            tied_embeddings: true,
            sequence_length: 2048,
            lora_rank: None,
            ..ModelShape::default()
        };
        assert!((shape.parameters() / 0.76e9 - 1.0).abs() < 0.01);
    }

    /// Shapes of published decoders as their configurations state them, with the parameters of the
    /// model built from each (transformers, on torch's meta device; shared weights counted once).
    #[test]
    fn published_decoders_are_counted_within_half_a_percent() {
        let decoders = [
            (
                r#"{"layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 32000, "tied_embeddings": false, "sequence_length": 2048, "intermediate": 11008}"#,
                6_738_415_616.0,
            ),
            (
                r#"{"layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 128256, "tied_embeddings": false, "sequence_length": 2048, "kv_heads": 8, "intermediate": 14336}"#,
                8_030_261_248.0,
            ),
            (
                r#"{"layers": 28, "hidden": 3584, "heads": 28, "vocabulary": 152064, "tied_embeddings": false, "sequence_length": 4096, "kv_heads": 4, "intermediate": 18944}"#,
                7_615_616_512.0,
            ),
            (
                r#"{"layers": 28, "hidden": 1024, "heads": 16, "vocabulary": 151936, "tied_embeddings": true, "sequence_length": 4096, "kv_heads": 8, "head_dim": 128, "intermediate": 3072}"#,
                596_049_920.0,
            ),
            (
                r#"{"layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 32000, "tied_embeddings": false, "sequence_length": 4096, "kv_heads": 8, "intermediate": 14336}"#,
                7_241_732_096.0,
            ),
            (
                r#"{"layers": 28, "hidden": 3072, "heads": 16, "vocabulary": 256000, "tied_embeddings": true, "sequence_length": 4096, "head_dim": 256, "intermediate": 24576}"#,
                8_537_680_896.0,
            ),
            (
                r#"{"layers": 42, "hidden": 3584, "heads": 16, "vocabulary": 256000, "tied_embeddings": true, "sequence_length": 4096, "kv_heads": 8, "head_dim": 256, "intermediate": 14336}"#,
                9_241_705_984.0,
            ),
            (
                r#"{"layers": 24, "hidden": 2048, "heads": 32, "vocabulary": 51200, "tied_embeddings": false, "sequence_length": 2048}"#,
                1_418_270_720.0,
            ),
            (
                r#"{"layers": 32, "hidden": 3072, "heads": 32, "vocabulary": 32064, "tied_embeddings": false, "sequence_length": 4096, "intermediate": 8192}"#,
                3_821_079_552.0,
            ),
            (
                r#"{"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 50257, "tied_embeddings": true, "sequence_length": 1024}"#,
                124_439_808.0,
            ),
            (
                r#"{"layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 50432, "tied_embeddings": false, "sequence_length": 2048}"#,
                6_857_302_016.0,
            ),
            (
                r#"{"layers": 28, "hidden": 4096, "heads": 16, "vocabulary": 50400, "tied_embeddings": false, "sequence_length": 2048}"#,
                6_050_882_784.0,
            ),
            (
                r#"{"layers": 32, "hidden": 4544, "heads": 71, "vocabulary": 65024, "tied_embeddings": true, "sequence_length": 2048, "kv_heads": 1}"#,
                6_921_720_704.0,
            ),
            (
                r#"{"layers": 60, "hidden": 8192, "heads": 128, "vocabulary": 65024, "tied_embeddings": true, "sequence_length": 2048, "kv_heads": 8}"#,
                41_303_293_952.0,
            ),
            (
                r#"{"layers": 30, "hidden": 4096, "heads": 32, "vocabulary": 250880, "tied_embeddings": true, "sequence_length": 2048}"#,
                7_069_016_064.0,
            ),
            (
                r#"{"layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 50272, "tied_embeddings": true, "sequence_length": 2048}"#,
                6_658_473_984.0,
            ),
            (
                r#"{"layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 50432, "tied_embeddings": true, "sequence_length": 2048}"#,
                6_649_286_656.0,
            ),
            (
                r#"{"layers": 30, "hidden": 3072, "heads": 24, "vocabulary": 49152, "tied_embeddings": true, "sequence_length": 4096, "kv_heads": 2}"#,
                3_030_371_328.0,
            ),
            (
                r#"{"layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 50304, "tied_embeddings": false, "sequence_length": 2048, "intermediate": 11008}"#,
                6_888_624_128.0,
            ),
            (
                r#"{"layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 32000, "tied_embeddings": false, "sequence_length": 4096, "kv_heads": 8, "intermediate": 14336, "experts": 8, "experts_per_token": 2}"#,
                46_702_792_704.0,
            ),
            (
                r#"{"layers": 48, "hidden": 2048, "heads": 32, "vocabulary": 151936, "tied_embeddings": false, "sequence_length": 4096, "kv_heads": 4, "head_dim": 128, "intermediate": 768, "experts": 128, "experts_per_token": 8}"#,
                30_532_122_624.0,
            ),
        ];
        for (shape, parameters) in decoders {
            let own: ModelShape = serde_json::from_str(shape).unwrap();
            let off = own.parameters() / parameters - 1.0;
            assert!(off.abs() < 0.005, "{shape}: {:+.2} %", 100.0 * off);
        }
    }

    #[test]
    fn a_model_without_layers_has_the_parameters_that_are_given() {
        let vision: ModelShape = serde_json::from_str(r#"{"total_parameters": 86567656}"#).unwrap();
        assert!((vision.parameters() - 86_567_656.0).abs() < 0.5);
        assert_eq!(vision.sequence_length, 1, "a token is a sample");
        assert!(!vision.is_described() && !is_sound(&vision));
        let stored = serde_json::to_value(&vision).unwrap();
        let given = serde_json::json!({"tied_embeddings": false, "total_parameters": 86_567_656});
        assert_eq!(stored, given);
    }

    /// Mixtral 8x7B has 46.7 billion parameters, of which a token passes through 12.9.
    #[test]
    fn a_token_passes_through_few_experts() {
        let mixtral = ModelShape {
            layers: 32,
            hidden: 4096,
            heads: 32,
            kv_heads: Some(8),
            intermediate: Some(14_336),
            experts: Some(8),
            experts_per_token: Some(2),
            vocabulary: 32_000,
            sequence_length: 4096,
            ..ModelShape::default()
        };
        assert!((mixtral.active_parameters() / 12.9e9 - 1.0).abs() < 0.01);
        let dense = ModelShape {
            experts: None,
            experts_per_token: None,
            ..mixtral.clone()
        };
        assert!((dense.active_parameters() - dense.parameters()).abs() < 0.5);
        assert!(mixtral.flops_per_token() < 2.0 * dense.flops_per_token());
    }
}

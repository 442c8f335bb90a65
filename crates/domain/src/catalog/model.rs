//! Counts the parameters and floating-point operations of a decoder-only transformer from its
//! shape. `planner::predict::fit` predicts speed and memory from them;
//! [`crate::ranking::recommend`] works from measurements.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The shape of a decoder-only transformer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelShape {
    /// Transformer layers.
    pub layers: u32,
    /// Model width.
    pub hidden: u32,
    /// Attention heads.
    pub heads: u32,
    /// Key-value heads (grouped-query attention); `heads` when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<u32>,
    /// Width of the gated MLP; when empty, a plain MLP of 4 × hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intermediate: Option<u32>,
    /// Vocabulary size.
    pub vocabulary: u32,
    /// Whether input and output embeddings share their weights.
    #[serde(default)]
    pub tied_embeddings: bool,
    /// Tokens per sequence.
    pub sequence_length: u32,
    /// Rank of the LoRA adapters; empty when every weight is trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<u32>,
}

impl ModelShape {
    /// Parameters of one layer's matrices: `12h²` for a plain transformer.
    pub fn layer_parameters(&self) -> f64 {
        let h = f64::from(self.hidden);
        let Some(intermediate) = self.intermediate else {
            return 12.0 * h * h;
        };
        let kv_share = f64::from(self.kv_heads.unwrap_or(self.heads)) / f64::from(self.heads);
        h * h * (2.0 + 2.0 * kv_share) + 3.0 * h * f64::from(intermediate)
    }

    /// Total parameters. Without `intermediate`, GPT-2/MPT style (biases, learned positions):
    /// `L(12h² + 13h) + Vh + sh + 2h`, plus the head's `Vh` when it is not tied, after Narayanan et
    /// al. 2021 (arXiv 2104.04473). Otherwise Llama/Qwen style.
    pub fn parameters(&self) -> f64 {
        let [layers, h, vocabulary, s] = [
            self.layers,
            self.hidden,
            self.vocabulary,
            self.sequence_length,
        ]
        .map(f64::from);
        let Some(intermediate) = self.intermediate else {
            let head = if self.tied_embeddings {
                0.0
            } else {
                vocabulary * h
            };
            return layers * (12.0 * h * h + 13.0 * h) + vocabulary * h + head + s * h + 2.0 * h;
        };
        let kv_share = f64::from(self.kv_heads.unwrap_or(self.heads)) / f64::from(self.heads);
        let attention = h * h * (2.0 + 2.0 * kv_share) + h * (1.0 + 2.0 * kv_share);
        let mlp = 3.0 * h * f64::from(intermediate);
        let embeddings = if self.tied_embeddings { 1.0 } else { 2.0 } * vocabulary * h;
        layers * (attention + mlp + 2.0 * h) + embeddings + h
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

    /// Training FLOP per token: `6N + 12Lhs` (no causal halving, after llm-foundry). When the base
    /// weights are frozen, `4N + 12Lhs`: weight gradients are skipped, activation gradients are
    /// not.
    pub fn flops_per_token(&self) -> f64 {
        let n = self.parameters();
        let attention =
            f64::from(self.layers) * f64::from(self.hidden) * f64::from(self.sequence_length);
        if self.lora_rank.is_some() {
            4.0 * n + 12.0 * attention
        } else {
            6.0 * n + 12.0 * attention
        }
    }
}

/// Whether figures can be computed from a shape.
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
        };
        assert!((shape.parameters() / 0.76e9 - 1.0).abs() < 0.01);
    }
}

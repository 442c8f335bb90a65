//! From an estimate to a verdict: how near to the limit it may come, and what the script decides that
//! a profile does not say.

use bakeoff_domain::spec::{OptimizerStates, ParallelLibrary, Precision, ProfileSpec};

use super::{
    BF16_STATES, GIB, HOST_BUFFER_FACTOR, LOGITS, MIXED_STATES, OPTIMISER, SLACK, Term,
    UNFUSED_ATTENTION, Verdict, frozen_bytes, tokens_held,
};
use crate::setup::Setup;

/// A setup fits below the lower share of the card and fails above the upper one: bounds at which
/// held-out estimates of Megatron's layouts never erred.
pub(super) const BAND: Band = Band {
    fits_below: 0.95,
    fails_above: 1.10,
};
/// The same for textbook terms, which were checked on rows that ran but not fitted.
pub(super) const TEXTBOOK_BAND: Band = Band {
    fits_below: 0.90,
    fails_above: 1.15,
};
/// The same for host memory, whose estimate includes DeepSpeed's buffer factor of one and a half.
pub(super) const HOST_BAND: Band = Band {
    fits_below: 0.95,
    fails_above: 1.20,
};
/// Shares of the capacity between which the verdict is uncertain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Band {
    fits_below: f64,
    fails_above: f64,
}

impl Band {
    pub(super) fn verdict(self, need: Need, capacity: Option<f64>) -> Verdict {
        match capacity {
            None => Verdict::Unknown,
            Some(capacity) if need.most < self.fits_below * capacity => Verdict::Fits,
            Some(capacity) if need.least <= self.fails_above * capacity => Verdict::Uncertain,
            Some(_) => Verdict::DoesNotFit,
        }
    }
}

/// GiB that a setup may need, where the script decides something that its profile does not say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    least: f64,
    most: f64,
}

impl Need {
    pub(super) fn exactly(gib: f64) -> Self {
        Self {
            least: gib,
            most: gib,
        }
    }
}

/// Whether the optimiser's states are known: DeepSpeed's configuration is part of the request.
fn sets_states(profile: &ProfileSpec) -> bool {
    profile.library == ParallelLibrary::Deepspeed
        || profile.optimizer_states != OptimizerStates::Mixed
}

/// What the terms of an accelerator may come to: a script that does not hold all logits, and keeps
/// its optimiser in 16 bits, needs less; FSDP's first version needs more under LoRA, because it
/// gathers frozen weights and does not free them (published runs of two and four GPUs took the whole
/// model's weights on top of their shards).
pub(super) fn on_accelerator(setup: Setup<'_>, terms: &[Term]) -> Need {
    let profile = setup.profile;
    let of = |name: &str| {
        terms
            .iter()
            .filter(|term| term.name == name)
            .map(|term| term.gib)
            .sum::<f64>()
    };
    let expected: f64 = terms.iter().map(|term| term.gib).sum();
    let states = if sets_states(profile) || setup.precision == Precision::Fp32 {
        0.0
    } else {
        of(OPTIMISER) * (1.0 - BF16_STATES / MIXED_STATES)
    };
    let split = f64::from(profile.tensor_parallel_degree.max(1))
        * f64::from(profile.pipeline_parallel_degree.max(1));
    let kept = if setup.model.lora_rank.is_some()
        && profile.zero_stage >= 3
        && profile.library != ParallelLibrary::Deepspeed
    {
        frozen_bytes(setup.model, profile, setup.precision) / split / GIB
    } else {
        0.0
    };
    let unfused = if profile.activation_checkpointing || profile.zero_stage > 1 {
        0.0
    } else {
        of(UNFUSED_ATTENTION)
    };
    // FlashAttention begins with Ampere.
    let eager = if setup.cluster.instance.bf16_tflops.is_none() && unfused <= 0.0 {
        scores(setup) / split / GIB
    } else {
        0.0
    };
    Need {
        least: expected - states - of(LOGITS) - of(SLACK) - unfused,
        most: expected + kept + eager,
    }
}

/// Bytes of attention scores that are held at a time without FlashAttention (Korthikanti et al.): of
/// one layer where they are recomputed, of all otherwise.
fn scores(setup: Setup<'_>) -> f64 {
    let (model, profile) = (setup.model, setup.profile);
    let s = f64::from(model.sequence_length);
    let layers = if profile.activation_checkpointing {
        1.0
    } else {
        f64::from(model.layers)
    };
    5.0 * f64::from(model.heads) * s * tokens_held(model, profile) * layers
}

/// The same for the host: the states of an optimiser in 16 bits, without DeepSpeed's buffers.
pub(super) fn on_host(profile: &ProfileSpec, expected: f64) -> Need {
    let least = if sets_states(profile) {
        expected
    } else {
        expected / HOST_BUFFER_FACTOR / 2.0
    };
    Need {
        least,
        most: expected,
    }
}

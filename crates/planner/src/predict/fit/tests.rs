//! Memory needs of models, with the shipped coefficients.

use super::terms::Shipped;
use super::*;

/// Rows of bigscience's chronicles, named by line number there: the memory that the model predicts
/// for them with the shipped coefficients.
#[test]
fn golden_values_of_the_fitted_model() {
    let row = |layers, hidden, tensor, pipeline, replicas, micro_batch, zero_stage| Layout {
        layers,
        hidden,
        heads: None,
        vocabulary: 250_880.0,
        sequence_length: 2048.0,
        tensor,
        pipeline,
        replicas,
        zero_stage,
        micro_batch,
        global_batch: Some(2048.0),
        layer_parameters: 12.0 * hidden * hidden,
        recomputes: true,
        recomputes_attention: true,
        splits_sequence: false,
        has_own_head: false,
    };
    let need = |layout: &Layout| -> f64 {
        megatron(layout, 79.2, &Coefficients::shipped())
            .iter()
            .map(|term| term.gib)
            .sum()
    };
    // Measured 75, 37, 72 and 63 GB.
    for (layout, expected) in [
        (row(77.0, 14_400.0, 8.0, 11.0, 4.0, 8.0, 1), 74.5),
        (row(72.0, 14_336.0, 8.0, 12.0, 4.0, 2.0, 0), 71.0),
        (row(72.0, 14_336.0, 2.0, 12.0, 16.0, 2.0, 1), 67.5),
    ] {
        assert!(
            (need(&layout) - expected).abs() < 0.3,
            "{} for {expected}",
            need(&layout)
        );
    }
    assert!(reported(87.0, 79.2) < 79.3);
    assert_eq!(verdict_of(87.2, 79.2), Verdict::DoesNotFit);
}

#[test]
fn what_is_shipped_is_read() {
    let shipped: Shipped =
        serde_json::from_str(include_str!("../../../data/coefficients.json")).unwrap();
    assert_eq!(shipped.memory, Coefficients::shipped());
    assert_eq!(
        Coefficients::from_array(shipped.memory.to_array()),
        shipped.memory
    );
}

/// The verdict on Llama 2 or 3 of a size on GPUs of one instance, by a profile in JSON.
fn verdict(billions: u32, kind: &str, lora: bool, profile: &serde_json::Value) -> (Verdict, f64) {
    let (layers, hidden, intermediate) = match billions {
        7 => (32, 4096, 11_008),
        13 => (40, 5120, 13_824),
        _ => (80, 8192, 28_672),
    };
    let model = ModelShape {
        layers,
        hidden,
        heads: hidden / 128,
        kv_heads: (billions > 13).then_some(8),
        intermediate: Some(intermediate),
        vocabulary: 32_000,
        tied_embeddings: false,
        sequence_length: 2048,
        lora_rank: lora.then_some(16),
        ..ModelShape::default()
    };
    let profile: ProfileSpec = serde_json::from_value(profile.clone()).unwrap();
    let fit = fit(Setup {
        model: &model,
        profile: &profile,
        precision: Precision::Bf16,
        cluster: bakeoff_domain::catalog::cluster::Cluster {
            instance: bakeoff_domain::catalog::find(kind).unwrap(),
            count: 1,
        },
    });
    (fit.verdict, fit.accelerator_gib)
}

fn sharded_by(library: &str) -> serde_json::Value {
    serde_json::json!({"micro_batch_per_gpu": 1, "gradient_accumulation_steps": 1, "zero_stage": 3,
        "activation_checkpointing": true, "library": library})
}

/// torchtune trained Llama 3.1 70B in full on 8 × A100 80 GB, with everything in 16 bits on the host.
#[test]
fn only_what_no_script_could_fit_is_refused() {
    let mut offloaded = sharded_by("torchrun");
    offloaded["cpu_offload"] = "optimizer_and_parameters".into();
    assert_eq!(
        verdict(70, "ml.p4de.24xlarge", false, &offloaded).0,
        Verdict::Uncertain
    );
    // DeepSpeed's own states are 32-bit, by the configuration that is sent.
    offloaded["library"] = "deepspeed".into();
    assert_eq!(
        verdict(70, "ml.p4de.24xlarge", false, &offloaded).0,
        Verdict::DoesNotFit
    );
    assert_eq!(
        verdict(70, "ml.p4d.24xlarge", false, &sharded_by("torchrun")).0,
        Verdict::DoesNotFit
    );
}

/// litgpt's FSDP took 33 GiB for LoRA on 13B over four GPUs and ran out of 40 on two: a whole copy of
/// the frozen weights, on top of the shards.
#[test]
fn fsdp_may_keep_frozen_weights() {
    let (kind, profile) = ("ml.g5.12xlarge", sharded_by("torchrun"));
    assert_eq!(verdict(13, kind, true, &profile).0, Verdict::Uncertain);
    assert_eq!(
        verdict(13, kind, true, &sharded_by("deepspeed")).0,
        Verdict::Fits
    );
}

#[test]
fn what_a_script_does_to_save_memory_counts() {
    let of = |key: &str, value: serde_json::Value, lora: bool| {
        let mut profile = sharded_by("torchrun");
        profile["zero_stage"] = 0.into();
        let before = verdict(7, "ml.p4de.24xlarge", lora, &profile).1;
        profile[key] = value;
        before - verdict(7, "ml.p4de.24xlarge", lora, &profile).1
    };
    let billions = 6.74e9 / GIB;
    assert!((of("optimizer_states", "bf16".into(), false) / (8.0 * billions) - 1.0).abs() < 0.01);
    assert!((of("optimizer_states", "int8".into(), false) / (10.0 * billions) - 1.0).abs() < 0.01);
    // Embeddings and head are not packed.
    let packed = 32.0 * (4.0 * 4096.0 * 4096.0 + 3.0 * 4096.0 * 11_008.0) / GIB;
    assert!((of("base_weight_bits", 4.into(), true) / (1.44 * packed) - 1.0).abs() < 0.01);
    let logits = 4.0 * 2048.0 * 32_000.0 / GIB;
    assert!((of("chunked_cross_entropy", true.into(), false) / logits - 1.0).abs() < 0.01);
}

/// Chips without BF16 have no FlashAttention, so that a script may hold all scores.
#[test]
fn attention_scores_count_where_flash_attention_does_not_run() {
    let profile = serde_json::json!({"micro_batch_per_gpu": 1, "gradient_accumulation_steps": 1, "zero_stage": 3});
    let v100 = verdict(7, "ml.p3dn.24xlarge", false, &profile);
    let (_, needed) = v100;
    assert!(needed < 0.9 * 31.7, "{needed}");
    assert_eq!(v100.0, Verdict::Uncertain);
}

/// GiB by which a 7B model on eight accelerators shrinks or grows with some settings.
fn change(base: &serde_json::Value, settings: &serde_json::Value) -> f64 {
    let with = |settings: &serde_json::Value| {
        let mut profile = base.clone();
        for (key, value) in settings.as_object().unwrap() {
            profile[key] = value.clone();
        }
        verdict(7, "ml.p4de.24xlarge", false, &profile).1
    };
    with(settings) - with(&serde_json::json!({}))
}

/// Groups of four hold copies: each accelerator holds a quarter of the 16 bytes of a parameter, and
/// not an eighth.
#[test]
fn copies_of_sharded_states_take_their_place() {
    let grown = change(
        &sharded_by("torchrun"),
        &serde_json::json!({"hybrid_shard_degree": 4}),
    );
    assert!((grown - 2.0 * 6.74e9 / GIB).abs() < 0.05, "{grown}");
}

/// Korthikanti et al.: what tensor parallelism leaves whole is split along the sequence, and attention
/// need not be kept. Half of a sequence needs half of its activations.
#[test]
fn splitting_sequences_and_recomputing_attention_save_activations() {
    let kept = serde_json::json!({"micro_batch_per_gpu": 1, "gradient_accumulation_steps": 1,
        "tensor_parallel_degree": 4, "library": "torchrun"});
    let (tokens, hidden, layers) = (2048.0, 4096.0, 32.0);
    let split = -change(&kept, &serde_json::json!({"sequence_parallel": true}));
    let slack = 0.5;
    let whole = 10.0 * tokens * hidden * layers / GIB;
    assert!((split - 0.75 * whole).abs() < slack, "{split}");
    let selective = serde_json::json!({"activation_checkpointing": true, "recompute": "attention"});
    let scores = 5.0 * 32.0 * tokens * tokens / 4.0 / GIB;
    let saved = -change(&kept, &selective);
    assert!((saved - (layers - 1.0) * scores).abs() < 0.01, "{saved}");
    let unshared = serde_json::json!({"micro_batch_per_gpu": 2, "gradient_accumulation_steps": 1,
        "zero_stage": 3, "library": "torchrun"});
    let halved = -change(
        &unshared,
        &serde_json::json!({"context_parallel_degree": 2}),
    );
    let as_one = -change(&unshared, &serde_json::json!({"micro_batch_per_gpu": 1}));
    assert!(
        (halved - as_one).abs() < 1e-9 && halved > 5.0,
        "{halved} {as_one}"
    );
}

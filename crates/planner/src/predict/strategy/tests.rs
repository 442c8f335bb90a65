//! Advice on configurations, type by type, and the resulting traffic.

use bakeoff_domain::catalog;

use serde_json::json;

use super::*;

fn qwen() -> ModelShape {
    serde_json::from_value(
        json!({"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "intermediate": 18944,
        "vocabulary": 152_064, "sequence_length": 2048}),
    )
    .unwrap()
}

fn on(kind: &str, model: &ModelShape, global_batch: u64) -> Result<Advice, String> {
    advise(Question {
        model,
        precision: Precision::Bf16,
        global_batch,
        cluster: Cluster {
            instance: catalog::find(kind).unwrap(),
            count: 1,
        },
        script: None,
        calibration: &Calibration::shipped(),
    })
}

/// Document 001 asks for this on every type: a profile that fits and keeps the global batch.
#[test]
fn every_type_gets_a_profile_that_fits_and_keeps_the_batch() {
    for kind in [
        "ml.p4d.24xlarge",
        "ml.p4de.24xlarge",
        "ml.p5.48xlarge",
        "ml.p5en.48xlarge",
        "ml.g6e.48xlarge",
    ] {
        let advice = on(kind, &qwen(), 64).unwrap();
        assert_eq!(advice.profile.global_batch(8), 64, "{kind}");
        assert_eq!(advice.fit.verdict, Verdict::Fits, "{kind}");
        assert_eq!(
            advice.profile.cpu_offload,
            CpuOffload::None,
            "{kind}: {:?}",
            advice.reasons
        );
        let batch = advice
            .deepspeed_config
            .map(|config| config["train_batch_size"].clone());
        assert_eq!(
            batch,
            (advice.profile.library == ParallelLibrary::Deepspeed).then(|| json!(64)),
            "{kind}"
        );
    }
    let small = on("ml.p4d.24xlarge", &qwen(), 64).unwrap();
    let large = on("ml.p5en.48xlarge", &qwen(), 64).unwrap();
    assert!(small.profile.zero_stage >= large.profile.zero_stage);
}

/// Document 003: 0.76 billion parameters on 8 × 80 GB need neither sharded weights nor offload.
#[test]
fn a_small_model_is_not_shared_out() {
    let small: ModelShape =
        serde_json::from_value(json!({"layers": 24, "hidden": 1536, "heads": 24,
        "vocabulary": 50000, "tied_embeddings": true, "sequence_length": 2048}))
        .unwrap();
    let advice = on("ml.p5.48xlarge", &small, 512).unwrap();
    assert!(advice.profile.zero_stage <= 1, "{:?}", advice.profile);
    assert_eq!(advice.profile.cpu_offload, CpuOffload::None);
}

/// Document 000: no setting fits full training of 7.6 billion parameters on one A10G with 128 GiB
/// of host memory.
#[test]
fn what_cannot_fit_says_so() {
    let refused = on("ml.g5.8xlarge", &qwen(), 16).unwrap_err();
    assert!(refused.contains("LoRA"), "{refused}");
    let lora = ModelShape {
        lora_rank: Some(16),
        ..qwen()
    };
    assert_eq!(
        on("ml.g5.8xlarge", &lora, 16).unwrap().strategy,
        Strategy::SingleAccelerator
    );
}

/// A model of 96 layers × 12,288: sharded over eight P5, and too large for one P4d.
#[test]
fn what_does_not_fit_in_one_instance_is_split_over_several() {
    let large: ModelShape =
        serde_json::from_value(json!({"layers": 96, "hidden": 12288, "heads": 96,
        "vocabulary": 50_368, "tied_embeddings": true, "sequence_length": 2048}))
        .unwrap();
    let on = |kind: &str, count: u32| {
        advise(Question {
            model: &large,
            precision: Precision::Bf16,
            global_batch: 512,
            cluster: Cluster {
                instance: catalog::find(kind).unwrap(),
                count,
            },
            script: None,
            calibration: &Calibration::shipped(),
        })
    };
    let sharded = on("ml.p5.48xlarge", 8).unwrap();
    assert_eq!(
        (sharded.strategy, sharded.profile.zero_stage),
        (Strategy::Sharded, 3),
        "{:?}",
        sharded.reasons
    );
    assert!(on("ml.p4d.24xlarge", 1).is_err_and(|reason| reason.contains("more instances")));
    // If a batch does not divide over all accelerators, there are fewer replicas.
    let odd = advise(Question {
        model: &qwen(),
        precision: Precision::Bf16,
        global_batch: 4,
        cluster: Cluster {
            instance: catalog::find("ml.p5.48xlarge").unwrap(),
            count: 1,
        },
        script: None,
        calibration: &Calibration::shipped(),
    });
    assert_eq!(odd.unwrap().profile.tensor_parallel_degree, 2);
}

#[test]
fn bytes_on_the_wire_by_collective() {
    let model = qwen();
    let profile = ProfileSpec {
        zero_stage: 3,
        ..ProfileSpec::of_batch(64, 8)
    };
    let total: f64 = traffic(&model, &profile, 8)
        .iter()
        .map(|one| one.bytes_per_step)
        .sum();
    assert!((total / (3.0 * 2.0 * model.parameters() * 7.0 / 8.0) - 1.0).abs() < 1e-6);
    assert!(traffic(&model, &ProfileSpec::of_batch(4, 1), 1).is_empty());
}

#[test]
fn the_smallest_change_is_the_cheapest_one_that_fits() {
    let p4d = catalog::find("ml.p4d.24xlarge").unwrap();
    let profile = ProfileSpec {
        micro_batch_per_gpu: 16,
        gradient_accumulation_steps: 1,
        zero_stage: 3,
        activation_checkpointing: true,
        ..ProfileSpec::of_batch(64, 8)
    };
    let setup = Setup {
        model: &qwen(),
        profile: &profile,
        precision: Precision::Bf16,
        cluster: Cluster {
            instance: p4d,
            count: 1,
        },
    };
    assert_ne!(fit::fit(setup).verdict, Verdict::Fits);
    let change = smallest_change(setup).unwrap();
    assert!(
        change.settings.contains_key("micro_batch_per_gpu")
            && !change.settings.contains_key("cpu_offload")
    );
}

/// No change is proposed that the linter refuses: a library that shards nothing keeps its stage.
#[test]
fn a_change_asks_nothing_of_a_library_that_it_cannot_do() {
    let model: ModelShape = serde_json::from_value(
        json!({"layers": 32, "hidden": 3072, "heads": 32, "intermediate": 8192,
        "vocabulary": 32_064, "sequence_length": 2048}),
    )
    .unwrap();
    let profile = ProfileSpec {
        library: ParallelLibrary::None,
        ..ProfileSpec::of_batch(1, 1)
    };
    let setup = Setup {
        model: &model,
        profile: &profile,
        precision: Precision::Bf16,
        cluster: Cluster {
            instance: catalog::find("ml.g5.8xlarge").unwrap(),
            count: 1,
        },
    };
    assert_eq!(fit::fit(setup).verdict, Verdict::DoesNotFit);
    let change = smallest_change(setup);
    let asks = |change: &Change| change.settings.contains_key("zero_stage");
    assert!(!change.as_ref().is_some_and(asks), "{change:?}");
    let sharing = ProfileSpec {
        library: ParallelLibrary::Deepspeed,
        ..profile.clone()
    };
    assert!(
        smallest_change(setup.under(&sharing))
            .as_ref()
            .is_some_and(asks)
    );
}

/// Four-bit weights fit where sixteen do not.
#[test]
fn advice_is_for_the_formats_that_the_script_keeps() {
    let model = ModelShape {
        lora_rank: Some(16),
        ..qwen()
    };
    let on = |script: Option<&ProfileSpec>| {
        advise(Question {
            model: &model,
            precision: Precision::Bf16,
            global_batch: 8,
            cluster: Cluster {
                instance: catalog::find("ml.g6.xlarge").unwrap(),
                count: 1,
            },
            script,
            calibration: &Calibration::shipped(),
        })
    };
    let mut script = ProfileSpec::of_batch(1, 1);
    script.base_weight_bits = 4;
    let (packed, plain) = (on(Some(&script)).unwrap(), on(None));
    assert_eq!(packed.profile.base_weight_bits, 4);
    let plain_gib = plain.map_or(f64::INFINITY, |plain| plain.fit.accelerator_gib);
    assert!(packed.fit.accelerator_gib < plain_gib);
}

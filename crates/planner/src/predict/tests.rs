//! The speed law: measurements move it, and it is monotone.

use bakeoff_domain::catalog;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::spec::{Precision, ProfileSpec};

use super::*;
use crate::setup::Setup;

fn mpt(profile: &serde_json::Value) -> (ModelShape, ProfileSpec) {
    let model = serde_json::from_value(
        serde_json::json!({"layers": 32, "hidden": 4096, "heads": 32,
        "vocabulary": 50368, "tied_embeddings": true, "sequence_length": 2048}),
    );
    (
        model.unwrap(),
        serde_json::from_value(profile.clone()).unwrap(),
    )
}

fn setup<'a>(kind: &str, model: &'a ModelShape, profile: &'a ProfileSpec) -> Setup<'a> {
    Setup {
        model,
        profile,
        precision: Precision::Bf16,
        cluster: Cluster {
            instance: catalog::find(kind).unwrap(),
            count: 1,
        },
    }
}

fn speed(calibration: &Calibration, kind: &str, profile: &serde_json::Value) -> [f64; 3] {
    speed_on(calibration, kind, 1, profile)
}

fn speed_on(
    calibration: &Calibration,
    kind: &str,
    count: u32,
    profile: &serde_json::Value,
) -> [f64; 3] {
    let (model, profile) = mpt(profile);
    let mut setup = setup(kind, &model, &profile);
    setup.cluster.count = count;
    let case = Case::new(setup).unwrap();
    calibration.speed(&case, type_sd(case.kind))
}

fn sharded(micro: u32) -> serde_json::Value {
    serde_json::json!({"micro_batch_per_gpu": micro, "gradient_accumulation_steps": 1, "zero_stage": 3,
        "activation_checkpointing": true})
}

#[test]
fn a_measurement_moves_its_type_and_less_its_kin() {
    let mut calibration = Calibration::shipped();
    let before =
        ["ml.p4d.24xlarge", "ml.p5.48xlarge"].map(|kind| speed(&calibration, kind, &sharded(8)));
    let (model, profile) = mpt(&sharded(8));
    let case = Case::new(setup("ml.p5.48xlarge", &model, &profile)).unwrap();
    assert!(case.kind.contains("H100"), "{}", case.kind);
    calibration.measure(&case, 0.0, before[1][1] * 0.9);
    let after =
        ["ml.p4d.24xlarge", "ml.p5.48xlarge"].map(|kind| speed(&calibration, kind, &sharded(8)));
    let [p4d, p5] = [after[0][1] / before[0][1], after[1][1] / before[1][1]];
    assert!((0.89..0.93).contains(&p5), "{p5}");
    assert!((0.89..0.95).contains(&p4d) && p4d > p5, "{p4d}");
    let width = |speed: [f64; 3]| (speed[2] / speed[0]).ln();
    assert!(
        width(after[1]) < width(before[1]) * 0.7 && width(after[0]) < width(before[0]),
        "{after:?} {before:?}"
    );
}

#[test]
fn unknown_chips_and_offload_widen_the_interval() {
    let of_fitted_code = Calibration::new(Model::shipped(), 0.0);
    let mut offloaded = sharded(4);
    offloaded["cpu_offload"] = serde_json::json!("optimizer");
    // How far a user's code may be from the fitted one is the larger part of what is not known.
    for (calibration, factor) in [(of_fitted_code, 1.8), (Calibration::shipped(), 1.07)] {
        let width = |kind: &str, profile: &serde_json::Value| {
            let [low, _, high] = speed(&calibration, kind, profile);
            (high / low).ln()
        };
        let plain = width("ml.p4d.24xlarge", &sharded(4));
        assert!(width("ml.g5.12xlarge", &sharded(4)) > factor * plain);
        assert!(width("ml.p4d.24xlarge", &offloaded) > factor * plain);
    }
}

#[test]
fn before_any_run_of_the_code_the_interval_is_about_a_factor_of_1_8() {
    let [low, expected, high] = speed(&Calibration::shipped(), "ml.p5.48xlarge", &sharded(8));
    assert!(
        (1.75..1.95).contains(&(high / expected)),
        "{}",
        high / expected
    );
    assert!((high / expected - expected / low).abs() < 1e-9);
}

#[test]
fn a_setting_that_was_measured_is_as_fast_as_it_was() {
    let mut calibration = Calibration::shipped();
    let (model, profile) = mpt(&sharded(8));
    let case = Case::new(setup("ml.p5.48xlarge", &model, &profile)).unwrap();
    for factor in [0.5, 0.52] {
        calibration.learn(&case, 8.0 * factor * 10_000.0);
    }
    let [low, expected, high] = speed(&calibration, "ml.p5.48xlarge", &sharded(8));
    assert!((expected / 5_099.0 - 1.0).abs() < 1e-3, "{expected}");
    assert!((1.05..1.08).contains(&(high / expected)) && low < expected);
    // Another profile of the same type follows it, less surely.
    let [low, other, high] = speed(&calibration, "ml.p5.48xlarge", &sharded(4));
    let before = speed(&Calibration::shipped(), "ml.p5.48xlarge", &sharded(4))[1];
    assert!(
        other < before * 0.6 && (1.1..1.4).contains(&(high / low).sqrt()),
        "{low} {other} {high}"
    );
}

#[test]
fn what_the_fitted_code_does_not_do_has_its_average_effect() {
    let of = |profile: &serde_json::Value, precision: Precision| {
        let (model, profile) = mpt(profile);
        let setup = Setup {
            precision,
            ..setup("ml.p4d.24xlarge", &model, &profile)
        };
        let case = Case::new(setup).unwrap();
        (
            Calibration::shipped().speed(&case, 0.0)[1].ln(),
            case.effects,
        )
    };
    let (plain, none) = of(&sharded(8), Precision::Bf16);
    let (halved, fp16) = of(&sharded(8), Precision::Fp16);
    assert_eq!(
        (none.iter().sum::<f64>(), fp16),
        (0.0, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    );
    assert!((halved - plain - Model::shipped().effects.mean[2]).abs() < 1e-9);
}

#[test]
fn activations_that_leave_the_chip_cost_time() {
    let mut offloaded = sharded(8);
    offloaded["activation_offload"] = serde_json::json!(true);
    let calibration = Calibration::new(Model::shipped(), 0.0);
    let ratio = speed(&calibration, "ml.p4d.24xlarge", &offloaded)[1]
        / speed(&calibration, "ml.p4d.24xlarge", &sharded(8))[1];
    assert!((0.3..0.8).contains(&ratio), "{ratio}");
}

/// More work per micro-step is never slower, and more accelerators never make each of them faster.
#[test]
fn speed_is_monotone() {
    let calibration = Calibration::shipped();
    for kind in [
        "ml.p4d.24xlarge",
        "ml.p5.48xlarge",
        "ml.g5.48xlarge",
        "ml.g6e.12xlarge",
    ] {
        let speeds: Vec<f64> = [1, 2, 4, 8, 16]
            .map(|micro| speed(&calibration, kind, &sharded(micro))[1])
            .to_vec();
        assert!(
            speeds.windows(2).all(|pair| pair[0] <= pair[1]),
            "{kind} {speeds:?}"
        );
    }
}

/// Recomputing attention costs less than recomputing layers, and more than nothing.
#[test]
fn attention_is_cheaper_to_recompute_than_layers() {
    let calibration = Calibration::new(Model::shipped(), 0.0);
    let of = |checkpoints: bool, recompute: &str| {
        let mut profile = sharded(8);
        profile["activation_checkpointing"] = checkpoints.into();
        profile["recompute"] = recompute.into();
        speed(&calibration, "ml.p4d.24xlarge", &profile)[1]
    };
    let [layers, attention, nothing] = [
        of(true, "layers"),
        of(true, "attention"),
        of(false, "layers"),
    ];
    assert!(
        layers < attention && attention < nothing,
        "{layers} {attention} {nothing}"
    );
}

/// Over a slow network, copies within each instance are faster than shards over all: only gradients
/// cross it. Over one instance there is nothing to gain.
#[test]
fn copies_spare_the_network() {
    let calibration = Calibration::new(Model::shipped(), 0.0);
    let mut copied = sharded(1);
    copied["hybrid_shard_degree"] = 8.into();
    copied["gradient_accumulation_steps"] = 8.into();
    let mut shared = copied.clone();
    shared["hybrid_shard_degree"] = serde_json::Value::Null;
    let ratio = |count| {
        speed_on(&calibration, "ml.g5.48xlarge", count, &copied)[1]
            / speed_on(&calibration, "ml.g5.48xlarge", count, &shared)[1]
    };
    assert!(ratio(4) > 1.5, "{}", ratio(4));
    assert!((ratio(1) - 1.0).abs() < 1e-9, "{}", ratio(1));
}

/// Two accelerators that share a sequence do not double its speed, and nobody has measured by how
/// much they fall short.
#[test]
fn a_shared_sequence_costs_its_ring() {
    let calibration = Calibration::new(Model::shipped(), 0.0);
    let mut halved = sharded(8);
    halved["context_parallel_degree"] = 2.into();
    let [low, alone, high] = speed(&calibration, "ml.p4d.24xlarge", &sharded(4));
    let [wide_low, shared, wide_high] = speed(&calibration, "ml.p4d.24xlarge", &halved);
    assert!(shared < alone, "{shared} {alone}");
    assert!(wide_high / wide_low > 1.5 * high / low);
}

/// Qwen's README, one A100 of 80 GB: seconds of a step of eight sequences with adapters, and with the base in four bits.
#[test]
fn a_base_of_four_bits_is_unpacked_in_each_micro_step() {
    let model = |length: u32| -> ModelShape {
        serde_json::from_value(serde_json::json!({"layers": 32, "hidden": 4096, "heads": 32, "intermediate": 11008,
            "vocabulary": 151_936, "tied_embeddings": false, "sequence_length": length, "lora_rank": 64}))
        .unwrap()
    };
    let published = [(2048, 5.2, 7.0), (4096, 10.1, 11.6), (8192, 21.3, 22.3)];
    for (length, plain, packed) in published {
        let model = model(length);
        let of = |bits: u8| {
            let mut profile = ProfileSpec::of_batch(1, 1);
            profile.base_weight_bits = bits;
            let case = Case::new(setup("ml.p4de.24xlarge", &model, &profile)).unwrap();
            Calibration::shipped().speed(&case, 0.0)
        };
        let ([_, slow, _], [_, fast, _]) = (of(4), of(16));
        let error = (slow / fast) / (plain / packed) - 1.0;
        assert!(error.abs() < 0.15, "{length}: {error}");
        let width = |[low, _, high]: [f64; 3]| high / low;
        assert!(width(of(4)) > width(of(16)));
    }
}

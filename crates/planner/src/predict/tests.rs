//! The speed law: the shipped coefficients load, measurements move it, and it is monotone.

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
    let (model, profile) = mpt(profile);
    let case = Case::new(setup(kind, &model, &profile)).unwrap();
    calibration.speed(&case, type_sd(case.kind))
}

fn sharded(micro: u32) -> serde_json::Value {
    serde_json::json!({"micro_batch_per_gpu": micro, "gradient_accumulation_steps": 1, "zero_stage": 3,
        "activation_checkpointing": true})
}

#[test]
fn what_is_shipped_is_read() {
    let shipped: ShippedFile =
        serde_json::from_str(include_str!("../../data/coefficients.json")).unwrap();
    assert_eq!(shipped.throughput.coefficients.len(), COUNT);
    assert!(
        NAMES
            .iter()
            .all(|name| shipped.throughput.coefficients.contains_key(*name))
    );
    assert!(source().contains("llm-foundry"));
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
    let calibration = Calibration::shipped();
    let width = |kind: &str, profile: &serde_json::Value| {
        let [low, _, high] = speed(&calibration, kind, profile);
        (high / low).ln()
    };
    let mut offloaded = sharded(4);
    offloaded["cpu_offload"] = serde_json::json!("optimizer");
    assert!(width("ml.g5.12xlarge", &sharded(4)) > 1.8 * width("ml.p4d.24xlarge", &sharded(4)));
    assert!(width("ml.p4d.24xlarge", &offloaded) > 1.8 * width("ml.p4d.24xlarge", &sharded(4)));
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

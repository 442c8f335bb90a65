//! The linter on the mistakes in the documents, and every rule on its own examples.

use bakeoff_domain::finding::Severity;
use serde_json::json;

use super::*;

fn spec(change: impl FnOnce(&mut serde_json::Value)) -> ExperimentSpec {
    let mut value = json!({
        "name": "legal", "region": "us-east-1", "budget_usd": 500, "max_runtime_seconds": 90_000,
        "objective": {"minimize": "cost"},
        "workload": {
            "name": "w", "image": "1.dkr.ecr.us-east-1.amazonaws.com/t:1",
            "role_arn": "arn:aws:iam::111122223333:role/train",
            "channels": [{"name": "train", "s3_uri": "s3://b/train", "size_gb": 0}], "output_s3_uri": "s3://b/out",
            "model": {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "intermediate": 18944,
                      "vocabulary": 152_064, "sequence_length": 2048},
            "precision": "bf16", "data_version": "1", "code_version": "1",
            "total_tokens": 1_000_000_000, "trial_tokens": 100_000_000,
            "metrics": [{"name": "tps", "regex": "tps=([0-9.]+)", "meaning": "tokens_per_second"}]
        },
        "candidates": [{"name": "a", "instance_type": "ml.p4de.24xlarge", "profile": {
            "micro_batch_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_stage": 2, "activation_checkpointing": true}}]
    });
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

fn prices() -> Vec<Price> {
    let at = "2026-11-20T00:00:00Z".parse().unwrap();
    bakeoff_domain::money::price::all_in_force(
        &bakeoff_domain::money::price::shipped().0,
        "us-east-1",
        at,
    )
}

fn rules(spec: &ExperimentSpec, least: Severity) -> Vec<String> {
    lint(spec, &prices())
        .into_iter()
        .filter(|f| f.severity >= least)
        .map(|f| f.rule)
        .collect()
}

#[test]
fn a_sound_experiment_has_nothing_against_it() {
    assert_eq!(
        rules(&spec(|_| {}), Severity::Warning),
        Vec::<String>::new()
    );
}

/// FP8 begins with Ada and Hopper.
#[test]
fn fp8_is_refused_where_the_chips_lack_it() {
    let on = |kind: &str| {
        let document = spec(|value| {
            value["workload"]["precision"] = json!("fp8");
            value["candidates"][0]["instance_type"] = json!(kind);
        });
        rules(&document, Severity::Refused)
    };
    assert_eq!(on("ml.p4de.24xlarge"), ["precision-not-on-type"]);
    for kind in ["ml.p5.48xlarge", "ml.p5en.48xlarge", "ml.p6-b200.48xlarge"] {
        assert!(
            !on(kind).contains(&"precision-not-on-type".to_owned()),
            "{kind}"
        );
    }
}

/// Document 000: tensor parallel 2 with the model parallel library, ZeRO-3 and full offload, on a
/// single A10G.
#[test]
fn the_documents_g5_8xlarge_is_refused_for_each_of_its_reasons() {
    let document = spec(|value| {
        value["candidates"][0]["instance_type"] = json!("ml.g5.8xlarge");
        value["candidates"][0]["profile"] = json!({
            "micro_batch_per_gpu": 1, "gradient_accumulation_steps": 16, "zero_stage": 3, "library": "smp_v1",
            "cpu_offload": "optimizer_and_parameters", "tensor_parallel_degree": 2, "activation_checkpointing": true});
    });
    let found = lint(&document, &prices());
    let refused: Vec<&str> = found
        .iter()
        .filter(|f| f.severity == Severity::Refused)
        .map(|f| f.rule.as_str())
        .collect();
    assert_eq!(
        refused,
        [
            "parallelism-exceeds-gpus",
            "two-engines",
            "library-not-on-type"
        ]
    );
}

/// Document 000 without the split: 18 bytes per parameter × 1.5 is 191.6 GiB of host memory, and
/// the host has 128.
#[test]
fn full_offload_of_seven_billion_outgrows_the_g5_host() {
    let document = spec(|value| {
        value["candidates"][0]["instance_type"] = json!("ml.g5.8xlarge");
        value["candidates"][0]["profile"] = json!({
            "micro_batch_per_gpu": 1, "gradient_accumulation_steps": 16, "zero_stage": 3,
            "cpu_offload": "optimizer_and_parameters", "activation_checkpointing": true});
    });
    let found = lint(&document, &prices());
    let memory = found.iter().find(|f| f.rule == "does-not-fit").unwrap();
    assert!(
        memory.message.contains("191 of 128 GiB of host memory")
            || memory.message.contains("192 of 128 GiB of host memory"),
        "{}",
        memory.message
    );
}

#[test]
fn every_mistake_is_reported_at_once_with_its_place() {
    let broken = spec(|value| {
        value["budget_usd"] = json!(-5);
        value["max_wait_seconds"] = json!(36_000);
        value["candidates"][0]["purchase_options"] = json!(["spot"]);
        value["candidates"][0]["instance_type"] = json!("ml.p4ed.24xlarge");
    });
    let found = lint(&broken, &prices());
    let pointers: Vec<&str> = found
        .iter()
        .filter(|f| f.severity == Severity::Error)
        .map(|f| f.pointer.as_str())
        .collect();
    assert_eq!(
        pointers,
        [
            "/budget_usd",
            "/max_wait_seconds",
            "/checkpoint",
            "/candidates/0/instance_type"
        ]
    );
    let kind = found
        .iter()
        .find(|f| f.rule == "unknown-instance-type")
        .unwrap();
    assert!(kind.fix.contains("ml.p4de.24xlarge"), "{}", kind.fix);
}

/// The warning and the forecast beside it use the same speed.
#[test]
fn a_measured_speed_decides_whether_the_time_is_enough() {
    let with = |measurements: Value| {
        spec(|value| {
            value["max_runtime_seconds"] = json!(7200);
            value["workload"]["total_tokens"] = json!(400_000_000);
            value["workload"]["trial_tokens"] = json!(400_000_000);
            value["measurements"] = measurements;
        })
    };
    let measured = |tokens_per_second: f64| {
        let profile = &spec(|_| {}).candidates[0].profile;
        json!([{"instance_type": "ml.p4de.24xlarge", "instance_count": 1, "profile": profile,
                "tokens_per_second": tokens_per_second}])
    };
    let is_short = |spec: &ExperimentSpec| {
        rules(spec, Severity::Info).contains(&"runtime-too-short".to_owned())
    };
    assert!(
        is_short(&with(json!([]))),
        "7B makes about 20,000 tokens/s there"
    );
    assert!(
        !is_short(&with(measured(90_000.0))),
        "and 90,000 were measured"
    );
    let speeds = [90_000.0, 9_000.0].map(|speed| {
        let informed = with(measured(speed));
        let calibration = forecast::calibrated(&informed);
        lint_with(
            &with(json!([])),
            LintContext {
                prices: &prices(),
                calibration: &calibration,
            },
        )
    });
    let is_named = speeds.map(|found| {
        found
            .iter()
            .any(|finding| finding.rule == "runtime-too-short")
    });
    assert_eq!(
        is_named,
        [false, true],
        "what others have measured counts too"
    );
}

/// One instance for the same global batch is named only to those who asked for the cheapest and have the time, and only
/// where the model fits on it.
#[test]
fn one_instance_is_offered_to_those_who_save_money_by_it() {
    let offered = |change: fn(&mut serde_json::Value)| {
        let document = spec(|value| {
            value["candidates"][0]["instance_count"] = json!(4);
            value["candidates"][0]["profile"]["zero_stage"] = json!(3);
            change(value);
        });
        let findings = lint(&document, &prices());
        let own = findings
            .into_iter()
            .find(|one| one.rule == "fewer-instances");
        own.map(|own| own.fix)
    };
    let fix = offered(|_| {}).unwrap();
    assert!(
        fix.contains("instance_count 1 and gradient_accumulation_steps 16"),
        "{fix}"
    );
    assert_eq!(
        offered(|value| value["objective"]["minimize"] = json!("time")),
        None
    );
    assert_eq!(
        offered(|value| value["objective"]["full_run_deadline_hours"] = json!(1)),
        None
    );
    let too_large = |value: &mut serde_json::Value| {
        value["workload"]["model"]["layers"] = json!(280);
    };
    assert_eq!(offered(too_large), None);
}

#[test]
fn what_has_no_price_is_refused_with_the_way_out() {
    let p5e = spec(|value| value["candidates"][0]["instance_type"] = json!("ml.p5e.48xlarge"));
    let found = lint(&p5e, &prices());
    let price = found.iter().find(|f| f.rule == "price-unknown").unwrap();
    assert_eq!(price.severity, Severity::Refused);
    assert!(price.fix.contains("PUT /v1/prices/ml.p5e.48xlarge"));
}

#[test]
fn absurd_numbers_are_findings_and_not_crashes() {
    let absurd = spec(|value| {
        value["budget_usd"] = json!(1e27);
        value["candidates"][0]["instance_count"] = json!(u32::MAX);
        value["candidates"][0]["profile"] = json!({
            "micro_batch_per_gpu": u32::MAX, "gradient_accumulation_steps": u32::MAX,
            "tensor_parallel_degree": u32::MAX, "pipeline_parallel_degree": u32::MAX});
        let mut other = value["candidates"][0].clone();
        other["name"] = json!("b");
        other["instance_count"] = json!(1);
        value["candidates"].as_array_mut().unwrap().push(other);
        value["workload"]["model"] = json!({"layers": u32::MAX, "hidden": u32::MAX, "heads": u32::MAX,
            "vocabulary": u32::MAX, "sequence_length": u32::MAX});
    });
    let found = rules(&absurd, Severity::Error);
    assert!(
        found.contains(&"budget".to_owned()) && found.contains(&"profile-count".to_owned()),
        "{found:?}"
    );
    crate::plan::plan(
        &absurd,
        &[],
        crate::plan::PlanContext {
            tariff: bakeoff_domain::money::worst_case::Tariff {
                prices: &prices(),
                rates: &[],
            },
            calibration: &forecast::calibrated(&absurd),
            metrics_interval: chrono::TimeDelta::minutes(5),
            now: chrono::DateTime::UNIX_EPOCH,
        },
    );
}

#[test]
fn what_the_plan_sets_cannot_be_set_beside_it() {
    let sneaky = spec(|value| {
        value["workload"]["hyperparameters"] = json!({"gradient_accumulation_steps": "1"});
    });
    assert_eq!(rules(&sneaky, Severity::Error), ["reserved-hyperparameter"]);
}

/// Two refused candidates agree on 48 sequences per step; the one that can run must not be flagged
/// for its 64.
#[test]
fn refused_candidates_do_not_decide_what_is_usual() {
    let mixed = spec(|value| {
        let mut refused = value["candidates"][0].clone();
        refused["instance_type"] = json!("ml.p5e.48xlarge");
        refused["profile"]["micro_batch_per_gpu"] = json!(6);
        for name in ["b", "c"] {
            refused["name"] = json!(name);
            value["candidates"]
                .as_array_mut()
                .unwrap()
                .push(refused.clone());
        }
    });
    assert!(!rules(&mixed, Severity::Warning).contains(&"global-batch-differs".to_owned()));
}

/// A valid document of a kind, with changes applied.
fn changed(kind: Kind, change: &Value) -> Value {
    let mut document = rules::example(kind);
    if !change.is_null() {
        json_patch::merge(&mut document, change);
    }
    document
}

fn read(kind: Kind, document: &Value) -> Document {
    fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
        serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
    }
    match kind {
        Kind::Experiment => Document::Experiment(Box::new(parse(document))),
        Kind::Workload => Document::Workload(Box::new(parse(document))),
        Kind::InstanceProfile => Document::InstanceProfile {
            instance_type: document["instance_type"].as_str().map(str::to_owned),
            spec: Box::new(parse(&document["spec"])),
            at: "/spec",
        },
        Kind::Run => Document::Run(Box::new(parse(document))),
        foreign => Document::Foreign(foreign, document.clone()),
    }
}

fn found_in(kind: Kind, value: &Value) -> Vec<Finding> {
    document(&read(kind, value), &prices())
}

#[test]
fn the_example_documents_are_sound_and_know_their_kind() {
    for kind in Kind::ALL {
        let example = rules::example(kind);
        assert_eq!(kind_of(&example), Some(kind));
        let mut found = found_in(kind, &example);
        // Some kinds are always told what they are of an experiment.
        found.retain(|one| one.severity > Severity::Info);
        assert_eq!(found, vec![], "{kind:?}");
    }
}

#[test]
fn every_rule_is_broken_by_its_example_and_kept_by_the_other() {
    let mut wrong = Vec::new();
    for rule in rules::all() {
        let Some(example) = &rule.example else {
            // Only rules that depend on the installation or its prices, and documents that cannot even be read,
            // may lack an example.
            assert!(
                [
                    "quota-too-low",
                    "budget-below-trial",
                    "region-not-allowed",
                    "profile-of-another-type",
                    "unknown-field",
                    "type"
                ]
                .contains(&rule.id.as_str()),
                "{} has no example",
                rule.id
            );
            continue;
        };
        let holds = |change: &Value| {
            found_in(example.document, &changed(example.document, change))
                .iter()
                .all(|found| found.rule != rule.id)
        };
        if holds(&example.fails) {
            wrong.push(format!("{}: its example does not break it", rule.id));
        }
        if !holds(&example.passes) {
            wrong.push(format!("{}: what passes breaks it", rule.id));
        }
        if !rule.documents.contains(&example.document) {
            wrong.push(format!("{}: the example is of another kind", rule.id));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// A patch fixes the finding it was offered for, and introduces no new one.
#[test]
fn patches_mend_what_they_are_offered_for() {
    let mut wrong = Vec::new();
    let mut fixed = 0;
    for (rule, example) in rules::all()
        .iter()
        .filter_map(|rule| Some((rule, rule.example.as_ref()?)))
    {
        let mut value = changed(example.document, &example.fails);
        let before = found_in(example.document, &value);
        let Some(finding) = before
            .iter()
            .find(|found| found.rule == rule.id && !found.patch.is_empty())
        else {
            continue;
        };
        let patch: json_patch::Patch =
            serde_json::from_value(serde_json::to_value(&finding.patch).unwrap()).unwrap();
        if let Err(error) = json_patch::patch(&mut value, &patch) {
            wrong.push(format!("{}: {error}", rule.id));
            continue;
        }
        let after = found_in(example.document, &value);
        fixed += 1;
        if after.iter().any(|found| found.rule == rule.id) {
            wrong.push(format!("{}: it is still broken", rule.id));
        }
        let errors = |all: &[Finding]| {
            all.iter()
                .filter(|found| found.severity >= Severity::Refused)
                .count()
        };
        if errors(&after) > errors(&before) {
            wrong.push(format!("{}: {after:?}", rule.id));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(fixed > 25, "{fixed}");
}

/// Every finding names a rule in the register.
#[test]
fn every_finding_is_of_a_registered_rule() {
    let known: Vec<&str> = rules::all().iter().map(|rule| rule.id.as_str()).collect();
    for example in rules::all().iter().filter_map(|rule| rule.example.as_ref()) {
        for finding in found_in(example.document, &changed(example.document, &example.fails)) {
            assert!(known.contains(&finding.rule.as_str()), "{finding:?}");
            assert!(
                !finding.message.is_empty()
                    && !finding.fix.is_empty()
                    && !finding.source.is_empty(),
                "{finding:?}"
            );
        }
    }
}

/// What a decoder lacks is named, also the length of its sequences, which other models need not have.
#[test]
fn a_decoder_without_all_its_figures_is_refused() {
    let half = serde_json::json!({"model": {"layers": 28, "hidden": null, "heads": null, "kv_heads": null,
        "intermediate": null, "vocabulary": null, "sequence_length": null}});
    for (document, at) in [(Kind::Workload, "/workload/model"), (Kind::Run, "/model")] {
        let found = found_in(document, &changed(document, &half));
        let of_rule = found.iter().filter(|one| one.rule == "model-shape");
        let mut fields: Vec<&str> = of_rule
            .filter_map(|one| one.pointer.rsplit_once('/'))
            .map(|(_, field)| field)
            .collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            ["heads", "hidden", "sequence_length", "vocabulary"],
            "{at} {found:?}"
        );
    }
}

#[test]
fn two_channels_of_one_name_are_said() {
    let twice = spec(|value| {
        let channels = value["workload"]["channels"].as_array_mut().unwrap();
        let first = channels[0].clone();
        channels.push(first);
    });
    assert_eq!(rules(&twice, Severity::Error), ["channel-name"]);
}

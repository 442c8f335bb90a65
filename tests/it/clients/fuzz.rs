//! Ten thousand random and mutated experiments: none crashes linter, planner or adviser, every
//! rejection names its place, and what the linter passes the region never refuses.

use bakeoff_domain::finding::Severity;
use bakeoff_domain::money::price;
use bakeoff_domain::money::worst_case::Tariff;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_planner::lint::{self, Kind};
use bakeoff_planner::plan::{PlanContext, plan};
use bakeoff_planner::predict::forecast;
use bakeoff_planner::preview::preview;
use bakeoff_planner::render::body::body;
use bakeoff_planner::render::request::for_attempt;
use bakeoff_planner::rules;
use bakeoff_service::document;
use chrono::TimeDelta;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::support::{Region, usual};

const CASES: usize = 10_000;

/// What is done to a document at one place.
#[derive(Debug, Clone)]
enum Mutation {
    Remove,
    Set(Value),
    /// Twice as much, or the text twice.
    Double,
    /// A member that nobody knows.
    Add,
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        (0u32..200).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z0-9_.:/ -]{0,40}".prop_map(Value::from),
        "\\PC{0,300}".prop_map(Value::from),
        prop::sample::select(vec![
            "ml.p4d.24xlarge",
            "ml.p5.48xlarge",
            "ml.g5.8xlarge",
            "ml.p3.16xlarge",
            "ml.m5.xlarge",
            "ml.trn1.32xlarge",
            "ml.g4dn.12xlarge",
            "spot",
            "smddp",
            "smp_v1",
            "smp_v2",
            "horovod",
            "torchrun",
            "fp16",
            "fp32",
            "optimizer",
            "optimizer_and_parameters",
            "s3://b/c",
            "time"
        ])
        .prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        prop::collection::vec("[a-z]{1,8}", 0..4).prop_map(|items| json!(items)),
        prop::collection::btree_map("[A-Za-z0-9_./-]{1,40}", "\\PC{0,60}", 0..6)
            .prop_map(|entries| json!(entries)),
        (0usize..3000).prop_map(|count| json!("x".repeat(count))),
    ]
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        1 => Just(Mutation::Remove),
        6 => leaf().prop_map(Mutation::Set),
        1 => Just(Mutation::Double),
        1 => Just(Mutation::Add),
    ]
}

/// Every pointer of a document.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(entries) => {
            for (key, inner) in entries {
                pointers(
                    inner,
                    &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")),
                    all,
                );
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                pointers(inner, &format!("{at}/{index}"), all);
            }
        }
        _ => {}
    }
}

fn mutate(document: &mut Value, place: Index, mutation: &Mutation) {
    let mut all = Vec::new();
    pointers(document, "", &mut all);
    let pointer = place.get(&all).clone();
    match mutation {
        Mutation::Remove => {
            let Some((parent, key)) = pointer.rsplit_once('/') else {
                return;
            };
            match document.pointer_mut(parent) {
                Some(Value::Object(entries)) => drop(entries.remove(key)),
                Some(Value::Array(items)) => drop(items.remove(key.parse().unwrap())),
                _ => {}
            }
        }
        Mutation::Set(value) => *document.pointer_mut(&pointer).unwrap() = value.clone(),
        Mutation::Double => match document.pointer_mut(&pointer) {
            Some(Value::String(text)) => *text = text.repeat(2),
            Some(Value::Array(items)) => items.extend(items.clone()),
            Some(Value::Number(number)) => {
                *number = (number.as_u64().unwrap_or(1).saturating_mul(2)).into();
            }
            _ => {}
        },
        Mutation::Add => {
            if let Some(Value::Object(entries)) = document.pointer_mut(&pointer) {
                entries.insert("unheard_of".to_owned(), json!(1));
            }
        }
    }
}

/// A base with everything in it that can be mutated.
fn bases() -> Vec<Value> {
    let plain = rules::example(Kind::Experiment);
    let mut rich = plain.clone();
    json_patch::merge(
        &mut rich,
        &json!({
            "max_wait_seconds": 180_000, "checkpoint": {"s3_uri": "s3://b/c", "local_path": "/opt/ml/checkpoints", "interval_seconds": 600},
            "keep_alive_seconds": 600, "priority": 1, "notes": ["n"],
            "objective": {"minimize": "cost", "full_run_budget_usd": 100, "full_run_deadline_hours": 10},
            "workload": {
                "image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.0.1-gpu-py310",
                "script": {"entry_point": "train.py", "source_s3_uri": "s3://b/s.tar.gz"}, "global_batch": 64,
                "hyperparameters": {"learning_rate": "1e-4", "optim": "adamw"},
                "techniques": {"retry_attempts": 3, "infra_check": true, "profiler": {"interval_milliseconds": 500, "rules": ["ProfilerReport"]},
                    "debugger": {"rules": ["VanishingGradient"], "collections": {"weights": {"save_interval": "100"}}}},
            },
            "claims": {"hardware": [{"instance_type": "ml.p4de.24xlarge", "accelerators": 8}], "parameters": 7.6e9, "dataset_tokens": 1e9,
                "dataset_bytes": 4e9, "training_steps": 7630, "speeds": [{"instance_type": "ml.p4de.24xlarge", "steps_per_hour": 100}]},
        }),
    );
    rich["candidates"] = json!([
        {"name": "a", "instance_type": "ml.p4de.24xlarge", "instance_count": 1, "purchase_options": ["on_demand", "spot"], "repeats": 2,
         "profile": {"micro_batch_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_stage": 2, "activation_checkpointing": true,
             "environment": {"A": "b"}, "hyperparameters": {"c": "d"}, "volume_size_gb": 100, "deepspeed": {"gradient_clipping": 1.0}}},
        {"name": "b", "instance_type": "ml.p4d.24xlarge", "profile": {"micro_batch_per_gpu": 1, "gradient_accumulation_steps": 32,
             "library": "smp_v2", "tensor_parallel_degree": 4, "smp_parameters": {"random_seed": 1}, "activation_checkpointing": true}},
    ]);
    rich["measurements"] = json!([{"instance_type": "ml.p4d.24xlarge", "tokens_per_second": 20_000,
        "profile": {"micro_batch_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_stage": 3}}]);
    let mut small = rich.clone();
    small["candidates"] = json!([{"name": "g", "instance_type": "ml.g5.12xlarge", "profile": {"micro_batch_per_gpu": 1,
        "gradient_accumulation_steps": 16, "library": "horovod", "processes_per_host": 4}}]);
    small["workload"]["model"]["lora_rank"] = json!(16);
    vec![plain, rich, small]
}

struct Fuzzed {
    passed: Vec<Value>,
    rejected: usize,
}

/// Looks at one document; the bodies that it would send, when the linter passes it.
fn look(document: &Value, fuzzed: &mut Fuzzed) {
    let (all, rates) = price::shipped();
    let prices = price::all_in_force(&all, "us-east-1", usual());
    let (spec, unknown) = document::read::<ExperimentSpec>(document);
    let (_, findings) = document::check(document, Some(Kind::Experiment), &prices).unwrap();
    for finding in &findings {
        let is_named = finding.pointer.starts_with('/')
            || finding.pointer.is_empty() && finding.rule == "type";
        assert!(
            is_named && !finding.message.is_empty(),
            "{finding:?} of {document}"
        );
    }
    let Ok(spec) = spec else {
        assert!(
            findings.iter().any(|finding| finding.rule == "type"),
            "{document}"
        );
        fuzzed.rejected += 1;
        return;
    };
    let calibration = &forecast::calibrated(&spec);
    let own = lint::lint(&spec, &prices);
    let context = PlanContext {
        tariff: Tariff {
            prices: &prices,
            rates: &rates,
        },
        calibration,
        metrics_interval: TimeDelta::minutes(5),
        now: usual(),
    };
    let plans = plan(&spec, &own, context);
    let shown = preview(&spec, own.clone(), plans.clone(), calibration, "00000000");
    assert_eq!(shown.candidates.is_empty(), plans.is_empty());
    if own
        .iter()
        .any(|finding| finding.severity == Severity::Error)
        || !unknown.is_empty()
    {
        fuzzed.rejected += 1;
        return;
    }
    for trial in plans.iter().filter(|trial| !trial.refused) {
        let request = trial.training().expect("what passes has a request");
        let name = format!("bakeoff-00000000-{:032x}", fuzzed.passed.len());
        fuzzed.passed.push(body(&for_attempt(
            request,
            &name,
            "job_00000000000000000000000000000000",
            "tri_0",
        )));
    }
}

#[tokio::test]
async fn nothing_crashes_and_what_the_linter_passes_the_region_takes() {
    let mut runner = TestRunner::deterministic();
    let bases = bases();
    let strategy = (
        any::<Index>(),
        prop::collection::vec((any::<Index>(), mutation()), 0..6),
    );
    let mut fuzzed = Fuzzed {
        passed: Vec::new(),
        rejected: 0,
    };
    for _ in 0..CASES {
        let (base, mutations) = strategy.new_tree(&mut runner).unwrap().current();
        let mut document = base.get(&bases).clone();
        for (place, mutation) in &mutations {
            mutate(&mut document, *place, mutation);
        }
        look(&document, &mut fuzzed);
    }
    assert!(fuzzed.rejected > CASES / 3, "{} rejected", fuzzed.rejected);
    assert!(
        fuzzed.passed.len() > CASES / 5,
        "{} passed",
        fuzzed.passed.len()
    );
    // Under one name that is taken: the region looks at everything else first.
    let region = Region::start(&["--quota", "1000"], usual());
    region.put_object("b", "train/part-0");
    let client = bakeoff_process::tls::http_client().build().unwrap();
    let send = |body: String| {
        client
            .post(&region.url)
            .header("x-amz-target", "SageMaker.CreateTrainingJob")
            .body(body)
            .send()
    };
    let mut taken = rules::example(Kind::TrainingJob);
    taken["TrainingJobName"] = json!("taken");
    assert!(send(taken.to_string()).await.unwrap().status().is_success());
    for mut body in fuzzed.passed {
        body["TrainingJobName"] = json!("taken");
        let text = send(body.to_string()).await.unwrap().text().await.unwrap();
        assert!(text.contains("ResourceInUse"), "{text}\n{body:#}");
    }
}

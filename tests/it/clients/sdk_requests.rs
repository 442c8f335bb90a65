//! Requests as the SageMaker Python SDK makes them: bodies that were captured from it are rendered
//! again, byte for byte in every value, and sent to the region; what is illegal is named by a rule
//! and refused by the region; what only policy refuses, the region takes, as the real service does.

use std::path::{Path, PathBuf};

use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::money::price;
use bakeoff_planner::lint::{self, Document, Kind};
use bakeoff_planner::render::estimator;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Region, TestApp, spec, usual};

/// `None` where the reference data is not: the test says so.
pub(crate) fn captured(file: &str) -> Option<Value> {
    let folder = std::env::var_os("BAKEOFF_REFERENCE_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"),
        PathBuf::from,
    );
    let text = std::fs::read(folder.join(file)).ok()?;
    Some(serde_json::from_slice(&text).unwrap())
}

/// The arguments that made each of the captured requests.
fn arguments(name: &str) -> Value {
    let mut all = json!({
        "sdk_class": "sagemaker.pytorch.PyTorch", "entry_point": "train.py",
        "role": "arn:aws:iam::123456789012:role/r00000", "region": "us-east-1", "framework_version": "2.0.1", "py_version": "py310",
        "instance_type": "ml.p4d.24xlarge", "instance_count": 2, "hyperparameters": {"epochs": 3, "lr": 0.1, "name": "x"},
        "code_location": "s3://sm-bucket", "output_path": "s3://sm-bucket/out", "inputs": {"train": "s3://sm-bucket/train"},
        "job_name": format!("job-{name}"), "max_run": 86_400,
    });
    let tensorflow = json!({"sdk_class": "sagemaker.tensorflow.TensorFlow", "framework_version": "2.11", "py_version": "py39"});
    let on = json!({"enabled": true});
    let own = match name {
        "plain" => json!({}),
        "smddp" => {
            json!({"distribution": {"smdistributed": {"dataparallel": {"enabled": true, "custom_mpi_options": "-verbose"}}}})
        }
        "smddp-g5" => {
            json!({"instance_type": "ml.g5.12xlarge", "distribution": {"smdistributed": {"dataparallel": on}}})
        }
        "smddp-c5" => {
            json!({"instance_type": "ml.c5.xlarge", "distribution": {"smdistributed": {"dataparallel": on}}})
        }
        "pytorchddp" => json!({"distribution": {"pytorchddp": on}}),
        "torch_distributed" => json!({"distribution": {"torch_distributed": on}}),
        "smp" => json!({"distribution": {
            "mpi": {"enabled": true, "processes_per_host": 8, "custom_mpi_options": "--mca x"},
            "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"partitions": 2, "microbatches": 4, "ddp": true}}}}}),
        "hetero" => json!({"instance_type": null, "instance_count": null, "instance_groups": [
            {"instance_group_name": "gpu", "instance_type": "ml.p4d.24xlarge", "instance_count": 1},
            {"instance_group_name": "cpu", "instance_type": "ml.c5.18xlarge", "instance_count": 2}],
            "distribution": {"mpi": on, "instance_groups": ["gpu"]}}),
        "smddp-tf" => json!({"distribution": {"smdistributed": {"dataparallel": on}}}),
        "mpi-tf" => {
            json!({"distribution": {"mpi": {"enabled": true, "processes_per_host": 8, "custom_mpi_options": "-x FOO"}}})
        }
        "ps-tf" => json!({"distribution": {"parameter_server": on}}),
        "spot-nomaxwait" => json!({"use_spot_instances": true, "max_run": 3600}),
        "spot-maxwait-lt" => json!({"use_spot_instances": true, "max_run": 3600, "max_wait": 10}),
        "keepalive-spot" => {
            json!({"use_spot_instances": true, "max_run": 3600, "max_wait": 7200, "keep_alive_period_in_seconds": 600})
        }
        other => panic!("no arguments for {other}"),
    };
    if name.ends_with("-tf") {
        json_patch::merge(&mut all, &tensorflow);
    }
    json_patch::merge(&mut all, &own);
    all
}

fn rules(body: &Value) -> Vec<Finding> {
    let findings = lint::document(
        &Document::Foreign(Kind::TrainingJob, body.clone()),
        &price::shipped().0,
    );
    findings
        .into_iter()
        .filter(|finding| finding.severity >= Severity::Refused)
        .collect()
}

/// JSON strings that hold JSON are compared by what they say: objects have no order.
fn opened(mut body: Value) -> Value {
    if let Some(Value::String(text)) = body.pointer_mut("/HyperParameters/mp_parameters") {
        let inner: Value = serde_json::from_str(text).unwrap();
        body["HyperParameters"]["mp_parameters"] = inner;
    }
    body
}

async fn create(sim: &Region, body: &Value) -> (StatusCode, String) {
    let client = bakeoff_process::tls::http_client().build().unwrap();
    let request = client
        .post(&sim.url)
        .header("x-amz-target", "SageMaker.CreateTrainingJob")
        .body(body.to_string());
    let answer = request.send().await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}

/// Legal as they are, and nothing to be said against them.
const LEGAL: [&str; 8] = [
    "plain",
    "smddp",
    "torch_distributed",
    "smp",
    "hetero",
    "smddp-tf",
    "mpi-tf",
    "ps-tf",
];
/// Taken by the service, and refused by a rule: what is asked for does not work there, or is not
/// made any more.
const AGAINST_POLICY: [(&str, &str); 5] = [
    ("smddp-g5", "library-not-on-type"),
    ("smddp-c5", "library-not-on-type"),
    ("compiler-pt", "compiler-ended"),
    ("compiler-pt-xla", "compiler-ended"),
    ("hf-compiler", "compiler-ended"),
];
/// Sent by the SDK, and refused by the service.
const ILLEGAL: [(&str, &str); 3] = [
    ("spot-nomaxwait", "spot-needs-max-wait"),
    ("spot-maxwait-lt", "spot-max-wait-below-max-runtime"),
    ("keepalive-spot", "keep-alive-with-spot"),
];
/// Legal, and rendered equal; the SDK has made something else of it than was asked for.
const REWRITTEN: [&str; 1] = ["pytorchddp"];

#[tokio::test]
async fn captured_requests_are_rendered_equal_and_judged_as_the_service_judges_them() {
    let Some(all) = captured("sdk_requests.json") else {
        println!("skipped: no reference data");
        return;
    };
    let sim = Region::start(&["--quota", "1000"], usual());
    sim.put_object("sm-bucket", "train/part-0");
    assert_eq!(
        all.as_object().unwrap().len(),
        LEGAL.len() + AGAINST_POLICY.len() + ILLEGAL.len() + REWRITTEN.len()
    );
    for name in LEGAL.into_iter().chain(REWRITTEN) {
        let rendered = estimator::body(&arguments(name), "1").unwrap();
        assert_eq!(
            opened(rendered.clone()),
            opened(all[name].clone()),
            "{name}"
        );
        // One captured name has an underscore, which no job's name may have; nothing else is wrong
        // with that request.
        let mut rendered = rendered;
        rendered["TrainingJobName"] = json!(format!("job-{}", name.replace('_', "-")));
        assert_eq!(rules(&rendered), vec![], "{name}");
        let (status, text) = create(&sim, &rendered).await;
        assert_eq!(status, StatusCode::OK, "{name}: {text}");
    }
    let rendered = estimator::body(&arguments("keepalive-spot"), "1").unwrap();
    assert_eq!(rendered, all["keepalive-spot"]);
    for name in ["spot-nomaxwait", "spot-maxwait-lt"] {
        let rendered = estimator::body(&arguments(name), "1");
        assert_eq!(rendered.is_err(), name == "spot-nomaxwait", "{rendered:?}");
        assert!(rendered.is_err() || rendered.unwrap() == all[name]);
    }
    for (name, rule) in ILLEGAL {
        let found: Vec<String> = rules(&all[name])
            .into_iter()
            .map(|finding| finding.rule)
            .collect();
        assert_eq!(found, [rule], "{name}");
        let (status, text) = create(&sim, &all[name]).await;
        assert!(
            status == StatusCode::BAD_REQUEST && text.contains("ValidationException"),
            "{name}: {status} {text}"
        );
    }
    for (name, rule) in AGAINST_POLICY {
        let found: Vec<String> = rules(&all[name])
            .into_iter()
            .map(|finding| finding.rule)
            .collect();
        assert!(found.contains(&rule.to_owned()), "{name}: {found:?}");
        let (status, text) = create(&sim, &all[name]).await;
        assert_eq!(status, StatusCode::OK, "{name}: {text}");
        if name.starts_with("smddp") {
            assert_eq!(
                estimator::body(&arguments(name), "1").unwrap(),
                all[name],
                "{name}"
            );
        }
    }
}

/// What a request says of its job, but for the names and limits that an experiment gives to each of its trials.
fn kept(body: &Value, hyperparameters: &[String]) -> Value {
    let channels = body["InputDataConfig"].as_array().unwrap().iter();
    let channels = channels.map(|one| {
        json!([
            one["ChannelName"],
            one["DataSource"]["S3DataSource"]["S3Uri"]
        ])
    });
    let told = |name: &String| json!([name, body["HyperParameters"][name]]);
    let resources = &body["ResourceConfig"];
    json!({
        "image": body["AlgorithmSpecification"]["TrainingImage"],
        "role": body["RoleArn"],
        "machines": [resources["InstanceType"], resources["InstanceCount"]],
        "channels": channels.collect::<Vec<Value>>(),
        "hyperparameters": hyperparameters.iter().map(told).collect::<Vec<Value>>(),
    })
}

/// Of clusters of several types: an experiment compares types.
const NOT_COMPARABLE: [&str; 1] = ["hetero"];

/// What was captured, and the arguments that made it, become an experiment at once; its plan asks for the same job on the
/// same machines.
#[sqlx::test(migrations = false)]
async fn captured_requests_become_experiments_that_ask_for_the_same(pool: sqlx::PgPool) {
    let Some(all) = captured("sdk_requests.json") else {
        println!("skipped: no reference data");
        return;
    };
    let test = TestApp::new(pool).await;
    let answers = json!({"/workload/total_tokens": 1_000_000_000, "/workload/metrics": "hf-trainer", "/budget_usd": 5000,
        "/region": "us-east-1"});
    let mut compared = 0;
    for (name, body) in all.as_object().unwrap() {
        if NOT_COMPARABLE.contains(&name.as_str()) {
            continue;
        }
        // The compiler's are captured only; of one, no request can be made.
        let has_arguments = !name.contains("compiler") && name != "spot-nomaxwait";
        let documents = [Some(body.clone()), has_arguments.then(|| arguments(name))];
        for document in documents.into_iter().flatten() {
            let asked = json!({"documents": [document, "gpt2"], "answers": answers});
            let (status, import) = test.post("/v1/imports", &asked).await;
            assert_eq!(status, StatusCode::OK, "{name}: {import:#}");
            assert_eq!(
                import["is_complete"], true,
                "{name}: {:#}",
                import["questions"]
            );
            let (status, plan) = test.post("/v1/plans", &import["spec"]).await;
            assert_eq!(status, StatusCode::OK, "{name}: {plan:#}");
            let machine = &body["ResourceConfig"]["InstanceType"];
            let candidates = plan["candidates"].as_array().unwrap();
            let own = candidates
                .iter()
                .find(|one| &one["instance_type"] == machine);
            let planned = &own.unwrap_or_else(|| panic!("{name}: {plan:#}"))["create_training_job"];
            let told = body["HyperParameters"].as_object().unwrap().keys();
            let is_kept = |told: &&String| {
                let left_out = [
                    "sagemaker_job_name",
                    "sagemaker_training_compiler",
                    "sagemaker_pytorch_xla",
                ];
                !left_out.iter().any(|prefix| told.starts_with(prefix))
            };
            let told: Vec<String> = told.filter(is_kept).cloned().collect();
            let [planned, body] = [planned, body].map(|one| opened(one.clone()));
            assert_eq!(kept(&planned, &told), kept(&body, &told), "{name}");
            compared += 1;
        }
    }
    assert!(compared > 25, "{compared}");
}

/// What goes over the wire is the body that a plan shows: every technique that a workload can ask
/// for, through the real SDK.
#[sqlx::test(migrations = false)]
async fn what_is_sent_is_what_the_plan_shows(pool: sqlx::PgPool) {
    let test = TestApp::new(pool).await;
    let mut asked = spec();
    asked["max_runtime_seconds"] = json!(3600);
    asked["max_wait_seconds"] = json!(7200);
    asked["keep_alive_seconds"] = json!(600);
    asked["workload"]["model"]["lora_rank"] = json!(16);
    asked["workload"]["image"] =
        json!("763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.0.1-gpu-py310");
    asked["workload"]["script"] =
        json!({"entry_point": "train.py", "source_s3_uri": "s3://tests/code/sourcedir.tar.gz"});
    asked["workload"]["techniques"] = json!({
        "retry_attempts": 3, "infra_check": true,
        "profiler": {"interval_milliseconds": 1000, "rules": ["ProfilerReport", "LowGPUUtilization"]},
        "debugger": {"rules": ["VanishingGradient"], "collections": {"weights": {"save_interval": "100"}}},
    });
    let profile = json!({"micro_batch_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_stage": 2,
        "activation_checkpointing": true, "environment": {"NCCL_DEBUG": "INFO"}});
    let with = |changes: Value| {
        let mut profile = profile.clone();
        json_patch::merge(&mut profile, &changes);
        profile
    };
    let candidate = |name: &str, kind: &str, options: Value, profile: Value| {
        json!({
        "name": name, "instance_type": kind, "purchase_options": options, "profile": profile})
    };
    asked["candidates"] = json!([
        candidate(
            "deepspeed",
            "ml.p4de.24xlarge",
            json!(["on_demand", "spot"]),
            profile.clone()
        ),
        candidate(
            "smddp",
            "ml.p4de.24xlarge",
            json!(["on_demand"]),
            with(json!({"library": "smddp"}))
        ),
        candidate(
            "smp-v2",
            "ml.p4de.24xlarge",
            json!(["on_demand"]),
            with(json!({"library": "smp_v2", "zero_stage": 0,
            "tensor_parallel_degree": 4, "gradient_accumulation_steps": 16}))
        ),
        candidate(
            "horovod",
            "ml.p4de.24xlarge",
            json!(["on_demand"]),
            with(json!({"library": "horovod", "zero_stage": 0}))
        ),
    ]);
    let (status, plan) = test.post("/v1/plans", &asked).await;
    assert_eq!(
        (status, plan["would_start"].as_bool()),
        (StatusCode::OK, Some(true)),
        "{:#}",
        plan["findings"]
    );
    let id = test.start(&asked).await;
    for _ in 0..6 {
        test.advance(chrono::TimeDelta::minutes(2)).await;
        test.tick().await;
    }
    let record = test.record().await;
    let jobs = record["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 5, "{id}");
    let mut seen = Vec::new();
    for job in jobs {
        let name = job["name"].as_str().unwrap();
        let url = format!("{}/_sim/requests/{name}", test.region.url);
        let sent: Value = test
            .client
            .get(url)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let is_alike = |shown: &&Value| {
            let shown = &shown["create_training_job"];
            let own = |body: &Value| {
                let mut body = body.clone();
                body["Tags"] = Value::Null;
                body["TrainingJobName"] = Value::Null;
                body["Environment"]["BAKEOFF_ATTEMPT_ID"] = Value::Null;
                body["Environment"]["BAKEOFF_TRIAL_ID"] = Value::Null;
                body["CheckpointConfig"]["S3Uri"] = Value::Null;
                body["HyperParameters"]["sagemaker_job_name"] = Value::Null;
                body
            };
            own(shown) == own(&sent)
        };
        let found = plan["candidates"].as_array().unwrap().iter().find(is_alike);
        let found = found.unwrap_or_else(|| panic!("nothing in the plan is like {sent:#}"));
        seen.push(format!(
            "{} {}",
            found["candidate"].as_str().unwrap(),
            found["purchase_option"].as_str().unwrap()
        ));
        let collections = sent["DebugHookConfig"]["CollectionConfigurations"]
            .as_array()
            .unwrap();
        assert_eq!(
            (
                collections.len(),
                sent["DebugRuleConfigurations"].as_array().map(Vec::len)
            ),
            (2, Some(1))
        );
        assert_eq!(
            sent["ProfilerRuleConfigurations"].as_array().map(Vec::len),
            Some(2)
        );
        assert_eq!(
            sent["HyperParameters"]["sagemaker_job_name"],
            json!(format!("\"{name}\""))
        );
    }
    // A checkpoint location beside several processes: the SDK leaves the hook out, and the linter
    // says so.
    asked["checkpoint"] = json!({"s3_uri": "s3://tests/checkpoints"});
    let (_, plan) = test.post("/v1/plans", &asked).await;
    let body = &plan["candidates"][0]["create_training_job"];
    assert_eq!(
        (
            body.get("DebugHookConfig"),
            body["DebugRuleConfigurations"].as_array().map(Vec::len)
        ),
        (None, Some(1))
    );
    assert_eq!(
        body["CheckpointConfig"]["LocalPath"],
        json!("/opt/ml/checkpoints")
    );
    assert!(
        plan["findings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["rule"] == "debugger-hook-dropped")
    );
    seen.sort();
    assert_eq!(
        seen,
        [
            "deepspeed on_demand",
            "deepspeed spot",
            "horovod on_demand",
            "smddp on_demand",
            "smp-v2 on_demand"
        ]
    );
}

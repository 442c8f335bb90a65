//! An experiment from what people have, over HTTP: one round of questions, and a plan takes it.

use bakeoff_api::findings::LintView;
use bakeoff_api::imports::ImportView;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_planner::lint::Kind;
use reqwest::StatusCode;
use serde_json::{Map, Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, problem};

async fn imported(test: &TestApp, documents: &Value, answers: &Map<String, Value>) -> ImportView {
    let body = json!({"documents": documents, "answers": answers});
    let (status, answer) = test.post("/v1/imports", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    serde_json::from_value(answer).unwrap()
}

fn open(import: &ImportView) -> Vec<&str> {
    let needed = import.questions.iter().filter(|one| one.proposal.is_none());
    needed.map(|one| one.pointer.as_str()).collect()
}

/// Every document of ours that is of a training job.
#[sqlx::test(migrations = false)]
async fn one_round_of_answers_makes_an_experiment(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let known = json!({
        "/workload/image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/train:1",
        "/workload/role_arn": "arn:aws:iam::111122223333:role/train",
        "/workload/output_s3_uri": "s3://bucket/out/",
        "/workload/script/source_s3_uri": "s3://bucket/source/sourcedir.tar.gz",
        "/workload/model": "Qwen/Qwen2.5-7B",
        "/workload/metrics": "hf-trainer",
        "/workload/total_tokens": 1_000_000_000,
        "/budget_usd": 500,
    });
    let mut read = 0;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/documents");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let (status, linted) = test.post("/v1/lint", &document).await;
        if status != StatusCode::OK {
            continue;
        }
        let linted: LintView = serde_json::from_value(linted).unwrap();
        if !matches!(linted.kind, Kind::TrainingJob | Kind::Estimator) {
            continue;
        }
        let documents = json!([document]);
        let first = imported(&test, &documents, &Map::new()).await;
        let needed = open(&first);
        let answers = known.as_object().unwrap().clone().into_iter();
        let answers = answers.filter(|(pointer, _)| needed.contains(&pointer.as_str()));
        let second = imported(&test, &documents, &answers.collect()).await;
        let name = path.display();
        assert!(second.is_complete, "{name}: {:?}", open(&second));
        let spec = serde_json::from_value::<ExperimentSpec>(second.spec.clone());
        assert!(spec.is_ok(), "{name}: {spec:?}");
        let (status, plan) = test.post("/v1/plans", &second.spec).await;
        assert_eq!(status, StatusCode::OK, "{name}: {plan:#}");
        read += 1;
    }
    assert!(read > 30, "{read}");
}

#[sqlx::test(migrations = false)]
async fn what_cannot_be_read_is_named_by_its_place(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let unknown = json!({"/workload/model": "nobody/knows-7b"});
    for (body, pointer) in [
        (json!({"documents": []}), "/documents"),
        (json!({"documents": vec!["gpt2"; 11]}), "/documents"),
        (
            json!({"documents": ["gpt2", "nobody/knows-7b"]}),
            "/documents/1",
        ),
        (
            json!({"documents": ["gpt2"], "answers": {"budget": 3}}),
            "/answers/budget",
        ),
        (
            json!({"documents": ["gpt2"], "answers": unknown}),
            "/answers/~1workload~1model",
        ),
    ] {
        let (status, answer) = test.post("/v1/imports", &body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
        let error = &problem(answer).errors[0];
        assert_eq!(error.pointer, pointer, "{error:?}");
        assert!(!error.fix.is_empty(), "{error:?}");
    }
}

//! The pipelines among the examples, from raw data to an endpoint or a registered model.

use bakeoff_domain::pipeline::PipelineState;
use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::pipelines::steps::{assert_billed, kinds, run_pipeline, started, step, turn};
use crate::support::{TestApp, jobs};

/// Endpoints in service.
fn serving(record: &Value) -> usize {
    let jobs = jobs(record).into_iter();
    jobs.filter(|job| job["kind"] == "endpoint" && job["status"] == "InService")
        .count()
}

/// What the documents that were asked for describe, as it ships: from raw data to a registered model, to the cent.
#[sqlx::test(migrations = false)]
async fn the_examples_run_to_their_end(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for key in [
        "code/prepare.py",
        "code/evaluate.py",
        "legal/raw/a.jsonl",
        "hebrew/raw/a.jsonl",
    ] {
        test.region.put_object("bakeoff-example", key);
    }
    let examples = [
        include_str!("../../../examples/pipelines/legal-g5.json"),
        include_str!("../../../examples/pipelines/hebrew-p5.json"),
    ];
    for example in examples {
        let body: Value = serde_json::from_str(example).unwrap();
        let view = run_pipeline(&test, &started(&test, &body).await).await;
        assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
        assert!(view.settled_usd + view.reserved_usd <= view.budget_usd);
        let register = step(&view, "register").outputs.clone().unwrap();
        assert_eq!(register["version"], json!(1));
        // What was asked for serves on, until its time is over.
        let is_deployed = view.steps.iter().any(|step| step.name == "deploy");
        assert_eq!(serving(&test.record().await), usize::from(is_deployed));
        for _ in 0..40 {
            test.advance(TimeDelta::minutes(5)).await;
            turn(&test).await;
        }
    }
    let record = test.record().await;
    assert_eq!(serving(&record), 0);
    let of = |wanted: &str| kinds(&record).iter().filter(|kind| *kind == wanted).count();
    assert_eq!((of("processing"), of("tuning"), of("endpoint")), (4, 2, 1));
    test.assert_nothing_leaks(&[]).await;
    assert_billed(&test).await;
}

//! Processing jobs of steps: what is not run twice, orphans, quotas, and the bodies beside those that the SDK sends.

use std::sync::Arc;

use bakeoff_domain::pipeline::processing::{self, ProcessingContext};
use bakeoff_domain::pipeline::{PipelineState, StepState};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::spec::PurchaseOption;
use bakeoff_domain::spec::pipeline::ProcessingSpec;
use bakeoff_service::auth::keys::Role;
use bakeoff_service::tasks::watcher;
use chrono::TimeDelta;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::clients::sdk_requests::captured;
use crate::pipelines::steps::{
    assert_billed, pipeline, prepare, read, run, run_until, started, step, turn, with_data,
};
use crate::support::{Region, jobs, number, ports_of, usual};

#[sqlx::test(migrations = false)]
async fn an_unchanged_preparation_is_not_run_twice(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let body = pipeline(&json!([prepare("prepare")]));
    let first = run(&test, &started(&test, &body).await).await;
    let second = run(&test, &started(&test, &body).await).await;
    assert_eq!(second.state, PipelineState::Completed);
    let (one, two) = (step(&first, "prepare"), step(&second, "prepare"));
    assert_eq!(
        (two.reused_from, &two.outputs),
        (Some(first.id), &one.outputs)
    );
    assert_eq!(
        (two.settled_usd.as_f64(), jobs(&test.record().await).len()),
        (0.0, 1)
    );
    // Other data, other code or another setting: it runs.
    test.region.write_object("tests", "raw/b.jsonl", "{}\n");
    let third = run(&test, &started(&test, &body).await).await;
    assert_eq!(step(&third, "prepare").reused_from, None);
    let mut other = body.clone();
    other["steps"][0]["processing"]["arguments"] = json!(["--validation-share", "0.2"]);
    assert_eq!(
        step(&run(&test, &started(&test, &other).await).await, "prepare").reused_from,
        None
    );
    // Nor is anything used that is not there any more, or where nobody wants it.
    let uri = third.steps[0].outputs.clone().unwrap()["outputs"]["train"]
        .as_str()
        .unwrap()
        .to_owned();
    test.region.delete_folder(&uri);
    assert_eq!(
        step(&run(&test, &started(&test, &body).await).await, "prepare").reused_from,
        None
    );
    let mut anew = body;
    anew["steps"][0]["processing"]["reuse_if_unchanged"] = json!(false);
    assert_eq!(
        step(&run(&test, &started(&test, &anew).await).await, "prepare").reused_from,
        None
    );
    assert_eq!(jobs(&test.record().await).len(), 5);
    assert_billed(&test).await;
}

/// S3 that asks to slow down does not say that the outputs are gone: run again, the preparation would be paid for twice.
#[sqlx::test(migrations = false)]
async fn an_unchanged_preparation_waits_for_s3(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let body = pipeline(&json!([prepare("prepare")]));
    let first = run(&test, &started(&test, &body).await).await;
    let id = started(&test, &body).await;
    let slow = json!({"s3_slow_down": true});
    test.region_post("/_sim/setup", &slow).await;
    for _ in 0..10 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(4)).await;
    }
    let waiting = step(&read(&test, &id).await, "prepare").clone();
    assert_eq!(
        (waiting.state, waiting.reused_from),
        (StepState::Waiting, None)
    );
    test.region_post("/_sim/setup", &json!({})).await;
    let second = run(&test, &id).await;
    assert_eq!(step(&second, "prepare").reused_from, Some(first.id));
    assert_eq!(jobs(&test.record().await).len(), 1);
}

/// The outputs of a preparation belong to its project: another one with the same steps and data runs its own.
#[sqlx::test(migrations = false)]
async fn a_preparation_is_not_reused_by_another_project(pool: PgPool) {
    let mut test = with_data(pool, &[]).await;
    let body = pipeline(&json!([prepare("prepare")]));
    let first = run(&test, &started(&test, &body).await).await;
    assert_eq!(first.state, PipelineState::Completed);
    test.project = test.other_project().await;
    test.admin = test.key(test.project, Role::Admin).await;
    let theirs = run(&test, &started(&test, &body).await).await;
    assert_eq!(theirs.state, PipelineState::Completed);
    assert_eq!(step(&theirs, "prepare").reused_from, None);
    assert_eq!(jobs(&test.record().await).len(), 2);
}

/// Where everybody may write, what is there may be anybody's.
#[sqlx::test(migrations = false)]
async fn an_output_at_an_address_of_its_own_is_not_reused(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut body = pipeline(&json!([prepare("prepare")]));
    body["steps"][0]["processing"]["outputs"][0]["s3_uri"] = json!("s3://tests/latest/train");
    for _ in 0..2 {
        let view = run(&test, &started(&test, &body).await).await;
        assert_eq!(step(&view, "prepare").reused_from, None);
    }
    assert_eq!(jobs(&test.record().await).len(), 2);
}

/// Whatever its references will stand for, a body must fit its type before anything is paid.
#[sqlx::test(migrations = false)]
async fn a_mistake_beside_a_reference_is_told_at_once(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut body = pipeline(&json!([prepare("prepare"), prepare("more")]));
    let more = &mut body["steps"][1]["processing"];
    more["inputs"][0]["s3_uri"] = json!("${prepare.outputs.train}");
    more["instance_count"] = json!("two");
    let (status, problem) = test.post("/v1/pipelines", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem:#}");
    assert!(
        problem
            .to_string()
            .contains("/steps/1/processing/instance_count"),
        "{problem:#}"
    );
    // A number among a step's outputs stands for a number.
    body["steps"][1]["processing"]["instance_count"] = json!("${prepare.message.shards}");
    started(&test, &body).await;
}

/// A processing job that runs although its attempt has ended is stopped and billed, found by its own listing.
#[sqlx::test(migrations = false)]
async fn an_orphaned_processing_job_is_stopped_and_billed(pool: PgPool) {
    let test = with_data(pool.clone(), &[]).await;
    let id = started(&test, &pipeline(&json!([prepare("prepare")]))).await;
    run_until(&test, &id, "prepare", StepState::Running).await;
    let mut memory = watcher::Memory::default();
    watcher::tick(&test.app, &mut memory).await.unwrap();
    // As after a create that arrived when nobody waited for it any more.
    for statement in [
        "UPDATE jobs SET state = 'never_created', settled_at = planned_at, started_at = NULL",
        "UPDATE trials SET state = 'stopped', ended_at = created_at",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    for _ in 0..6 {
        test.advance(TimeDelta::minutes(1)).await;
        watcher::tick(&test.app, &mut memory).await.unwrap();
    }
    let record = test.record().await;
    let job = jobs(&record).remove(0);
    assert_eq!(
        (job["kind"].as_str(), job["status"].as_str()),
        (Some("processing"), Some("Stopped")),
        "{job:#}"
    );
    let booked = "SELECT (sum(usd) * 1000000)::bigint FROM ledger WHERE resource = 'orphaned_job'";
    let billed = ["micro_usd", "storage_micro_usd"].map(|part| job[part].as_i64().unwrap());
    let (booked, billed) = (number(&pool, booked).await, billed.iter().sum::<i64>());
    assert!((booked - billed).abs() < 10_000, "{booked} {billed}");
}

/// What counts against the quota of processing is no training.
#[sqlx::test(migrations = false)]
async fn processing_has_a_quota_of_its_own(pool: PgPool) {
    let test = with_data(pool.clone(), &["--quota-of", "ml.m5.xlarge=1"]).await;
    let mut body = pipeline(&json!([prepare("one"), prepare("two")]));
    body["steps"][1]["processing"]["reuse_if_unchanged"] = json!(false);
    let view = run(&test, &started(&test, &body).await).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    // They took turns, and none was refused once the quota was known.
    let usage = "SELECT instances::bigint FROM quotas WHERE instance_type = 'ml.m5.xlarge' AND usage = 'processing'";
    assert_eq!(number(&pool, usage).await, 1);
    let options: Vec<String> = sqlx::query_scalar("SELECT DISTINCT purchase_option FROM trials")
        .fetch_all(&pool)
        .await
        .unwrap();
    assert_eq!(options, [PurchaseOption::OnDemand.as_str()]);
}

/// A step as somebody would write the SDK's job.
fn as_a_step(theirs: &Value, is_script: bool) -> ProcessingSpec {
    let application = &theirs["AppSpecification"];
    let cluster = &theirs["ProcessingResources"]["ClusterConfig"];
    let inputs = theirs["ProcessingInputs"].as_array().unwrap().iter();
    let (code, inputs): (Vec<&Value>, Vec<&Value>) =
        inputs.partition(|input| is_script && input["InputName"] == "code");
    let inputs: Vec<Value> = inputs
        .into_iter()
        .map(|input| {
            json!({"name": input["InputName"], "s3_uri": input["S3Input"]["S3Uri"], "local_path": input["S3Input"]["LocalPath"],
                "sharded": input["S3Input"]["S3DataDistributionType"] == "ShardedByS3Key"})
        })
        .collect();
    let outputs = theirs["ProcessingOutputConfig"]["Outputs"]
        .as_array()
        .unwrap()
        .iter();
    let outputs: Vec<Value> = outputs
        .map(|output| {
            json!({"name": output["OutputName"], "s3_uri": output["S3Output"]["S3Uri"], "local_path": output["S3Output"]["LocalPath"],
                "continuous": output["S3Output"]["S3UploadMode"] == "Continuous"})
        })
        .collect();
    let or = |value: &Value, other: Value| {
        if value.is_null() {
            other
        } else {
            value.clone()
        }
    };
    let mut step = json!({
        "image": application["ImageUri"], "arguments": or(&application["ContainerArguments"], json!([])),
        "instance_type": cluster["InstanceType"], "instance_count": cluster["InstanceCount"],
        "volume_size_gb": cluster["VolumeSizeInGB"], "inputs": inputs, "outputs": outputs,
        "environment": or(&theirs["Environment"], json!({})),
        "max_runtime_seconds": or(&theirs["StoppingCondition"]["MaxRuntimeInSeconds"], json!(3600)),
    });
    match code.as_slice() {
        [code] => step["script_s3_uri"] = code["S3Input"]["S3Uri"].clone(),
        _ => step["entrypoint"] = application["ContainerEntrypoint"].clone(),
    }
    serde_json::from_value(step).unwrap()
}

/// The three bodies of processing jobs that the SDK sends, from steps of ours.
#[tokio::test]
async fn a_processing_job_is_sent_as_the_sdk_sends_it() {
    let Some(captured) = captured("sdk_requests_pipelines.json") else {
        println!("skipped: no reference data");
        return;
    };
    let region = Region::start(&[], usual());
    for key in [
        "raw/a",
        "prep-script/input/code/prep.py",
        "prep-sklearn/input/code/prep.py",
        "out/model.tar.gz",
        "processed/test/a",
        "code/eval-pytorch/source/sourcedir.tar.gz",
        "code/eval-pytorch/source/runproc.sh",
    ] {
        region.put_object("sm-bucket", key);
    }
    let jobs = ports_of(&region.url, &region.s3_url).await.jobs;
    for (label, is_script) in [
        ("processing-script", true),
        ("processing-sklearn", true),
        ("processing-pytorch-eval", false),
    ] {
        let mut theirs = captured[label].clone();
        let spec = as_a_step(&theirs, is_script);
        assert_eq!(processing::flaws(&spec, ""), [], "{label}");
        let role = theirs["RoleArn"].as_str().unwrap().to_owned();
        let mut request = processing::request(
            &spec,
            ProcessingContext {
                role_arn: &role,
                output_s3_uri: "s3://x",
            },
        );
        request.job_name = theirs["ProcessingJobName"].as_str().unwrap().to_owned();
        let url = format!("{}/_sim/requests/{}", region.url, request.job_name);
        let job = Job::Processing(Box::new(request));
        jobs.create(&job, Arc::new(|| true)).await.unwrap();
        let client = bakeoff_process::tls::http_client().build().unwrap();
        let mut ours: Value = client.get(url).send().await.unwrap().json().await.unwrap();
        let (ours, theirs) = (
            ours.as_object_mut().unwrap(),
            theirs.as_object_mut().unwrap(),
        );
        // The tags are each one's own; we never leave the time open, which the SDK does; and jobs' networks are
        // not implemented.
        ours.remove("Tags");
        theirs.remove("Tags");
        if !theirs.contains_key("StoppingCondition") {
            assert_eq!(
                ours.remove("StoppingCondition"),
                Some(json!({"MaxRuntimeInSeconds": 3600}))
            );
        }
        assert_eq!(
            theirs.remove("NetworkConfig").is_some(),
            label == "processing-pytorch-eval"
        );
        assert_eq!(ours, theirs, "{label}");
    }
}

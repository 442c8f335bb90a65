//! Requests of pipelines as the SageMaker Python SDK makes them: what was captured from it is rendered again from what
//! a person would write for us, and sent to the region; each difference is named with its reason, and what is not
//! rendered at all, too. The three bodies of processing jobs are in `processing_jobs`, the two of the registry in
//! `registry`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bakeoff_domain::pipeline::tuning;
use bakeoff_domain::ports::EndpointUpdate;
use bakeoff_domain::sagemaker::endpoint::{
    EndpointRequest, ModelContainer, ModelRequest, ModelSource, Split, TransformJobRequest,
};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::spec::pipeline::tuning::TuningSpec;
use serde_json::{Map, Value, json};

use crate::clients::sdk_requests::captured;
use crate::support::{Region, ports_of, usual};

/// All that were captured.
fn all() -> Option<Map<String, Value>> {
    let mut all = captured("sdk_requests_pipelines.json")?
        .as_object()?
        .clone();
    all.extend(
        captured("sdk_requests_pipelines_extra.json")?
            .as_object()?
            .clone(),
    );
    Some(all)
}

/// Not rendered, and why.
const NOT_RENDERED: [(&str, &str); 3] = [
    (
        "deploy-endpoint-config-serverless",
        "serverless endpoints bill by request: nothing bounds what they cost",
    ),
    (
        "tuning-per-instance-type",
        "one tuning job for several types shares its trials among them, so they cannot be compared, and forbids early stopping: we send one job for each",
    ),
    (
        "tuning-instance-configs",
        "a job that falls back to another type mixes types in one search, and its worst case is another's price",
    ),
];
/// Tried by tests of their own.
const ELSEWHERE: [&str; 5] = [
    "processing-script",
    "processing-sklearn",
    "processing-pytorch-eval",
    "register-version",
    "register-group",
];
/// Refused: by a rule of ours, and by the region.
const BAD: [&str; 2] = ["tuning-spot-nomaxwait", "tuning-hyperband-earlystop-auto"];

fn texts(value: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

/// A range of the SDK's as a person would write it.
fn ranges(theirs: &Value) -> Value {
    let mut all = Map::new();
    for (kind, integer) in [
        ("ContinuousParameterRanges", false),
        ("IntegerParameterRanges", true),
    ] {
        for one in theirs[kind].as_array().into_iter().flatten() {
            let scaling = one["ScalingType"].as_str().unwrap().to_lowercase();
            let range = json!({"min": one["MinValue"], "max": one["MaxValue"], "integer": integer, "scaling": scaling});
            all.insert(one["Name"].as_str().unwrap().to_owned(), range);
        }
    }
    for one in theirs["CategoricalParameterRanges"]
        .as_array()
        .into_iter()
        .flatten()
    {
        all.insert(
            one["Name"].as_str().unwrap().to_owned(),
            json!({"values": one["Values"]}),
        );
    }
    Value::Object(all)
}

/// The tuning that a person would write for a body.
fn as_a_tuning(theirs: &Value) -> TuningSpec {
    let (config, definition) = (
        &theirs["HyperParameterTuningJobConfig"],
        &theirs["TrainingJobDefinition"],
    );
    let (limits, objective) = (
        &config["ResourceLimits"],
        &config["HyperParameterTuningJobObjective"],
    );
    let (stopping, resources) = (
        &definition["StoppingCondition"],
        &definition["HyperParameterTuningResourceConfig"],
    );
    let criteria = &config["TuningJobCompletionCriteria"];
    let band = &config["StrategyConfig"]["HyperbandStrategyConfig"];
    let metrics = definition["AlgorithmSpecification"]["MetricDefinitions"]
        .as_array()
        .unwrap()
        .iter();
    let metrics: Vec<Value> = metrics
        .map(
            |one| json!({"name": one["Name"], "regex": one["Regex"], "meaning": "validation_loss"}),
        )
        .collect();
    let channels = definition["InputDataConfig"].as_array().unwrap().iter();
    let channels: Vec<Value> = channels
        .map(|one| json!({"name": one["ChannelName"], "s3_uri": one["DataSource"]["S3DataSource"]["S3Uri"]}))
        .collect();
    let warm = &theirs["WarmStartConfig"];
    let parents = warm["ParentHyperParameterTuningJobs"]
        .as_array()
        .into_iter()
        .flatten();
    let parents: Vec<&Value> = parents
        .map(|one| &one["HyperParameterTuningJobName"])
        .collect();
    let kind = if warm["WarmStartType"] == "TransferLearning" {
        "transfer_learning"
    } else {
        "identical_data_and_algorithm"
    };
    let mut spec = json!({
        "strategy": config["Strategy"].as_str().unwrap().to_lowercase(),
        "objective": {"metric": objective["MetricName"], "goal": objective["Type"].as_str().unwrap().to_lowercase()},
        "trials": limits["MaxNumberOfTrainingJobs"], "parallel": limits["MaxParallelTrainingJobs"],
        "early_stopping": config["TrainingJobEarlyStoppingType"] == "Auto", "random_seed": config["RandomSeed"],
        "max_tuning_seconds": limits["MaxRuntimeInSeconds"], "min_resource": band["MinResource"],
        "max_resource": band["MaxResource"], "target": criteria["TargetObjectiveMetricValue"],
        "stop_after_not_improving": criteria["BestObjectiveNotImproving"]["MaxNumberOfTrainingJobsNotImproving"],
        "stop_on_convergence": criteria["ConvergenceDetected"]["CompleteOnConvergence"] == "Enabled",
        "ranges": ranges(&config["ParameterRanges"]), "image": definition["AlgorithmSpecification"]["TrainingImage"],
        "hyperparameters": definition["StaticHyperParameters"], "environment": texts(&definition["Environment"]),
        "channels": channels, "metrics": metrics, "output_s3_uri": definition["OutputDataConfig"]["S3OutputPath"],
        "role_arn": definition["RoleArn"], "max_runtime_seconds": stopping["MaxRuntimeInSeconds"],
        "spot": definition["EnableManagedSpotTraining"] == true, "max_wait_seconds": stopping["MaxWaitTimeInSeconds"],
        "checkpoint_s3_uri": definition["CheckpointConfig"]["S3Uri"], "volume_size_gb": resources["VolumeSizeInGB"],
        "retry_attempts": definition["RetryStrategy"]["MaximumRetryAttempts"],
        "candidates": [{"instance_type": resources["InstanceType"], "instance_count": resources["InstanceCount"]}]});
    if !parents.is_empty() {
        spec["warm_start"] = json!({"kind": kind, "tuning_jobs": parents});
    }
    serde_json::from_value(spec).unwrap()
}

async fn sent(region: &Region, name: &str) -> Value {
    let url = format!("{}/_sim/requests/{name}", region.url);
    let client = bakeoff_process::tls::http_client().build().unwrap();
    client.get(url).send().await.unwrap().json().await.unwrap()
}

/// Without tags, which are each one's own.
fn untagged(mut body: Value) -> Value {
    body.as_object_mut().unwrap().remove("Tags");
    body
}

#[tokio::test]
async fn tunings_are_sent_as_the_sdk_sends_them_and_the_bad_ones_are_refused() {
    let Some(all) = all() else {
        println!("skipped: no reference data");
        return;
    };
    let region = Region::start(&[], usual());
    for key in ["processed/train/a", "processed/val/a"] {
        region.put_object("sm-bucket", key);
    }
    let jobs = ports_of(&region.url, &region.s3_url).await.jobs;
    let mut seen = 0;
    for (label, theirs) in all.iter().filter(|(label, _)| label.starts_with("tuning")) {
        if NOT_RENDERED.iter().any(|(name, _)| name == label) {
            continue;
        }
        seen += 1;
        let spec = as_a_tuning(theirs);
        let is_bad = BAD.contains(&label.as_str());
        let flaws = tuning::flaws(&spec, "");
        assert_eq!(!flaws.is_empty(), is_bad, "{label}: {flaws:?}");
        let mut request = tuning::request(&spec, &spec.candidates[0], "", "");
        theirs["HyperParameterTuningJobName"]
            .as_str()
            .unwrap()
            .clone_into(&mut request.job_name);
        // A parent must be over before its child begins.
        for parent in request.warm_start.iter().flat_map(|warm| &warm.names) {
            let mut other = request.clone();
            (other.job_name, other.warm_start) = (parent.clone(), None);
            // It may be there from an earlier body, and over.
            let other = Job::Tuning(Box::new(other));
            drop(jobs.create(&other, Arc::new(|| true)).await);
            drop(jobs.stop(JobKind::Tuning, parent).await);
            region_advance(&region, 3600).await;
        }
        if is_bad {
            // As the SDK sends it, since nothing of ours can say so.
            let client = bakeoff_process::tls::http_client().build().unwrap();
            let call = client
                .post(&region.url)
                .header("x-amz-target", "SageMaker.CreateHyperParameterTuningJob")
                .body(theirs.to_string());
            assert!(
                call.send().await.unwrap().status().is_client_error(),
                "{label}"
            );
            continue;
        }
        let name = request.job_name.clone();
        let job = Job::Tuning(Box::new(request));
        jobs.create(&job, Arc::new(|| true)).await.unwrap();
        let ours = untagged(sent(&region, &name).await);
        assert_eq!(ours, untagged(theirs.clone()), "{label}");
    }
    assert_eq!(seen, 6);
}

async fn region_advance(region: &Region, seconds: u32) {
    let url = format!("{}/_sim/advance?seconds={seconds}", region.url);
    let client = bakeoff_process::tls::http_client().build().unwrap();
    assert!(client.post(url).send().await.unwrap().status().is_success());
}

fn container(theirs: &Value) -> ModelRequest {
    let role_arn = theirs["ExecutionRoleArn"].as_str().unwrap().to_owned();
    if let Some(arn) = theirs["Containers"][0]["ModelPackageName"].as_str() {
        return ModelRequest {
            source: ModelSource::Package(arn.to_owned()),
            role_arn,
        };
    }
    let of = &theirs["PrimaryContainer"];
    let plain = of["ModelDataUrl"].as_str();
    let prefix = of["ModelDataSource"]["S3DataSource"]["S3Uri"].as_str();
    ModelRequest {
        source: ModelSource::Container(ModelContainer {
            image: of["Image"].as_str().unwrap().to_owned(),
            model_s3_uri: plain.or(prefix).unwrap().to_owned(),
            environment: texts(&of["Environment"]),
        }),
        role_arn,
    }
}

#[tokio::test]
async fn endpoints_and_transforms_are_sent_as_the_sdk_sends_them() {
    let Some(all) = all() else {
        println!("skipped: no reference data");
        return;
    };
    let region = Region::start(&[], usual());
    region.put_object("sm-bucket", "processed/test/a");
    let ports = ports_of(&region.url, &region.s3_url).await;
    let tags = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let none = BTreeMap::new();
    for (label, tags) in [
        ("deploy-model", &tags),
        ("deploy-model-from-package", &none),
        ("deploy-model-uncompressed", &none),
    ] {
        let theirs = &all[label];
        let name = theirs["ModelName"].as_str().unwrap();
        ports
            .endpoints
            .create_model(name, &container(theirs), tags)
            .await
            .unwrap();
        let ours = &sent(&region, name).await["model"];
        assert_eq!(ours, theirs, "{label}");
    }
    let theirs = &all["deploy-endpoint-config"];
    let variant = &theirs["ProductionVariants"][0];
    let mut request = EndpointRequest {
        job_name: "m-1".to_owned(),
        model: container(&all["deploy-model"]),
        instance_type: variant["InstanceType"].as_str().unwrap().to_owned(),
        instance_count: 1,
        time_to_live_seconds: 3600,
        startup_seconds: 900,
        volume_size_gb: None,
        tags: tags.clone(),
    };
    let model = container(&all["deploy-model"]);
    let made = ports.endpoints.create_model("m-3", &model, &none);
    made.await.unwrap();
    for name in ["m-1", "m-3"] {
        let config = ports.endpoints.create_config(name, &request);
        config.await.unwrap();
    }
    let mut ours = sent(&region, "m-1").await["config"].clone();
    let mut wanted = theirs.clone();
    // The model and the configuration of one revision share a name; one time holds for downloading and starting; and
    // SageMaker refuses a volume on g5, which the SDK sends.
    wanted["EndpointConfigName"] = json!("m-1");
    assert_eq!(
        wanted["ProductionVariants"][0]["ModelDataDownloadTimeoutInSeconds"].take(),
        1200
    );
    assert_eq!(
        ours["ProductionVariants"][0]["ModelDataDownloadTimeoutInSeconds"].take(),
        900
    );
    let volume = wanted["ProductionVariants"][0]
        .as_object_mut()
        .unwrap()
        .remove("VolumeSizeInGB");
    assert_eq!(volume, Some(json!(100)));
    assert_eq!(numbers(&ours), numbers(&wanted), "deploy-endpoint-config");
    request.volume_size_gb = Some(100);
    let refused = ports.endpoints.create_config("m-2", &request).await;
    assert!(refused.is_err(), "a volume on a type with disks of its own");
    // CreateEndpoint and UpdateEndpoint name an endpoint and a configuration, and nothing else but tags.
    let job = Job::Endpoint(Box::new(request));
    let created = ports.jobs.create(&job, Arc::new(|| true));
    created.await.unwrap();
    let theirs = &all["deploy-endpoint"];
    assert_eq!(theirs["EndpointName"], "ep-1");
    assert_eq!(theirs.as_object().unwrap().len(), 3);
    region_advance(&region, 3600).await;
    let update = EndpointUpdate {
        endpoint: "m-1",
        config: "m-3",
    };
    ports.endpoints.update(update).await.unwrap();
    assert_eq!(all["update-endpoint"].as_object().unwrap().len(), 2);
    transforms_are_sent(&all, &region, &ports).await;
}

async fn transforms_are_sent(
    all: &Map<String, Value>,
    region: &Region,
    ports: &bakeoff_service::aws::Ports,
) {
    let none = BTreeMap::new();
    for label in ["transform", "transform-minimal"] {
        let theirs = &all[label];
        ports
            .endpoints
            .create_model(
                theirs["TransformJobName"].as_str().unwrap(),
                &container(&all["deploy-model"]),
                &none,
            )
            .await
            .unwrap();
        let (input, data) = (&theirs["TransformInput"], &theirs["DataProcessing"]);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let number = |value: &Value| value.as_u64().and_then(|value| u32::try_from(value).ok());
        let request = TransformJobRequest {
            job_name: text(&theirs["TransformJobName"]).unwrap(),
            model: container(&all["deploy-model"]),
            instance_type: text(&theirs["TransformResources"]["InstanceType"]).unwrap(),
            instance_count: number(&theirs["TransformResources"]["InstanceCount"]).unwrap(),
            max_runtime_seconds: 3600,
            input_s3_uri: text(&input["DataSource"]["S3DataSource"]["S3Uri"]).unwrap(),
            output_s3_uri: text(&theirs["TransformOutput"]["S3OutputPath"]).unwrap(),
            content_type: text(&input["ContentType"]),
            accept: text(&theirs["TransformOutput"]["Accept"]),
            split: (input["SplitType"] == "Line").then_some(Split::Line),
            max_concurrent: number(&theirs["MaxConcurrentTransforms"]),
            max_payload_mb: number(&theirs["MaxPayloadInMB"]),
            is_multi_record: theirs["BatchStrategy"] == "MultiRecord",
            input_filter: text(&data["InputFilter"]),
            output_filter: text(&data["OutputFilter"]),
            joins_input: data["JoinSource"] == "Input",
            environment: BTreeMap::new(),
            tags: BTreeMap::new(),
        };
        let name = request.job_name.clone();
        let job = Job::Transform(Box::new(request));
        let created = ports.jobs.create(&job, Arc::new(|| true));
        created.await.unwrap();
        let mut ours = sent(region, &name).await;
        let mut theirs = theirs.clone();
        // The model of a job has its name.
        assert_eq!(ours["ModelName"].take(), json!(name));
        theirs["ModelName"].take();
        assert_eq!(ours, theirs, "{label}");
    }
}

/// 1 and 1.0 are the same number.
fn numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(numbers).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), numbers(value)))
            .collect(),
        other => other.clone(),
    }
}

/// Nothing that was captured is forgotten.
#[test]
fn every_body_is_rendered_or_named_with_a_reason() {
    let Some(all) = all() else {
        println!("skipped: no reference data");
        return;
    };
    assert_eq!(all.len(), 22);
    let rendered = [
        "deploy-endpoint",
        "deploy-endpoint-config",
        "deploy-model",
        "deploy-model-from-package",
        "deploy-model-uncompressed",
        "update-endpoint",
        "transform",
        "transform-minimal",
        "tuning-bayesian-spot-earlystop",
        "tuning-hyperband",
        "tuning-random",
        "tuning-warmstart",
    ];
    for label in all.keys() {
        let places = [
            rendered.contains(&label.as_str()),
            ELSEWHERE.contains(&label.as_str()),
            BAD.contains(&label.as_str()),
            NOT_RENDERED.iter().any(|(name, _)| name == label),
        ];
        assert_eq!(
            places.iter().filter(|is_there| **is_there).count(),
            1,
            "{label}"
        );
    }
}

//! What imports make of what people have.

use std::collections::BTreeMap;

use bakeoff_domain::money::price;
use bakeoff_domain::spec::ExperimentSpec;
use serde_json::{Value, json};

use super::*;

mod other_formats;

fn imported(documents: &[Value], answers: &[(&str, Value)]) -> Result<Import, Vec<Unreadable>> {
    let answers: BTreeMap<String, Value> = answers
        .iter()
        .map(|(pointer, value)| ((*pointer).to_owned(), value.clone()))
        .collect();
    let (prices, _) = price::shipped();
    let calibration = Calibration::shipped();
    import(Known {
        documents,
        answers: &answers,
        prices: &prices,
        home: "us-east-1",
        calibration: &calibration,
        stamp: "2026-11-28-15-51-19-696",
    })
}

fn estimator() -> Value {
    json!({
        "sdk_class": "HuggingFace", "entry_point": "run_sft.py", "source_dir": "./src", "role": "arn:aws:iam::111122223333:role/train",
        "instance_type": "ml.p4d.24xlarge", "instance_count": 1, "transformers_version": "4.49.0", "pytorch_version": "2.5.1",
        "py_version": "py311", "region": "us-east-1", "max_run": 86400,
        "hyperparameters": {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4, "max_seq_length": 4096, "bf16": true, "learning_rate": 1e-5,
            "gradient_checkpointing": true, "max_steps": 2000},
        "inputs": {"training": "s3://data/train/"},
        "subnets": ["subnet-1"], "security_group_ids": ["sg-1"]
    })
}

fn asked<'a>(import: &'a Import, pointer: &str) -> Option<&'a ImportQuestion> {
    import.questions.iter().find(|one| one.pointer == pointer)
}

#[test]
fn an_estimator_becomes_an_experiment_that_can_be_read() {
    let import = imported(&[estimator()], &[]).unwrap();
    let open: Vec<&str> = import
        .questions
        .iter()
        .filter(|one| one.proposal.is_none())
        .map(|one| one.pointer.as_str())
        .collect();
    assert!(open.is_empty(), "{open:?}");
    let spec: ExperimentSpec = serde_json::from_value(import.spec.clone()).unwrap();
    let workload = spec.workload.unwrap();
    assert_eq!(workload.model.layers, 28);
    assert_eq!(workload.model.sequence_length, 4096);
    assert_eq!(workload.global_batch, Some(64));
    assert_eq!(workload.total_tokens, 2000 * 64 * 4096);
    assert_eq!(
        workload
            .hyperparameters
            .get("learning_rate")
            .map(String::as_str),
        Some("1e-05")
    );
    assert!(
        !workload
            .hyperparameters
            .contains_key("per_device_train_batch_size")
    );
    assert!(!workload.metrics.is_empty(), "{import:#?}");
    let own = spec.candidates.first().unwrap();
    let profile = own.profile.as_ref().unwrap();
    assert_eq!(own.instance_type, "ml.p4d.24xlarge");
    assert_eq!(
        (
            profile.micro_batch_per_gpu,
            profile.gradient_accumulation_steps
        ),
        (2, 4)
    );
    assert!(profile.activation_checkpointing);
    assert_eq!(spec.candidates.len(), 3);
    for candidate in &spec.candidates {
        let profile = candidate.profile.as_ref().unwrap();
        let each =
            u64::from(profile.micro_batch_per_gpu) * u64::from(profile.gradient_accumulation_steps);
        assert_eq!(
            each * u64::from(candidate.accelerators()),
            64,
            "{}",
            candidate.name
        );
    }
    assert!(
        import
            .left_out
            .iter()
            .any(|one| one.member == "VpcConfig" && one.why.contains("outside the VPC"))
    );
    assert!(
        asked(&import, "/workload/script/source_s3_uri").is_some(),
        "its sources are on a machine"
    );
}

#[test]
fn an_answer_is_taken_and_not_asked_again() {
    let answers = [
        ("/workload/model/sequence_length", json!(1024)),
        ("/workload/total_tokens", json!(5_000_000_000_u64)),
        ("/budget_usd", json!(77)),
        ("/labels", json!({"team": "legal"})),
    ];
    let import = imported(&["meta-llama/Llama-3.1-8B".into()], &answers).unwrap();
    assert_eq!(import.spec["budget_usd"], 77);
    assert_eq!(import.spec["labels"]["team"], "legal");
    assert_eq!(import.spec["workload"]["model"]["sequence_length"], 1024);
    for (pointer, _) in &answers {
        assert!(asked(&import, pointer).is_none(), "{pointer}");
    }
    // Nothing names an image: it comes first.
    assert!(
        import
            .questions
            .first()
            .is_some_and(|one| one.proposal.is_none())
    );
    let unknown = imported(
        &["gpt2".into()],
        &[("/workload/model", json!("nobody/knows-7b"))],
    )
    .unwrap_err();
    assert_eq!(
        unknown.first().map(|one| one.pointer.as_str()),
        Some("/answers/~1workload~1model")
    );
    let nowhere = imported(
        &["gpt2".into()],
        &[("budget", json!(1)), ("/name/first", json!(2))],
    )
    .unwrap_err();
    assert_eq!(nowhere.len(), 2, "{nowhere:?}");
}

#[test]
fn what_says_nothing_of_a_training_job_is_refused_with_a_way_out() {
    let wrong = [
        json!({"ProcessingJobName": "p", "ProcessingResources": {}, "AppSpecification": {}, "RoleArn": "r"}),
        json!("somebody/unheard-of-7b"),
        json!(7),
    ];
    let told = imported(&wrong, &[]).unwrap_err();
    let pointers: Vec<&str> = told.iter().map(|one| one.pointer.as_str()).collect();
    assert_eq!(pointers, ["/documents/0", "/documents/1", "/documents/2"]);
    assert!(told.iter().all(|one| !one.fix.is_empty()));
    assert!(imported(&[], &[]).is_err());
}

#[test]
fn a_described_job_is_taken_as_a_body_is() {
    let described = json!({
        "TrainingJobName": "pytorch-training-2026-09-30-10-00-00-123", "TrainingJobArn": "arn:aws:sagemaker:eu-central-1:1:training-job/x",
        "TrainingJobStatus": "Completed", "SecondaryStatus": "Completed", "CreationTime": "2026-09-30T10:00:00Z",
        "HyperParameters": {"sagemaker_program": "\"train.py\"", "sagemaker_submit_directory": "\"s3://b/source/sourcedir.tar.gz\"",
            "batch_size": "8", "block_size": "1024", "epochs": "3"},
        "AlgorithmSpecification": {"TrainingImage": "763104351884.dkr.ecr.eu-central-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker",
            "TrainingInputMode": "FastFile", "MetricDefinitions": [{"Name": "train:loss", "Regex": "loss: ([0-9.]+)"}]},
        "RoleArn": "arn:aws:iam::111122223333:role/train",
        "InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/train"}}}],
        "OutputDataConfig": {"S3OutputPath": "s3://b/out", "KmsKeyId": ""},
        "ResourceConfig": {"InstanceType": "ml.p3.2xlarge", "InstanceCount": 2, "VolumeSizeInGB": 100},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400}, "EnableManagedSpotTraining": false, "EnableNetworkIsolation": false
    });
    let import = imported(&[described, "gpt2".into()], &[]).unwrap();
    assert_eq!(import.spec["name"], "pytorch-training");
    assert_eq!(import.spec["region"], "eu-central-1");
    assert_eq!(
        import.spec["workload"]["script"]["source_s3_uri"],
        "s3://b/source/sourcedir.tar.gz"
    );
    assert_eq!(import.spec["workload"]["global_batch"], 16);
    assert_eq!(
        import.spec["workload"]["hyperparameters"],
        json!({"epochs": "3"})
    );
    assert_eq!(import.spec["candidates"][0]["instance_count"], 2);
    assert_eq!(
        import.spec["candidates"][0]["profile"]["volume_size_gb"],
        100
    );
    let members: Vec<&str> = import
        .left_out
        .iter()
        .map(|one| one.member.as_str())
        .collect();
    assert_eq!(members, ["AlgorithmSpecification.TrainingInputMode"]);
    // A loss alone says no speed.
    assert!(asked(&import, "/workload/metrics").is_some());
    assert!(asked(&import, "/workload/total_tokens").is_some_and(|one| one.proposal.is_none()));
}

#[test]
fn deepspeed_says_how_the_job_is_split() {
    let configuration = json!({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "bf16": {"enabled": true},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}});
    let import = imported(&[estimator(), configuration], &[]).unwrap();
    let profile = &import.spec["candidates"][0]["profile"];
    assert_eq!(profile["zero_stage"], 3);
    assert_eq!(profile["cpu_offload"], "optimizer");
    assert_eq!(
        profile["micro_batch_per_gpu"], 2,
        "the script's own argument stands"
    );
}

#[test]
fn what_would_not_be_read_is_said() {
    let two = imported(&[estimator(), estimator()], &[]).unwrap_err();
    assert_eq!(
        two.first().map(|one| one.pointer.as_str()),
        Some("/documents/1")
    );
    let experiment = json!({"name": "x", "candidates": [], "objective": {"minimize": "cost"}});
    assert!(imported(&[experiment, "gpt2".into()], &[]).is_err());
    let encoder = json!({"model_type": "t5", "num_layers": 12, "d_model": 768, "num_heads": 12, "vocab_size": 32128});
    let import = imported(&[encoder], &[]).unwrap();
    let model = asked(&import, "/workload/model").unwrap();
    assert!(model.why.contains("cannot be used"), "{}", model.why);
}

fn request() -> Value {
    json!({
        "AlgorithmSpecification": {"TrainingImage": "1.dkr.ecr.us-east-1.amazonaws.com/train:7", "TrainingInputMode": "File"},
        "RoleArn": "arn:aws:iam::111122223333:role/train", "OutputDataConfig": {"S3OutputPath": "s3://bucket/out/"},
        "ResourceConfig": {"InstanceType": "ml.g5.2xlarge", "InstanceCount": 1, "VolumeSizeInGB": 50},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600}
    })
}

fn step(name: &str) -> Value {
    json!({"Name": name, "Type": "Training", "Arguments": request()})
}

fn pipeline(steps: &Value) -> Value {
    json!({"Version": "2020-12-01", "Steps": steps})
}

#[test]
fn a_training_job_inside_another_document_is_read() {
    let branch = json!({"Name": "Good", "Type": "Condition", "Arguments": {"Conditions": [], "IfSteps": [step("Train")]}});
    let searching = json!({"Name": "Search", "Type": "Tuning", "Arguments": {"TrainingJobDefinition": request()}});
    let state = json!({"Type": "Task", "Resource": "arn:aws:states:::sagemaker:createTrainingJob.sync", "Parameters": request()});
    let machine = json!({"StartAt": "Train", "States": {"Train": state}});
    let text = machine.to_string();
    let resource = json!({"Type": "AWS::StepFunctions::StateMachine", "Properties": {"DefinitionString": text}});
    let template =
        json!({"AWSTemplateFormatVersion": "2010-09-09", "Resources": {"Flow": resource}});
    let steps = [branch, searching].map(|step| pipeline(&json!([step])));
    for document in steps.into_iter().chain([machine, template]) {
        let import = imported(&[document], &[]).unwrap();
        assert_eq!(
            import.spec["workload"]["image"],
            "1.dkr.ecr.us-east-1.amazonaws.com/train:7"
        );
        assert_eq!(
            import.spec["candidates"][0]["instance_type"],
            "ml.g5.2xlarge"
        );
    }
}

#[test]
fn the_jobs_of_a_tuning_job_have_its_static_hyperparameters() {
    let mut tuned = request();
    tuned["StaticHyperParameters"] = json!({"epochs": "3"});
    let tuning = json!({"HyperParameterTuningJobName": "t", "TrainingJobDefinition": tuned,
        "HyperParameterTuningJobConfig": {"Strategy": "Bayesian"}});
    let import = imported(&[tuning], &[]).unwrap();
    assert_eq!(import.spec["workload"]["hyperparameters"]["epochs"], "3");
    let ranges = import.left_out.iter();
    let ranges = ranges.filter(|one| one.member == "HyperParameterTuningJobConfig");
    assert_eq!(ranges.count(), 1);
}

#[test]
fn several_jobs_in_a_document_are_asked_apart_and_none_is_said() {
    let why = |steps: Value| {
        let errors = imported(&[pipeline(&steps)], &[]).unwrap_err();
        errors
            .first()
            .map(|error| error.why.clone())
            .unwrap_or_default()
    };
    assert_eq!(
        why(json!([step("A"), step("B")])),
        "it is a SageMaker pipeline definition with several training jobs: /Steps/0/Arguments, /Steps/1/Arguments"
    );
    let other = json!([{"Name": "End", "Type": "Fail", "Arguments": {"ErrorMessage": "x"}}]);
    assert_eq!(
        why(other),
        "it is a SageMaker pipeline definition, and no training job"
    );
}

/// A reference is no image: it is asked for.
#[test]
fn what_is_known_only_while_a_pipeline_runs_is_asked() {
    let mut body = request();
    body["AlgorithmSpecification"]["TrainingImage"] = json!({"Get": "Parameters.Image"});
    let source = json!({"S3DataSource": {"S3Uri": {"Get": "Steps.Prepare.Output"}, "S3DataType": "S3Prefix"}});
    body["InputDataConfig"] = json!([{"ChannelName": "train", "DataSource": source}]);
    let steps = json!([{"Name": "Train", "Type": "Training", "Arguments": body}]);
    let import = imported(&[pipeline(&steps)], &[]).unwrap();
    assert!(asked(&import, "/workload/image").is_some());
    assert!(!import.is_complete);
    let channel = import
        .left_out
        .iter()
        .find(|one| one.member.contains("train"));
    let why = channel.map(|one| one.why.as_str()).unwrap_or_default();
    assert!(why.contains("only while the document runs"), "{why}");
}

/// A long name over many jobs is not written out for each of them.
#[test]
fn many_jobs_below_a_long_name_stay_small() {
    let step = json!({"Type": "Training", "Arguments": {}});
    let many = json!({"Version": "2020-12-01", "Steps": [{"Type": "x"}], ("a".repeat(100_000)): vec![step; 5_000]});
    let errors = imported(&[many], &[]).unwrap_err();
    assert!(errors.iter().all(|error| error.why.len() < 10_000));
}

/// An answer's pointer is text, which no limit of JSON's depth bounds.
#[test]
fn an_answer_to_a_place_without_bottom_is_refused() {
    let deep = "/x".repeat(200_000);
    let errors = imported(&[json!("gpt2")], &[(&deep, json!(1))]).unwrap_err();
    assert!(errors[0].why.ends_with("is no place in an experiment"));
    assert!(errors[0].why.len() + errors[0].pointer.len() < 1000);
}

/// As `axolotl train` takes it, with a job's image beside it.
fn axolotl() -> Value {
    json!({
        "base_model": "Qwen/Qwen2.5-7B", "load_in_4bit": true, "adapter": "qlora", "lora_r": 32, "lora_alpha": 16,
        "sequence_len": 4096, "sample_packing": true, "gradient_accumulation_steps": 4, "micro_batch_size": 2,
        "num_epochs": 4, "optimizer": "paged_adamw_32bit", "learning_rate": 0.0002, "bf16": "auto", "fp16": null,
        "gradient_checkpointing": true, "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}], "deepspeed": "zero2.json"
    })
}

#[test]
fn an_axolotl_configuration_tells_model_batch_length_and_adapter() {
    let config = axolotl();
    let import = imported(std::slice::from_ref(&config), &[]).unwrap();
    let model = &import.spec["workload"]["model"];
    assert_eq!(
        (
            &model["layers"],
            &model["lora_rank"],
            &model["sequence_length"]
        ),
        (&json!(28), &json!(32), &json!(4096))
    );
    assert_eq!(import.spec["workload"]["precision"], "bf16");
    assert_eq!(import.spec["workload"]["metrics"], "hf-trainer");
    // The script gets its file, not these.
    assert_eq!(import.spec["workload"].get("hyperparameters"), None);
    let batch = asked(&import, "/workload/global_batch").unwrap();
    assert_eq!(batch.proposal, Some(json!(64)));
    let said = |pointer: &str| {
        let mut read = import.read.iter();
        let found = read.find(|one| one.pointer == pointer);
        found.unwrap_or_else(|| panic!("{pointer}")).from.clone()
    };
    let rank = said("/workload/model/lora_rank");
    assert_eq!(rank, "lora_r in Axolotl's configuration");
    let members: Vec<&str> = import
        .left_out
        .iter()
        .map(|one| one.member.as_str())
        .collect();
    assert_eq!(members, ["deepspeed", "the configuration file"]);
    // An adapter's figures mean nothing where none is trained.
    let mut full = config;
    full["adapter"] = Value::Null;
    let import = imported(&[full], &[]).unwrap();
    assert_eq!(import.spec["workload"]["model"].get("lora_rank"), None);
}

/// Only the frozen base of adapters is loaded in four bits.
#[test]
fn bits_of_a_frozen_base_are_those_of_all_candidates() {
    let kept = |import: &Import| -> Vec<u64> {
        let candidates = import.spec["candidates"].as_array().unwrap();
        let bits = candidates
            .iter()
            .map(|one| &one["profile"]["base_weight_bits"]);
        bits.map(|bits| bits.as_u64().unwrap_or(16)).collect()
    };
    let import = imported(&[axolotl()], &[]).unwrap();
    let packed = kept(&import);
    assert!(
        packed.len() > 1 && packed.iter().all(|bits| *bits == 4),
        "{packed:?}"
    );
    let mut full = axolotl();
    full["adapter"] = Value::Null;
    let import = imported(&[full], &[]).unwrap();
    assert!(kept(&import).iter().all(|bits| *bits == 16));
    let mut left_out = import.left_out.iter();
    let left_out = left_out.find(|one| one.member == "load_in_4bit in Axolotl's configuration");
    let why = &left_out.unwrap().why;
    assert!(why.contains("give model.lora_rank"), "{why}");
}

#[test]
fn configurations_of_llama_factory_and_accelerate_are_read_together() {
    let config = json!({
        "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "sft", "do_train": true, "finetuning_type": "lora",
        "lora_target": "all", "cutoff_len": 2048, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8,
        "learning_rate": 0.0001, "num_train_epochs": 3.0, "bf16": true
    });
    let accelerate = json!({
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "mixed_precision": "fp16", "num_machines": 1,
        "num_processes": 16, "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_offload_params": true}
    });
    let mut job = estimator();
    job["hyperparameters"] = json!({});
    let import = imported(&[job, config.clone(), accelerate.clone()], &[]).unwrap();
    let workload = &import.spec["workload"];
    assert_eq!(workload["model"]["lora_rank"], 8, "LLaMA-Factory's default");
    assert_eq!(
        workload["precision"], "bf16",
        "the trainer's own goes first"
    );
    assert_eq!(
        workload["global_batch"], 64,
        "of the job's eight accelerators"
    );
    let own = import.spec["candidates"].as_array().unwrap().iter();
    let own = own
        .into_iter()
        .find(|one| one["instance_type"] == "ml.p4d.24xlarge");
    assert_eq!(own.unwrap()["profile"]["zero_stage"], 3);
    let alone = imported(&[config, accelerate], &[]).unwrap();
    assert_eq!(
        alone.spec["workload"]["global_batch"], 128,
        "of 16 processes"
    );
    let full = json!({
        "model_name_or_path": "Qwen/Qwen2.5-7B", "finetuning_type": "full", "lora_rank": 8, "cutoff_len": 2048
    });
    let import = imported(&[full], &[]).unwrap();
    assert_eq!(import.spec["workload"]["model"].get("lora_rank"), None);
}

/// As Hugging Face's callback logs a run, and W&B keeps it.
#[test]
fn a_run_of_weights_and_biases_tells_model_batch_and_code() {
    let wrapped = |value: Value| json!({"desc": null, "value": value});
    let logged = json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 3584,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152_064,
        "tie_word_embeddings": false, "max_position_embeddings": 32768, "max_length": 20, "torch_dtype": "bfloat16",
        "_name_or_path": "Qwen/Qwen2.5-7B", "per_device_train_batch_size": 2, "train_batch_size": 2,
        "gradient_accumulation_steps": 4, "learning_rate": 1e-5, "bf16": true, "max_steps": 2000, "deepspeed": null
    });
    let members = logged.as_object().unwrap().iter();
    let mut config: serde_json::Map<String, Value> = members
        .map(|(name, value)| (name.clone(), wrapped(value.clone())))
        .collect();
    config.insert("wandb_version".to_owned(), json!(1));
    let start = json!({"program": "train.py", "executable": "/usr/bin/python3", "gpu": "NVIDIA A100-SXM4-80GB", "gpu_count": 8,
        "args": ["--max_seq_length", "4096"], "git": {"commit": "0f1e2d3c"}});
    let import = imported(&[config.into(), start], &[]).unwrap();
    let workload = &import.spec["workload"];
    assert_eq!(
        (
            &workload["model"]["layers"],
            &workload["model"]["sequence_length"]
        ),
        (&json!(28), &json!(4096))
    );
    assert_eq!(
        workload["global_batch"], 64,
        "2 sequences, 4 times, on 8 GPUs"
    );
    assert_eq!(workload["total_tokens"], 2000 * 64 * 4096);
    assert_eq!(workload["code_version"], "0f1e2d3c");
    assert_eq!(workload["metrics"], "hf-trainer");
    assert!(import.left_out.is_empty(), "{:?}", import.left_out);

    // What a run of one's own has logged is read by the names that people use.
    let own = json!({"_wandb": {"value": {}}, "batch_size": {"value": 4}, "seq_len": {"value": 1024}, "lr": {"value": 3e-4}});
    let import = imported(&[own, "gpt2".into()], &[]).unwrap();
    assert_eq!(import.spec["workload"]["model"]["sequence_length"], 1024);
    let from = import.read.iter().map(|one| one.from.as_str());
    assert!(
        from.clone().any(|from| from.contains("the W&B run")),
        "{:?}",
        from.collect::<Vec<_>>()
    );
}

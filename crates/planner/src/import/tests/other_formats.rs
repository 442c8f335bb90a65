//! What other people write: accelerate's files, SDKs of three generations, runs of W&B, names of one's own.

use serde_json::{Value, json};

use super::{asked, estimator, imported, request};
use crate::import::Import;

fn own_profile(import: &Import) -> &Value {
    let all = import.spec["candidates"].as_array().unwrap();
    let own = all
        .iter()
        .find(|one| one["instance_type"] == "ml.p4d.24xlarge");
    &own.unwrap()["profile"]
}

/// accelerate writes what it does not use, too; FSDP is PyTorch's, and within a machine where it is hybrid.
#[test]
fn what_splits_a_model_is_taken_for_what_it_is() {
    let job = estimator();
    let with = |config: Value| imported(&[job.clone(), config], &[]).unwrap();
    let fsdp = with(
        json!({"distributed_type": "FSDP", "num_processes": 8, "deepspeed_config": {},
        "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_offload_params": true}}),
    );
    let profile = own_profile(&fsdp);
    assert_eq!(
        (
            &profile["library"],
            &profile["zero_stage"],
            &profile["hybrid_shard_degree"]
        ),
        (&json!("torchrun"), &json!(3), &json!(8))
    );
    assert_eq!(profile["cpu_offload"], "optimizer_and_parameters");
    let file = with(json!({"distributed_type": "DEEPSPEED", "num_processes": 8,
        "deepspeed_config": {"deepspeed_config_file": "z3.json"}}));
    let named = file
        .left_out
        .iter()
        .any(|one| one.member == "deepspeed_config_file");
    assert!(named, "{:?}", file.left_out);
    let mut told = job.clone();
    told["hyperparameters"]["fsdp"] = json!("shard_grad_op auto_wrap");
    let import = imported(&[told], &[]).unwrap();
    assert_eq!(own_profile(&import)["zero_stage"], 2);
    assert_eq!(own_profile(&import)["library"], "torchrun");
}

#[test]
fn nothing_is_made_up_of_what_the_sdk_would_ask_the_account_for() {
    let bare = json!({"entry_point": "train.py", "source_dir": "s3://b/code/sourcedir.tar.gz", "instance_type": "ml.g5.xlarge",
        "image_uri": "1.dkr.ecr.eu-west-1.amazonaws.com/train:1", "role": "trainer"});
    let import = imported(&[bare], &[]).unwrap();
    assert_eq!(import.spec["region"], "eu-west-1");
    let script = &import.spec["workload"]["script"];
    assert_eq!(script["source_s3_uri"], "s3://b/code/sourcedir.tar.gz");
    for pointer in ["/workload/role_arn", "/workload/output_s3_uri"] {
        let open = asked(&import, pointer).is_some_and(|one| one.proposal.is_none());
        assert!(open, "{pointer}: {:?}", import.read);
    }
}

/// As SageMaker's third SDK starts a script: by a channel of its own, and a shell.
#[test]
fn a_job_of_the_third_sdk_keeps_what_it_runs() {
    let mut body = request();
    body["AlgorithmSpecification"]["ContainerEntrypoint"] = json!(["/bin/bash"]);
    body["AlgorithmSpecification"]["ContainerArguments"] =
        json!(["-c", "/opt/ml/input/data/sm_drivers/sm_train.sh"]);
    let channel = |name: &str, kind: &str| {
        json!({"ChannelName": name, "DataSource": {"S3DataSource": {"S3Uri": format!("s3://b/{name}"),
        "S3DataType": kind, "S3DataDistributionType": "ShardedByS3Key"}}})
    };
    body["InputDataConfig"] = json!([
        channel("code", "S3Prefix"),
        channel("train", "ManifestFile")
    ]);
    let import = imported(&[body], &[]).unwrap();
    let workload = &import.spec["workload"];
    let entry = json!([
        "/bin/bash",
        "-c",
        "/opt/ml/input/data/sm_drivers/sm_train.sh"
    ]);
    assert_eq!(workload["container_entrypoint"], entry);
    assert_eq!(
        workload["channels"][0],
        json!({"name": "code", "s3_uri": "s3://b/code"})
    );
    let said = |member: &str| import.left_out.iter().any(|one| one.member == member);
    assert!(said(
        "InputDataConfig.train.DataSource.S3DataSource.S3DataType"
    ));
    assert!(said(
        "InputDataConfig.train.DataSource.S3DataSource.S3DataDistributionType"
    ));
}

/// What `wandb.Api().run(…).config` gives: without marks, and with PEFT's settings.
#[test]
fn a_run_as_the_api_of_weights_and_biases_gives_it_is_read() {
    let config = json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 3584,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152_064, "max_length": 20,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "learning_rate": 1e-5, "bf16": true,
        "peft_config": {"default": {"peft_type": "LORA", "r": 8}}
    });
    let import = imported(&[config], &[]).unwrap();
    let model = &import.spec["workload"]["model"];
    assert_eq!(
        (&model["layers"], &model["lora_rank"]),
        (&json!(28), &json!(8))
    );
    assert_ne!(model["sequence_length"], 20);
    assert!(import.left_out.is_empty(), "{:?}", import.left_out);
}

#[test]
fn batches_are_read_under_the_names_that_scripts_have_for_them() {
    let with = |hyperparameters: Value| {
        let mut job = estimator();
        job["hyperparameters"] = hyperparameters;
        imported(&[job, "gpt2".into()], &[]).unwrap()
    };
    // Of each of eight accelerators (Hugging Face's own script for SageMaker).
    let each = with(json!({"train_batch_size": 32}));
    assert_eq!(each.spec["workload"]["global_batch"], 256);
    assert_eq!(each.spec["workload"].get("hyperparameters"), None);
    let hyphened = with(json!({"batch-size": "4", "lr": "0.1"}));
    assert_eq!(hyphened.spec["workload"]["global_batch"], 32);
    let own = json!({"lr": "0.1"});
    assert_eq!(hyphened.spec["workload"]["hyperparameters"], own);
    let deepspeed = json!({"train_batch_size": 512, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}});
    let mut job = estimator();
    job["hyperparameters"] = json!({});
    let import = imported(&[job, deepspeed], &[]).unwrap();
    assert_eq!(import.spec["workload"]["global_batch"], 512);
    assert_eq!(own_profile(&import)["gradient_accumulation_steps"], 16);
}

#[test]
fn llama_factory_saves_activations_unless_it_is_told_not_to() {
    let config = |off: bool| {
        json!({"model_name_or_path": "Qwen/Qwen2.5-7B", "finetuning_type": "lora", "cutoff_len": 2048,
            "per_device_train_batch_size": 1, "disable_gradient_checkpointing": off})
    };
    for off in [false, true] {
        let mut job = estimator();
        job["hyperparameters"] = json!({});
        let import = imported(&[job, config(off)], &[]).unwrap();
        assert_eq!(own_profile(&import)["activation_checkpointing"], !off);
    }
}

/// FSDP is on where nothing says how: Transformers' `True`, accelerate's plugin, the second version.
#[test]
fn fsdp_without_a_word_of_how_shards_everything() {
    let arguments = json!({"per_device_train_batch_size": 2, "learning_rate": 1e-5, "fsdp": true});
    let plugin =
        json!({"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"fsdp_version": 2}});
    for config in [arguments, plugin] {
        let import = imported(&[estimator(), config.clone()], &[]).unwrap();
        assert_eq!(own_profile(&import)["zero_stage"], 3, "{config}");
    }
    let megatron = json!({"distributed_type": "MEGATRON_LM", "num_processes": 8, "megatron_lm_config": {"megatron_lm_tp_degree": 4}});
    let import = imported(&[estimator(), megatron], &[]).unwrap();
    let mut left_out = import.left_out.iter();
    assert!(left_out.any(|one| one.member == "megatron_lm_config"));
}

/// None is what the SDK's arguments are by default.
#[test]
fn pythons_none_says_nothing() {
    let mut job = estimator();
    job["max_wait"] = Value::Null;
    job["use_spot_instances"] = json!(false);
    job["compiler_config"] = Value::Null;
    let import = imported(&[job], &[]).unwrap();
    assert!(
        import
            .left_out
            .iter()
            .all(|one| !one.member.contains("ompiler"))
    );
}

/// accelerate's configuration for SageMaker names the machines, the image and the role.
#[test]
fn a_job_that_accelerate_would_launch_is_read() {
    let config = json!({"compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "DATA_PARALLEL",
        "ec2_instance_type": "ml.p4d.24xlarge", "iam_role_name": "trainer", "mixed_precision": "fp16", "num_machines": 2,
        "region": "eu-west-1", "py_version": "py310", "pytorch_version": "2.0.1", "transformers_version": "4.30.2"});
    let import = imported(&[config.clone(), json!("Qwen/Qwen2.5-7B")], &[]).unwrap();
    assert_eq!(import.spec["region"], "eu-west-1");
    assert_eq!(
        import.spec["candidates"][0]["instance_type"],
        "ml.p4d.24xlarge"
    );
    assert_eq!(import.spec["candidates"][0]["instance_count"], 2);
    assert!(import.left_out.iter().any(|one| one.member == "the script"));
    let mut unquoted = config;
    unquoted["pytorch_version"] = json!(2.1);
    let refused = imported(&[unquoted], &[]).unwrap_err();
    assert_eq!(
        (refused[0].why.as_str(), refused[0].fix.as_str()),
        (
            "pytorch_version is text, and 2.1 is none",
            "write \"2.1\", in quotes"
        )
    );
}

/// Of two, one would win without a word.
#[test]
fn a_second_model_or_trainer_is_refused() {
    let trl = json!({"per_device_train_batch_size": 2, "learning_rate": 1e-5, "model_name_or_path": "gpt2"});
    let factory =
        json!({"finetuning_type": "lora", "model_name_or_path": "gpt2", "learning_rate": 1e-4});
    for (documents, why) in [
        (
            [json!("Qwen/Qwen2.5-7B"), json!("Qwen/Qwen2.5-0.5B")],
            "a second model",
        ),
        ([trl, factory], "a second trainer"),
    ] {
        let refused = imported(&documents, &[]).unwrap_err();
        assert_eq!(refused[0].pointer, "/documents/1");
        assert!(refused[0].why.contains(why), "{refused:?}");
    }
    // An answer goes before what was sent.
    let answered = [("/workload/model", json!("Qwen/Qwen2.5-0.5B"))];
    let import = imported(&[json!("Qwen/Qwen2.5-7B")], &answered).unwrap();
    assert_eq!(import.spec["workload"]["model"]["layers"], 24);
}

/// The file that a trainer's configuration names was sent, too.
#[test]
fn deepspeeds_file_is_not_missed_where_it_is_sent() {
    let factory = json!({"finetuning_type": "full", "model_name_or_path": "Qwen/Qwen2.5-7B", "deepspeed": "ds_z3.json"});
    let says = |documents: &[Value]| {
        let import = imported(documents, &[]).unwrap();
        import.left_out.iter().any(|one| one.member == "deepspeed")
    };
    assert!(says(std::slice::from_ref(&factory)));
    assert!(!says(&[
        factory,
        json!({"zero_optimization": {"stage": 3}, "train_batch_size": 64})
    ]));
}

/// A measured speed takes a quarter of an hour, and all trials have one length.
#[test]
fn each_proposed_candidate_can_be_measured_in_its_trial() {
    let import = imported(
        &[json!("Qwen/Qwen2.5-7B")],
        &[("/workload/total_tokens", json!(5_000_000_000_u64))],
    )
    .unwrap();
    let spec: bakeoff_domain::spec::ExperimentSpec = {
        let mut whole = import.spec.clone();
        whole["workload"]["image"] = json!("1.dkr.ecr.us-east-1.amazonaws.com/t:1");
        whole["workload"]["role_arn"] = json!("arn:aws:iam::111122223333:role/r");
        whole["workload"]["output_s3_uri"] = json!("s3://b/o");
        whole["workload"]["metrics"] = json!("hf-trainer");
        serde_json::from_value(whole).unwrap()
    };
    let (prices, rates) = bakeoff_domain::money::price::shipped();
    let calibration = crate::predict::forecast::calibrated(&spec);
    let now = chrono::DateTime::from_timestamp(1_795_000_000, 0).unwrap();
    let in_force = bakeoff_domain::money::price::all_in_force(&prices, &spec.region, now);
    let findings = crate::lint::lint_with(
        &spec,
        crate::lint::LintContext {
            prices: &in_force,
            calibration: &calibration,
        },
    );
    assert!(
        !findings.iter().any(|one| one.rule == "trial-too-short"),
        "{findings:?}"
    );
    let context = crate::plan::PlanContext {
        tariff: bakeoff_domain::money::worst_case::Tariff {
            prices: &prices,
            rates: &rates,
        },
        calibration: &calibration,
        metrics_interval: chrono::TimeDelta::minutes(5),
        now,
    };
    let plans = crate::plan::plan(&spec, &findings, context);
    assert!(!plans.iter().any(|plan| plan.refused), "{findings:?}");
    let needed: bakeoff_domain::money::Usd = plans
        .iter()
        .filter_map(|plan| plan.worst_case)
        .map(|worst| worst.total_usd)
        .sum();
    assert!(
        plans.len() >= 3 && needed <= spec.budget_usd,
        "{needed} of {}",
        spec.budget_usd
    );
}

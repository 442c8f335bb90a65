//! What a job's body says of an experiment: its image, role, data, script, script's arguments, limits. Everything else in
//! it is left out by name.

use bakeoff_domain::catalog::{hugging_face, known_models};
use bakeoff_domain::measure::metric;
use bakeoff_domain::spec::metric_definitions;
use serde_json::{Value, json};

use super::draft::{Ask, Draft, StatedValue};
use super::hyperparameters::Hyperparameters;
use super::left_out;
use super::material::Material;
use crate::lint::job::registry_region;

/// The most characters of a name.
const NAME_MAX: usize = 40;

/// Takes what the job says.
pub(super) fn take(material: &Material, home: &str, draft: &mut Draft<'_>) {
    let body = &material.body;
    let told = Hyperparameters::of(material);
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str);
    names(material, &told, draft);
    let image = text("/AlgorithmSpecification/TrainingImage");
    let from = if material.region.is_some() {
        "its own region"
    } else {
        "the image's registry"
    };
    match region(material) {
        Some(region) => draft.take("/region", region, from),
        None => draft.ask(
            "/region",
            Ask {
                question: "In which region?",
                proposal: Some(home.into()),
                why: "nothing names one".to_owned(),
            },
        ),
    }
    places(body, draft);
    channels(body, &told, draft);
    script(material, &told, draft);
    versions(image, material.commit.as_deref(), draft);
    model(material, &told, draft);
    metrics(body, &told, draft);
    limits(body, draft);
    let own = told.of_script();
    if !own.is_empty() {
        draft.take("/workload/hyperparameters", json!(own), "HyperParameters");
    }
    left_out::name(body, draft);
    for (member, why) in &material.left_out {
        draft.leave_out(member, why);
    }
}

/// Its image, its role and where its models go.
fn places(body: &Value, draft: &mut Draft<'_>) {
    let found = |pointer: &str| {
        Some(StatedValue {
            value: body.pointer(pointer)?.clone(),
            from: dotted(pointer),
        })
    };
    draft.take_or_ask(
        "/workload/image",
        found("/AlgorithmSpecification/TrainingImage"),
        || Ask {
            question: "Which training image?",
            proposal: None,
            why: "nothing names one: an ECR URI, by digest if it is to stay the same".to_owned(),
        },
    );
    draft.take_or_ask("/workload/role_arn", found("/RoleArn"), || Ask {
        question: "Under which role do the jobs run?",
        proposal: None,
        why: "nothing names one: the ARN of SageMaker's execution role".to_owned(),
    });
    let output =
        found("/OutputDataConfig/S3OutputPath").filter(|found| found.value.as_str() != Some(""));
    draft.take_or_ask("/workload/output_s3_uri", output, || Ask {
        question: "Where do models go?",
        proposal: None,
        why: "nothing names a place: s3://bucket/prefix/".to_owned(),
    });
}

/// A job runs where its arguments say, or where its image is.
pub(super) fn region(material: &Material) -> Option<&str> {
    if let Some(region) = &material.region {
        return Some(region);
    }
    let image = material
        .body
        .pointer("/AlgorithmSpecification/TrainingImage");
    registry_region(image?.as_str()?)
}

/// `/A/B` as people write it: `A.B`.
pub(super) fn dotted(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}

fn names(material: &Material, told: &Hyperparameters<'_>, draft: &mut Draft<'_>) {
    let job = material.body.get("TrainingJobName").and_then(Value::as_str);
    // The SDK ends the names of jobs in a time.
    let base = job.map(|name| {
        let words = name
            .split('-')
            .take_while(|part| part.len() < 4 || part.parse::<u32>().is_err());
        words.collect::<Vec<_>>().join("-")
    });
    let model = told
        .model()
        .map(|(name, _)| name.rsplit('/').next().unwrap_or(name));
    let name = base
        .as_deref()
        .filter(|base| !base.is_empty())
        .or(model)
        .unwrap_or("imported");
    let plain: String = name
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .take(NAME_MAX)
        .collect();
    let plain = plain.trim_matches('-').to_ascii_lowercase();
    draft.take(
        "/name",
        plain.as_str(),
        if base.is_some() {
            "the job's name"
        } else {
            "the model's name"
        },
    );
    draft.take("/workload/name", plain.as_str(), "the name");
}

/// How a channel of S3 is read where nothing else is said: each instance gets the whole folder, as it stands.
const READ_PLAINLY: [(&str, &str); 4] = [
    ("/DataSource/S3DataSource/S3DataType", "S3Prefix"),
    (
        "/DataSource/S3DataSource/S3DataDistributionType",
        "FullyReplicated",
    ),
    ("/CompressionType", "None"),
    ("/RecordWrapperType", "None"),
];

fn name_what_differs(channel: &Value, name: &str, draft: &mut Draft<'_>) {
    for (place, plain) in READ_PLAINLY {
        let said = channel.pointer(place).and_then(Value::as_str);
        if said.is_some_and(|said| !said.is_empty() && said != plain) {
            draft.leave_out(
                &format!("InputDataConfig.{name}.{}", dotted(place)),
                "each instance gets the whole folder, as it stands",
            );
        }
    }
}

fn channels(body: &Value, told: &Hyperparameters<'_>, draft: &mut Draft<'_>) {
    // Without a network, the SDK's second version brings the sources as a channel. The third always does: there, it is
    // what the job runs.
    let brings_sources = told
        .text("sagemaker_submit_directory")
        .is_some_and(|place| place.starts_with("/opt/ml/input/data/code"));
    let all = body
        .get("InputDataConfig")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let mut taken = Vec::new();
    for channel in all {
        let name = channel
            .get("ChannelName")
            .and_then(Value::as_str)
            .unwrap_or("training");
        let uri = channel
            .pointer("/DataSource/S3DataSource/S3Uri")
            .and_then(Value::as_str);
        if name == "code" && brings_sources {
            continue;
        }
        let Some(uri) = uri else {
            let why = if channel.pointer("/DataSource/S3DataSource").is_some() {
                "its folder is known only while the document runs: add the channel"
            } else {
                "it is no S3 folder: FSx and EFS cannot be read in an experiment yet"
            };
            draft.leave_out(&format!("InputDataConfig.{name}"), why);
            continue;
        };
        if channel
            .get("InputMode")
            .and_then(Value::as_str)
            .is_some_and(|mode| mode != "File")
        {
            draft.leave_out(
                &format!("InputDataConfig.{name}.InputMode"),
                "its data is downloaded before training, which is billed",
            );
        }
        name_what_differs(channel, name, draft);
        taken.push(json!({"name": name, "s3_uri": uri}));
    }
    if taken.is_empty() {
        draft.set("/workload/channels", json!([]));
    } else {
        draft.take("/workload/channels", Value::Array(taken), "InputDataConfig");
    }
    let mode = body
        .pointer("/AlgorithmSpecification/TrainingInputMode")
        .and_then(Value::as_str);
    if mode.is_some_and(|mode| mode != "File") {
        draft.leave_out(
            "AlgorithmSpecification.TrainingInputMode",
            "its data is downloaded before training, which is billed",
        );
    }
}

fn script(material: &Material, told: &Hyperparameters<'_>, draft: &mut Draft<'_>) {
    let algorithm = material.body.get("AlgorithmSpecification");
    let member = |name: &str| algorithm.and_then(|algorithm| algorithm.get(name)).cloned();
    let words = |name: &str| match member(name) {
        Some(Value::Array(words)) => words,
        _ => Vec::new(),
    };
    let (entry, arguments) = (words("ContainerEntrypoint"), words("ContainerArguments"));
    if !entry.is_empty() {
        draft.take(
            "/workload/container_entrypoint",
            Value::Array([entry, arguments].concat()),
            "AlgorithmSpecification.ContainerEntrypoint and ContainerArguments",
        );
    } else if !arguments.is_empty() {
        draft.leave_out(
            "AlgorithmSpecification.ContainerArguments",
            "put them into container_entrypoint, after the image's own entry point",
        );
    }
    let Some(entry) = told.text("sagemaker_program") else {
        return;
    };
    draft.take("/workload/script/entry_point", entry, "the entry point");
    let sources = told
        .text("sagemaker_submit_directory")
        .filter(|uri| uri.starts_with("s3://"));
    match sources {
        Some(uri) if !material.local_sources => draft.take(
            "/workload/script/source_s3_uri",
            uri,
            "the script's sources",
        ),
        uri => draft.ask(
            "/workload/script/source_s3_uri",
            Ask {
                question: "Where in S3 are the script's sources (sourcedir.tar.gz)?",
                proposal: uri.map(Into::into),
                why:
                    "they stand on your machine: the SDK would upload them, an experiment does not"
                        .to_owned(),
            },
        ),
    }
}

fn versions(image: Option<&str>, commit: Option<&str>, draft: &mut Draft<'_>) {
    let tag = image.and_then(|image| image.rsplit('/').next()?.split_once([':', '@']));
    let version = commit.or(tag.map(|(_, tag)| tag));
    draft.ask(
        "/workload/code_version",
        Ask {
            question: "Which version of the training code is it?",
            proposal: Some(version.unwrap_or("1").into()),
            why: "only trials of one version are compared; a commit is best".to_owned(),
        },
    );
    draft.ask(
        "/workload/data_version",
        Ask {
            question: "Which version of the data is it?",
            proposal: Some("1".into()),
            why: "only trials on the same data are compared".to_owned(),
        },
    );
}

const NO_SHAPE: &str = "nothing tells its shape: send its config.json or its name as another document; \
                        {\"total_parameters\": …} for a model that is no decoder";

fn model(material: &Material, told: &Hyperparameters<'_>, draft: &mut Draft<'_>) {
    let by_name = || {
        let (name, member) = told.model()?;
        let known = known_models::find(name)?;
        Some((
            known.config.clone(),
            format!("{}: {name}", told.place(member)),
        ))
    };
    let shape = material.model.clone().or_else(by_name);
    let shape = shape.map(|(config, from)| (hugging_face::shape(&config), from));
    let (read, refusal) = match shape {
        Some((Ok(read), from)) => (Some((read.shape, from)), None),
        Some((Err(why), from)) => (None, Some(format!("{from} cannot be used: {why}"))),
        None => (None, None),
    };
    let longest = read
        .as_ref()
        .map(|(shape, _)| shape.sequence_length)
        .filter(|length| *length > 1);
    match read {
        Some((shape, from)) => draft.take("/workload/model", json!(shape), from),
        None => draft.ask(
            "/workload/model",
            Ask {
                question: "Which model is trained?",
                proposal: None,
                why: refusal.unwrap_or_else(|| NO_SHAPE.to_owned()),
            },
        ),
    }
    sequence_length(longest, told, draft);
    if let Some((rank, member)) = told.lora_rank() {
        draft.take("/workload/model/lora_rank", rank, told.place(member));
    }
    precision(material, told, draft);
}

/// `longest`: what the model can take.
fn sequence_length(longest: Option<u32>, told: &Hyperparameters<'_>, draft: &mut Draft<'_>) {
    let is_decoder = draft.get("/workload/model/layers").is_some()
        || draft
            .get("/workload/model")
            .is_some_and(|model| model.get("layers").is_some());
    if let Some((length, member)) = told.sequence_length() {
        draft.take(
            "/workload/model/sequence_length",
            length,
            told.place(member),
        );
    } else if is_decoder {
        let proposal = longest.unwrap_or(2048).min(2048);
        draft.ask(
            "/workload/model/sequence_length",
            Ask {
                question: "How many tokens has a sequence in training?",
                proposal: Some(proposal.into()),
                why: "a model says only how many it can take".to_owned(),
            },
        );
    }
}

fn precision(material: &Material, told: &Hyperparameters<'_>, draft: &mut Draft<'_>) {
    let precision = told.precision().map(|(precision, member)| StatedValue {
        value: json!(precision),
        from: told.place(member),
    });
    let of_deepspeed = || {
        let entries = material.deepspeed.as_ref()?;
        let is_on = |name: &str| {
            entries
                .get(name)?
                .get("enabled")?
                .as_bool()
                .filter(|on| *on)
        };
        let (name, _) = is_on("bf16")
            .map(|on| ("bf16", on))
            .or_else(|| Some(("fp16", is_on("fp16")?)))?;
        Some(StatedValue {
            value: name.into(),
            from: "DeepSpeed's configuration".to_owned(),
        })
    };
    draft.take_or_ask(
        "/workload/precision",
        precision.or_else(of_deepspeed),
        || Ask {
            question: "In which precision?",
            proposal: Some("bf16".into()),
            why: "nothing says it".to_owned(),
        },
    );
}

fn metrics(body: &Value, told: &Hyperparameters<'_>, draft: &mut Draft<'_>) {
    let image = draft
        .get("/workload/image")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let entry = told.text("sagemaker_program").unwrap_or_default();
    let own: Vec<Value> = body
        .pointer("/AlgorithmSpecification/MetricDefinitions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|one| {
            let (name, regex) = (one.get("Name")?.as_str()?, one.get("Regex")?.as_str()?);
            let meaning = metric::standard(name)
                .and_then(|standard| meaning_of(standard.name))
                .unwrap_or("other");
            Some(json!({"name": name, "regex": regex, "meaning": meaning}))
        })
        .collect();
    let is_speed = |one: &Value| {
        let meaning = one
            .get("meaning")
            .and_then(Value::as_str)
            .unwrap_or_default();
        meaning.contains("per_second") || meaning.ends_with("_seen") || meaning == "step"
    };
    if own.iter().any(is_speed) {
        draft.take(
            "/workload/metrics",
            Value::Array(own),
            "AlgorithmSpecification.MetricDefinitions",
        );
        return;
    }
    let set = metric_definitions::chosen_by(&image, std::iter::once(entry));
    if let Some(set) = set {
        draft.take(
            "/workload/metrics",
            set.id.as_str(),
            format!("what {} prints", set.label),
        );
        return;
    }
    if let Some(from) = told.trainer() {
        let from = format!("{from}: Hugging Face's Trainer prints them");
        draft.take("/workload/metrics", "hf-trainer", from);
        return;
    }
    draft.ask(
        "/workload/metrics",
        Ask {
            question: "Which framework writes the log? Speed is read from it",
            proposal: (!own.is_empty()).then_some(Value::Array(own)),
            why: format!(
                "neither the image nor the script is known: {}",
                metric_definitions::names()
            ),
        },
    );
}

/// The meaning that a standard metric has in a definition.
fn meaning_of(standard: &str) -> Option<&str> {
    let known = serde_json::from_value::<metric::Meaning>(standard.into());
    known.is_ok().then_some(standard)
}

fn limits(body: &Value, draft: &mut Draft<'_>) {
    let checkpoint = body
        .get("CheckpointConfig")
        .and_then(|config| config.get("S3Uri"))
        .cloned();
    if let Some(uri) = checkpoint {
        draft.take("/checkpoint/s3_uri", uri, "CheckpointConfig");
        if let Some(path) = body.pointer("/CheckpointConfig/LocalPath") {
            draft.take("/checkpoint/local_path", path.clone(), "CheckpointConfig");
        }
    }
    let keep_alive = body.pointer("/ResourceConfig/KeepAlivePeriodInSeconds");
    let seconds = keep_alive.and_then(Value::as_u64);
    if let Some(seconds) = seconds.filter(|seconds| *seconds > 0) {
        draft.take(
            "/keep_alive_seconds",
            seconds,
            "ResourceConfig.KeepAlivePeriodInSeconds",
        );
    }
    let retries = body.pointer("/RetryStrategy/MaximumRetryAttempts");
    if let Some(retries) = retries {
        draft.take(
            "/workload/techniques/retry_attempts",
            retries.clone(),
            "RetryStrategy",
        );
    }
    if body.pointer("/InfraCheckConfig/EnableInfraCheck") == Some(&Value::Bool(true)) {
        draft.take("/workload/techniques/infra_check", true, "InfraCheckConfig");
    }
}

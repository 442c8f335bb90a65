//! From what a person writes of a processing job to the request that is sent, and what SageMaker would refuse of
//! it. Limits: SageMaker API, CreateProcessingJob.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::catalog::{self, processing};
use crate::checkpoint::StoredObject;
use crate::finding::flaws::{Flaw, Flaws, is_address, is_open};
use crate::finding::nearest;
use crate::sagemaker::processing::{ProcessingInput, ProcessingJobRequest, ProcessingOutput};
use crate::spec::pipeline::ProcessingSpec;

const INPUT: &str = "/opt/ml/processing/input";
const OUTPUT: &str = "/opt/ml/processing/output";
const CODE: &str = "code";
const RUNTIME_MAX: u32 = 777_600;
const WORDS_MAX: usize = 100;
const WORD_MAX: usize = 256;
/// Of SageMaker's 100; the service adds its own.
const VARIABLES_MAX: usize = 90;
const CHANNELS_MAX: usize = 10;
const NAME_MAX: usize = 64;

/// What a step's job has from its pipeline.
#[derive(Debug, Clone, Copy)]
pub struct ProcessingContext<'a> {
    pub role_arn: &'a str,
    /// The folder for the step's outputs, without a slash at its end.
    pub output_s3_uri: &'a str,
}

/// The request, without name and marker: each attempt adds its own.
pub fn request(spec: &ProcessingSpec, around: ProcessingContext<'_>) -> ProcessingJobRequest {
    let code = spec.script_s3_uri.as_ref().map(|uri| ProcessingInput {
        name: CODE.to_owned(),
        s3_uri: uri.clone(),
        local_path: format!("{INPUT}/{CODE}"),
        is_sharded: false,
    });
    let inputs = spec.inputs.iter().map(|input| ProcessingInput {
        name: input.name.clone(),
        s3_uri: input.s3_uri.clone(),
        local_path: placed(input.local_path.as_ref(), INPUT, &input.name),
        is_sharded: input.sharded,
    });
    let outputs = spec.outputs.iter().map(|output| ProcessingOutput {
        name: output.name.clone(),
        s3_uri: (output.s3_uri.clone())
            .unwrap_or_else(|| format!("{}/{}", around.output_s3_uri, output.name)),
        local_path: placed(output.local_path.as_ref(), OUTPUT, &output.name),
        is_continuous: output.continuous,
    });
    ProcessingJobRequest {
        job_name: String::new(),
        image: spec.image.clone(),
        entrypoint: entrypoint(spec),
        arguments: spec.arguments.clone(),
        role_arn: spec.role_arn.clone().unwrap_or(around.role_arn.to_owned()),
        instance_type: spec.instance_type.clone(),
        instance_count: spec.instance_count,
        volume_size_gb: spec.volume_size_gb,
        inputs: inputs.chain(code).collect(),
        outputs: outputs.collect(),
        environment: spec.environment.clone(),
        max_runtime_seconds: spec.max_runtime_seconds,
        tags: BTreeMap::from([(
            "bakeoff:managed-by".to_owned(),
            "bakeoff-control-plane".to_owned(),
        )]),
    }
}

/// The command: that of the script, if there is one.
fn entrypoint(spec: &ProcessingSpec) -> Vec<String> {
    let script = spec.script_s3_uri.as_ref();
    let file = script.and_then(|uri| uri.rsplit('/').next());
    file.map_or_else(
        || spec.entrypoint.clone(),
        |file| vec!["python3".to_owned(), format!("{INPUT}/{CODE}/{file}")],
    )
}

fn placed(path: Option<&String>, root: &str, name: &str) -> String {
    path.cloned().unwrap_or_else(|| format!("{root}/{name}"))
}

/// Everything that is wrong with a processing job, with pointers below `pointer`. Texts may still hold
/// references.
pub fn flaws(spec: &ProcessingSpec, pointer: &str) -> Vec<Flaw> {
    let mut flaws = Flaws::below(pointer);
    instances(spec, &mut flaws);
    let has_image = !spec.image.is_empty() && spec.image.len() <= 255;
    let detail = "must have 1 to 255 characters";
    flaws.add_unless(has_image, "image", detail, "give the image's ECR URI");
    let has_one = spec.script_s3_uri.is_none() || spec.entrypoint.is_empty();
    let detail = "a script is run with python3, and needs no entrypoint";
    flaws.add_unless(has_one, "entrypoint", detail, "leave one of the two out");
    flaws.role(spec.role_arn.as_deref());
    words(spec, &mut flaws);
    channels(spec, &mut flaws);
    flaws.found()
}

/// On what it runs, and how long.
fn instances(spec: &ProcessingSpec, flaws: &mut Flaws<'_>) {
    let kind = &spec.instance_type;
    if !is_open(kind) && !processing::types().contains(kind) {
        let known = processing::types().iter().map(String::as_str);
        let near = nearest(kind, known, 3).join(", ");
        let detail = if catalog::find(kind).is_some() {
            format!("SageMaker runs no processing jobs on {kind}")
        } else {
            format!("there is no instance type {kind}")
        };
        let fix =
            format!("use another type, such as {near}; to evaluate a large model, g6e or g7e");
        flaws.add_unless(false, "instance_type", &detail, &fix);
    }
    for (number, most, member) in [
        (spec.instance_count, 100, "instance_count"),
        (spec.volume_size_gb, 16_384, "volume_size_gb"),
        (spec.max_runtime_seconds, RUNTIME_MAX, "max_runtime_seconds"),
    ] {
        flaws.number(member, Some(number), 1, most);
    }
}

/// The words of the command, and the variables.
fn words(spec: &ProcessingSpec, flaws: &mut Flaws<'_>) {
    let is_short = |text: &String| text.chars().count() <= WORD_MAX;
    for (words, member) in [
        (&spec.entrypoint, "entrypoint"),
        (&spec.arguments, "arguments"),
    ] {
        let is_fine = words.len() <= WORDS_MAX && words.iter().all(is_short);
        let detail = "SageMaker takes at most 100 words of 256 characters";
        flaws.add_unless(
            is_fine,
            member,
            detail,
            "put what is long into a file or a variable",
        );
    }
    let is_variable = |name: &String| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        is_short(name)
            && name.chars().all(is_part)
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
    };
    let variables = &spec.environment;
    let is_fine = variables.len() <= VARIABLES_MAX
        && variables.keys().all(is_variable)
        && variables
            .values()
            .all(|value| is_short(value) && !value.contains('\n'));
    let detail = "SageMaker takes at most 100 variables (the service adds some) of 256 characters in one line";
    flaws.add_unless(is_fine, "environment", detail, "shorten or drop some");
}

/// An input or output as it is checked.
struct Channel<'a> {
    name: &'a String,
    s3_uri: Option<&'a String>,
    local_path: Option<&'a String>,
}

/// The inputs and outputs.
fn channels(spec: &ProcessingSpec, flaws: &mut Flaws<'_>) {
    let inputs = spec.inputs.iter().map(|one| Channel {
        name: &one.name,
        s3_uri: Some(&one.s3_uri),
        local_path: one.local_path.as_ref(),
    });
    let outputs = spec.outputs.iter().map(|one| Channel {
        name: &one.name,
        s3_uri: one.s3_uri.as_ref(),
        local_path: one.local_path.as_ref(),
    });
    let has_script = usize::from(spec.script_s3_uri.is_some());
    several("inputs", &inputs.collect::<Vec<_>>(), has_script, flaws);
    several("outputs", &outputs.collect::<Vec<_>>(), 0, flaws);
    if let Some(script) = &spec.script_s3_uri {
        let is_script = script.starts_with("s3://") && !script.ends_with('/') || is_open(script);
        let detail = "must be s3://bucket/key of a file";
        let fix = "upload the script, and give its address";
        flaws.add_unless(is_script, "script_s3_uri", detail, fix);
    }
}

fn several(member: &str, all: &[Channel<'_>], more: usize, flaws: &mut Flaws<'_>) {
    let is_fine = all.len() + more <= CHANNELS_MAX;
    let detail = "SageMaker takes at most 10, the script among them";
    flaws.add_unless(is_fine, member, detail, "put several into one prefix");
    let mut seen = BTreeSet::new();
    for (place, one) in all.iter().enumerate() {
        let at = |field: &str| format!("{member}/{place}/{field}");
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let name = one.name;
        let is_short = (1..=NAME_MAX).contains(&name.len());
        let is_free = more == 0 || name != CODE;
        let is_name = is_short && name.chars().all(is_part) && is_free && seen.insert(name);
        let detail = "must be letters, digits, hyphens and underscores, once only, and not `code` beside a script";
        flaws.add_unless(is_name, &at("name"), detail, "rename it");
        let is_uri = |uri: &String| is_address(uri);
        let detail = "must be s3://bucket/prefix";
        flaws.add_unless(
            one.s3_uri.is_none_or(is_uri),
            &at("s3_uri"),
            detail,
            "give its address",
        );
        let is_local = |path: &String| path.starts_with("/opt/ml/processing/");
        let (is_fine, detail) = (
            one.local_path.is_none_or(is_local),
            "must be below /opt/ml/processing/",
        );
        flaws.add_unless(
            is_fine,
            &at("local_path"),
            detail,
            "choose a folder there, or leave it out",
        );
    }
}

/// A fingerprint of everything a job depends on: equal if it would produce the same outputs. `inputs`: the objects below each
/// input, in the order of the request's.
pub fn fingerprint(spec: &ProcessingSpec, role: &str, inputs: &[Vec<StoredObject>]) -> [u8; 32] {
    let objects = inputs.iter().map(|objects| {
        let objects: BTreeSet<(&str, u64, i64)> = objects
            .iter()
            .map(|one| {
                (
                    one.key.as_str(),
                    one.bytes,
                    one.written_at.timestamp_millis(),
                )
            })
            .collect();
        json!(objects)
    });
    let objects: Vec<_> = objects.collect();
    // What changes no output does not count.
    let spec = ProcessingSpec {
        reuse_if_unchanged: true,
        max_runtime_seconds: 0,
        ..spec.clone()
    };
    let text = json!({"spec": spec, "role": role, "inputs": objects}).to_string();
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::Value;

    use super::*;

    fn spec(changes: &Value) -> ProcessingSpec {
        let mut all = json!({"image": "1.dkr.ecr.us-east-1.amazonaws.com/prep:1", "script_s3_uri": "s3://b/code/prepare.py",
            "instance_type": "ml.m5.xlarge", "inputs": [{"name": "raw", "s3_uri": "s3://b/raw"}], "outputs": [{"name": "train"}]});
        for (name, value) in changes.as_object().unwrap() {
            all[name] = value.clone();
        }
        serde_json::from_value(all).unwrap()
    }

    fn around() -> ProcessingContext<'static> {
        ProcessingContext {
            role_arn: "arn:aws:iam::111122223333:role/prep",
            output_s3_uri: "s3://b/out/pip_1/prepare",
        }
    }

    #[test]
    fn a_script_is_an_input_and_run_with_python() {
        let request = request(&spec(&json!({})), around());
        assert_eq!(
            request.entrypoint,
            ["python3", "/opt/ml/processing/input/code/prepare.py"]
        );
        let inputs: Vec<_> = request
            .inputs
            .iter()
            .map(|one| (one.name.as_str(), one.local_path.as_str()))
            .collect();
        assert_eq!(
            inputs,
            [
                ("raw", "/opt/ml/processing/input/raw"),
                ("code", "/opt/ml/processing/input/code")
            ]
        );
        assert_eq!(
            request.outputs.first().unwrap().s3_uri,
            "s3://b/out/pip_1/prepare/train"
        );
        assert_eq!(request.role_arn, around().role_arn);
    }

    #[test]
    fn what_sagemaker_refuses_is_told_with_its_place() {
        let pointers = |changes: Value| -> Vec<String> {
            let flaws = flaws(&spec(&changes), "/steps/0/processing");
            flaws
                .into_iter()
                .map(|flaw| flaw.pointer.replace("/steps/0/processing/", ""))
                .collect()
        };
        assert!(pointers(json!({})).is_empty());
        assert_eq!(
            pointers(json!({"instance_type": "ml.p5.48xlarge"})),
            ["instance_type"]
        );
        assert_eq!(
            pointers(json!({"instance_count": 0, "max_runtime_seconds": 777_601})),
            ["instance_count", "max_runtime_seconds"]
        );
        assert_eq!(pointers(json!({"entrypoint": ["bash"]})), ["entrypoint"]);
        assert_eq!(
            pointers(json!({"arguments": ["x".repeat(257)]})),
            ["arguments"]
        );
        assert_eq!(
            pointers(json!({"environment": {"1A": "x"}})),
            ["environment"]
        );
        let inputs = json!([{"name": "raw", "s3_uri": "b/raw"}, {"name": "raw", "s3_uri": "s3://b", "local_path": "/tmp"}]);
        assert_eq!(
            pointers(json!({"inputs": inputs})),
            ["inputs/0/s3_uri", "inputs/1/name", "inputs/1/local_path"]
        );
        assert!(
            pointers(json!({"inputs": [{"name": "a", "s3_uri": "${prepare.outputs.train}"}]}))
                .is_empty()
        );
    }

    #[test]
    fn a_fingerprint_changes_with_what_a_run_depends_on_and_with_nothing_else() {
        let object = |key: &str, bytes| StoredObject {
            key: key.to_owned(),
            bytes,
            written_at: DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
        };
        let of = |changes: Value, objects: &[StoredObject]| {
            fingerprint(&spec(&changes), "r", &[objects.to_vec()])
        };
        let (one, two) = (object("a", 1), object("b", 2));
        let known = of(json!({}), &[one.clone(), two.clone()]);
        assert_eq!(
            known,
            of(json!({}), &[two.clone(), one.clone()]),
            "the order of a listing"
        );
        assert_ne!(known, of(json!({}), std::slice::from_ref(&one)));
        assert_ne!(known, of(json!({}), &[one.clone(), object("b", 3)]));
        let other = json!({"reuse_if_unchanged": false, "max_runtime_seconds": 60});
        assert_eq!(known, of(other, &[one.clone(), two.clone()]));
        assert_ne!(known, of(json!({"arguments": ["--seed=2"]}), &[one, two]));
    }
}

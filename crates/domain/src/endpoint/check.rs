//! From what a person writes of an endpoint or a batch transform to the request, and what SageMaker would refuse
//! of it, or what would not work: types that do not serve, or do not hold the weights. Limits: SageMaker API,
//! CreateModel, CreateEndpointConfig and CreateTransformJob.

use std::collections::BTreeMap;

use crate::catalog;
use crate::catalog::serving::Serving;
use crate::finding::flaws::Flaw;
use crate::finding::flaws::{Flaws, is_address, is_open};
use crate::model_package::check::unfit;
use crate::sagemaker::endpoint::{
    EndpointRequest, ModelContainer, ModelRequest, ModelSource, Split, TransformJobRequest,
};
use crate::spec::pipeline::endpoint::{EndpointSpec, ServedSpec, SmokeTest, TransformSpec};

/// The longest time to live, also of one that is extended: 30 days.
pub const HOURS_MAX: u32 = 720;
const COUNT_MAX: u32 = 100;
/// Five days: SageMaker has no limit.
const TRANSFORM_SECONDS_MAX: u32 = 432_000;
/// Of SageMaker's 16; the service adds its own.
const VARIABLES_MAX: usize = 12;
const BODY_MAX: usize = 100 * 1024;
const PAYLOAD_MAX: u32 = 100;
/// TransformInput.MaxPayloadInMB when absent.
const PAYLOAD_USUAL: u32 = 6;

/// Everything that is wrong with an endpoint, with pointers below `pointer`. `weights_gib`: of the model, if they
/// are known.
pub fn endpoint_flaws(spec: &EndpointSpec, pointer: &str, weights_gib: Option<f64>) -> Vec<Flaw> {
    let mut flaws = Flaws::below(pointer);
    served(&spec.model, &mut flaws);
    let weights = spec.weights_gib.or(weights_gib);
    fits(Serving::Endpoint, &spec.instance_type, weights, &mut flaws);
    flaws.role(spec.role_arn.as_deref());
    flaws.number("instance_count", Some(spec.instance_count), 1, COUNT_MAX);
    flaws.number(
        "time_to_live_hours",
        Some(spec.time_to_live_hours),
        1,
        HOURS_MAX,
    );
    flaws.number("startup_seconds", Some(spec.startup_seconds), 60, 3600);
    flaws.number("volume_size_gb", spec.volume_size_gb, 1, 512);
    let has_disks = catalog::find(&spec.instance_type).is_some_and(|found| found.nvme_gb > 0);
    flaws.add_unless(
        spec.volume_size_gb.is_none() || !has_disks,
        "volume_size_gb",
        "this type has disks of its own, and SageMaker refuses a volume",
        "leave it out",
    );
    if let Some(test) = &spec.smoke_test {
        tested(test, &mut flaws);
    }
    flaws.found()
}

fn tested(test: &SmokeTest, flaws: &mut Flaws<'_>) {
    flaws.add_unless(
        (1..=BODY_MAX).contains(&test.body.len()),
        "smoke_test/body",
        "must have 1 byte to 100 KB",
        "send a small request",
    );
    let is_type = test.content_type.contains('/')
        && test.content_type.len() <= 256
        && test
            .content_type
            .chars()
            .all(|c| c.is_ascii_graphic() || c == ' ');
    flaws.add_unless(
        is_type || is_open(&test.content_type),
        "smoke_test/content_type",
        "must be a media type",
        "write it as application/json",
    );
}

/// Everything that is wrong with a batch transform, likewise.
pub fn transform_flaws(spec: &TransformSpec, pointer: &str, weights_gib: Option<f64>) -> Vec<Flaw> {
    let mut flaws = Flaws::below(pointer);
    served(&spec.model, &mut flaws);
    let weights = spec.weights_gib.or(weights_gib);
    fits(Serving::Transform, &spec.instance_type, weights, &mut flaws);
    flaws.role(spec.role_arn.as_deref());
    flaws.number("instance_count", Some(spec.instance_count), 1, COUNT_MAX);
    let runtime = Some(spec.max_runtime_seconds);
    flaws.number("max_runtime_seconds", runtime, 1, TRANSFORM_SECONDS_MAX);
    flaws.address("input_s3_uri", Some(&spec.input_s3_uri));
    flaws.address("output_s3_uri", spec.output_s3_uri.as_ref());
    let payload = spec.max_payload_mb.unwrap_or(PAYLOAD_USUAL);
    let at_once = spec.max_concurrent.unwrap_or(1);
    flaws.number("max_concurrent", spec.max_concurrent, 1, PAYLOAD_MAX);
    flaws.add_unless(
        payload.saturating_mul(at_once.max(1)) <= PAYLOAD_MAX,
        "max_payload_mb",
        "max_payload_mb × max_concurrent must be at most 100",
        "lower one of the two",
    );
    let is_prefix = |uri: &String| uri.ends_with('/');
    flaws.add_unless(
        !spec.model.model_s3_uri.as_ref().is_some_and(is_prefix),
        "model/model_s3_uri",
        "SageMaker transforms with no uncompressed model",
        "name a model.tar.gz",
    );
    variables(&spec.environment, "environment", &mut flaws);
    flaws.found()
}

/// Exactly one of a version and a container.
fn served(model: &ServedSpec, flaws: &mut Flaws<'_>) {
    let container = (&model.image, &model.model_s3_uri);
    let is_one = match (&model.model_package_id, container) {
        (Some(_), (None, None)) => model.environment.is_empty(),
        (None, (Some(_), Some(_))) => true,
        _ => false,
    };
    flaws.add_unless(
        is_one,
        "model",
        "must have model_package_id, or image and model_s3_uri (with environment, if need be)",
        "name an approved version of the registry, or the image and the model",
    );
    if let Some(image) = &model.image {
        let is_image = (1..=255).contains(&image.len()) && !image.contains(char::is_whitespace);
        let detail = "must be the address of an image, at most 255 characters";
        flaws.add_unless(
            is_image,
            "model/image",
            detail,
            "name the image that serves",
        );
    }
    if let Some(uri) = &model.model_s3_uri {
        let is_model =
            is_address(uri) && (uri.ends_with(".tar.gz") || uri.ends_with('/') || is_open(uri));
        flaws.add_unless(
            is_model,
            "model/model_s3_uri",
            "must be a .tar.gz, or a prefix that ends with a slash",
            "give the address of the model",
        );
    }
    variables(&model.environment, "model/environment", flaws);
}

fn variables(all: &BTreeMap<String, String>, member: &str, flaws: &mut Flaws<'_>) {
    let is_name = |name: &String| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !name.is_empty()
            && name.chars().all(is_part)
            && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    let is_fine = all.len() <= VARIABLES_MAX
        && all.keys().all(is_name)
        && all.values().all(|value| value.len() <= 1024);
    flaws.add_unless(
        is_fine,
        member,
        "SageMaker takes at most 16 variables (the service adds some), with values of 1024 characters",
        "rename, shorten or drop some",
    );
}

fn fits(serving: Serving, kind: &str, weights_gib: Option<f64>, flaws: &mut Flaws<'_>) {
    let weights = weights_gib.unwrap_or(0.0);
    flaws.add_unless(
        weights.is_finite() && weights >= 0.0,
        "weights_gib",
        "must be 0 or more",
        "say how large the weights are, in GiB",
    );
    let unfit = unfit(serving, kind, weights).filter(|_| !is_open(kind));
    if let Some((detail, fix)) = unfit {
        flaws.add_unless(false, "instance_type", &detail, &fix);
    }
}

/// What a request has from elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct EndpointContext<'a> {
    /// ARN of the version, where one is served.
    pub package_arn: Option<&'a str>,
    pub role_arn: &'a str,
    /// The folder for outputs, without a slash at its end.
    pub output_s3_uri: &'a str,
}

fn model(spec: &ServedSpec, role: Option<&String>, around: EndpointContext<'_>) -> ModelRequest {
    let source = match around.package_arn {
        Some(arn) => ModelSource::Package(arn.to_owned()),
        None => ModelSource::Container(ModelContainer {
            image: spec.image.clone().unwrap_or_default(),
            model_s3_uri: spec.model_s3_uri.clone().unwrap_or_default(),
            environment: spec.environment.clone(),
        }),
    };
    ModelRequest {
        source,
        role_arn: role.map_or(around.role_arn, String::as_str).to_owned(),
    }
}

/// The model of an endpoint's revision.
pub fn served_model(spec: &ServedSpec, around: EndpointContext<'_>) -> ModelRequest {
    model(spec, None, around)
}

fn managed() -> BTreeMap<String, String> {
    BTreeMap::from([(
        "bakeoff:managed-by".to_owned(),
        "bakeoff-control-plane".to_owned(),
    )])
}

/// The request of an endpoint, without name and marker.
pub fn endpoint(spec: &EndpointSpec, around: EndpointContext<'_>) -> EndpointRequest {
    EndpointRequest {
        job_name: String::new(),
        model: model(&spec.model, spec.role_arn.as_ref(), around),
        instance_type: spec.instance_type.clone(),
        instance_count: spec.instance_count,
        time_to_live_seconds: spec.time_to_live_hours.saturating_mul(3600),
        startup_seconds: spec.startup_seconds,
        volume_size_gb: spec.volume_size_gb,
        tags: managed(),
    }
}

/// The request of a batch transform, likewise.
pub fn transform(spec: &TransformSpec, around: EndpointContext<'_>) -> TransformJobRequest {
    TransformJobRequest {
        job_name: String::new(),
        model: model(&spec.model, spec.role_arn.as_ref(), around),
        instance_type: spec.instance_type.clone(),
        instance_count: spec.instance_count,
        max_runtime_seconds: spec.max_runtime_seconds,
        input_s3_uri: spec.input_s3_uri.clone(),
        output_s3_uri: (spec.output_s3_uri.clone())
            .unwrap_or_else(|| around.output_s3_uri.to_owned()),
        content_type: spec.content_type.clone(),
        accept: spec.accept.clone(),
        split: spec.split_lines.then_some(Split::Line),
        max_concurrent: spec.max_concurrent,
        max_payload_mb: spec.max_payload_mb,
        is_multi_record: spec.multi_record,
        input_filter: spec.input_filter.clone(),
        output_filter: spec.output_filter.clone(),
        joins_input: spec.join_input,
        environment: spec.environment.clone(),
        tags: managed(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with(changes: &Value) -> EndpointSpec {
        let mut all = json!({"model": {"image": "1.dkr.ecr.us-east-1.amazonaws.com/serve:1", "model_s3_uri": "s3://b/m/model.tar.gz"},
            "instance_type": "ml.g5.xlarge"});
        for (name, value) in changes.as_object().unwrap() {
            all[name] = value.clone();
        }
        serde_json::from_value(all).unwrap()
    }

    fn pointers(changes: &Value) -> Vec<String> {
        let flaws = endpoint_flaws(&with(changes), "", None).into_iter();
        flaws.map(|flaw| flaw.pointer).collect()
    }

    #[test]
    fn what_would_not_work_is_told_with_its_place() {
        assert!(pointers(&json!({})).is_empty());
        assert_eq!(
            pointers(
                &json!({"instance_type": "ml.p9.huge", "time_to_live_hours": 0, "role_arn": "me"})
            ),
            ["/instance_type", "/role_arn", "/time_to_live_hours"]
        );
        assert_eq!(
            pointers(&json!({"weights_gib": 140.0})),
            ["/instance_type"],
            "70 billion parameters in 24 GiB"
        );
        assert_eq!(pointers(&json!({"model": {"image": "x"}})), ["/model"]);
        assert_eq!(
            pointers(&json!({"volume_size_gb": 100})),
            ["/volume_size_gb"],
            "g5 has disks of its own"
        );
    }

    #[test]
    fn a_transform_runs_on_fewer_types_and_its_payloads_are_bounded() {
        let spec: TransformSpec = serde_json::from_value(json!({
            "model": {"image": "1.dkr.ecr.us-east-1.amazonaws.com/serve:1", "model_s3_uri": "s3://b/m/"},
            "instance_type": "ml.p5.48xlarge", "input_s3_uri": "s3://b/in", "max_concurrent": 20}))
        .unwrap();
        let flaws = transform_flaws(&spec, "", None).into_iter();
        let pointers: Vec<String> = flaws.map(|flaw| flaw.pointer).collect();
        assert_eq!(
            pointers,
            ["/instance_type", "/max_payload_mb", "/model/model_s3_uri"]
        );
    }
}

//! What SageMaker would refuse of a model package, and what would not work: types that do not serve, or do
//! not hold the weights. Limits: SageMaker API, CreateModelPackage.

use std::sync::LazyLock;

use regex::Regex;

use crate::catalog::serving::Serving;
use crate::catalog::{self, InstanceType};
use crate::embedded::pattern;
use crate::finding::escaped;
use crate::model_package::provenance::{PREFIX, VALUE_MAX, is_allowed};
use crate::model_package::{Approval, ModelPackageRequest};
use crate::number::GIB;
use crate::sagemaker::image::ImageUri;
use crate::spec::{Precision, WorkloadSpec};

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// JSON pointer into the request.
    pub pointer: String,
    pub detail: String,
    pub fix: String,
}

const GROUP_MAX: usize = 63;
const DESCRIPTION_MAX: usize = 1024;
const IMAGE_MAX: usize = 255;
const VARIABLES_MAX: usize = 16;
const VARIABLE_MAX: usize = 1024;
const METADATA_MAX: usize = 50;
const METADATA_KEY_MAX: usize = 128;
const LIST_MAX: usize = 100;
/// Weights are not all that a server holds: activations, caches and the framework need the rest. Assumed.
const WEIGHTS_SHARE_MAX: f64 = 0.85;

static GROUP: LazyLock<Regex> = LazyLock::new(|| pattern("[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"));
static VARIABLE: LazyLock<Regex> = LazyLock::new(|| pattern("[a-zA-Z_][a-zA-Z0-9_]*"));
static MEDIA_TYPE: LazyLock<Regex> = LazyLock::new(|| pattern(r"[-\w]{1,50}/\S{1,200}"));

struct Flaws(Vec<Flaw>);

impl Flaws {
    fn add_unless(&mut self, is_fine: bool, pointer: &str, detail: &str, fix: &str) {
        if !is_fine {
            self.0.push(Flaw {
                pointer: pointer.to_owned(),
                detail: detail.to_owned(),
                fix: fix.to_owned(),
            });
        }
    }
}

/// Weights of the whole model as it is served: in 32 bits if it was trained so, in 16 otherwise. Adapters
/// are served with the model that they belong to.
pub fn weights_gib(workload: &WorkloadSpec) -> f64 {
    let bytes = match workload.precision {
        Precision::Fp32 => 4.0,
        Precision::Bf16 | Precision::Fp16 | Precision::Fp8 => 2.0,
    };
    workload.model.parameters() * bytes / GIB
}

/// What a request is held against.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Of the whole model as it is served, GiB.
    pub weights_gib: f64,
    pub training_image: &'a str,
    /// Where the model is, and the endpoint would be.
    pub region: &'a str,
}

/// Everything that is wrong with a request.
pub fn flaws(request: &ModelPackageRequest, facts: Facts<'_>) -> Vec<Flaw> {
    let weights_gib = facts.weights_gib;
    let mut flaws = Flaws(Vec::new());
    flaws.add_unless(
        GROUP.is_match(&request.group) && request.group.len() <= GROUP_MAX,
        "/group",
        "must be 1 to 63 letters, digits and hyphens, and begin and end with a letter or digit",
        "name a model package group, such as legal-de",
    );
    let image = &request.image;
    let is_image = (1..=IMAGE_MAX).contains(&image.len()) && !image.contains(char::is_whitespace);
    flaws.add_unless(
        is_image,
        "/image",
        "must be the address of an image, at most 255 characters, without spaces",
        "name the image that serves the model, such as \
         763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312-cu124-ubuntu22.04-sagemaker",
    );
    flaws.add_unless(
        *image != *facts.training_image,
        "/image",
        "this is the image that trained the model, and an endpoint needs one that serves",
        "name one that serves, such as an AWS Deep Learning Container for inference",
    );
    let uri = ImageUri(image.clone());
    let elsewhere = uri.parts().is_some_and(|ecr| ecr.region != facts.region);
    flaws.add_unless(
        !elsewhere,
        "/image",
        "SageMaker pulls images from Amazon ECR in the region of the model",
        &format!("push it to {}, and name it there", facts.region),
    );
    flaws.add_unless(
        request.approval != Approval::Rejected,
        "/approval",
        "a model is registered as pending or approved",
        "register it as pending, and reject it afterwards",
    );
    flaws.add_unless(
        request.description.chars().count() <= DESCRIPTION_MAX
            && !request.description.contains(char::is_control),
        "/description",
        "must be one line of at most 1024 characters",
        "shorten it",
    );
    environment(request, &mut flaws);
    media_types(request, &mut flaws);
    metadata(request, &mut flaws);
    let realtime = &request.realtime_instance_types;
    let transform = &request.transform_instance_types;
    types(Serving::Endpoint, realtime, weights_gib, &mut flaws);
    types(Serving::Transform, transform, weights_gib, &mut flaws);
    flaws.0
}

fn environment(request: &ModelPackageRequest, flaws: &mut Flaws) {
    flaws.add_unless(
        request.environment.len() <= VARIABLES_MAX,
        "/environment",
        "a container has at most 16 variables",
        "put settings into a file beside the model",
    );
    for (name, value) in &request.environment {
        let is_fine =
            VARIABLE.is_match(name) && name.len() <= VARIABLE_MAX && value.len() <= VARIABLE_MAX;
        flaws.add_unless(
            is_fine,
            &format!("/environment/{}", escaped(name)),
            "a name has letters, digits and _, and no digit first; names and values have at most 1024 characters",
            "rename or shorten it",
        );
    }
}

fn media_types(request: &ModelPackageRequest, flaws: &mut Flaws) {
    let lists = [
        ("/content_types", &request.content_types),
        ("/response_types", &request.response_types),
    ];
    for (pointer, list) in lists {
        flaws.add_unless(
            (1..=LIST_MAX).contains(&list.len()),
            pointer,
            "must name 1 to 100 media types",
            "name at least one, such as application/json",
        );
        for (index, one) in list.iter().enumerate() {
            flaws.add_unless(
                MEDIA_TYPE.is_match(one),
                &format!("{pointer}/{index}"),
                "must be a media type",
                "write it as application/json",
            );
        }
    }
}

fn metadata(request: &ModelPackageRequest, flaws: &mut Flaws) {
    flaws.add_unless(
        request.metadata.len() <= METADATA_MAX,
        "/metadata",
        "a package has at most 50 entries, with those that say where the model comes from",
        "leave some out",
    );
    let own = request.metadata.iter();
    for (name, value) in own.filter(|(name, _)| !name.starts_with(PREFIX)) {
        let fits = |text: &str, most: usize| {
            (1..=most).contains(&text.chars().count()) && text.chars().all(is_allowed)
        };
        flaws.add_unless(
            fits(name, METADATA_KEY_MAX) && fits(value, VALUE_MAX),
            &format!("/metadata/{}", escaped(name)),
            "names have 1 to 128 and values 1 to 256 letters, digits, spaces and _ . : / = + - @",
            "rename or shorten it",
        );
    }
}

/// Somebody's own metadata under a name that says where the model comes from.
pub fn is_ours(name: &str) -> Flaw {
    Flaw {
        pointer: format!("/metadata/{}", escaped(name)),
        detail: format!("names that begin with {PREFIX} say where the model comes from"),
        fix: "name it otherwise".to_owned(),
    }
}

/// Types that do not serve, or do not hold the weights.
fn types(serving: Serving, wanted: &[String], weights_gib: f64, flaws: &mut Flaws) {
    let list = match serving {
        Serving::Endpoint => "/realtime_instance_types",
        Serving::Transform => "/transform_instance_types",
    };
    flaws.add_unless(
        wanted.len() <= LIST_MAX,
        list,
        "names at most 100 types",
        "leave some out",
    );
    for (index, name) in wanted.iter().enumerate().take(LIST_MAX) {
        let pointer = format!("{list}/{index}");
        if let Some((detail, fix)) = unfit(serving, name, weights_gib) {
            flaws.add_unless(false, &pointer, &detail, &fix);
        }
    }
}

/// Why a type does not serve weights of a size, and what to do.
pub(crate) fn unfit(serving: Serving, name: &str, weights_gib: f64) -> Option<(String, String)> {
    let fix = || smallest(serving, weights_gib);
    if !serving.offers(name) {
        let what = match serving {
            Serving::Endpoint => "an endpoint",
            Serving::Transform => "a batch transform",
        };
        return Some((format!("SageMaker does not run {what} on {name}"), fix()));
    }
    // Of types that are not in the catalog, nothing is known.
    let memory = catalog::find(name).and_then(accelerator_gib)?;
    let detail = format!(
        "the weights take {weights_gib:.1} GiB, more than 85 % of the {memory:.0} GiB of accelerator memory of {name}"
    );
    (weights_gib > memory * WEIGHTS_SHARE_MAX).then(|| (detail, fix()))
}

fn accelerator_gib(instance: &InstanceType) -> Option<f64> {
    let each = instance.accelerator_memory_gib?;
    Some(each * f64::from(instance.accelerator_count))
}

/// The way out: the type of the catalog with the least memory that holds the weights.
fn smallest(serving: Serving, weights_gib: f64) -> String {
    let fitting = catalog::all().iter().filter_map(|instance| {
        let memory = accelerator_gib(instance)?;
        let fits = memory * WEIGHTS_SHARE_MAX >= weights_gib;
        (fits && serving.offers(&instance.instance_type)).then_some((memory, instance))
    });
    let best = fitting.min_by(|(a, _), (b, _)| a.total_cmp(b));
    match best {
        Some((_, instance)) => format!(
            "name {}, the smallest that holds it, or a larger one; or give weights_gib if it is served quantised",
            instance.instance_type
        ),
        None => "no type that serves holds it in one instance; give weights_gib if it is served quantised".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ModelPackageRequest {
        ModelPackageRequest {
            group: "legal-de".to_owned(),
            description: "d".to_owned(),
            image: "1.dkr.ecr.us-east-1.amazonaws.com/serve:1".to_owned(),
            model_s3_uri: "s3://b/out/model.tar.gz".to_owned(),
            environment: [("X".to_owned(), "1".to_owned())].into(),
            content_types: vec!["application/json".to_owned()],
            response_types: vec!["application/json".to_owned()],
            realtime_instance_types: vec!["ml.g5.2xlarge".to_owned(), "ml.m5.xlarge".to_owned()],
            transform_instance_types: vec!["ml.g5.2xlarge".to_owned()],
            metadata: [("team".to_owned(), "legal".to_owned())].into(),
            statistics_s3_uri: "s3://b/out/q.json".to_owned(),
            statistics: "{}".to_owned(),
            approval: Approval::Pending,
            client_token: "t".to_owned(),
        }
    }

    fn found(request: &ModelPackageRequest, weights_gib: f64) -> Vec<Flaw> {
        let facts = Facts {
            weights_gib,
            training_image: "1.dkr.ecr.us-east-1.amazonaws.com/train:1",
            region: "us-east-1",
        };
        flaws(request, facts)
    }

    fn pointers(request: &ModelPackageRequest, weights_gib: f64) -> Vec<String> {
        let found = found(request, weights_gib).into_iter();
        found.map(|flaw| flaw.pointer).collect()
    }

    #[test]
    fn each_limit_is_named_where_it_is_broken() {
        assert_eq!(pointers(&request(), 14.0), Vec::<String>::new());
        let broken = ModelPackageRequest {
            group: "legal--".to_owned(),
            image: "a b".to_owned(),
            description: "x".repeat(1025),
            environment: [("1X".to_owned(), String::new())].into(),
            content_types: Vec::new(),
            response_types: vec!["json".to_owned()],
            metadata: [("a/b".to_owned(), "#".to_owned())].into(),
            ..request()
        };
        assert_eq!(
            pointers(&broken, 14.0),
            [
                "/group",
                "/image",
                "/description",
                "/environment/1X",
                "/content_types",
                "/response_types/0",
                "/metadata/a~1b"
            ]
        );
    }

    #[test]
    fn an_image_must_serve_and_be_where_the_model_is() {
        let image = |image: &str| ModelPackageRequest {
            image: image.to_owned(),
            ..request()
        };
        let trains = image("1.dkr.ecr.us-east-1.amazonaws.com/train:1");
        assert_eq!(pointers(&trains, 1.0), ["/image"]);
        let elsewhere = image("111122223333.dkr.ecr.eu-west-1.amazonaws.com/serve:1");
        assert_eq!(pointers(&elsewhere, 1.0), ["/image"]);
        let there = image("111122223333.dkr.ecr.us-east-1.amazonaws.com/serve:1");
        assert_eq!(pointers(&there, 1.0), Vec::<String>::new());
    }

    #[test]
    fn a_type_must_serve_and_hold_the_weights() {
        let asked = ModelPackageRequest {
            realtime_instance_types: vec!["ml.g5.2xlarge".to_owned(), "ml.p9.huge".to_owned()],
            transform_instance_types: vec!["ml.p5.48xlarge".to_owned()],
            ..request()
        };
        let found = found(&asked, 28.0);
        let texts: Vec<&str> = found.iter().map(|flaw| flaw.detail.as_str()).collect();
        assert_eq!(
            texts,
            [
                "the weights take 28.0 GiB, more than 85 % of the 22 GiB of accelerator memory of ml.g5.2xlarge",
                "SageMaker does not run an endpoint on ml.p9.huge",
                "SageMaker does not run a batch transform on ml.p5.48xlarge",
            ]
        );
        assert!(found[0].fix.starts_with("name ml."), "{found:?}");
        let named = found[0].fix.split([' ', ',']).nth(1).unwrap();
        let asked = ModelPackageRequest {
            realtime_instance_types: vec![named.to_owned()],
            ..request()
        };
        assert_eq!(
            pointers(&asked, 28.0)
                .iter()
                .filter(|one| one.contains("realtime"))
                .count(),
            0
        );
    }
}

//! The image that the SDK chooses for an estimator's versions.

use std::sync::LazyLock;

use bakeoff_domain::spec::ParallelLibrary;
use bakeoff_domain::{catalog, embedded};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::arguments::{instances, libraries, region, text};
use crate::render::sdk::Framework;

/// The account of AWS's deep learning containers in most regions.
const CONTAINERS: &str = "763104351884";

fn framework(arguments: &Map<String, Value>) -> Framework {
    let class = arguments
        .get("sdk_class")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if class.contains("tensorflow") {
        Framework::Tensorflow
    } else {
        Framework::Pytorch
    }
}

/// The image that the SDK chooses; `None` if only the SDK itself could tell.
pub(crate) fn image(arguments: &Map<String, Value>) -> Option<String> {
    let text = |key: &str| arguments.get(key).and_then(Value::as_str);
    if let Some(uri) = text("image_uri") {
        return Some(uri.to_owned());
    }
    let class = text("sdk_class").unwrap_or_default();
    if class.contains("huggingface") || arguments.contains_key("transformers_version") {
        return hugging_face(arguments);
    }
    if class.contains("estimator.Estimator") {
        return None;
    }
    let kinds: Vec<&str> = instances(arguments).iter().map(|group| group.0).collect();
    let has_gpu = kinds
        .iter()
        .any(|kind| catalog::find(kind).is_some_and(|found| found.accelerator_count > 0));
    let has_compiler = arguments.contains_key("compiler_config");
    let name = match (framework(arguments), has_compiler) {
        (Framework::Pytorch, false) => "pytorch-training",
        (Framework::Pytorch, true) => "pytorch-trcomp-training",
        (Framework::Tensorflow, _) => "tensorflow-training",
    };
    let version = text("framework_version")?;
    let python = text("py_version")?;
    let processor = if has_gpu { "gpu" } else { "cpu" };
    if libraries(arguments)
        .iter()
        .any(|(library, _)| *library == ParallelLibrary::SmpV2)
    {
        let on_p5 = kinds.iter().any(|kind| kind.contains("p5"));
        let newer = ["2.1", "2.2", "2.3", "2.4"]
            .iter()
            .any(|part| version.contains(part));
        let cuda = match (version.contains("2.5"), on_p5 || newer) {
            (true, _) => "cu124",
            (false, true) => "cu121",
            (false, false) => "cu118",
        };
        let repository = "smdistributed-modelparallel";
        return Some(format!(
            "658645717510.dkr.ecr.{}.amazonaws.com/{repository}:{version}-gpu-{python}-{cuda}",
            region(arguments)
        ));
    }
    Some(format!(
        "{CONTAINERS}.dkr.ecr.{}.amazonaws.com/{name}:{version}-{processor}-{python}",
        region(arguments)
    ))
}

/// An image of Hugging Face's estimator.
#[derive(Debug, Deserialize)]
struct HuggingFaceImage {
    transformers: String,
    /// `pytorch2.5.1`.
    framework: String,
    repository: String,
    /// `py311`, or several with spaces.
    python: String,
    end: String,
}

static HUGGING_FACE: LazyLock<Vec<HuggingFaceImage>> = LazyLock::new(|| {
    embedded::csv(
        "huggingface_images.csv",
        include_str!("../../../data/huggingface_images.csv"),
    )
});

/// Reads the table of images.
pub(crate) fn read_embedded() {
    LazyLock::force(&HUGGING_FACE);
}

/// The image for versions of Transformers and of its framework; a version may leave out its last part.
fn hugging_face(arguments: &Map<String, Value>) -> Option<String> {
    let version = text(arguments, "transformers_version")?;
    let (framework, of_framework) = match text(arguments, "pytorch_version") {
        Some(version) => ("pytorch", version),
        None => ("tensorflow", text(arguments, "tensorflow_version")?),
    };
    let is_of = |whole: &str, asked: &str| {
        whole == asked
            || whole
                .strip_prefix(asked)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    let python = text(arguments, "py_version")?;
    let image = HUGGING_FACE.iter().rev().find(|image| {
        let own = image.framework.strip_prefix(framework);
        is_of(&image.transformers, version)
            && own.is_some_and(|own| is_of(own, of_framework))
            && image.python.split(' ').any(|one| one == python)
    })?;
    let own = image.framework.strip_prefix(framework)?;
    Some(format!(
        "{CONTAINERS}.dkr.ecr.{}.amazonaws.com/{}:{own}-transformers{}-gpu-{python}-{}",
        region(arguments),
        image.repository,
        image.transformers,
        image.end
    ))
}

/// What is missing for an image.
pub(super) fn missing(arguments: &Map<String, Value>) -> String {
    let is_of_hugging_face = arguments.contains_key("transformers_version")
        || text(arguments, "sdk_class").is_some_and(|class| class.contains("huggingface"));
    if is_of_hugging_face {
        return "the SDK has no Hugging Face image for these transformers_version, pytorch_version (or tensorflow_version) and \
                py_version; give image_uri, or versions that go together"
            .to_owned();
    }
    "image_uri (or framework_version and py_version) is missing".to_owned()
}

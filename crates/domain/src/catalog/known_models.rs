//! Models that everybody knows by name, each with its `config.json` (`data/known_models.json`): a shape need not be
//! written for them. An exact name of another model is not guessed.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use crate::embedded;

/// One shape, and the names that it goes by.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownModel {
    /// Repositories on Hugging Face, without what names a fine-tuned variant.
    pub names: Vec<String>,
    /// Parameters of the model built from its configuration.
    pub parameters: u64,
    /// The part of its `config.json` that says its shape.
    pub config: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Models {
    #[expect(dead_code, reason = "documents the table")]
    source: String,
    models: Vec<KnownModel>,
}

static MODELS: LazyLock<Models> = LazyLock::new(|| {
    embedded::json(
        "known_models.json",
        include_str!("../../data/known_models.json"),
    )
});

/// Ends of names that change what a model was trained on, and not its shape.
const VARIANTS: [&str; 10] = [
    "-instruct",
    "-chat",
    "-base",
    "-it",
    "-hf",
    "-4k",
    "-v0.1",
    "-v0.2",
    "-v0.3",
    "-bnb-4bit",
];

/// All of them.
pub fn all() -> &'static [KnownModel] {
    &MODELS.models
}

/// The model of a name: `Qwen/Qwen2.5-7B-Instruct`, or without its owner.
pub fn find(name: &str) -> Option<&'static KnownModel> {
    let wanted = plain(name);
    all()
        .iter()
        .find(|model| model.names.iter().any(|name| plain(name) == wanted))
}

/// A name without its owner and its variant.
fn plain(name: &str) -> String {
    let lower = name.trim().trim_end_matches('/').to_ascii_lowercase();
    let mut bare = lower.rsplit('/').next().unwrap_or_default();
    while let Some(shorter) = VARIANTS.iter().find_map(|end| bare.strip_suffix(end)) {
        bare = shorter;
    }
    bare.replacen("meta-llama-", "llama-", 1)
}

/// Reads the table, so that a mistake ends the program before it does anything.
pub(crate) fn read_embedded() {
    all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::hugging_face::shape;

    #[test]
    fn each_shape_has_the_parameters_of_its_model() {
        for model in all() {
            let read =
                shape(&model.config).unwrap_or_else(|why| panic!("{:?}: {why}", model.names));
            #[expect(clippy::cast_precision_loss, reason = "a count of parameters")]
            let known = model.parameters as f64;
            let off = read.shape.parameters() / known - 1.0;
            assert!(off.abs() < 0.005, "{:?}: {off:+.4}", model.names);
        }
    }

    #[test]
    fn a_variant_has_the_shape_of_its_base_and_no_other() {
        let names = |name| find(name).map(|model| model.names.first().cloned().unwrap_or_default());
        assert_eq!(
            names("Qwen/Qwen2.5-7B-Instruct").as_deref(),
            Some("Qwen/Qwen2.5-7B")
        );
        assert_eq!(
            names("NousResearch/Meta-Llama-3-8B-Instruct").as_deref(),
            Some("meta-llama/Meta-Llama-3-8B")
        );
        assert_eq!(
            names("mistralai/Mistral-7B-v0.3").as_deref(),
            Some("mistralai/Mistral-7B")
        );
        assert_eq!(names("Qwen/Qwen2.5-7B-1M"), None);
        assert_eq!(names("gpt2-xl"), None);
        assert_eq!(names(""), None);
    }
}

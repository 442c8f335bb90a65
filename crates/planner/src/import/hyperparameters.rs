//! What a script is told, under the names that frameworks and people use: batch, accumulation, length, precision.

use std::collections::BTreeMap;

use bakeoff_domain::spec::Precision;
use serde_json::{Map, Value};

use super::material::Material;
use super::trainer_config::{self, Fsdp};
use crate::lint::job::strings;

const MICRO_BATCH: [&str; 7] = [
    "per_device_train_batch_size",
    "micro_batch_size",
    "per_device_batch_size",
    "train_micro_batch_size_per_gpu",
    "batch_size_per_device",
    "batch_size",
    // Hugging Face's scripts for SageMaker hand it to `per_device_train_batch_size`.
    "train_batch_size",
];
const ACCUMULATION: [&str; 3] = [
    "gradient_accumulation_steps",
    "accumulate_grad_batches",
    "grad_accum",
];
const GLOBAL_BATCH: [&str; 2] = ["global_batch_size", "global_batch"];
const SEQUENCE: [&str; 10] = [
    "max_seq_length",
    "max_seq_len",
    "max_length",
    "seq_length",
    "sequence_length",
    "block_size",
    "cutoff_len",
    "sequence_len",
    "seq_len",
    "model_max_length",
];
const LORA: [&str; 4] = ["lora_r", "lora_rank", "peft_r", "lora_dim"];
const MODEL: [&str; 6] = [
    "model_name_or_path",
    "model_id",
    "model_name",
    "hf_model_id",
    "base_model",
    "pretrained_model_name_or_path",
];
const STEPS: [&str; 3] = ["max_steps", "train_iters", "total_steps"];

/// A job's hyperparameters, as its script gets them, and what a configuration file sets beside them.
#[derive(Debug)]
pub(super) struct Hyperparameters<'a> {
    told: BTreeMap<String, String>,
    /// With whose file it is.
    configured: &'a BTreeMap<String, (String, &'static str)>,
}

impl<'a> Hyperparameters<'a> {
    /// The SDK writes each value as JSON.
    pub(super) fn of(material: &'a Material) -> Self {
        let mut told = strings(material.body.get("HyperParameters"));
        for value in told.values_mut() {
            if let Ok(Value::String(text)) = serde_json::from_str(value) {
                *value = text;
            }
        }
        Self {
            told,
            configured: &material.settings,
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        // Scripts of argparse take both.
        let hyphened = || self.told.get(&name.replace('_', "-"));
        let told = self.told.get(name).or_else(hyphened);
        let configured = || self.configured.get(name).map(|(value, _)| value);
        told.or_else(configured).map(String::as_str)
    }

    /// Whose configuration file says that Hugging Face's Trainer trains.
    pub(super) fn trainer(&self) -> Option<&'static str> {
        let mut files = self.configured.values().map(|(_, from)| *from);
        files.find(|from| trainer_config::trains(from))
    }

    /// Where one stands, for people.
    pub(super) fn place(&self, name: &str) -> String {
        match self.configured.get(name) {
            Some((_, from)) if !self.told.contains_key(name) => format!("{name} in {from}"),
            _ if self.told.contains_key(name) => format!("HyperParameters.{name}"),
            _ => format!("HyperParameters.{}", name.replace('_', "-")),
        }
    }

    /// The first of some names that has a count, and that name.
    fn count(&self, names: &[&'static str]) -> Option<(u64, &'static str)> {
        names.iter().find_map(|name| {
            let count: u64 = self.text(name)?.trim().parse().ok()?;
            (count > 0).then_some((count, *name))
        })
    }

    pub(super) fn micro_batch(&self) -> Option<(u64, &'static str)> {
        self.count(&MICRO_BATCH)
    }

    pub(super) fn accumulation(&self) -> Option<(u64, &'static str)> {
        self.count(&ACCUMULATION)
    }

    pub(super) fn global_batch(&self) -> Option<(u64, &'static str)> {
        self.count(&GLOBAL_BATCH)
    }

    pub(super) fn sequence_length(&self) -> Option<(u64, &'static str)> {
        self.count(&SEQUENCE)
    }

    pub(super) fn lora_rank(&self) -> Option<(u64, &'static str)> {
        self.count(&LORA)
    }

    /// Processes of all machines, one for each accelerator.
    pub(super) fn processes(&self) -> Option<u64> {
        self.count(&["num_processes"]).map(|(count, _)| count)
    }

    pub(super) fn steps(&self) -> Option<(u64, &'static str)> {
        self.count(&STEPS)
    }

    /// The name of the model that is trained.
    pub(super) fn model(&self) -> Option<(&str, &'static str)> {
        MODEL
            .iter()
            .find_map(|name| Some((self.text(name)?, *name)))
    }

    /// How the script splits the model's states, if it is told with words of Hugging Face's Trainer.
    pub(super) fn fsdp(&self) -> Option<Fsdp> {
        let words = self.text("fsdp")?;
        Fsdp::of(&Map::from_iter([("fsdp".to_owned(), words.into())]))
    }

    /// DeepSpeed's configuration, where it stands in the argument itself.
    pub(super) fn deepspeed(&self) -> Option<Map<String, Value>> {
        serde_json::from_str(self.text("deepspeed")?).ok()
    }

    fn is_on(&self, name: &str) -> bool {
        let text = self.text(name).unwrap_or_default();
        matches!(text.to_ascii_lowercase().as_str(), "true" | "1" | "yes")
    }

    pub(super) fn checkpoints_activations(&self) -> bool {
        // Unsloth's own, and those that keep activations in the host's memory (Axolotl).
        let kind = self.text("gradient_checkpointing");
        let is_named = matches!(kind, Some("unsloth" | "offload" | "offload_disk"));
        is_named || self.is_on("gradient_checkpointing") || self.is_on("activation_checkpointing")
    }

    /// Bits of the frozen base's weights, by flags of transformers' BitsAndBytesConfig or LLaMA-Factory's own count.
    pub(super) fn base_weight_bits(&self) -> Option<(u64, &'static str)> {
        let flags = [("load_in_4bit", 4), ("load_in_8bit", 8)];
        let flag = flags.into_iter().find(|(name, _)| self.is_on(name));
        let flag = flag.map(|(name, bits)| (bits, name));
        flag.or_else(|| self.count(&["quantization_bit"]))
    }

    pub(super) fn precision(&self) -> Option<(Precision, &'static str)> {
        let flags = [
            ("fp8", Precision::Fp8),
            ("bf16", Precision::Bf16),
            ("fp16", Precision::Fp16),
        ];
        let by_flag = flags.into_iter().find(|(name, _)| self.is_on(name));
        let by_word = || {
            let names = ["mixed_precision", "precision", "torch_dtype", "dtype"];
            names.into_iter().find_map(|name| {
                let text = self.text(name)?.to_ascii_lowercase();
                let of = |words: &[&str]| words.iter().any(|word| text.contains(word));
                let precision = match () {
                    () if of(&["fp8"]) => Precision::Fp8,
                    () if of(&["bf16", "bfloat16"]) => Precision::Bf16,
                    () if of(&["fp16", "float16", "16-mixed"]) => Precision::Fp16,
                    () if of(&["fp32", "float32", "32"]) => Precision::Fp32,
                    () => return None,
                };
                Some((precision, name))
            })
        };
        by_flag
            .map(|(name, precision)| (precision, name))
            .or_else(by_word)
    }

    /// What the script gets beside what the plan sets and what SageMaker's toolkit is told.
    pub(super) fn of_script(&self) -> BTreeMap<String, String> {
        let batches = MICRO_BATCH.iter().chain(&ACCUMULATION).chain(&SEQUENCE);
        let set_by_plan: Vec<&str> = batches
            .chain(&crate::render::request::RESERVED_HYPERPARAMETERS)
            .chain(&crate::render::request::SHAPE_HYPERPARAMETERS)
            .copied()
            .collect();
        let own = self.told.iter().filter(|(name, _)| {
            let is_set = set_by_plan.contains(&name.replace('-', "_").as_str());
            !name.starts_with("sagemaker_") && name.as_str() != "mp_parameters" && !is_set
        });
        own.map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

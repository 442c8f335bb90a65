//! Configuration files of trainers: Axolotl's, LLaMA-Factory's, those of scripts that take Hugging Face's
//! TrainingArguments (TRL, alignment-handbook), and accelerate's. What they set is read as if the script were told it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// What a configuration file sets.
#[derive(Debug, Default)]
pub(super) struct TrainerConfig {
    /// Whose it is: `Axolotl's configuration`.
    pub(super) from: &'static str,
    /// Under the names that scripts are told.
    pub(super) settings: BTreeMap<String, String>,
    /// How the model is split, as DeepSpeed's configuration would say it.
    pub(super) split: Option<Map<String, Value>>,
    pub(super) fsdp: Option<Fsdp>,
    /// What no experiment has a place for, and why.
    pub(super) left_out: Vec<(&'static str, &'static str)>,
}

const AXOLOTL: &str = "Axolotl's configuration";
const LLAMA_FACTORY: &str = "LLaMA-Factory's configuration";
const ARGUMENTS: &str = "its TrainingArguments";
const ACCELERATE: &str = "accelerate's configuration";

const FULL_SHARD: &str = "FULL_SHARD";
const FILE: &str = "the configuration file";
pub(super) const NOT_HERE: &str =
    "the file is not here: send DeepSpeed's configuration as another document";

/// LLaMA-Factory, FinetuningArguments; TRL, ModelConfig.
const LLAMA_FACTORY_RANK: &str = "8";
const TRL_RANK: &str = "16";

/// Whether a file is a trainer's: all of them train with Hugging Face's Trainer.
pub(super) fn trains(from: &str) -> bool {
    [AXOLOTL, LLAMA_FACTORY, ARGUMENTS].contains(&from)
}

impl TrainerConfig {
    /// Reads a document; `None` if it is no such file.
    pub(super) fn of(document: &Value) -> Option<Self> {
        let entries = document.as_object()?;
        let has = |name: &str| entries.contains_key(name);
        let trains = has("gradient_accumulation_steps") || has("learning_rate");
        let from = if has("distributed_type") && (has("num_processes") || has("num_machines")) {
            ACCELERATE
        } else if has("base_model") && (has("micro_batch_size") || has("sequence_len")) {
            AXOLOTL
        } else if has("finetuning_type") && has("model_name_or_path") {
            LLAMA_FACTORY
        } else if has("per_device_train_batch_size") && trains {
            ARGUMENTS
        } else {
            return None;
        };
        let mut config = Self {
            from,
            settings: scalars(document),
            ..Self::default()
        };
        match from {
            ACCELERATE => config.of_accelerate(entries),
            _ => config.of_trainer(entries),
        }
        Some(config)
    }

    /// The same, of the settings that a run has logged.
    pub(super) fn of_run(logged: &Value) -> Option<Self> {
        let mut config = Self::of(logged)?;
        // There is no file to send: the run's script has set these itself.
        config.left_out.retain(|(member, _)| *member != FILE);
        // Not of all devices, as in DeepSpeed, but of one process (TrainingArguments.to_sanitized_dict).
        config.settings.remove("train_batch_size");
        // How long generated texts may be, in configurations of models (PretrainedConfig).
        let generated = |name: &str, value: &str| name == "max_length" && value == "20";
        config
            .settings
            .retain(|name, value| !generated(name, value));
        Some(config)
    }

    fn of_trainer(&mut self, entries: &Map<String, Value>) {
        let is_on = |name: &str| entries.get(name) == Some(&Value::Bool(true));
        self.adapter(entries);
        // Axolotl's `auto` is bf16 where the machine can; LLaMA-Factory's `pure_bf16` keeps no copy in fp32 beside it.
        let is_auto = self.settings.get("bf16").map(String::as_str) == Some("auto");
        if is_auto || is_on("pure_bf16") {
            self.settings.insert("bf16".to_owned(), "true".to_owned());
        }
        self.split = match entries.get("deepspeed") {
            Some(Value::Object(inline)) => Some(inline.clone()),
            Some(Value::String(_)) => {
                self.left_out.push(("deepspeed", NOT_HERE));
                None
            }
            _ => None,
        };
        if self.split.is_none() {
            self.fsdp = Fsdp::of(entries);
        }
        // On unless it is turned off (LLaMA-Factory, ModelArguments).
        if self.from == LLAMA_FACTORY && !is_on("disable_gradient_checkpointing") {
            let own = self.settings.entry("gradient_checkpointing".to_owned());
            own.or_insert_with(|| "true".to_owned());
        }
        self.left_out.push((
            FILE,
            "jobs are not sent it: keep it in the code or the image, and let per_device_train_batch_size and \
             gradient_accumulation_steps, which each candidate is given, override it",
        ));
    }

    /// The figures of an adapter are often written where none is trained, too.
    fn adapter(&mut self, entries: &Map<String, Value>) {
        // What a run of W&B has logged of PEFT, by the adapter's name.
        let logged = entries.get("peft_config").and_then(Value::as_object);
        let mut logged = logged.into_iter().flat_map(Map::values);
        if let Some(rank) = logged.find_map(|one| one.get("r")?.as_u64()) {
            self.settings.insert("lora_r".to_owned(), rank.to_string());
            return;
        }
        let text = |name: &str| entries.get(name).and_then(Value::as_str);
        let (is_trained, rank) = match self.from {
            AXOLOTL => (matches!(text("adapter"), Some("lora" | "qlora")), None),
            LLAMA_FACTORY => (
                text("finetuning_type") == Some("lora"),
                Some(LLAMA_FACTORY_RANK),
            ),
            _ => (
                entries.get("use_peft") == Some(&Value::Bool(true)),
                Some(TRL_RANK),
            ),
        };
        if !is_trained {
            self.settings
                .retain(|name, _| !name.starts_with("lora_") && name != "peft_r");
        } else if let Some(rank) = rank
            && !self.settings.contains_key("lora_r")
        {
            let own = self.settings.entry("lora_rank".to_owned());
            own.or_insert_with(|| rank.to_owned());
        }
    }

    fn of_accelerate(&mut self, entries: &Map<String, Value>) {
        let of = |name: &str| entries.get(name).and_then(Value::as_object);
        let kind = entries.get("distributed_type").and_then(Value::as_str);
        // It writes sections that it does not use, too, often empty.
        match (kind, of("deepspeed_config")) {
            (Some("DEEPSPEED"), Some(deepspeed)) => {
                if deepspeed.contains_key("deepspeed_config_file") {
                    self.left_out.push(("deepspeed_config_file", NOT_HERE));
                } else {
                    self.split = Some(zero_of(deepspeed));
                }
                let steps = "gradient_accumulation_steps";
                let told = deepspeed.get(steps).and_then(Value::as_u64);
                self.settings
                    .extend(told.map(|told| (steps.to_owned(), told.to_string())));
            }
            (Some("FSDP"), _) => self.fsdp = Fsdp::of(entries),
            (Some("MEGATRON_LM"), _) => self.left_out.push((
                "megatron_lm_config",
                "give each profile its tensor_parallel_degree and pipeline_parallel_degree",
            )),
            _ => {}
        }
        let fsdp = of("fsdp_config");
        let saves = fsdp.and_then(|fsdp| fsdp.get("fsdp_activation_checkpointing"));
        if saves == Some(&Value::Bool(true)) {
            let checkpointing = "gradient_checkpointing".to_owned();
            self.settings.insert(checkpointing, "true".to_owned());
        }
    }
}

/// The estimator's arguments that `accelerate launch` starts a job with, where its configuration is one for
/// SageMaker (accelerate, `utils/launch.py: prepare_sagemager_args_inputs`).
pub(super) fn launched_by_accelerate(document: &Value) -> Option<Map<String, Value>> {
    let entries = document.as_object()?;
    let environment = entries.get("compute_environment")?.as_str()?;
    let names = [
        ("image_uri", "image_uri"),
        ("iam_role_name", "role"),
        ("ec2_instance_type", "instance_type"),
        ("num_machines", "instance_count"),
        ("base_job_name", "base_job_name"),
        ("region", "region"),
        ("py_version", "py_version"),
        ("pytorch_version", "pytorch_version"),
        ("transformers_version", "transformers_version"),
    ];
    let told = names
        .into_iter()
        .filter_map(|(own, argument)| Some((argument.to_owned(), entries.get(own)?.clone())));
    // The script stands on its command line.
    let class = (
        "sdk_class".to_owned(),
        Value::from("sagemaker.estimator.Estimator"),
    );
    (environment == "AMAZON_SAGEMAKER").then(|| told.chain([class]).collect())
}

/// accelerate's words for ZeRO in DeepSpeed's own.
fn zero_of(deepspeed: &Map<String, Value>) -> Map<String, Value> {
    let mut zero = Map::new();
    let stage = deepspeed.get("zero_stage");
    zero.extend(stage.map(|stage| ("stage".to_owned(), stage.clone())));
    for part in ["optimizer", "param"] {
        let device = deepspeed.get(&format!("offload_{part}_device"));
        let device = device.and_then(Value::as_str);
        if let Some(device) = device.filter(|device| *device != "none") {
            zero.insert(format!("offload_{part}"), json!({"device": device}));
        }
    }
    Map::from_iter([("zero_optimization".to_owned(), zero.into())])
}

/// The members that are one value, as a script is told them.
pub(super) fn scalars(document: &Value) -> BTreeMap<String, String> {
    let entries = document.as_object().into_iter().flatten();
    let told = entries.filter_map(|(name, value)| {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        Some((name.clone(), text))
    });
    told.collect()
}

/// How PyTorch's FSDP splits a model's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fsdp {
    /// Of ZeRO, which splits the same: 3 all of it, 2 all but the weights.
    pub(super) zero_stage: u8,
    /// Within each machine only.
    pub(super) is_hybrid: bool,
    /// Whether the states are in the host's memory.
    pub(super) is_offloaded: bool,
}

impl Fsdp {
    /// By the words and numbers of PyTorch's ShardingStrategy; of FSDP's second version, by `reshard_after_forward`.
    /// `None` where nothing is split.
    pub(super) fn of(entries: &Map<String, Value>) -> Option<Self> {
        let config = entries.get("fsdp_config").and_then(Value::as_object);
        let of_config = |names: &[&str]| {
            let found = names.iter().find_map(|name| config?.get(*name));
            found.map(|value| match value {
                Value::String(text) => text.to_ascii_uppercase(),
                other => other.to_string().to_ascii_uppercase(),
            })
        };
        let words = match entries.get("fsdp") {
            Some(Value::String(text)) => text.to_ascii_uppercase(),
            Some(Value::Array(words)) => json!(words).to_string().to_ascii_uppercase(),
            // Transformers, training_args.py: True is full_shard.
            Some(Value::Bool(true)) => FULL_SHARD.to_owned(),
            _ => String::new(),
        };
        let strategy = of_config(&["fsdp_sharding_strategy", "sharding_strategy"]);
        let reshards = of_config(&["fsdp_reshard_after_forward", "reshard_after_forward"]);
        let offloads = of_config(&["fsdp_offload_params", "offload_params"]);
        let is_offloaded = offloads.as_deref() == Some("TRUE") || words.contains("OFFLOAD");
        let told = strategy
            .or(reshards)
            .or_else(|| (!words.is_empty()).then_some(words))
            .or_else(|| is_plain(entries).then(|| FULL_SHARD.to_owned()))?;
        Some(Self {
            zero_stage: stage(&told)?,
            is_hybrid: matches!(told.as_str(), "4" | "5") || told.contains("HYBRID_SHARD"),
            is_offloaded,
        })
    }
}

/// FSDP without a word of how: accelerate's plugin shards everything, and so does the second version.
fn is_plain(entries: &Map<String, Value>) -> bool {
    let config = entries.get("fsdp_config").and_then(Value::as_object);
    let of = |name: &str| entries.get(name).or_else(|| config?.get(name));
    let is_second = of("fsdp_version")
        .is_some_and(|version| version.as_u64() == Some(2) || version.as_str() == Some("2"));
    is_second || entries.get("distributed_type") == Some(&json!("FSDP"))
}

fn stage(strategy: &str) -> Option<u8> {
    let has = |word: &str| strategy.contains(word);
    match strategy {
        "1" | "4" | "TRUE" => Some(3),
        "2" | "5" | "FALSE" => Some(2),
        _ if has("HYBRID_SHARD_ZERO2") || has("SHARD_GRAD_OP") => Some(2),
        _ if has("FULL_SHARD") || has("HYBRID_SHARD") => Some(3),
        _ => None,
    }
}

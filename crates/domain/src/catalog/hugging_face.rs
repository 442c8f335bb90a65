//! A model's `config.json`, as Hugging Face's Transformers writes it, read into a [`ModelShape`]. Names and
//! defaults follow the configuration classes of Transformers 4.57 (`configuration_<model>.py`).

use serde_json::{Map, Value};

use super::model::ModelShape;

/// A shape that was read, and what a reader should know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShapeRead {
    pub shape: ModelShape,
    pub notes: Vec<String>,
}

const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const HIDDEN: [&str; 4] = ["hidden_size", "n_embd", "d_model", "dim"];
const HEADS: [&str; 4] = ["num_attention_heads", "n_head", "n_heads", "num_heads"];
const KV_HEADS: [&str; 6] = [
    // Of DBRX and MPT, in their attention's own configuration.
    "kv_n_heads",
    "num_key_value_heads",
    "n_head_kv",
    "num_kv_heads",
    "n_kv_heads",
    // ChatGLM.
    "multi_query_group_num",
];
const INTERMEDIATE: [&str; 6] = [
    "intermediate_size",
    "n_inner",
    "ffn_hidden_size",
    "ffn_dim",
    "d_ff",
    "d_inner",
];
const EXPERTS: [&str; 4] = [
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
];
const PER_TOKEN: [&str; 7] = [
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_top_k",
    "moe_topk",
    // ERNIE, GPT-OSS and Gemma 4.
    "moe_k",
    "experts_per_token",
    "top_k_experts",
];
const EXPERT_WIDTH: &str = "moe_intermediate_size";
const VOCABULARY: [&str; 2] = ["vocab_size", "padded_vocab_size"];
const SEQUENCE: [&str; 5] = [
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "seq_length",
];

/// Families whose MLP is two matrices; all others have a gate.
const PLAIN: [&str; 15] = [
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "gpt_bigcode",
    "codegen",
    "opt",
    "bloom",
    "mpt",
    "falcon",
    "phi",
    "starcoder2",
    "persimmon",
    "nemotron",
    "xglm",
];
/// Families that share input and output embeddings unless they say otherwise.
const TIED: [&str; 16] = [
    "gpt2",
    "gpt_neo",
    "gpt_bigcode",
    "opt",
    "bloom",
    "mpt",
    "falcon",
    "starcoder2",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "cohere",
    "cohere2",
    "xglm",
    "ctrl",
];
/// Families that are no decoders.
const OTHERS: [&str; 24] = [
    "bert",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "albert",
    "deberta",
    "deberta-v2",
    "electra",
    "modernbert",
    "t5",
    "mt5",
    "bart",
    "mbart",
    "pegasus",
    "whisper",
    "vit",
    "swin",
    "clip",
    "wav2vec2",
    "hubert",
    "m2m_100",
    "marian",
    "longt5",
    "umt5",
];

/// Whether an object looks like a `config.json`: it has at least two of its names.
pub fn is_config(config: &Value) -> bool {
    let Some(entries) = config.as_object() else {
        return false;
    };
    let names = [
        "architectures",
        "model_type",
        "transformers_version",
        "text_config",
    ];
    let own = [
        &LAYERS[..2],
        &HIDDEN[..2],
        &HEADS[..2],
        &VOCABULARY[..1],
        &names,
    ]
    .concat();
    own.iter()
        .filter(|name| entries.contains_key(**name))
        .count()
        >= 2
}

fn number(config: &Map<String, Value>, names: &[&str]) -> Option<u32> {
    let mut found = names.iter().filter_map(|name| one(config.get(*name)?));
    found.next().and_then(|number| u32::try_from(number).ok())
}

/// A number, or the one that a list has for every layer.
fn one(value: &Value) -> Option<u64> {
    match value {
        Value::Array(of_layers) => {
            let (first, others) = of_layers.split_first()?;
            others
                .iter()
                .all(|other| other == first)
                .then(|| first.as_u64())?
        }
        value => value.as_u64(),
    }
}

/// Adds what DBRX and MPT keep in nested configurations of attention and experts to the other members.
fn flat(config: &Map<String, Value>) -> Map<String, Value> {
    let mut flat = config.clone();
    for own in ["attn_config", "ffn_config"] {
        let inner = config.get(own).and_then(Value::as_object);
        for (name, value) in inner.into_iter().flatten() {
            flat.entry(name).or_insert_with(|| value.clone());
        }
    }
    flat
}

/// Reads the shape of a decoder; an error says why it is none that can be described, and what to do.
///
/// # Errors
/// If the model is no decoder, or one that layers alone do not describe.
pub fn shape(config: &Value) -> Result<ShapeRead, String> {
    let whole = config.as_object().ok_or("a config.json is an object")?;
    let inner = whole.get("text_config").and_then(Value::as_object);
    let mut notes = Vec::new();
    if inner.is_some() {
        notes.push("only its language model (text_config) is read: the encoder of images or sound is not counted".to_owned());
    } else if whole.contains_key("vision_config") || whole.contains_key("audio_config") {
        notes.push(
            "only its language model is read: the encoder of images or sound is not counted"
                .to_owned(),
        );
    }
    let config = &flat(inner.unwrap_or(whole));
    let family = config
        .get("model_type")
        .or_else(|| whole.get("model_type"))
        .and_then(Value::as_str)
        .unwrap_or_default();
    decoder(config, family)?;
    let needs = |names: &[&str]| {
        let found = number(config, names).filter(|number| *number > 0);
        found.ok_or_else(|| {
            match names
                .iter()
                .find_map(|name| Some((name, config.get(*name)?)))
            {
                Some((name, value)) => {
                    format!("its {name} is {value}, and a whole number above 0 is needed")
                }
                None => format!("it has no {}", names.join(" or ")),
            }
        })
    };
    let (layers, hidden, heads) = (needs(&LAYERS)?, needs(&HIDDEN)?, needs(&HEADS)?);
    let mut shape = ModelShape {
        layers,
        hidden,
        heads,
        vocabulary: needs(&VOCABULARY)?,
        kv_heads: one_kv_head(config, family).or_else(|| number(config, &KV_HEADS)),
        head_dim: number(config, &["head_dim"])
            .filter(|width| width.checked_mul(heads) != Some(hidden)),
        tied_embeddings: config
            .get("tie_word_embeddings")
            .or_else(|| whole.get("tie_word_embeddings"))
            .and_then(Value::as_bool)
            .unwrap_or(TIED.contains(&family)),
        ..ModelShape::default()
    };
    if classifies(whole) {
        shape.tied_embeddings = true;
        notes.push("it classifies: it has no matrix from its last layer to the vocabulary, and none is counted".to_owned());
    }
    mlp(config, family, &mut shape)?;
    experts(config, family, &mut shape, &mut notes)?;
    // Beside its configuration, a model may say what is trained of it.
    shape.lora_rank = number(whole, &["lora_rank"]);
    shape.sequence_length = number(whole, &["sequence_length"]).unwrap_or(0);
    let longest = number(config, &SEQUENCE);
    if shape.sequence_length == 0 {
        shape.sequence_length = longest.unwrap_or(0);
        notes.push(longest.map_or_else(
            || "it names no length of sequences: add the \"sequence_length\" that you train with".to_owned(),
            |longest| format!("it takes sequences of up to {longest} tokens: add the \"sequence_length\" that you train with"),
        ));
    }
    Ok(ShapeRead { shape, notes })
}

/// Whether layers describe the model.
fn decoder(config: &Map<String, Value>, family: &str) -> Result<(), String> {
    let is_two_part = config.get("is_encoder_decoder") == Some(&Value::Bool(true));
    if is_two_part || OTHERS.contains(&family) {
        return Err(format!(
            "{} is no decoder: describe it by \"total_parameters\" alone, and it is measured and compared; nothing is predicted for it",
            if family.is_empty() {
                "an encoder-decoder"
            } else {
                family
            }
        ));
    }
    let has = |name: &str| {
        let value = config.get(name);
        value.is_some_and(|value| !value.is_null() && value.as_u64() != Some(0))
    };
    if has("kv_lora_rank") {
        return Err(format!(
            "{family} has latent attention (kv_lora_rank), which layers and heads do not describe: give \"total_parameters\" alone"
        ));
    }
    for (names, what) in NOT_DESCRIBED {
        if names.iter().any(|name| has(name)) {
            return Err(format!(
                "{family} has {what}, which are not described here: give \"total_parameters\" alone"
            ));
        }
    }
    alike(config, family)
}

/// Whether one layer stands for all.
fn alike(config: &Map<String, Value>, family: &str) -> Result<(), String> {
    let is_of_layers = |name: &&str| config.get(*name).is_some_and(Value::is_array);
    let differs = |name: &&str| is_of_layers(name) && number(config, &[*name]).is_none();
    let width = [EXPERT_WIDTH];
    let by_layer = [
        &INTERMEDIATE[..],
        &EXPERTS,
        &width,
        &PER_TOKEN,
        &KV_HEADS,
        &HEADS,
    ]
    .concat();
    let steps = ["interleave_moe_layer_step", "decoder_sparse_step"];
    let is_sparse = steps
        .into_iter()
        .find(|name| number(config, &[*name]).is_some_and(|step| step > 1));
    if let Some(name) = by_layer.into_iter().find(differs).or(is_sparse) {
        return Err(format!(
            "{family} has layers that differ ({name}), and one layer stands for all here: give \"total_parameters\" alone"
        ));
    }
    Ok(())
}

/// Members that only models have whose layers are something else, too, and what that is.
const NOT_DESCRIBED: [(&[&str], &str); 6] = [
    (
        &["state_size", "mamba_d_state", "ssm_cfg", "mamba_num_heads"],
        "state-space layers",
    ),
    (
        &["linear_num_value_heads", "lru_width"],
        "layers of linear attention",
    ),
    (&["conv_L_cache"], "convolutions (conv_L_cache)"),
    (
        &["global_head_dim", "num_global_key_value_heads"],
        "layers of two kinds (global_head_dim)",
    ),
    (&["block_configs"], "layers that differ (block_configs)"),
    (
        &["hidden_size_per_layer_input"],
        "embeddings of each layer (hidden_size_per_layer_input)",
    ),
];

/// Whether a head of classes stands where a language model has one of words.
fn classifies(whole: &Map<String, Value>) -> bool {
    let names = whole.get("architectures").and_then(Value::as_array);
    names.into_iter().flatten().any(|name| {
        let name = name.as_str().unwrap_or_default();
        name.ends_with("ForSequenceClassification") || name.ends_with("ForTokenClassification")
    })
}

/// Falcon's and StarCoder's way to say that all heads share one key and value; it goes before a number of
/// heads, which Falcon uses in its newer architecture only.
fn one_kv_head(config: &Map<String, Value>, family: &str) -> Option<u32> {
    let is_on = |name: &str| config.get(name).and_then(Value::as_bool);
    let is_shared = is_on("multi_query").unwrap_or(family == "gpt_bigcode");
    (is_shared && is_on("new_decoder_architecture") != Some(true)).then_some(1)
}

/// QWen's first models say the width of both halves of the gated MLP (`modeling_qwen.py`: `intermediate_size // 2`).
const BOTH_HALVES: &str = "qwen";

fn mlp(config: &Map<String, Value>, family: &str, shape: &mut ModelShape) -> Result<(), String> {
    let of_expert = number(config, &[EXPERT_WIDTH]);
    let has_experts = number(config, &EXPERTS).is_some_and(|count| count > 1);
    let width = of_expert
        .filter(|_| has_experts)
        .or_else(|| number(config, &INTERMEDIATE));
    let is_four_wide = width.is_none_or(|width| shape.hidden.checked_mul(4) == Some(width));
    if PLAIN.contains(&family) {
        // GPT-2's way is the default of a shape.
        if !is_four_wide || shape.kv_heads.is_some_and(|heads| heads != shape.heads) {
            shape.intermediate = width.or_else(|| shape.hidden.checked_mul(4));
            shape.gated_mlp = Some(false);
        }
    } else {
        let width = width.ok_or_else(|| format!("it has no {}", INTERMEDIATE.join(" or ")))?;
        shape.intermediate = Some(if family == BOTH_HALVES {
            width / 2
        } else {
            width
        });
        shape.gated_mlp = Some(true);
    }
    Ok(())
}

fn experts(
    config: &Map<String, Value>,
    family: &str,
    shape: &mut ModelShape,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let Some(experts) = number(config, &EXPERTS).filter(|count| *count > 1) else {
        return Ok(());
    };
    let mut per_token = number(config, &PER_TOKEN).ok_or_else(|| {
        format!("it does not say how many of its {experts} experts a token is sent to (num_experts_per_tok)")
    })?;
    let mut held = experts;
    // A shared expert is one that every token passes through, beside those that it is sent to.
    let names = [
        "n_shared_experts",
        "num_shared_experts",
        "moe_num_shared_experts",
        // Hunyuan.
        "num_shared_expert",
    ];
    let shared = number(config, &names).or_else(|| {
        let width = number(config, &["shared_expert_intermediate_size"])?;
        width.checked_div(shape.intermediate?)
    });
    // Llama 4 has one in each layer with experts, and does not say so (Llama4TextMoe).
    let shared = shared.or_else(|| family.starts_with("llama4").then_some(1));
    if let Some(shared) = shared {
        held = held.saturating_add(shared);
        per_token = per_token.saturating_add(shared);
        if shared > 0 {
            let are = if shared == 1 {
                "expert is"
            } else {
                "experts are"
            };
            notes.push(format!(
                "{shared} shared {are} counted among the experts and among those of each token"
            ));
        }
    }
    let dense = ["first_k_dense_replace", "moe_layer_start_index"];
    if number(config, &dense).is_some_and(|dense| dense > 0) {
        notes.push("its first layers have no experts, and are counted as if they had".to_owned());
    }
    shape.experts = Some(held);
    shape.experts_per_token = Some(per_token);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mixture_of_experts_is_read() {
        let read = shape(&json!({
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
            "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151_936,
            "max_position_embeddings": 40_960, "tie_word_embeddings": false
        }))
        .unwrap();
        // Qwen3-30B-A3B: 30.5 billion parameters, 3.3 of them for each token.
        let billions = read.shape.parameters() / 1e9;
        assert!((billions / 30.53 - 1.0).abs() < 0.01, "{billions}");
        let active = read.shape.active_parameters() / 1e9;
        assert!((active / 3.35 - 1.0).abs() < 0.03, "{active}");
        assert_eq!(read.shape.sequence_length, 40_960);
    }

    /// DBRX says its experts and key-value heads in configurations of their own: 132 billion parameters, 36 for a token.
    #[test]
    fn experts_in_a_configuration_of_their_own_are_read() {
        let read = shape(&json!({
            "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100_352, "max_seq_len": 32_768,
            "tie_word_embeddings": false, "attn_config": {"kv_n_heads": 8},
            "ffn_config": {"ffn_hidden_size": 10_752, "moe_num_experts": 16, "moe_top_k": 4}
        }))
        .unwrap();
        let billions = read.shape.parameters() / 1e9;
        assert!((billions / 131.6 - 1.0).abs() < 0.01, "{billions}");
        let active = read.shape.active_parameters() / 1e9;
        assert!((active / 36.5 - 1.0).abs() < 0.03, "{active}");
    }

    /// Billions of parameters, as the models' cards have them, and of each token.
    #[test]
    fn each_familys_own_ways_are_known() {
        let scout = json!({"model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
            "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "vocab_size": 202_048,
            "tie_word_embeddings": false});
        let hunyuan = json!({"model_type": "hunyuan", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 3072, "moe_intermediate_size": vec![3072; 32], "num_experts": 64,
            "moe_topk": vec![8; 32], "num_shared_expert": vec![1; 32], "vocab_size": 128_167, "tie_word_embeddings": true});
        let glm = json!({"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "num_attention_heads": 32,
            "multi_query_attention": true, "multi_query_group_num": 2, "ffn_hidden_size": 13_696, "padded_vocab_size": 65_024});
        let qwen = json!({"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "intermediate_size": 22_016, "vocab_size": 151_936});
        let classifier = json!({"architectures": ["LlamaForSequenceClassification"], "model_type": "llama", "hidden_size": 4096,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336,
            "vocab_size": 128_256, "tie_word_embeddings": false});
        for (config, billions, of_token) in [
            (scout, 107.77, 17.0),
            (hunyuan, 80.4, 13.0),
            (glm, 6.24, 6.24),
            (qwen, 7.72, 7.72),
            (classifier, 7.50, 7.50),
        ] {
            let shape = shape(&config).unwrap().shape;
            let (all, active) = (shape.parameters() / 1e9, shape.active_parameters() / 1e9);
            assert!((all / billions - 1.0).abs() < 0.01, "{all} {config}");
            assert!((active / of_token - 1.0).abs() < 0.05, "{active} {config}");
        }
    }

    #[test]
    fn what_layers_do_not_describe_is_said() {
        for (config, why) in [
            (
                json!({"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12}),
                "no decoder",
            ),
            (
                json!({"model_type": "deepseek_v3", "hidden_size": 7168, "kv_lora_rank": 512}),
                "latent attention",
            ),
            (
                json!({"model_type": "llama", "hidden_size": 7168}),
                "num_hidden_layers",
            ),
            (
                json!({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": "32"}),
                "num_hidden_layers is \"32\"",
            ),
            (
                json!({"model_type": "llama4_text", "hidden_size": 5120, "interleave_moe_layer_step": 2}),
                "interleave_moe_layer_step",
            ),
            (
                json!({"model_type": "gemma3n_text", "hidden_size": 2048, "intermediate_size": [16384, 8192]}),
                "intermediate_size",
            ),
            (
                json!({"model_type": "ernie4_5_vl_moe", "hidden_size": 2560, "moe_num_experts": [64, 64], "moe_intermediate_size": [1536, 512],
                    "moe_k": 6, "intermediate_size": 12_288}),
                "moe_intermediate_size",
            ),
            (
                json!({"model_type": "gemma4_text", "hidden_size": 2560, "hidden_size_per_layer_input": 0, "global_head_dim": 512}),
                "two kinds",
            ),
            (
                json!({"model_type": "nemotron-nas", "hidden_size": 8192, "block_configs": [{}]}),
                "block_configs",
            ),
            (
                json!({"model_type": "x", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}),
                "no intermediate_size",
            ),
            (
                json!({"model_type": "x", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
                    "intermediate_size": 256, "num_experts": 8}),
                "8 experts",
            ),
        ] {
            let error = shape(&config).unwrap_err();
            assert!(error.contains(why), "{error}");
            assert!(is_config(&config));
        }
        assert!(!is_config(&json!({"layers": 28, "hidden": 3584})));
    }
}

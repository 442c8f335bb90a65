//! Schemas of our own documents, as the API describes them: which fields there are, which are missing, and
//! what those are that nobody knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bakeoff_domain::finding::{Finding, Operation, escaped, nearest};
use bakeoff_planner::rules::found;
use serde_ignored::Path as Ignored;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Maximum number of missing fields reported.
const MISSING_MAX: usize = 50;
/// How deep an example goes.
const EXAMPLE_DEPTH: usize = 3;

/// Examples of fields that a type alone says little of, as JSON.
const EXAMPLES: [(&str, &str); 14] = [
    ("name", r#""qwen-7b-2026-11""#),
    ("instance_type", r#""ml.p5.48xlarge""#),
    ("budget_usd", "500"),
    ("max_runtime_seconds", "14400"),
    ("region", r#""us-east-1""#),
    (
        "image",
        r#""111122223333.dkr.ecr.us-east-1.amazonaws.com/train:1""#,
    ),
    ("role_arn", r#""arn:aws:iam::111122223333:role/train""#),
    ("s3_uri", r#""s3://bucket/prefix""#),
    ("output_s3_uri", r#""s3://bucket/out""#),
    ("total_tokens", "1000000000"),
    ("trial_tokens", "20000000"),
    ("micro_batch_per_gpu", "2"),
    ("gradient_accumulation_steps", "4"),
    ("objective", r#"{"minimize": "cost"}"#),
];

/// What other programs call a field, what it is called here (nothing: it is not set here), and what to do if
/// it is not only renamed.
const OTHER_NAMES: [(&str, &str, &str); 16] = [
    ("batch_size_per_gpu", "micro_batch_per_gpu", ""),
    ("per_device_train_batch_size", "micro_batch_per_gpu", ""),
    ("train_micro_batch_size_per_gpu", "micro_batch_per_gpu", ""),
    ("micro_batch_size", "micro_batch_per_gpu", ""),
    ("grad_accum_steps", "gradient_accumulation_steps", ""),
    ("gradient_checkpointing", "activation_checkpointing", ""),
    (
        "deepspeed_config",
        "deepspeed",
        "put the settings of that file into \"deepspeed\"; `bakeoff lint FILE` says which are a profile's own",
    ),
    (
        "gpu_count",
        "",
        "leave it out: the catalog knows how many accelerators a type has",
    ),
    (
        "gpu_memory",
        "",
        "leave it out: the catalog knows the memory of a type's accelerators",
    ),
    (
        "num_gpus",
        "",
        "leave it out: the catalog knows how many accelerators a type has",
    ),
    ("num_hidden_layers", "layers", ""),
    ("hidden_size", "hidden", ""),
    ("num_attention_heads", "heads", ""),
    ("num_key_value_heads", "kv_heads", ""),
    ("intermediate_size", "intermediate", ""),
    ("vocab_size", "vocabulary", ""),
];

fn pointer(path: &Ignored<'_>) -> String {
    match path {
        Ignored::Root => String::new(),
        Ignored::Seq { parent, index } => format!("{}/{index}", pointer(parent)),
        Ignored::Map { parent, key } => format!("{}/{}", pointer(parent), escaped(key)),
        Ignored::Some { parent }
        | Ignored::NewtypeStruct { parent }
        | Ignored::NewtypeVariant { parent } => pointer(parent),
    }
}

/// What a JSON pointer names: all after its last slash.
fn last_member(pointer: &str) -> &str {
    pointer.rsplit_once('/').map_or(pointer, |(_, last)| last)
}

/// The schemas of a document type and of the types it uses, as the API describes them.
pub(super) struct Schemas {
    by_name: Map<String, Value>,
    /// Every property name, for "did you mean" suggestions.
    fields: Vec<String>,
}

impl Schemas {
    /// Computed once per type: for a big type it takes milliseconds.
    pub(super) fn of<T: ToSchema>() -> Arc<Self> {
        static KNOWN: Mutex<BTreeMap<String, Arc<Schemas>>> = Mutex::new(BTreeMap::new());
        let name = T::name().into_owned();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let schemas = known
            .entry(name.clone())
            .or_insert_with(|| Arc::new(Self::describe::<T>(name)));
        Arc::clone(schemas)
    }

    fn describe<T: ToSchema>(name: String) -> Self {
        let mut all = vec![(name, T::schema())];
        T::schemas(&mut all);
        let by_name: Map<String, Value> = all
            .into_iter()
            .map(|(name, schema)| (name, serde_json::json!(schema)))
            .collect();
        let properties = by_name
            .values()
            .filter_map(|schema| schema.get("properties")?.as_object())
            .flatten();
        let fields = properties.map(|(name, _)| name.clone()).collect();
        Self { by_name, fields }
    }

    /// The named schema; null if the type is not part of the document.
    pub(super) fn named(&self, name: &str) -> &Value {
        self.by_name.get(name).unwrap_or(&Value::Null)
    }

    /// Finds required fields that a document lacks, at every depth.
    pub(super) fn find_missing(
        &self,
        schema: &Value,
        json: &Value,
        pointer: String,
        missing: &mut Vec<Finding>,
    ) {
        if missing.len() >= MISSING_MAX {
            return;
        }
        if let Some(name) = schema["$ref"].as_str() {
            return self.find_missing(self.named(last_member(name)), json, pointer, missing);
        }
        if let Some(parts) = schema["allOf"].as_array() {
            return parts
                .iter()
                .for_each(|part| self.find_missing(part, json, pointer.clone(), missing));
        }
        // Leave a choice between alternatives to serde, unless all others are null: then the field
        // is merely optional, and is checked here.
        let choices = schema["oneOf"].as_array().into_iter().flatten();
        if let [one] = choices
            .filter(|choice| choice["type"] != "null")
            .collect::<Vec<_>>()
            .as_slice()
        {
            return self.find_missing(one, json, pointer, missing);
        }
        match json {
            Value::Object(members) => {
                let required = schema["required"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str);
                let absent = required.filter(|name| !members.contains_key(*name));
                missing.extend(absent.map(|name| self.missing(schema, &pointer, name)));
                for (name, member) in members {
                    let below = schema["properties"]
                        .get(name)
                        .unwrap_or(&schema["additionalProperties"]);
                    self.find_missing(
                        below,
                        member,
                        format!("{pointer}/{}", escaped(name)),
                        missing,
                    );
                }
            }
            Value::Array(items) => {
                for (place, item) in items.iter().enumerate() {
                    self.find_missing(
                        &schema["items"],
                        item,
                        format!("{pointer}/{place}"),
                        missing,
                    );
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    pub(super) fn unknown_field(&self, json: &Value, place: &Ignored<'_>) -> Finding {
        let pointer = pointer(place);
        let name = last_member(&pointer).to_owned();
        if let Some(finding) = self.by_another_name(json, &pointer, &name) {
            return finding;
        }
        // Do not suggest the name itself, which may be a field elsewhere.
        let near = nearest(
            &name,
            self.fields
                .iter()
                .map(String::as_str)
                .filter(|field| *field != name),
            2,
        );
        let fix = if near.is_empty() {
            "remove it".to_owned()
        } else {
            format!("did you mean {}?", near.join(" or "))
        };
        found("unknown-field", pointer)
            .says(format!("unknown field `{name}`"))
            .fix(fix)
    }

    /// A field that other programs call otherwise, with a patch that renames it where the right one is
    /// not there.
    fn by_another_name(&self, json: &Value, pointer: &str, name: &str) -> Option<Finding> {
        let (_, meant, why) = OTHER_NAMES.iter().find(|(other, _, _)| *other == name)?;
        let finding = found("unknown-field", pointer).says(format!("unknown field `{name}`"));
        let (above, _) = pointer.rsplit_once('/')?;
        if meant.is_empty() {
            return Some(finding.fix(*why).patch(vec![Operation::remove(pointer)]));
        }
        if !self.fields.iter().any(|field| field == meant) {
            return None;
        }
        let target = format!("{above}/{meant}");
        let value = json.pointer(pointer)?.clone();
        let is_free = json.pointer(&target).is_none() && why.is_empty();
        let patch = vec![Operation::remove(pointer), Operation::set(&target, value)];
        let fix = if why.is_empty() {
            format!("it is called {meant} here")
        } else {
            (*why).to_owned()
        };
        Some(
            finding
                .fix(fix)
                .patch(if is_free { patch } else { Vec::new() }),
        )
    }

    /// A field that is not there, with an example of it.
    pub(super) fn missing(&self, schema: &Value, above: &str, name: &str) -> Finding {
        let example = self.example(property(schema, name), name, 0);
        found("type", format!("{above}/{}", escaped(name)))
            .says(format!("missing field `{name}`"))
            .fix(format!("add \"{name}\": {example}"))
    }

    /// The schema of the object at a pointer of a document.
    pub(super) fn at<'a>(&'a self, root: &'a Value, pointer: &str) -> &'a Value {
        pointer
            .split('/')
            .skip(1)
            .fold(self.whole(root), |schema, segment| {
                let below = match schema["properties"].get(segment) {
                    Some(property) => property,
                    None if schema["items"].is_object() => &schema["items"],
                    None => &schema["additionalProperties"],
                };
                self.whole(below)
            })
    }

    /// A schema behind references, and behind the choice of null.
    fn whole<'a>(&'a self, schema: &'a Value) -> &'a Value {
        if let Some(name) = schema["$ref"].as_str() {
            return self.whole(self.named(last_member(name)));
        }
        let choices = ["oneOf", "allOf"]
            .into_iter()
            .find_map(|key| schema[key].as_array());
        let mut choices = choices
            .into_iter()
            .flatten()
            .filter(|one| one["type"] != "null");
        match (choices.next(), choices.next()) {
            (Some(one), None) => self.whole(one),
            _ => schema,
        }
    }

    /// A value that a schema takes.
    fn example(&self, schema: &Value, name: &str, depth: usize) -> Value {
        let schema = self.whole(schema);
        if let Some((_, example)) = EXAMPLES.iter().find(|(known, _)| *known == name) {
            return serde_json::from_str(example).unwrap_or_default();
        }
        if let Some(first) = schema["enum"].get(0) {
            return first.clone();
        }
        let kinds = schema["type"].as_array();
        let kind = kinds.map_or_else(
            || schema["type"].as_str(),
            |all| {
                all.iter()
                    .filter_map(Value::as_str)
                    .find(|kind| *kind != "null")
            },
        );
        match kind {
            Some("integer" | "number") => {
                Value::from(schema["minimum"].as_u64().unwrap_or(1).max(1))
            }
            Some("boolean") => true.into(),
            Some("array") if depth < EXAMPLE_DEPTH => {
                Value::Array(vec![self.example(&schema["items"], "", depth + 1)])
            }
            Some("string") => "…".into(),
            _ if depth < EXAMPLE_DEPTH => {
                let required = schema["required"].as_array().into_iter().flatten();
                let members = required.filter_map(Value::as_str).map(|name| {
                    let value = self.example(property(schema, name), name, depth + 1);
                    (name.to_owned(), value)
                });
                Value::Object(members.collect())
            }
            _ => Value::Object(Map::new()),
        }
    }
}

/// The schema of a field; null if there is none.
fn property<'a>(schema: &'a Value, name: &str) -> &'a Value {
    schema["properties"].get(name).unwrap_or(&Value::Null)
}

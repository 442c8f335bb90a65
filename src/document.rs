//! Parses documents: JSON into a type, reporting everything that does not fit as findings with
//! pointers. Used by handlers and by the command line; the linter checks the values themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bakeoff_domain::finding::{Finding, capped, escaped, nearest};
use bakeoff_domain::money::price::Price;
use bakeoff_planner::lint::rules::found;
use bakeoff_planner::lint::{self, Document, Kind};
use serde::de::DeserializeOwned;
use serde_ignored::Path as Ignored;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Maximum number of unknown fields reported: finding suggestions for each takes time.
const UNKNOWN_MAX: usize = 20;
/// Maximum number of missing fields reported.
const MISSING_MAX: usize = 50;

/// Returns the value, or the finding that prevents parsing it; and the other findings: unknown
/// fields, and further missing ones.
pub fn read<T: DeserializeOwned + ToSchema>(json: &Value) -> (Result<T, Finding>, Vec<Finding>) {
    let schemas = Schemas::of::<T>();
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(json, &mut track);
    let mut more = 0_usize;
    let parsed = serde_ignored::deserialize(deserializer, |path| {
        if unknown.len() < UNKNOWN_MAX {
            unknown.push(schemas.unknown_field(&path));
        } else {
            more += 1;
        }
    });
    if more > 0 {
        unknown.push(found("unknown-field", "").says(format!("{more} more unknown fields")));
    }
    let parsed = parsed.map_err(|error: serde_json::Error| {
        found("type", reached(&track.path())).says(error.to_string())
    });
    // serde reports only the first missing field.
    if let Err(first) = &parsed
        && first.message.starts_with("missing field")
    {
        let mut missing = Vec::new();
        schemas.find_missing(schemas.named(&T::name()), json, String::new(), &mut missing);
        unknown.extend(
            missing
                .into_iter()
                .filter(|one| (&one.pointer, &one.message) != (&first.pointer, &first.message)),
        );
    }
    (parsed, unknown)
}

/// Where parsing stopped, as a JSON pointer.
fn reached(path: &serde_path_to_error::Path) -> String {
    path.iter().fold(String::new(), |pointer, segment| {
        let text = segment.to_string();
        let name = text.trim_start_matches('[').trim_end_matches(']');
        if name == "?" {
            pointer
        } else {
            format!("{pointer}/{name}")
        }
    })
}

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
struct Schemas {
    by_name: Map<String, Value>,
    /// Every property name, for "did you mean" suggestions.
    fields: Vec<String>,
}

impl Schemas {
    /// Computed once per type: for a big type it takes milliseconds.
    fn of<T: ToSchema>() -> Arc<Self> {
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
    fn named(&self, name: &str) -> &Value {
        self.by_name.get(name).unwrap_or(&Value::Null)
    }

    /// Finds required fields that a document lacks, at every depth.
    fn find_missing(
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
                missing.extend(absent.map(|name| {
                    found("type", pointer.clone()).says(format!("missing field `{name}`"))
                }));
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

    fn unknown_field(&self, place: &Ignored<'_>) -> Finding {
        let pointer = pointer(place);
        let name = last_member(&pointer).to_owned();
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
}

/// Parses a document of one of our own types as far as possible.
fn typed<T: DeserializeOwned + ToSchema>(
    json: &Value,
    wrap: impl Fn(Box<T>) -> Document,
) -> (Option<Document>, Vec<Finding>) {
    let (value, mut findings) = read::<T>(json);
    match value {
        Ok(value) => (Some(wrap(Box::new(value))), findings),
        Err(error) => {
            findings.push(error);
            (None, findings)
        }
    }
}

/// Checks a document of any kind: returns the kind it was treated as, and all findings. `None` if
/// the kind cannot be determined.
pub fn check(json: &Value, kind: Option<Kind>, prices: &[Price]) -> Option<(Kind, Vec<Finding>)> {
    let kind = kind.or_else(|| Kind::of(json))?;
    let (document, mut findings) = match kind {
        Kind::Experiment => typed(json, Document::Experiment),
        Kind::Workload => typed(json, Document::Workload),
        Kind::Run => typed(json, Document::Run),
        Kind::InstanceProfile => {
            let instance_type = json
                .get("instance_type")
                .and_then(Value::as_str)
                .map(str::to_owned);
            let inner = json.get("spec");
            let at = if inner.is_some() { "/spec" } else { "" };
            let wrap = |spec| Document::InstanceProfile {
                instance_type: instance_type.clone(),
                spec,
                at,
            };
            let (document, mut findings) = typed(inner.unwrap_or(json), wrap);
            for finding in &mut findings {
                finding.pointer.insert_str(0, at);
            }
            (document, findings)
        }
        foreign => (Some(Document::Foreign(foreign, json.clone())), Vec::new()),
    };
    if let Some(document) = &document {
        findings.extend(lint::document(document, prices));
    }
    Some((kind, capped(findings)))
}

/// Limits for fixing one document: patches tried, and bytes processed.
const ROUNDS_MAX: usize = 200;
const MENDED_BYTES_MAX: usize = 8 << 20;

/// Applies the offered patches repeatedly until none is left or nothing changes. For a large
/// document, or if each patch causes another, only the first patches are applied.
pub fn apply_fixes(json: &Value, kind: Kind, prices: &[Price]) -> Value {
    let findings_of = |document: &Value| {
        check(document, Some(kind), prices).map_or_else(Vec::new, |(_, found)| found)
    };
    let mut document = json.clone();
    let mut findings = findings_of(&document);
    // One patch may make another one necessary, so allow twice the initial number.
    let offered = findings
        .iter()
        .filter(|finding| !finding.patch.is_empty())
        .count();
    let affordable = MENDED_BYTES_MAX / json.to_string().len().max(1);
    for _ in 0..(offered * 2 + 8).min(affordable).clamp(1, ROUNDS_MAX) {
        // Apply one patch at a time: it may move the target of the next.
        let applied = findings
            .iter()
            .filter(|finding| !finding.patch.is_empty())
            .find_map(|finding| {
                let patch: json_patch::Patch =
                    serde_json::from_value(serde_json::to_value(&finding.patch).ok()?).ok()?;
                let mut tried = document.clone();
                json_patch::patch(&mut tried, &patch).ok()?;
                (tried != document).then_some(tried)
            });
        let Some(next) = applied else { break };
        document = next;
        findings = findings_of(&document);
    }
    document
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_so_many_patches_of_a_document_are_applied() {
        let wrong: Vec<Value> = (0..300)
            .map(|_| json!({"instance_type": "ml.p5.48xlarge", "accelerators": 7}))
            .collect();
        let run = json!({"name": "x", "hardware": "none", "accelerator_count": 1, "claims": {"hardware": wrong}});
        let fixed = apply_fixes(&run, Kind::Run, &[]);
        let right = fixed["claims"]["hardware"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["accelerators"] == 8)
            .count();
        assert_eq!(right, ROUNDS_MAX);
    }

    /// As in many a notebook: all members side by side. What is meant is kept, and nothing is made up.
    #[test]
    fn misplaced_members_are_moved_into_objects_that_are_missing() {
        let flat = json!({"job_name": "x", "instance_type": "ml.m5.xlarge", "instance_count": 2, "max_runtime_in_seconds": 3600});
        let fixed = apply_fixes(&flat, Kind::TrainingJob, &[]);
        let resources = &fixed["ResourceConfig"];
        assert_eq!(resources["InstanceType"], "ml.m5.xlarge", "{fixed}");
        assert_eq!(resources["InstanceCount"], 2, "{fixed}");
        let stopping = json!({"MaxRuntimeInSeconds": 3600});
        assert_eq!(fixed["StoppingCondition"], stopping, "{fixed}");
        // All patches of one answer at once lose nothing.
        let (_, findings) = check(&flat, Some(Kind::TrainingJob), &[]).unwrap();
        let mut document = flat;
        for finding in &findings {
            let patch = serde_json::to_value(&finding.patch).unwrap();
            let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
            json_patch::patch(&mut document, &patch).unwrap();
        }
        let text = document.to_string();
        assert!(
            text.contains("ml.m5.xlarge") && text.contains("3600"),
            "{text}"
        );
        // An object that is there under another name is renamed, and then filled.
        let half =
            json!({"resource_config": {"instance_count": 1}, "instance_type": "ml.m5.xlarge"});
        let fixed = apply_fixes(&half, Kind::TrainingJob, &[]);
        assert_eq!(
            fixed["ResourceConfig"]["InstanceType"], "ml.m5.xlarge",
            "{fixed}"
        );
        assert_eq!(fixed.get("resource_config"), None, "{fixed}");
    }

    #[test]
    fn all_missing_fields_are_named_at_once() {
        let half = json!({"name": "x", "workload": {"name": "y", "model": {}, "channels": [{"name": "train"}]}, "candidates": [{}]});
        let (parsed, others) = read::<bakeoff_domain::spec::ExperimentSpec>(&half);
        let mut all: Vec<String> = others
            .iter()
            .chain([&parsed.unwrap_err()])
            .map(|one| format!("{} {}", one.pointer, one.message))
            .collect();
        all.sort();
        let expected = [
            " missing field `budget_usd`",
            "/candidates/0 missing field `instance_type`",
        ];
        assert!(
            expected
                .iter()
                .all(|one| all.iter().any(|found| found == one)),
            "{all:#?}"
        );
        assert!(
            all.iter()
                .any(|one| one == "/workload missing field `image`"),
            "{all:#?}"
        );
        assert!(
            all.iter()
                .any(|one| one == "/workload/channels/0 missing field `s3_uri`"),
            "{all:#?}"
        );
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:#?}");
    }

    #[test]
    fn twenty_unknown_fields_are_named_and_the_rest_counted() {
        let numbered = (0..49).map(|number| (format!("unread_{number:02}"), json!(1)));
        let fields: serde_json::Map<String, Value> = numbered
            .chain([("accelerator_cuont".to_owned(), json!(1))])
            .collect();
        let (_, mut unknown) = read::<bakeoff_domain::spec::run::RunSpec>(&Value::Object(fields));
        unknown.retain(|finding| finding.rule == "unknown-field");
        assert_eq!(unknown.len(), UNKNOWN_MAX + 1);
        assert!(
            unknown[0].fix.contains("accelerator_count"),
            "{}",
            unknown[0].fix
        );
        assert!(
            unknown[UNKNOWN_MAX].message.contains("30 more"),
            "{}",
            unknown[UNKNOWN_MAX].message
        );
    }
}

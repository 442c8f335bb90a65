//! Reading documents: JSON into a type, with everything that does not fit as findings with pointers. Used by handlers and by the
//! command line; what is wrong with the values themselves is the linter's business.

use std::sync::LazyLock;

use bakeoff_domain::finding::{Finding, capped, nearest};
use bakeoff_domain::lint::rules::found;
use bakeoff_domain::lint::{self, Document, Kind};
use bakeoff_domain::price::Price;
use serde::de::DeserializeOwned;
use serde_ignored::Path as Ignored;
use serde_json::Value;

/// Unknown fields that are named: looking for what was meant takes time.
const UNKNOWN_MAX: usize = 20;

/// The value, or what keeps it from being read; and the fields that there are not.
pub fn read<T: DeserializeOwned>(json: &Value) -> (Result<T, Finding>, Vec<Finding>) {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(json, &mut track);
    let mut more = 0_usize;
    let parsed = serde_ignored::deserialize(deserializer, |path| {
        if unknown.len() < UNKNOWN_MAX {
            unknown.push(unknown_field(&path));
        } else {
            more += 1;
        }
    });
    if more > 0 {
        unknown.push(found("unknown-field", "").says(format!("there are {more} more fields that nobody reads")));
    }
    let parsed = parsed.map_err(|error: serde_json::Error| {
        let pointer = track.path().iter().fold(String::new(), |pointer, segment| {
            let text = segment.to_string();
            let name = text.trim_start_matches('[').trim_end_matches(']');
            if name == "?" { pointer } else { format!("{pointer}/{name}") }
        });
        found("type", pointer).says(error.to_string())
    });
    (parsed, unknown)
}

fn pointer(path: &Ignored<'_>) -> String {
    match path {
        Ignored::Root => String::new(),
        Ignored::Seq { parent, index } => format!("{}/{index}", pointer(parent)),
        Ignored::Map { parent, key } => format!("{}/{}", pointer(parent), key.replace('~', "~0").replace('/', "~1")),
        Ignored::Some { parent } | Ignored::NewtypeStruct { parent } | Ignored::NewtypeVariant { parent } => {
            pointer(parent)
        }
    }
}

/// Every property name that the API knows: for "did you mean".
static FIELDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let document = serde_json::to_value(crate::http::openapi()).unwrap_or_default();
    let schemas =
        document.pointer("/components/schemas").and_then(serde_json::Value::as_object).cloned().unwrap_or_default();
    let names = schemas.values().filter_map(|schema| schema.get("properties")?.as_object()).flatten();
    names.map(|(name, _)| name.clone()).collect()
});

fn unknown_field(place: &Ignored<'_>) -> Finding {
    let pointer = pointer(place);
    let name = pointer.rsplit('/').next().unwrap_or_default().to_owned();
    let near = nearest(&name, FIELDS.iter().map(String::as_str), 2);
    let fix = if near.is_empty() { "remove it".to_owned() } else { format!("did you mean {}?", near.join(" or ")) };
    found("unknown-field", pointer).says(format!("there is no field `{name}` here")).fix(fix)
}

/// A document of one of our own types, as far as it can be read.
fn typed<T: DeserializeOwned>(json: &Value, wrap: impl Fn(Box<T>) -> Document) -> (Option<Document>, Vec<Finding>) {
    let (value, mut findings) = read::<T>(json);
    match value {
        Ok(value) => (Some(wrap(Box::new(value))), findings),
        Err(error) => {
            findings.push(error);
            (None, findings)
        }
    }
}

/// A document of any kind, checked: what it was taken for, and everything that is wrong with it. `None`: nobody can tell what it is.
pub fn check(json: &Value, kind: Option<Kind>, prices: &[Price]) -> Option<(Kind, Vec<Finding>)> {
    let kind = kind.or_else(|| Kind::of(json))?;
    let (document, mut findings) = match kind {
        Kind::Experiment => typed(json, Document::Experiment),
        Kind::Workload => typed(json, Document::Workload),
        Kind::Run => typed(json, Document::Run),
        Kind::TrainingJob => (Some(Document::TrainingJob(json.clone())), Vec::new()),
        Kind::Estimator => (Some(Document::Estimator(json.clone())), Vec::new()),
        Kind::InstanceProfile => {
            let instance_type = json.get("instance_type").and_then(Value::as_str).map(str::to_owned);
            let inner = json.get("spec");
            let at = if inner.is_some() { "/spec" } else { "" };
            let wrap = |spec| Document::InstanceProfile { instance_type: instance_type.clone(), spec, at };
            let (document, mut findings) = typed(inner.unwrap_or(json), wrap);
            for finding in &mut findings {
                finding.pointer.insert_str(0, at);
            }
            (document, findings)
        }
    };
    if let Some(document) = &document {
        findings.extend(lint::document(document, prices));
    }
    Some((kind, capped(findings)))
}

/// Patches of one document that are tried, and bytes that are read for it.
const ROUNDS_MAX: usize = 200;
const MENDED_BYTES_MAX: usize = 8 << 20;

/// The document with every patch that was offered, again and again until none is left or nothing changes; of a large one, or
/// one where a patch brings forth the next, the first of them.
pub fn mend(json: &Value, kind: Kind, prices: &[Price]) -> Value {
    let findings_of = |document: &Value| check(document, Some(kind), prices).map_or_else(Vec::new, |(_, found)| found);
    let mut document = json.clone();
    let mut findings = findings_of(&document);
    // A patch may be what another one needs: twice as many as there are at first.
    let offered = findings.iter().filter(|finding| !finding.patch.is_empty()).count();
    let affordable = MENDED_BYTES_MAX / json.to_string().len().max(1);
    for _ in 0..(offered * 2 + 8).min(affordable).clamp(1, ROUNDS_MAX) {
        // One at a time: a patch may move what the next one points at.
        let applied = findings.iter().filter(|finding| !finding.patch.is_empty()).find_map(|finding| {
            let patch: json_patch::Patch = serde_json::from_value(serde_json::to_value(&finding.patch).ok()?).ok()?;
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
        let wrong: Vec<Value> =
            (0..300).map(|_| json!({"instance_type": "ml.p5.48xlarge", "accelerators": 7})).collect();
        let run = json!({"name": "x", "hardware": "none", "accelerator_count": 1, "claims": {"hardware": wrong}});
        let mended = mend(&run, Kind::Run, &[]);
        let right =
            mended["claims"]["hardware"].as_array().unwrap().iter().filter(|one| one["accelerators"] == 8).count();
        assert_eq!(right, ROUNDS_MAX);
    }

    #[test]
    fn twenty_unknown_fields_are_named_and_the_rest_counted() {
        let numbered = (0..49).map(|number| (format!("unread_{number:02}"), json!(1)));
        let fields: serde_json::Map<String, Value> =
            numbered.chain([("accelerator_cuont".to_owned(), json!(1))]).collect();
        let (_, unknown) = read::<bakeoff_domain::run::RunSpec>(&Value::Object(fields));
        assert_eq!(unknown.len(), UNKNOWN_MAX + 1);
        assert!(unknown[0].fix.contains("accelerator_count"), "{}", unknown[0].fix);
        assert!(unknown[UNKNOWN_MAX].message.contains("30 more"), "{}", unknown[UNKNOWN_MAX].message);
    }
}

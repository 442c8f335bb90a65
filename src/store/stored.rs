//! Documents: what jsonb columns hold, each with the version of its form. SQL reads nothing in
//! them: what it needs is a column.
//!
//! A form that changes gets a new [`VERSION`](Document::VERSION), a step in
//! [`upgrade`](Document::upgrade) and a fixture in `tests/stored/`: rows are read as they were
//! written, and never rewritten.

use bakeoff_domain::finding::Finding;
use bakeoff_domain::measure::metric::MetricDefinition;
use bakeoff_domain::measure::steady::Steady;
use bakeoff_domain::ranking::recommend::Recommendation;
use bakeoff_domain::sagemaker::observed::{FinalMetric, Transition};
use bakeoff_domain::spec::run::RunSpec;
use bakeoff_domain::spec::{ExperimentSpec, ProfileSpec, WorkloadSpec};
use bakeoff_planner::plan::TrialPlan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::store::StoreError;
use crate::store::error::to_json;

/// Documents from before they had versions have none in them, and are of this one.
const FIRST: u32 = 1;
const VERSION_KEY: &str = "v";
/// Where the elements of a list are.
const ITEMS_KEY: &str = "items";

/// What a jsonb column holds.
pub(crate) trait Document: Serialize + DeserializeOwned {
    /// Of what is written now. The second is the first with its version in it.
    const VERSION: u32 = 2;

    /// From the form of one version, without its number, to the next.
    fn upgrade(_from: u32, document: Value) -> Value {
        document
    }
}

impl Document for WorkloadSpec {}
impl Document for ProfileSpec {}
impl Document for RunSpec {}
impl Document for ExperimentSpec {}
impl Document for Vec<Finding> {}
impl Document for Recommendation {}
impl Document for TrialPlan {}
impl Document for Vec<MetricDefinition> {}
impl Document for Vec<Transition> {}
impl Document for Vec<FinalMetric> {}
impl Document for Steady {}

/// What the elements of a list lie in.
#[derive(Deserialize)]
struct Items<T> {
    items: T,
}

/// A document as it is written: with its version.
pub(crate) fn write<T: Document>(document: &T) -> Result<Value, StoreError> {
    let mut fields = match to_json(document)? {
        Value::Object(fields) => fields,
        items => serde_json::Map::from_iter([(ITEMS_KEY.to_owned(), items)]),
    };
    fields.insert(VERSION_KEY.to_owned(), T::VERSION.into());
    Ok(Value::Object(fields))
}

/// Reads a document of any version.
pub(crate) fn read<T: Document>(
    stored: Value,
    table: &'static str,
    id: impl ToString,
    column: &'static str,
) -> Result<T, StoreError> {
    let version = match &stored {
        Value::Object(fields) => fields.get(VERSION_KEY).map_or(Some(FIRST), number),
        _ => Some(FIRST),
    };
    let document = version.and_then(|version| newest::<T>(version, stored));
    document.ok_or_else(|| StoreError::corrupt(table, id, column))
}

/// The same of a column's text: one of the newest version is read without a tree in between, which
/// costs more than the document itself.
pub(crate) fn read_text<T: Document>(
    stored: &str,
    table: &'static str,
    id: impl ToString,
    column: &'static str,
) -> Result<T, StoreError> {
    let Some(rest) = newest_text::<T>(stored) else {
        let tree = serde_json::from_str(stored);
        let tree = tree.map_err(|_| StoreError::corrupt(table, id.to_string(), column))?;
        return read(tree, table, id, column);
    };
    let document = if rest.starts_with("\"items\": [") {
        serde_json::from_str(stored).map(|Items { items }| items)
    } else {
        serde_json::from_str(stored)
    };
    document.map_err(|_| StoreError::corrupt(table, id, column))
}

/// The text of a document as people see it: without its version. None of one that has to be
/// upgraded first.
pub(crate) fn without_version<T: Document>(stored: &str) -> Option<String> {
    newest_text::<T>(stored).map(|rest| format!("{{{rest}"))
}

/// What follows the version in a text that Postgres has written (jsonb puts short keys first), if
/// it is of the newest.
fn newest_text<T: Document>(stored: &str) -> Option<&str> {
    let (version, rest) = stored.strip_prefix("{\"v\": ")?.split_once(", ")?;
    (version.parse() == Ok(T::VERSION)).then_some(rest)
}

fn number(value: &Value) -> Option<u32> {
    value
        .as_u64()
        .and_then(|version| u32::try_from(version).ok())
}

/// None of a version that is newer than this program.
fn newest<T: Document>(version: u32, mut stored: Value) -> Option<T> {
    if version > T::VERSION {
        return None;
    }
    if version > FIRST
        && let Value::Object(fields) = &mut stored
    {
        fields.remove(VERSION_KEY);
        if fields.len() == 1
            && let Some(items) = fields.remove(ITEMS_KEY)
        {
            stored = items;
        }
    }
    let stored = (version..T::VERSION).fold(stored, |document, from| T::upgrade(from, document));
    serde_json::from_value(stored).ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    fn fixture(name: &str, version: u32) -> Option<Value> {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/stored")
            .join(format!("{name}.v{version}.json"));
        let text = std::fs::read_to_string(file).ok()?;
        Some(serde_json::from_str(&text).expect("a fixture is JSON"))
    }

    /// What every version says is what the newest says, and the newest is what is written: who
    /// changes a form is told here.
    fn holds<T: Document>(name: &'static str) {
        let newest = fixture(name, T::VERSION).expect("the newest version has a fixture");
        for version in FIRST..=T::VERSION {
            let stored = fixture(name, version).expect("every version has a fixture");
            let document: T = read(stored.clone(), name, version, "fixture")
                .unwrap_or_else(|error| panic!("{name} of version {version}: {error}"));
            let written = write(&document).expect("it can be written");
            assert_eq!(
                written, newest,
                "the form of {name} has changed: give it a new version, a step in `upgrade` and a fixture"
            );
            let text = as_postgres(&stored);
            let again: T = read_text(&text, name, version, "fixture").expect("its text is read");
            assert_eq!(write(&again).expect("it can be written"), newest);
        }
    }

    /// As jsonb is printed: short keys first, a space after commas and colons.
    fn as_postgres(value: &Value) -> String {
        match value {
            Value::Object(fields) => {
                let mut keys: Vec<&String> = fields.keys().collect();
                keys.sort_by_key(|key| (key.len(), key.as_str().to_owned()));
                let parts = keys
                    .iter()
                    .map(|key| format!("{}: {}", json!(key), as_postgres(&fields[*key])));
                format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
            }
            Value::Array(items) => {
                let parts = items.iter().map(as_postgres);
                format!("[{}]", parts.collect::<Vec<_>>().join(", "))
            }
            other => other.to_string(),
        }
    }

    #[test]
    fn every_version_of_every_document_is_read() {
        holds::<WorkloadSpec>("workload");
        holds::<ProfileSpec>("profile");
        holds::<RunSpec>("run");
        holds::<ExperimentSpec>("experiment");
        holds::<Vec<Finding>>("findings");
        holds::<Recommendation>("recommendation");
        holds::<TrialPlan>("plan");
        holds::<Vec<MetricDefinition>>("metrics");
        holds::<Vec<Transition>>("transitions");
        holds::<Vec<FinalMetric>>("final_metrics");
        holds::<Steady>("steady");
    }

    #[test]
    fn what_people_see_has_no_version() {
        let stored = as_postgres(&fixture("plan", 2).expect("it has a fixture"));
        let shown = without_version::<TrialPlan>(&stored).expect("it is of the newest version");
        let mut expected = fixture("plan", 2).expect("it has a fixture");
        expected
            .as_object_mut()
            .and_then(|fields| fields.remove(VERSION_KEY))
            .expect("a version is stored");
        let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
        assert_eq!(shown, expected);
        let first = as_postgres(&fixture("plan", 1).expect("it has a fixture"));
        assert_eq!(without_version::<TrialPlan>(&first), None);
    }

    #[test]
    fn what_a_newer_program_wrote_is_corrupt_here() {
        let newer = json!({"v": 3, "window_seconds": 300});
        assert!(read::<Steady>(newer, "series", 1, "steady").is_err());
        assert!(read_text::<Steady>("{\"v\": 3, \"x\": 1}", "series", 1, "steady").is_err());
        assert!(read_text::<Steady>("nonsense", "series", 1, "steady").is_err());
    }
}

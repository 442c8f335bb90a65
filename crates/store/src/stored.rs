//! Documents stored in jsonb columns, each with its format version. SQL never reads inside them;
//! whatever SQL needs is a column.
//!
//! A changed format needs a new [`VERSION`](Document::VERSION), a step in
//! [`upgrade`](Document::upgrade) and a fixture in `tests/stored/`: rows are read as they were
//! written, and never rewritten.

use bakeoff_domain::ci::gate::{Judgement, Reading};
use bakeoff_domain::diagnosis::Diagnosis;
use bakeoff_domain::event::Event;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::measure::metric::MetricDefinition;
use bakeoff_domain::measure::pace::Pace;
use bakeoff_domain::measure::steady::Steady;
use bakeoff_domain::model_package::ModelPackageRequest;
use bakeoff_domain::ranking::full_run::FullRunOf;
use bakeoff_domain::ranking::looks::{Arm, Brief};
use bakeoff_domain::ranking::recommendation::Recommendation;
use bakeoff_domain::sagemaker::endpoint::ModelRequest;
use bakeoff_domain::sagemaker::log::LogLine;
use bakeoff_domain::sagemaker::observed::{FinalMetric, RuleEvaluation, Transition};
use bakeoff_domain::sagemaker::tuning::TunedTrials;
use bakeoff_domain::spec::ci::TemplateSettings;
use bakeoff_domain::spec::pipeline::PipelineSpec;
use bakeoff_domain::spec::pipeline::endpoint::EndpointSpec;
use bakeoff_domain::spec::run::RunSpec;
use bakeoff_domain::spec::{ExperimentSpec, ProfileSpec, WorkloadSpec};
use bakeoff_planner::plan::TrialPlan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::StoreError;
use crate::error::to_json;

/// Documents from before versioning carry no version; they count as this one.
const FIRST: u32 = 1;
const VERSION_KEY: &str = "v";
/// Key that holds the elements of a list.
const ITEMS_KEY: &str = "items";

/// A document stored in a jsonb column.
pub(crate) trait Document: Serialize + DeserializeOwned {
    /// The version written now. Version 2 is version 1 with the version number included.
    const VERSION: u32 = 2;

    /// Upgrades a document, without its version number, from one version to the next.
    fn upgrade(_from: u32, document: Value) -> Value {
        document
    }
}

impl Document for WorkloadSpec {}
impl Document for ProfileSpec {}
impl Document for RunSpec {}
impl Document for ExperimentSpec {}
impl Document for Vec<Finding> {}
impl Document for Recommendation {
    /// Odds came with version 3; those from before have none.
    const VERSION: u32 = 3;
}
impl Document for Vec<Arm> {}
impl Document for Brief {
    /// Answers in brief came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for FullRunOf {
    /// Full runs came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for TrialPlan {
    const VERSION: u32 = 3;

    /// Before version 3, each kind of job had a member of its own.
    fn upgrade(from: u32, mut document: Value) -> Value {
        if from == 2
            && let Value::Object(plan) = &mut document
        {
            let kinds = [
                ("request", "training"),
                ("processing", "processing"),
                ("tuning", "tuning"),
                ("transform", "transform"),
                ("endpoint", "endpoint"),
            ];
            let mut job = Value::Null;
            for (member, kind) in kinds {
                if let Some(request) = plan.remove(member).filter(|request| !request.is_null()) {
                    job = Value::Object(serde_json::Map::from_iter([(kind.to_owned(), request)]));
                }
            }
            plan.insert("job".to_owned(), job);
        }
        document
    }
}
impl Document for Vec<MetricDefinition> {}
impl Document for Vec<Transition> {}
impl Document for Vec<FinalMetric> {}
impl Document for Steady {}
impl Document for Pace {
    /// Paces came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for Diagnosis {
    /// Post-mortems came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for ModelPackageRequest {
    /// Model packages came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for PipelineSpec {
    /// Pipelines came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for TemplateSettings {
    /// Settings of templates came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for Judgement {
    /// Gates came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for Vec<Reading> {}
impl Document for EndpointSpec {
    /// Endpoints came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for ModelRequest {
    /// Likewise.
    const VERSION: u32 = 1;
}
impl Document for TunedTrials {
    /// Tuning jobs came when documents had versions.
    const VERSION: u32 = 1;
}
impl Document for Vec<LogLine> {}
impl Document for Vec<RuleEvaluation> {}
impl Document for Event {
    /// Events had no data before versions.
    const VERSION: u32 = 1;
}

/// Wrapper around the elements of a list.
#[derive(Deserialize)]
struct Items<T> {
    items: T,
}

/// Serialises a document with its version.
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

/// Like `read`, for a column's text. The newest version is parsed directly: building a JSON tree
/// first costs more than the document itself.
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

/// If the text, as printed by Postgres, has the newest version: the rest after the version. jsonb
/// prints short keys first.
fn newest_text<T: Document>(stored: &str) -> Option<&str> {
    let (version, rest) = stored.strip_prefix("{\"v\": ")?.split_once(", ")?;
    (version.parse() == Ok(T::VERSION)).then_some(rest)
}

fn number(value: &Value) -> Option<u32> {
    value
        .as_u64()
        .and_then(|version| u32::try_from(version).ok())
}

/// Upgrades a document to the newest version; `None` if it is newer than this program.
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
            .join("../../tests/stored")
            .join(format!("{name}.v{version}.json"));
        let text = std::fs::read_to_string(file).ok()?;
        Some(serde_json::from_str(&text).expect("a fixture is JSON"))
    }

    /// Every version must read as the newest one does, and the newest must be what is written.
    /// Fails when a format changes without a new version.
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

    /// Prints JSON as Postgres prints jsonb: short keys first, a space after commas and colons.
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

    /// The fixture is a trial that trains; the other kinds had members of their own.
    #[test]
    fn a_plan_of_any_kind_gets_its_job() {
        let kinds = [
            ("request", "training"),
            ("processing", "processing"),
            ("tuning", "tuning"),
            ("transform", "transform"),
            ("endpoint", "endpoint"),
        ];
        for (member, kind) in kinds {
            let old = json!({"candidate": "a", "request": null, member: {"job_name": member}});
            let new = TrialPlan::upgrade(2, old);
            let job = json!({kind: {"job_name": member}});
            assert_eq!(new, json!({"candidate": "a", "job": job}), "{member}");
        }
        let refused = TrialPlan::upgrade(2, json!({"candidate": "a", "request": null}));
        assert_eq!(refused, json!({"candidate": "a", "job": null}));
    }

    #[test]
    fn every_version_of_every_document_is_read() {
        holds::<WorkloadSpec>("workload");
        holds::<ProfileSpec>("profile");
        holds::<RunSpec>("run");
        holds::<ExperimentSpec>("experiment");
        holds::<Vec<Finding>>("findings");
        holds::<Recommendation>("recommendation");
        holds::<Vec<Arm>>("arms");
        holds::<Brief>("brief");
        holds::<FullRunOf>("full_run");
        holds::<TrialPlan>("plan");
        holds::<Vec<MetricDefinition>>("metrics");
        holds::<Vec<Transition>>("transitions");
        holds::<Vec<FinalMetric>>("final_metrics");
        holds::<Steady>("steady");
        holds::<Pace>("pace");
        holds::<Diagnosis>("diagnosis");
        holds::<ModelPackageRequest>("model_package");
        holds::<PipelineSpec>("pipeline");
        holds::<TemplateSettings>("ci_settings");
        holds::<Judgement>("judgement");
        holds::<Vec<Reading>>("readings");
        holds::<EndpointSpec>("endpoint");
        holds::<ModelRequest>("served_model");
        holds::<TunedTrials>("tuned");
        holds::<Vec<LogLine>>("log_lines");
        holds::<Vec<RuleEvaluation>>("rules");
    }

    /// Events are a document of many forms: one row of each.
    #[test]
    fn every_kind_of_event_is_read_as_it_was_written() {
        let rows = fixture("events", Event::VERSION).expect("a fixture");
        for row in rows.as_array().expect("a list of rows") {
            let event: Event = read(row.clone(), "events", 1, "data").expect("it is read");
            assert_eq!(event.kind(), row["kind"]);
            assert_eq!(
                write(&event).expect("it can be written"),
                *row,
                "the form of an event has changed: give it a new version and a step in `upgrade`"
            );
        }
    }

    #[test]
    fn what_a_newer_program_wrote_is_corrupt_here() {
        let newer = json!({"v": 3, "window_seconds": 300});
        assert!(read::<Steady>(newer, "series", 1, "steady").is_err());
        assert!(read_text::<Steady>("{\"v\": 3, \"x\": 1}", "series", 1, "steady").is_err());
        assert!(read_text::<Steady>("nonsense", "series", 1, "steady").is_err());
    }
}

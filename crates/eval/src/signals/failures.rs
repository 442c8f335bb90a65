//! Failures: is the first cause of the kind that it was, and does the answer say what the log says?

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bakeoff_domain::diagnosis::signatures::by_id;
use bakeoff_domain::diagnosis::{Cause, Evidence, diagnose};
use bakeoff_domain::sagemaker::log::LogLine;
use chrono::{DateTime, TimeDelta};
use serde::Deserialize;
use serde_json::{Value, json};

/// One failed job: what SageMaker said, its log, and what it was.
#[derive(Debug, Deserialize)]
struct Case {
    reason: String,
    lines: Vec<LineOf>,
    class: String,
    #[serde(default)]
    summary_contains: Option<String>,
}

/// A line, with the seconds since the first and the stream where they matter.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum LineOf {
    Bare(String),
    Timed(f64, String),
    OfStream(f64, String, String),
}

/// What a cause of an unknown kind is called.
const EXCEPTION: &str = "exception";
/// A line each so many milliseconds, where nothing is said of times.
const APART: i64 = 10;

pub(crate) fn judge(file: &Path) -> Result<Option<Value>, String> {
    if !file.is_file() {
        return Ok(None);
    }
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let cases: BTreeMap<String, Case> =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut counts: BTreeMap<&str, u32> = ["right", "partly", "none", "wrong"]
        .into_iter()
        .map(|verdict| (verdict, 0))
        .collect();
    let mut shown = Vec::new();
    for (name, case) in &cases {
        let (verdict, said) = one(case);
        *counts.entry(verdict).or_default() += 1;
        shown.push(json!({ "case": name, "verdict": verdict, "wanted": case.class, "said": said }));
    }
    let rows = cases.len();
    let right = counts.get("right").copied().unwrap_or_default();
    let mut found = json!(counts);
    found["rows"] = json!(rows);
    found["right_pct"] = json!(100.0 * f64::from(right) / rows.max(1) as f64);
    found["cases"] = json!(shown);
    Ok(Some(found))
}

/// The lines of a case, each at its time in its stream.
fn log_of(case: &Case) -> Vec<LogLine> {
    let start = DateTime::UNIX_EPOCH;
    let stream = || "job/algo-1".to_owned();
    (0..)
        .zip(&case.lines)
        .map(|(index, line)| {
            let after = |seconds: f64| start + TimeDelta::milliseconds((seconds * 1e3) as i64);
            match line {
                LineOf::Bare(message) => LogLine {
                    at: start + TimeDelta::milliseconds(APART * index),
                    stream: stream(),
                    message: message.clone(),
                },
                LineOf::Timed(at, message) => LogLine {
                    at: after(*at),
                    stream: stream(),
                    message: message.clone(),
                },
                LineOf::OfStream(at, message, stream) => LogLine {
                    at: after(*at),
                    stream: stream.clone(),
                    message: message.clone(),
                },
            }
        })
        .collect()
}

fn one(case: &Case) -> (&'static str, Value) {
    let lines = log_of(case);
    let diagnosis = diagnose(&Evidence {
        failure_reason: Some(&case.reason),
        lines: Some(&lines),
        transitions: &[],
        rules: &[],
        instance: None,
        profile: None,
    });
    let first = diagnosis.causes.first().map(class);
    let has_words = case
        .summary_contains
        .as_ref()
        .is_none_or(|words| diagnosis.summary.contains(words));
    let others = diagnosis.causes.iter().skip(1);
    let is_named = others.clone().any(|cause| class(cause) == case.class)
        || diagnosis
            .causes
            .iter()
            .any(|cause| cause.signature.starts_with(EXCEPTION));
    let verdict = match first.as_deref() {
        Some(first) if first == case.class && has_words => "right",
        Some(first) if first != EXCEPTION && first != case.class => "wrong",
        _ if is_named => "partly",
        _ => "none",
    };
    let causes = diagnosis
        .causes
        .iter()
        .map(|cause| json!([cause.signature, cause.standing, cause.cause]));
    let said = json!({ "summary": diagnosis.summary, "causes": causes.collect::<Vec<_>>() });
    (verdict, said)
}

/// The kind of a cause: that of its signature, or an exception like any other.
fn class(cause: &Cause) -> String {
    let known = by_id(&cause.signature).and_then(|signature| signature.class);
    let named = known.and_then(|class| serde_json::to_value(class).ok());
    let name = named.as_ref().and_then(Value::as_str);
    name.unwrap_or(EXCEPTION).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a launcher or a logger puts before its lines, the cause is the same; but one in fifty has lines of two
    /// launchers, which a third one's prefix makes those of one process.
    #[test]
    fn a_prefix_changes_hardly_any_cause() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/inputs/failures.json");
        let text = fs::read_to_string(file).unwrap();
        let cases: BTreeMap<String, Case> = serde_json::from_str(&text).unwrap();
        for prefix in [
            "[1,mpirank:3,algo-1]<stderr>:",
            "\u{1b}[36m(RayTrainWorker pid=1234, ip=10.0.1.7)\u{1b}[0m ",
            "[default0]:",
            "2026-11-20T12:00:00.123Z ",
            "0: ",
        ] {
            let mut wrong = Vec::new();
            for (name, case) in &cases {
                if case.lines.len() > 300 {
                    continue;
                }
                let lines = case.lines.iter().map(|line| match line {
                    LineOf::Bare(text) => LineOf::Bare(format!("{prefix}{text}")),
                    LineOf::Timed(at, text) => LineOf::Timed(*at, format!("{prefix}{text}")),
                    LineOf::OfStream(at, text, stream) => {
                        LineOf::OfStream(*at, format!("{prefix}{text}"), stream.clone())
                    }
                });
                let disguised = Case {
                    reason: case.reason.clone(),
                    lines: lines.collect(),
                    class: case.class.clone(),
                    summary_contains: case.summary_contains.clone(),
                };
                if one(&disguised).0 != "right" {
                    wrong.push(name);
                }
            }
            assert!(wrong.len() * 50 <= cases.len(), "{prefix}: {wrong:?}");
        }
    }

    #[test]
    fn every_failure_of_our_own_is_told_rightly() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/inputs/failures.json");
        let found = judge(&file).unwrap().unwrap();
        let cases = found["cases"].as_array().unwrap();
        assert!(cases.len() >= 80);
        let wrong: Vec<&Value> = cases
            .iter()
            .filter(|case| case["verdict"] != "right")
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

//! Job documents: is each told for what it is, is what is wrong found, and nothing else?

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::money::price;
use bakeoff_planner::lint::{self, Document, Kind, kind_of};
use bakeoff_planner::render::estimator;
use serde::Deserialize;
use serde_json::{Value, json};

/// What is wanted of a document: in words, or its kind and exactly the rules that it breaks.
#[derive(Debug, Deserialize)]
struct Want {
    /// Begins with `error`, `warning`, `ok`, `no false alarm`, `recognised` or `renders`.
    #[serde(rename = "want")]
    words: Option<String>,
    kind: Option<Kind>,
    rules: Option<Vec<String>>,
}

pub(crate) fn judge(folder: &Path) -> Result<Option<Value>, String> {
    let index = folder.join("index.json");
    if !index.is_file() {
        return Ok(None);
    }
    let text = fs::read_to_string(&index).map_err(|error| error.to_string())?;
    let wanted: BTreeMap<String, Want> =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", index.display()))?;
    let verdicts = ["right", "missed", "false_alarm", "not_recognised"];
    let mut counts: BTreeMap<&str, u64> = verdicts.map(|verdict| (verdict, 0)).into();
    let mut shown = Vec::new();
    for (name, want) in &wanted {
        let file = folder.join(format!("{name}.json"));
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let document: Value =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        let (verdict, said) = one(&document, want);
        *counts.entry(verdict).or_default() += 1;
        shown.push(json!({ "case": name, "verdict": verdict, "said": said }));
    }
    let mut found = json!(counts);
    found["rows"] = json!(wanted.len());
    found["cases"] = json!(shown);
    Ok(Some(found))
}

fn one(document: &Value, want: &Want) -> (&'static str, Value) {
    let Some(kind) = kind_of(document) else {
        return ("not_recognised", Value::Null);
    };
    let findings = lint::document(
        &Document::Foreign(kind, document.clone()),
        &price::shipped().0,
    );
    let told = |finding: &Finding| json!([finding.rule, finding.severity, finding.pointer]);
    let said = json!({ "kind": kind, "findings": findings.iter().map(told).collect::<Vec<_>>() });
    let mut loud: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.severity > Severity::Info)
        .map(|finding| finding.rule.as_str())
        .collect();
    loud.sort_unstable();
    if want.kind.is_some_and(|wanted| wanted != kind) {
        return ("not_recognised", said);
    }
    let verdict = match (&want.rules, &want.words) {
        (Some(rules), _) => {
            let mut rules: Vec<&str> = rules.iter().map(String::as_str).collect();
            rules.sort_unstable();
            match () {
                () if loud == rules => "right",
                () if loud.iter().any(|rule| !rules.contains(rule)) => "false_alarm",
                () => "missed",
            }
        }
        (None, Some(words)) => in_words(words, document, &findings, &loud),
        (None, None) => "right",
    };
    (verdict, said)
}

fn in_words(words: &str, document: &Value, findings: &[Finding], loud: &[&str]) -> &'static str {
    let is_found = |least: Severity| findings.iter().any(|finding| finding.severity >= least);
    let begins = |word: &str| words.starts_with(word);
    // That a document is known by its members says that they are no unknown ones.
    let strange = ["not-api-shape", "unknown-argument", "trainer-argument"];
    let is_strange = loud.iter().any(|rule| strange.contains(rule));
    match () {
        () if begins("error") && !is_found(Severity::Refused) => "missed",
        () if begins("warning") && !is_found(Severity::Warning) => "missed",
        () if (begins("ok") || begins("no false alarm")) && !loud.is_empty() => "false_alarm",
        () if begins("recognised") && is_strange => "false_alarm",
        () if begins("pipeline variables") && !loud.is_empty() => "false_alarm",
        () if begins("renders") && estimator::body(document, "1").is_err() => "missed",
        () => "right",
    }
}

#[cfg(test)]
mod tests {
    use bakeoff_domain::catalog::hugging_face;
    use serde_json::Map;

    use super::*;

    #[test]
    fn every_document_of_our_own_is_told_rightly() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/inputs/jobs");
        let found = judge(&folder).unwrap().unwrap();
        let cases = found["cases"].as_array().unwrap();
        assert!(cases.len() >= 40, "{}", cases.len());
        let wrong: Vec<&Value> = cases
            .iter()
            .filter(|case| case["verdict"] != "right")
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// Parameters as the checkpoints have them.
    #[test]
    fn published_configurations_have_their_parameters() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../shared/data/hf_shapes.json"
        );
        let Ok(text) = std::fs::read_to_string(file) else {
            eprintln!("skipped: no reference data");
            return;
        };
        let all: Map<String, Value> = serde_json::from_str(&text).unwrap();
        let mut wrong = Vec::new();
        for (name, one) in &all {
            match (
                hugging_face::shape(&one["config"]),
                one["parameters"].as_f64(),
            ) {
                (Ok(read), Some(parameters)) => {
                    let off = read.shape.parameters() / parameters - 1.0;
                    if off.abs() > 0.01 {
                        wrong.push(format!("{name}: {:.1} %", off * 100.0));
                    }
                }
                (Err(why), _) if !why.contains("no decoder") => {
                    wrong.push(format!("{name}: {why}"));
                }
                _ => {}
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }
}

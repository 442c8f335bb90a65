//! The linter on transcriptions of five real requests: every mistake in them is found, and nothing
//! on the corrected copies. `tests/documents/expected.json` says what is to be found where; each
//! entry was read and agreed to.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bakeoff_domain::money::price::{self, Price};
use bakeoff_service::document;
use serde_json::Value;

use crate::support::usual;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/documents")
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder().join(name)).unwrap()).unwrap()
}

fn prices() -> Vec<Price> {
    price::all_in_force(&price::shipped().0, "us-east-1", usual())
}

/// `rule pointer` of everything that is found.
fn found(document: &Value) -> Vec<String> {
    let prices = prices();
    let (_, findings) = document::check(document, None, &prices).expect("the kind is clear");
    let mut all: Vec<String> = findings
        .iter()
        .map(|finding| format!("{} {}", finding.rule, finding.pointer))
        .collect();
    all.sort();
    all
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.retain(|name| name != "expected.json");
    names.sort();
    names
}

#[test]
fn every_mistake_of_the_requests_is_found_and_nothing_in_their_corrected_copies() {
    let expected: BTreeMap<String, Vec<String>> =
        serde_json::from_value(read("expected.json")).unwrap();
    let mut seen = BTreeMap::new();
    for name in names() {
        let findings = found(&read(&name));
        if name.contains(".corrected.") {
            assert_eq!(findings, Vec::<String>::new(), "{name}");
            assert!(
                folder().join(name.replace(".corrected", "")).is_file(),
                "{name} corrects nothing"
            );
        } else {
            seen.insert(name, findings);
        }
    }
    if std::env::var_os("BAKEOFF_WRITE_EXPECTED").is_some() {
        fs::write(
            folder().join("expected.json"),
            serde_json::to_string_pretty(&seen).unwrap() + "\n",
        )
        .unwrap();
        return;
    }
    assert_eq!(seen, expected);
    assert!(seen.values().map(Vec::len).sum::<usize>() > 90);
}

/// What can be fixed by machine is: the document then has fewer findings, and no new ones.
#[test]
fn patches_lead_towards_the_corrected_copies() {
    let prices = prices();
    for name in names().iter().filter(|name| !name.contains(".corrected.")) {
        let document = read(name);
        let (kind, findings) = document::check(&document, None, &prices).unwrap();
        if findings.iter().all(|finding| finding.patch.is_empty()) {
            continue;
        }
        let fixed = document::apply_fixes(&document, kind, &prices);
        let (_, left) = document::check(&fixed, Some(kind), &prices).unwrap();
        assert!(
            left.iter().all(|finding| finding.patch.is_empty()),
            "{name}: {left:#?}"
        );
        assert!(left.len() < findings.len(), "{name}: {left:#?}");
    }
}

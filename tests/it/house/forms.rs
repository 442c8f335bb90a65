//! Three forms for three readers, as a test: what the API answers is made in `crates/api/src` of domain
//! types and rows; the store knows nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use regex::Regex;
use serde_json::Value;

use crate::house::style::{root, sources};

/// Answered as they are, although they are no views: problems, and what belongs to the documents
/// that people send and get back.
const ANSWERED_AS_THEY_ARE: [&str; 4] = ["Problem", "FieldError", "ModelShape", "MetricDefinition"];

/// Names of schemas that a part of the API's document refers to.
fn named(part: &Value, names: &mut BTreeSet<String>) {
    match part {
        Value::Object(members) => {
            for (key, value) in members {
                match value.as_str().and_then(|text| text.rsplit_once('/')) {
                    Some((_, name)) if key == "$ref" => {
                        names.insert(name.to_owned());
                    }
                    _ => named(value, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| named(item, names)),
        _ => {}
    }
}

/// Schemas with members that any answer is made of.
fn answered() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("openapi/bakeoff.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut waiting = BTreeSet::new();
    for operation in document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|path| path.as_object().unwrap().values())
    {
        named(&operation["responses"], &mut waiting);
    }
    let mut reached = BTreeSet::new();
    while let Some(name) = waiting.pop_first() {
        if reached.insert(name.clone()) {
            named(&schemas[&name], &mut waiting);
        }
    }
    let has_members = |name: &String| {
        let schema = &schemas[name];
        schema["properties"].is_object() || schema["allOf"].is_array()
    };
    reached.into_iter().filter(has_members).collect()
}

/// The structs of some folders that have a schema, by its name: their own, or the one given to it.
fn with_schema(folders: &[&str]) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for (path, text) in sources(folders) {
        let mut given = None;
        let mut is_shown = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[derive(") {
                (is_shown, given) = (line.contains("ToSchema"), None);
            } else if let Some(name) = line
                .strip_prefix("#[schema(as = ")
                .and_then(|rest| rest.strip_suffix(")]"))
            {
                given = Some(name.to_owned());
            } else if let Some((_, rest)) = line.split_once("struct ")
                && is_shown
                && !line.starts_with("//")
            {
                let own: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
                found.insert(given.take().unwrap_or(own), path.clone());
                is_shown = false;
            }
        }
    }
    found
}

/// Words that specs are written with and that requests to SageMaker are, too: they stand below both.
const WORDS_OF_SPECS: [&str; 4] = [
    "crates/domain/src/sagemaker/endpoint.rs",
    "crates/domain/src/sagemaker/locations.rs",
    "crates/domain/src/sagemaker/metrics.rs",
    "crates/domain/src/sagemaker/tuning.rs",
];

#[test]
fn what_is_answered_is_a_view_or_what_somebody_sent() {
    let answered = answered();
    assert!(answered.len() > 60, "too little to prove anything");
    let (views, mut sent) = (
        with_schema(&["crates/api/src"]),
        with_schema(&["crates/domain/src/spec"]),
    );
    sent.extend(with_schema(&WORDS_OF_SPECS));
    let others: Vec<&String> = answered
        .iter()
        .filter(|name| {
            let of_page = name.strip_prefix("Page_");
            of_page.is_none() && !views.contains_key(*name) && !sent.contains_key(*name)
        })
        .filter(|name| !ANSWERED_AS_THEY_ARE.contains(&name.as_str()))
        .collect();
    assert!(others.is_empty(), "not made in crates/api/src: {others:?}");
}

#[test]
fn what_thinks_is_not_what_is_shown() {
    let mut shown = Vec::new();
    for folder in [
        "crates/domain/src",
        "crates/planner/src",
        "crates/store/src",
        "crates/service/src/read",
    ] {
        shown.extend(with_schema(&[folder]));
    }
    let is_word = |(name, path): &(String, PathBuf)| {
        path.to_string_lossy().contains("/domain/src/spec/")
            || WORDS_OF_SPECS.iter().any(|word| path.ends_with(word))
            || ANSWERED_AS_THEY_ARE.contains(&name.as_str())
            // Ids and dollars: one member without a name.
            || path.ends_with("ids.rs")
            || name == "Usd"
    };
    shown.retain(|one| !is_word(one));
    assert!(
        shown.is_empty(),
        "these have a schema, and are no view: {shown:?}"
    );
}

#[test]
fn the_store_does_not_know_what_is_shown() {
    for (path, text) in sources(&["crates/store/src"]) {
        assert!(!text.contains("crate::service::api"), "{}", path.display());
    }
}

/// Paths that no test names, whatever the method. It only ever gets shorter.
const UNNAMED: [&str; 0] = [];

#[test]
fn every_path_of_the_api_is_named_by_a_test() {
    let text = fs::read_to_string(root().join("openapi/bakeoff.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let tests = sources(&["tests/it"]);
    let named: BTreeSet<Vec<&str>> = tests
        .iter()
        .flat_map(|(_, text)| text.split(['"', ' ', '?']))
        .filter_map(|word| word.find('/').and_then(|at| word.get(at..)))
        .map(|path| path.split('/').collect())
        .collect();
    let is_named = |path: &str| {
        let parts: Vec<&str> = path.split('/').collect();
        let fits = |other: &Vec<&str>| {
            let is_same = |(own, other): (&&str, &&str)| own.starts_with('{') || own == other;
            other.len() == parts.len() && parts.iter().zip(other).all(is_same)
        };
        named.iter().any(fits)
    };
    let paths = document["paths"].as_object().unwrap();
    let unnamed: Vec<&String> = paths.keys().filter(|path| !is_named(path)).collect();
    assert_eq!(unnamed, UNNAMED, "no test names these");
}

/// Names of schemas in a file: of types that derive `ToSchema`, or of `named!`, unless they are given another.
fn schemas(text: &str) -> Vec<String> {
    let declared = Regex::new(
        r"(?:(?:#\[[^\n]*\]|//[^\n]*)\s*)*(?:pub(?:\([^)]*\))? (?:struct|enum) (\w+)|named! \{\s*((?:(?:#\[[^\n]*\]|//[^\n]*)\s*)*)(\w+) \{)",
    )
    .unwrap();
    let given = Regex::new(r"#\[schema\(as = (\w+)\)\]").unwrap();
    let found = declared.captures_iter(text).filter_map(|one| {
        let whole = &one[0];
        let own = match (one.get(1), one.get(3)) {
            (Some(name), _) if whole.contains("ToSchema") => name.as_str(),
            (None, Some(name)) => name.as_str(),
            _ => return None,
        };
        let name = given.captures(whole).map(|name| name[1].to_owned());
        Some(name.unwrap_or_else(|| own.to_owned()))
    });
    found.collect()
}

/// OpenAPI has one schema of a name: a second type of that name would be described as the first.
#[test]
fn no_two_types_are_one_schema() {
    let folders = [
        "crates/domain/src",
        "crates/planner/src",
        "crates/api/src",
        "crates/http/src",
    ];
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources(&folders) {
        for name in schemas(&text) {
            files
                .entry(name)
                .or_default()
                .push(path.display().to_string());
        }
    }
    assert!(files.len() > 200, "{} schemas were found", files.len());
    files.retain(|_, files| files.len() > 1);
    assert_eq!(files, BTreeMap::new());
}

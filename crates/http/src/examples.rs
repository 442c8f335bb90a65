//! An example of each body that the API takes, in the OpenAPI document. The Python client's tests hold each against its schema.

use serde_json::{Map, Value};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{OpenApi, RefOr};

/// By operation: the body, or one for each media type where an operation takes several. `@experiment/workload` stands for
/// a part of one of [`DOCUMENTS`].
const BODIES: &str = include_str!("examples.json");

/// The documents that the repository's examples run.
const DOCUMENTS: [(&str, &str); 3] = [
    (
        "experiment",
        include_str!("../../../examples/hebrew-p4-p5.json"),
    ),
    (
        "pipeline",
        include_str!("../../../examples/pipelines/legal-g5.json"),
    ),
    (
        "template",
        include_str!("../../../examples/ci/legal-g5.json"),
    ),
];

/// Adds them to the document.
pub(crate) fn add(document: &mut OpenApi) {
    let bodies: Map<String, Value> = serde_json::from_str(BODIES).unwrap_or_default();
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            let id = operation.operation_id.clone().unwrap_or_default();
            if let Some(body) = bodies.get(&id) {
                show(operation, body);
            }
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem {
        get,
        put,
        post,
        delete,
        patch,
        ..
    } = item;
    let all = [get, put, post, delete, patch];
    all.into_iter().filter_map(Option::as_mut)
}

fn show(operation: &mut Operation, body: &Value) {
    let Some(RefOr::T(request)) = &mut operation.request_body else {
        return;
    };
    for (media_type, content) in &mut request.content {
        if let RefOr::T(content) = content {
            let own = body.get(media_type).unwrap_or(body);
            content.example = Some(whole(own));
        }
    }
}

/// The example with what it refers to.
fn whole(value: &Value) -> Value {
    match value {
        Value::String(text) => referred(text).unwrap_or_else(|| value.clone()),
        Value::Array(items) => items.iter().map(whole).collect(),
        Value::Object(members) => {
            let members = members.iter();
            let members = members.map(|(name, value)| (name.clone(), whole(value)));
            Value::Object(members.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn referred(text: &str) -> Option<Value> {
    let place = text.strip_prefix('@')?;
    let (name, pointer) = place.split_at(place.find('/').unwrap_or(place.len()));
    let (_, document) = DOCUMENTS.iter().find(|(own, _)| *own == name)?;
    let document: Value = serde_json::from_str(document).ok()?;
    document.pointer(pointer).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that is added needs an example, and an example that is misspelt is no operation's.
    #[test]
    fn every_body_has_an_example_and_every_example_a_body() {
        let mut document = crate::openapi();
        let mut bodies: Map<String, Value> = serde_json::from_str(BODIES).unwrap();
        let mut missing = Vec::new();
        for item in document.paths.paths.values_mut() {
            for operation in operations(item) {
                let id = operation.operation_id.clone().unwrap();
                bodies.remove(&id);
                let Some(RefOr::T(request)) = &operation.request_body else {
                    continue;
                };
                let is_shown = |content: &RefOr<_>| match content {
                    RefOr::T(utoipa::openapi::Content { example, .. }) => example.is_some(),
                    RefOr::Ref(_) => false,
                };
                if !request.content.values().all(is_shown) {
                    missing.push(id);
                }
            }
        }
        assert_eq!(missing, Vec::<String>::new());
        assert_eq!(bodies.keys().collect::<Vec<_>>(), Vec::<&String>::new());
    }

    #[test]
    fn what_an_example_refers_to_is_there() {
        let bodies: Value = serde_json::from_str(BODIES).unwrap();
        let text = whole(&bodies).to_string();
        assert!(!text.contains("\"@"), "{text}");
        assert!(
            whole(&Value::from("@experiment/workload"))
                .get("model")
                .is_some()
        );
    }
}

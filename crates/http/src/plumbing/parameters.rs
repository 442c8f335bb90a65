//! Parameters of paths that take none: refused, because whoever sends one expects it to change the answer. Paths that
//! take some refuse others themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use utoipa::openapi::OpenApi;

use crate::plumbing::problem::Problem;

/// The paths that take no parameters, each with its method in small letters.
pub(crate) type Bare = Arc<BTreeSet<(String, String)>>;

/// Reads them from the document.
pub(crate) fn bare(document: &OpenApi) -> Bare {
    let document = serde_json::to_value(document).unwrap_or_default();
    let paths = document.get("paths").and_then(Value::as_object);
    let paths = paths.into_iter().flatten();
    let operations = paths.flat_map(|(path, item)| {
        let own = item.as_object().into_iter().flatten();
        own.map(move |(method, operation)| (method, path, operation))
    });
    let takes_none = operations.filter(|(_, _, operation)| {
        let all = operation.get("parameters").and_then(Value::as_array);
        let is_of_query = |one: &Value| one.get("in").is_some_and(|place| place == "query");
        !all.into_iter().flatten().any(is_of_query)
    });
    let named = takes_none.map(|(method, path, _)| (method.clone(), path.clone()));
    Arc::new(named.collect())
}

pub(crate) async fn refuse(State(bare): State<Bare>, request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let path = request.extensions().get::<MatchedPath>();
    if let (false, Some(path)) = (query.is_empty(), path) {
        let method = request.method().as_str().to_ascii_lowercase();
        if bare.contains(&(method, path.as_str().to_owned())) {
            let name = query.split(['=', '&']).next().unwrap_or_default();
            let name: String = name.chars().take(100).collect();
            let detail = format!("this path takes no parameters: leave out `{name}`");
            return Problem::bad_parameter(detail, Vec::new()).into_response();
        }
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_paths_without_a_parameter_in_the_query_take_none() {
        let of = |place: &str| json!([{"name": "id", "in": place, "required": true}]);
        let answers = json!({"200": {"description": "ok"}});
        let document: OpenApi = serde_json::from_value(json!({
            "openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {
                "/listed": {"get": {"parameters": of("query"), "responses": answers}, "post": {"responses": answers}},
                "/one/{id}": {"get": {"parameters": of("path"), "responses": answers}},
            }
        }))
        .unwrap();
        let expected = [("get", "/one/{id}"), ("post", "/listed")];
        let expected = expected.map(|(method, path)| (method.to_owned(), path.to_owned()));
        assert_eq!(*bare(&document), BTreeSet::from(expected));
    }
}

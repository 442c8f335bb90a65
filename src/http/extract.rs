//! Extractors that answer with problems: strict query parameters, strict JSON bodies, typed ids in paths.

use std::str::FromStr;
use std::sync::LazyLock;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use bakeoff_domain::finding::nearest;
use serde::de::DeserializeOwned;
use serde_ignored::Path as Ignored;

use super::problem::{FieldError, Problem};

/// The largest body of a request.
pub(super) const BODY_BYTES_MAX: usize = 1024 * 1024;

/// A body's bytes, bounded.
pub(super) struct Raw(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let body = to_bytes(request.into_body(), BODY_BYTES_MAX).await;
        body.map(Self).map_err(|_| Problem::too_large(BODY_BYTES_MAX))
    }
}

/// A JSON body without a field that nobody reads.
pub(super) struct Strict<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Strict<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let Raw(bytes) = Raw::from_request(request, state).await?;
        let (value, unknown) = parse(&bytes)?;
        if unknown.is_empty() { Ok(Self(value)) } else { Err(Problem::invalid(unknown)) }
    }
}

/// Reads JSON; unknown fields are returned beside the value, so that they can be reported together with the linter's findings.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, Vec<FieldError>), Problem> {
    // Postgres keeps no NUL, neither in text nor in JSON.
    if bytes.windows(6).any(|window| window == b"\\u0000") {
        return Err(Problem::malformed("a string contains the character NUL (\\u0000)"));
    }
    let json: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| Problem::malformed(error.to_string()))?;
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(&json, &mut track);
    let parsed = serde_ignored::deserialize(deserializer, |path| unknown.push(unknown_field(&path)));
    match parsed {
        Ok(value) => Ok((value, unknown)),
        Err(error) => {
            let pointer = track.path().iter().fold(String::new(), |pointer, segment| {
                let text = segment.to_string();
                let name = text.trim_start_matches('[').trim_end_matches(']');
                if name == "?" { pointer } else { format!("{pointer}/{name}") }
            });
            let detail = error.to_string();
            unknown.push(FieldError { pointer, detail, fix: String::new(), rule: "type".to_owned() });
            Err(Problem::invalid(unknown))
        }
    }
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
    let document = serde_json::to_value(super::openapi()).unwrap_or_default();
    let schemas =
        document.pointer("/components/schemas").and_then(serde_json::Value::as_object).cloned().unwrap_or_default();
    let names = schemas.values().filter_map(|schema| schema.get("properties")?.as_object()).flatten();
    names.map(|(name, _)| name.clone()).collect()
});

fn unknown_field(path: &Ignored<'_>) -> FieldError {
    let pointer = pointer(path);
    let name = pointer.rsplit('/').next().unwrap_or_default().to_owned();
    let near = nearest(&name, FIELDS.iter().map(String::as_str), 2);
    let fix = if near.is_empty() { "remove it".to_owned() } else { format!("did you mean {}?", near.join(" or ")) };
    FieldError { pointer, detail: format!("there is no field `{name}` here"), fix, rule: "unknown-field".to_owned() }
}

/// Query parameters; the type denies unknown fields, so that a typo never widens a list silently.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        if query.contains("%00") {
            return Err(Problem::bad_parameter("a parameter contains the character NUL", Vec::new()));
        }
        serde_html_form::from_str(query)
            .map(Self)
            .map_err(|error| Problem::bad_parameter(error.to_string(), Vec::new()))
    }
}

/// A typed id in the path. One that is malformed names nothing, so it is not found.
pub(super) struct Id<T>(pub(super) T);

impl<S, T> FromRequestParts<S> for Id<T>
where
    S: Send + Sync,
    T: FromStr + Send,
    T::Err: std::fmt::Display,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| Problem::not_found(error.to_string()))?;
        text.parse().map(Self).map_err(|error: T::Err| Problem::not_found(error.to_string()))
    }
}

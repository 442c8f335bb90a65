//! The dashboard, as it was built from `dashboard/` and embedded: `cargo xtask dashboard`. A path that is neither the
//! API's nor a file's is a page of the dashboard where a browser asks for it, and a 404 otherwise.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::plumbing::problem::Problem;

/// Empty where the dashboard was not built.
#[derive(RustEmbed)]
#[folder = "../../dashboard/dist"]
#[allow_missing = true]
struct Files;

const INDEX: &str = "index.html";

/// Only what comes from here runs, and nothing may frame it. The two hashes are the style sheets that Observable Plot puts
/// into its figures and its legends.
const POLICY: &str = "default-src 'self'; script-src 'self'; \
    style-src 'self' 'sha256-jSYQUrW7J0b3jPqhZP9C2Xh1PyJKHKXd4s0fpGGKrww=' 'sha256-rCZUQsEQJf1DmnfnMZmlj08XC7qbIZySA6bEtitbQ00='; \
    img-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'; \
    require-trusted-types-for 'script'";

/// Names of files have a hash of their content in them.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

const NOT_BUILT: &str = "<!doctype html><title>Bakeoff</title><p>This program was built without its dashboard: \
    <code>cargo xtask dashboard</code>, then build it again. Documentation and the API are at <a href=\"/docs/\">/docs/</a>.";

/// Whether this program was built with its dashboard.
pub(crate) fn is_built() -> bool {
    Files::get(INDEX).is_some()
}

pub(crate) async fn serve(request: Request) -> Response {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    match answer(request.uri(), request.headers()).filter(|_| is_read) {
        Some(answer) => answer,
        None => Problem::not_found(
            "nothing is served at this path; /docs/api/ lists the API, and / is the dashboard",
        )
        .into_response(),
    }
}

fn answer(uri: &Uri, headers: &HeaderMap) -> Option<Response> {
    let path = uri.path().trim_start_matches('/');
    if let Some(file) = Files::get(path).filter(|_| path != INDEX) {
        let lasts = if path.starts_with("assets/") {
            FOR_EVER
        } else {
            "no-cache"
        };
        return Some(sent(file, lasts));
    }
    // A file that is not there any more is not a page, and neither is a path of the API.
    let is_other = ["assets/", "v1/"]
        .iter()
        .any(|other| path.starts_with(other));
    if is_other || !wants_html(headers) {
        return None;
    }
    Some(match Files::get(INDEX) {
        Some(file) => sent(file, "no-cache"),
        None => (StatusCode::OK, Html(NOT_BUILT)).into_response(),
    })
}

fn wants_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT);
    accepted.is_some_and(|value| value.as_bytes().windows(9).any(|part| part == b"text/html"))
}

fn sent(file: EmbeddedFile, lasts: &'static str) -> Response {
    let kind = HeaderValue::from_str(file.metadata.mimetype())
        .unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, HeaderValue::from_static(lasts)),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("same-origin"),
        ),
    ];
    (headers, file.data.into_owned()).into_response()
}

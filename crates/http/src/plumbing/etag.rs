//! ETag and 304: a GET answers with a tag of its body, and without a body when the client already
//! has it. The data is read either way; this saves the transfer and the client's parsing.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Larger bodies are sent without a tag.
const BODY_MAX: u64 = 4 << 20;
/// The time a table was read is not part of its content.
const READ_AT: &[u8] = b"\"as_of\":\"";
/// The field comes last, within this many bytes of the end.
const READ_AT_WITHIN: usize = 64;

pub(crate) async fn conditional(request: Request, next: Next) -> Response {
    if request.method() != Method::GET {
        return next.run(request).await;
    }
    let known = request.headers().get(header::IF_NONE_MATCH).cloned();
    let response = next.run(request).await;
    if !is_to_be_tagged(&response) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        return crate::plumbing::problem::Problem::internal().into_response();
    };
    let tag = tag(&bytes);
    if let Ok(value) = HeaderValue::from_str(&tag) {
        parts.headers.insert(header::ETAG, value);
    }
    // The figures are private: shared caches must not keep them, and clients revalidate each time.
    parts
        .headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("private, no-cache"));
    if known.is_some_and(|known| matches(&known, &tag)) {
        let kept: HeaderMap = [header::ETAG, header::CACHE_CONTROL, header::VARY]
            .into_iter()
            .filter_map(|name| Some((name.clone(), parts.headers.get(name)?.clone())))
            .collect();
        return (StatusCode::NOT_MODIFIED, kept).into_response();
    }
    Response::from_parts(parts, Body::from(bytes))
}

fn is_to_be_tagged(response: &Response) -> bool {
    let size = response.body().size_hint().exact();
    response.status() == StatusCode::OK
        && size.is_some_and(|size| size <= BODY_MAX)
        && !response.headers().contains_key(header::ETAG)
}

/// A weak tag: the content is the same, but not necessarily every byte.
fn tag(body: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    let (head, tail) = body.split_at(body.len().saturating_sub(READ_AT_WITHIN));
    match tail
        .windows(READ_AT.len())
        .rposition(|window| window == READ_AT)
    {
        Some(at) => {
            let (before, from) = body.split_at(head.len() + at);
            let value = from.get(READ_AT.len()..).unwrap_or_default();
            let end = value
                .iter()
                .position(|byte| *byte == b'"')
                .unwrap_or(value.len());
            (before, value.get(end..)).hash(&mut hasher);
        }
        None => body.hash(&mut hasher),
    }
    format!("W/\"{:016x}\"", hasher.finish())
}

fn matches(known: &HeaderValue, tag: &str) -> bool {
    let is_own = |one: &str| one.trim() == tag || one.trim() == "*";
    known.to_str().is_ok_and(|text| text.split(',').any(is_own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_it_was_read_is_not_in_the_tag() {
        let body = |value: u32, at: &str| {
            format!("{{\"rows\":[{value}],\"as_of\":\"{at}\"}}").into_bytes()
        };
        assert_eq!(
            tag(&body(1, "2026-11-20T00:00:00Z")),
            tag(&body(1, "2026-11-20T00:00:00.25Z"))
        );
        assert_ne!(
            tag(&body(1, "2026-11-20T00:00:00Z")),
            tag(&body(2, "2026-11-20T00:00:00Z"))
        );
        assert_ne!(tag(b"{}"), tag(b"{ }"));
    }

    #[test]
    fn a_client_may_know_several() {
        let known = HeaderValue::from_static("W/\"1\", W/\"2\"");
        assert!(matches(&known, "W/\"2\"") && !matches(&known, "W/\"3\""));
    }
}

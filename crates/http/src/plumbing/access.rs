//! The access log: one line for each request, within the request's span (its id, trace and API
//! key), and its duration by route. For a stream, that is the time until its head is sent.

use axum::extract::{MatchedPath, Request};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;
use bakeoff_domain::ids::ApiKeyId;
use tracing::Span;

use bakeoff_process::clock::Stopwatch;
use bakeoff_process::ids;

/// W3C Trace Context, level 1: `00-<trace id>-<parent id>-<flags>`.
const TRACE_PARENT: &str = "traceparent";
const TRACE_ID_LENGTH: usize = 32;
const PARENT_ID_LENGTH: usize = 16;

/// Polled by machines every few seconds: successful requests are logged at debug level only.
const HEALTH: [&str; 3] = ["/livez", "/readyz", "/metrics"];
/// Label of requests that match no route: a client-chosen path must not become a label.
const NO_ROUTE: &str = "none";
/// Maximum length of a path in the log.
const PATH_LENGTH_MAX: usize = 200;
/// No response was sent: the client disconnected, or the request was given up.
const ABANDONED: u16 = 499;
const IS_ERROR_FROM: u16 = 400;

/// The span of a request, to which later layers add what they learn.
#[derive(Clone)]
pub(crate) struct RequestSpan(pub(crate) Span);

impl RequestSpan {
    pub(crate) fn of(id: &str, request: &Request) -> Self {
        let trace_id = trace_id(request.headers())
            .map_or_else(|| ids::fresh().simple().to_string(), str::to_owned);
        Self(tracing::info_span!(
            "request",
            id,
            trace_id,
            method = %request.method(),
            path = request.uri().path().get(..PATH_LENGTH_MAX).unwrap_or(request.uri().path()),
            key_id = tracing::field::Empty,
        ))
    }

    pub(crate) fn record_key(&self, key: ApiKeyId) {
        self.0.record("key_id", tracing::field::display(key));
    }
}

/// The caller's trace id, if the header is well-formed; an invalid header is ignored.
fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let parent = headers.get(TRACE_PARENT)?.to_str().ok()?;
    let parts: Vec<&str> = parent.split('-').collect();
    let [version, trace, span, flags, more @ ..] = parts.as_slice() else {
        return None;
    };
    let is_hex = |text: &str, length: usize| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        text.len() == length && text.bytes().all(is_digit)
    };
    let is_id = |text: &str, length: usize| is_hex(text, length) && text.bytes().any(|b| b != b'0');
    // Later versions may append fields after the flags.
    let is_known = is_hex(version, 2) && *version != "ff" && (*version != "00" || more.is_empty());
    let is_whole = is_id(trace, TRACE_ID_LENGTH) && is_id(span, PARENT_ID_LENGTH);
    (is_known && is_whole && is_hex(flags, 2)).then_some(*trace)
}

/// Logs and measures each answer.
pub(crate) async fn log(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let mut line = Line {
        started: Stopwatch::start(),
        method: method(&request),
        route: route.map_or_else(|| NO_ROUTE.to_owned(), |path| path.as_str().to_owned()),
        status: ABANDONED,
    };
    let response = next.run(request).await;
    line.status = response.status().as_u16();
    response
}

/// The log line, written on drop: also when the client does not wait for the answer.
struct Line {
    started: Stopwatch,
    method: &'static str,
    route: String,
    status: u16,
}

impl Drop for Line {
    fn drop(&mut self) {
        let Self {
            started,
            method,
            route,
            status,
        } = self;
        let took = started.elapsed();
        let milliseconds = took.as_secs_f64() * 1e3;
        if HEALTH.contains(&route.as_str()) && *status < IS_ERROR_FROM {
            tracing::debug!(status, route, milliseconds, "answered");
        } else {
            tracing::info!(status, route, milliseconds, "answered");
        }
        let labels = [
            ("method", (*method).to_owned()),
            ("route", route.clone()),
            ("status", status.to_string()),
        ];
        metrics::histogram!("bakeoff_http_request_duration_seconds", &labels).record(took);
    }
}

/// Maps unknown methods to one label, because clients may invent any method name.
fn method(request: &Request) -> &'static str {
    match request.method().as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    /// The example from the W3C recommendation, and headers that violate its grammar.
    #[test]
    fn a_trace_is_propagated_only_from_a_well_formed_header() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACE_PARENT, HeaderValue::from_static(text));
            trace_id(&headers).map(str::to_owned)
        };
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(of(good).as_deref(), Some(trace));
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert_eq!(of(later).as_deref(), Some(trace));
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf9-00f067aa0ba902b7-01",
            "zz-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}

//! What browsers need of HTTP: compressed answers, and the rules for pages of other sites.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{DefaultPredicate, NotForContentType, Predicate};
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_http::csrf::{CsrfLayer, ProtectionError};

use crate::plumbing::problem::Problem;

/// How long a browser need not ask again whether it may ask.
const PREFLIGHT_LASTS: Duration = Duration::from_hours(1);

/// By gzip or brotli, whichever the client prefers; streams and what is compressed already are sent as they are.
pub(crate) fn compression() -> CompressionLayer<impl Predicate> {
    let predicate = DefaultPredicate::new().and(NotForContentType::const_new(
        "application/vnd.apache.parquet",
    ));
    CompressionLayer::new().compress_when(predicate)
}

/// Refuses what a browser says to come from another site's page, since it may carry a person's cookie; but for these
/// origins.
pub(crate) fn csrf(
    trusted: &[String],
) -> CsrfLayer<impl Fn(ProtectionError) -> Response + Clone + Send + Sync + 'static> {
    let layer = trusted.iter().fold(CsrfLayer::new(), |layer, origin| {
        let known = layer.clone();
        // They were read as origins when the service started.
        layer.add_trusted_origin(origin).unwrap_or(known)
    });
    layer.with_rejection_response(|_: ProtectionError| cross_site())
}

/// Lets pages of these origins read answers, with a key of their own: the cookie of a session is not for them.
pub(crate) fn cors(origins: &[String]) -> CorsLayer {
    let origins = origins.iter();
    let origins = origins.filter_map(|origin| HeaderValue::from_str(origin).ok());
    let sent = [
        header::AUTHORIZATION,
        header::CONTENT_TYPE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        HeaderName::from_static("idempotency-key"),
        HeaderName::from_static("last-event-id"),
    ];
    let read = [
        header::ETAG,
        header::LOCATION,
        header::RETRY_AFTER,
        HeaderName::from_static("x-request-id"),
    ];
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ])
        .allow_headers(sent)
        .expose_headers(read)
        .max_age(PREFLIGHT_LASTS)
}

/// The answer to a request that a browser says to come from another site.
fn cross_site() -> Response {
    Problem::forbidden(
        "this request comes from a page of another site; programs send an API key and no Origin",
    )
    .into_response()
}

//! Sessions: a browser exchanges an API key for a cookie that scripts cannot read. What a session may do is what its key
//! may do. The cookie is never sent for another site (`SameSite=Strict`), and the router refuses what a browser says to
//! come from one.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::plumbing::auth::{self, COOKIE, Caller, session_token};
use crate::plumbing::extract::Strict;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::sessions::SessionView;
use bakeoff_process::clock::real_now;
use bakeoff_service::app::App;
use bakeoff_service::auth::secrets;
use bakeoff_store::sessions::SESSION_MAX;

/// A key to log in with.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct NewSession {
    /// `bk_…`, as `bakeoff keys create` prints it.
    #[schema(example = "bk_…")]
    api_key: String,
}

/// Log in
///
/// Exchanges an API key for a session: the cookie `__Host-bakeoff`, which scripts cannot read and other sites do not
/// send. Browsers accept it over HTTPS, and over plain HTTP on `localhost` and `127.0.0.1` only.
#[utoipa::path(post, path = "/v1/sessions", operation_id = "logIn", tag = "sessions", security(()),
    responses((status = 201, description = "Logged in; the cookie is set", body = SessionView), Problems))]
pub(crate) async fn log_in(
    State(app): State<App>,
    Strict(new): Strict<NewSession>,
) -> Result<Response, Problem> {
    let key = auth::key_of(&app, new.api_key.trim()).await?;
    let token = secrets::secret();
    let hash: [u8; 32] = Sha256::digest(token).into();
    app.store.begin_session(&hash, key, real_now()).await?;
    let session = app
        .store
        .live_session(&hash, real_now())
        .await?
        .ok_or_else(Problem::internal)?;
    let lasts = SESSION_MAX.num_seconds();
    let cookie = cookie(&hex::encode(token), lasts)?;
    let view = Json(SessionView::from(session));
    Ok((StatusCode::CREATED, [(header::SET_COOKIE, cookie)], view).into_response())
}

/// Who is logged in
#[utoipa::path(get, path = "/v1/sessions/current", operation_id = "getSession", tag = "sessions",
    responses((status = 200, description = "The session of the cookie that was sent", body = SessionView), Problems))]
pub(crate) async fn current(
    State(app): State<App>,
    headers: HeaderMap,
    _: Caller,
) -> Result<Json<SessionView>, Problem> {
    let hash = session_token(&headers).ok_or_else(no_session)?;
    let session = app.store.live_session(&hash, real_now()).await?;
    Ok(Json(session.ok_or_else(no_session)?.into()))
}

fn no_session() -> Problem {
    Problem::not_found("no session: the request came with a key instead of a cookie")
}

/// Log out
///
/// Ends the session; the key stays.
#[utoipa::path(delete, path = "/v1/sessions/current", operation_id = "logOut", tag = "sessions", security(()),
    responses((status = 204, description = "Logged out"), Problems))]
pub(crate) async fn log_out(
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if let Some(hash) = session_token(&headers) {
        app.store.end_session(&hash).await?;
    }
    Ok((
        StatusCode::NO_CONTENT,
        [(header::SET_COOKIE, cookie("", 0)?)],
    )
        .into_response())
}

/// The cookie's line. The prefix `__Host-` makes browsers insist on `Secure`, `Path=/` and no domain.
fn cookie(value: &str, seconds: i64) -> Result<HeaderValue, Problem> {
    let line =
        format!("{COOKIE}={value}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={seconds}");
    HeaderValue::from_str(&line).map_err(|_| Problem::internal())
}

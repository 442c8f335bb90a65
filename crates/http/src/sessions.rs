//! Sessions: a browser exchanges an API key for a cookie that scripts cannot read. What a session may do is what its key
//! may do. The cookie is never sent for another site (`SameSite=Strict`), and the router refuses what a browser says to
//! come from one.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::ApiKeyId;
use chrono::TimeDelta;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::plumbing::auth::{self, COOKIE, Caller, session_token};
use crate::plumbing::extract::Strict;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::sessions::{LoginLink, SessionView};
use bakeoff_process::clock::real_now;
use bakeoff_service::app::App;
use bakeoff_service::auth::secrets;
use bakeoff_store::sessions::SESSION_MAX;

/// How long a login link is good for.
const LINK_LASTS: TimeDelta = TimeDelta::minutes(10);

/// What to log in with: one of the two.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct NewSession {
    /// `bk_…`, as `bakeoff keys create` prints it.
    #[serde(default)]
    #[schema(example = "bk_…")]
    api_key: Option<String>,
    /// What follows `#login=` in a login link; it is used up.
    #[serde(default)]
    login_token: Option<String>,
}

/// Log in
///
/// Exchanges an API key, or the token of a login link, for a session: the cookie `__Host-bakeoff`, which scripts cannot
/// read and other sites do not send. Browsers accept it over HTTPS, and over plain HTTP on `localhost` and `127.0.0.1`
/// only.
#[utoipa::path(post, path = "/v1/sessions", operation_id = "logIn", tag = "sessions", security(()),
    request_body = NewSession,
    responses((status = 201, description = "Logged in; the cookie is set", body = SessionView), Problems))]
pub(crate) async fn log_in(
    State(app): State<App>,
    Strict(new): Strict<NewSession>,
) -> Result<Response, Problem> {
    let key = match (new.api_key, new.login_token) {
        (Some(key), None) => auth::key_of(&app, key.trim()).await?,
        (None, Some(token)) => key_of_link(&app, &token).await?,
        (None, None) | (Some(_), Some(_)) => {
            return Err(Problem::invalid(vec![FieldError {
                pointer: "/api_key".to_owned(),
                detail: "send either api_key or login_token".to_owned(),
                fix: "bakeoff keys create makes a key".to_owned(),
                rule: "session".to_owned(),
            }]));
        }
    };
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

async fn key_of_link(app: &App, token: &str) -> Result<ApiKeyId, Problem> {
    let token = hex::decode(token.trim()).ok();
    let hash = token.map(|token| <[u8; 32]>::from(Sha256::digest(token)));
    let key = match hash {
        Some(hash) => app.store.use_login_link(&hash, real_now()).await?,
        None => None,
    };
    key.ok_or_else(|| {
        Problem::unauthenticated(
            "the login link was used already, or is older than ten minutes: log in with an API key",
        )
    })
}

/// Make a login link
///
/// A link that logs a person in to the dashboard once, with what the key of this request may do. The request must
/// come with the key itself: a session that could make another one would never have to end.
#[utoipa::path(post, path = "/v1/login-links", operation_id = "createLoginLink", tag = "sessions",
    responses((status = 201, description = "Made", body = LoginLink), Problems))]
pub(crate) async fn link(State(app): State<App>, caller: Caller) -> Result<Response, Problem> {
    if caller.is_session() {
        return Err(Problem::not_by_session(
            "a session cannot make another one: send the API key itself (`bakeoff open`)",
        ));
    }
    let token = secrets::secret();
    let hash: [u8; 32] = Sha256::digest(token).into();
    let now = real_now();
    let ends_at = now + LINK_LASTS;
    app.store
        .keep_login_link(&hash, caller.key, ends_at, now)
        .await?;
    let link = LoginLink {
        path: format!("/#login={}", hex::encode(token)),
        ends_at,
    };
    let headers = [(header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, headers, Json(link)).into_response())
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

//! Authentication and roles: the extractors that almost every handler begins with. Keys themselves
//! are described in [`bakeoff_service::auth::keys`].

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::plumbing::access::RequestSpan;
use crate::plumbing::problem::Problem;
use bakeoff_process::clock::real_now;
use bakeoff_service::app::App;
use bakeoff_service::auth::keys::{Role, hash, parse_key};
use bakeoff_service::auth::push_token;

/// The cookie of a session.
pub(crate) const COOKIE: &str = "__Host-bakeoff";

/// A caller with a valid key, or with a session that was begun with one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) project: ProjectId,
    pub(crate) key: ApiKeyId,
    /// The hash of the session's token, if the request came with its cookie instead of the key.
    session: Option<[u8; 32]>,
    role: Role,
}

/// A caller who may start and change things. As an extractor it runs before the body's, so that an
/// unauthorised caller is refused before anything is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Editor(pub(crate) Caller);

/// A caller who may grant access, or decide about money.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admin(pub(crate) Caller);

/// A sender of metrics: an editor, or a training job with the token of its trial, which is still to
/// be verified.
#[derive(Debug, Clone)]
pub(crate) enum Pusher {
    Editor(Caller),
    Token(String),
}

impl FromRequestParts<App> for Pusher {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        match bearer(parts).filter(|text| push_token::is_one(text)) {
            Some(token) => Ok(Self::Token(token.to_owned())),
            None => Editor::from_request_parts(parts, app)
                .await
                .map(|Editor(caller)| Self::Editor(caller)),
        }
    }
}

fn bearer(parts: &Parts) -> Option<&str> {
    let value = parts
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())?;
    value.strip_prefix("Bearer ").map(str::trim)
}

impl Caller {
    fn needs(self, role: Role) -> Result<Self, Problem> {
        if self.role >= role {
            return Ok(self);
        }
        Err(Problem::forbidden(format!(
            "this requires the role {}, but the key has {}",
            role.as_str(),
            self.role.as_str()
        )))
    }

    /// Whether the request came with a session's cookie.
    pub(crate) fn is_session(&self) -> bool {
        self.session.is_some()
    }

    /// Whether the key is still valid, and the session has not ended; also true while the database cannot be reached.
    pub(crate) async fn is_live(self, app: &App) -> bool {
        let now = real_now();
        match self.session {
            Some(token) => !matches!(app.store.live_session(&token, now).await, Ok(None)),
            None => !matches!(app.store.live_key(self.key, now).await, Ok(None)),
        }
    }
}

impl FromRequestParts<App> for Editor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        Caller::from_request_parts(parts, app)
            .await?
            .needs(Role::Editor)
            .map(Self)
    }
}

impl FromRequestParts<App> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        Caller::from_request_parts(parts, app)
            .await?
            .needs(Role::Admin)
            .map(Self)
    }
}

/// The hash, as stored, of the session token in the cookie.
pub(crate) fn session_token(headers: &HeaderMap) -> Option<[u8; 32]> {
    let cookies = headers.get_all(header::COOKIE).into_iter();
    let mut pairs = cookies
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let token = pairs.find(|(name, _)| *name == COOKIE)?.1;
    let token = hex::decode(token).ok().filter(|token| token.len() == 32)?;
    Some(Sha256::digest(token).into())
}

/// The caller of a key. There is one answer for every kind of invalid key, so that it does not reveal which ids exist.
async fn caller_of(app: &App, text: &str) -> Result<Caller, Problem> {
    let refused = || {
        Problem::unauthenticated(
            "the key is malformed, unknown, revoked or expired; `bakeoff keys create` creates one, on the host or with an admin's key",
        )
    };
    let (id, secret) = parse_key(text).ok_or_else(refused)?;
    let stored = app
        .store
        .live_key(id, real_now())
        .await?
        .ok_or_else(refused)?;
    let role = Role::parse(&stored.role).ok_or_else(refused)?;
    if !bool::from(hash(&secret).as_slice().ct_eq(&stored.secret_sha256)) {
        return Err(refused());
    }
    Ok(Caller {
        project: stored.project_id,
        key: id,
        session: None,
        role,
    })
}

/// The id of a valid key.
pub(crate) async fn key_of(app: &App, text: &str) -> Result<ApiKeyId, Problem> {
    caller_of(app, text).await.map(|caller| caller.key)
}

/// The caller of a session's cookie.
async fn caller_in(app: &App, token_sha256: &[u8; 32]) -> Result<Caller, Problem> {
    let ended =
        || Problem::unauthenticated("the session has ended, or its key was revoked: log in again");
    let session = app
        .store
        .live_session(token_sha256, real_now())
        .await?
        .ok_or_else(ended)?;
    Ok(Caller {
        project: session.project,
        key: session.key,
        session: Some(*token_sha256),
        role: Role::parse(&session.role).ok_or_else(ended)?,
    })
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = match (bearer(parts), session_token(&parts.headers)) {
            (Some(text), _) => caller_of(app, text).await?,
            (None, Some(token)) => caller_in(app, &token).await?,
            (None, None) => {
                return Err(Problem::unauthenticated(
                    "send `Authorization: Bearer bk_…`; `bakeoff keys create` creates a key, on the host or with an admin's key",
                ));
            }
        };
        if let Some(span) = parts.extensions.get::<RequestSpan>() {
            span.record_key(caller.key);
        }
        Ok(caller)
    }
}

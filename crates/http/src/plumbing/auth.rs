//! Authentication and roles: the extractors that almost every handler begins with. Keys themselves
//! are described in [`bakeoff_service::auth::keys`].

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use subtle::ConstantTimeEq;

use crate::plumbing::access::RequestSpan;
use crate::plumbing::problem::Problem;
use bakeoff_process::clock::real_now;
use bakeoff_service::app::App;
use bakeoff_service::auth::keys::{Role, hash, parse_key};
use bakeoff_service::auth::push_token;

/// A caller with a valid key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) project: ProjectId,
    pub(crate) key: ApiKeyId,
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

    /// Whether the key is still valid; also true while the database cannot be reached.
    pub(crate) async fn is_live(self, app: &App) -> bool {
        !matches!(app.store.live_key(self.key, real_now()).await, Ok(None))
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

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Some(text) = bearer(parts) else {
            return Err(Problem::unauthenticated(
                "send `Authorization: Bearer bk_…`; `bakeoff keys create` creates a key on the host",
            ));
        };
        // One answer for every kind of invalid key, so that it does not reveal which ids exist.
        let refused = || {
            Problem::unauthenticated(
                "the key is malformed, unknown, revoked or expired; `bakeoff keys create` creates one on the host",
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
        if let Some(span) = parts.extensions.get::<RequestSpan>() {
            span.record_key(id);
        }
        Ok(Self {
            project: stored.project_id,
            key: id,
            role,
        })
    }
}

//! The API keys of a project: who has access, and what they may do. The first key of a project is made on the host
//! (`bakeoff keys create`); an admin's key makes the others.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::ApiKeyId;
use chrono::{DateTime, TimeDelta, Utc};

use crate::plumbing::auth::{Admin, Caller};
use crate::plumbing::extract::{Id, Strict};
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::keys::{CreatedKey, KeyRole, KeyView, NewKey, RotateKey, Whoami};
use bakeoff_api::page::Page;
use bakeoff_process::clock::real_now;
use bakeoff_service::app::App;
use bakeoff_service::auth::keys::{FreshKey, Role};
use bakeoff_store::keys::ListedKey;

const NAME_MAX: usize = 100;
const DAYS_MAX: u32 = 3650;
const OVERLAP_HOURS_MAX: u32 = 720;

/// Who am I
///
/// The project and the key of the request, whichever way it came: by the key itself, or by a session.
#[utoipa::path(get, path = "/v1/whoami", operation_id = "whoami", tag = "sessions",
    responses((status = 200, description = "The caller", body = Whoami), Problems))]
pub(crate) async fn whoami(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<Whoami>, Problem> {
    let key = find(&app, caller, caller.key).await?;
    Ok(Json(Whoami {
        project_id: caller.project,
        project: key.project.clone(),
        key: key.into(),
    }))
}

/// List API keys
///
/// All keys of the project, also revoked and expired ones, oldest first. Needs the role admin.
#[utoipa::path(get, path = "/v1/keys", operation_id = "listKeys", tag = "projects",
    responses((status = 200, description = "The keys, without their secrets", body = Page<KeyView>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    Admin(caller): Admin,
) -> Result<Json<Page<KeyView>>, Problem> {
    let keys = app.store.keys(Some(caller.project)).await?;
    Ok(Json(Page {
        items: keys.into_iter().map(Into::into).collect(),
        next_page_token: None,
    }))
}

/// Make an API key
///
/// The answer is the only one that shows it. Needs the role admin.
#[utoipa::path(post, path = "/v1/keys", operation_id = "createKey", tag = "projects",
    request_body = NewKey,
    responses((status = 201, description = "Made; `api_key` is shown only now", body = CreatedKey), Problems))]
pub(crate) async fn create(
    State(app): State<App>,
    Admin(caller): Admin,
    Strict(new): Strict<NewKey>,
) -> Result<Response, Problem> {
    let name = new.name.trim();
    let mut errors = Vec::new();
    if name.is_empty() || name.chars().count() > NAME_MAX {
        errors.push(error(
            "/name",
            format!("must have 1 to {NAME_MAX} characters"),
            "say what the key is for, or whose it is",
        ));
    }
    if new
        .expires_in_days
        .is_some_and(|days| !(1..=DAYS_MAX).contains(&days))
    {
        errors.push(error(
            "/expires_in_days",
            format!("must be 1 to {DAYS_MAX}"),
            "leave it out for a key that does not expire",
        ));
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let days = new.expires_in_days.map(|days| TimeDelta::days(days.into()));
    let now = real_now();
    let expires_at = days.map(|days| now + days);
    let fresh = FreshKey::new(name, role(new.role), expires_at);
    app.store
        .insert_key(caller.project, &fresh.stored(), now)
        .await?;
    Ok(shown(&fresh, now))
}

fn role(role: KeyRole) -> Role {
    match role {
        KeyRole::Viewer => Role::Viewer,
        KeyRole::Editor => Role::Editor,
        KeyRole::Admin => Role::Admin,
    }
}

/// The answer that shows a key that was just made.
fn shown(fresh: &FreshKey<'_>, created_at: DateTime<Utc>) -> Response {
    let created = CreatedKey {
        key: KeyView {
            id: fresh.id,
            name: fresh.name.to_owned(),
            role: fresh.role.as_str().to_owned(),
            created_at,
            expires_at: fresh.expires_at,
            revoked_at: None,
            replaced_by: None,
        },
        api_key: fresh.text(),
    };
    let headers = [(header::CACHE_CONTROL, "no-store")];
    (StatusCode::CREATED, headers, Json(created)).into_response()
}

fn is_over() -> Problem {
    Problem::conflict(
        "key_is_over",
        "the key is revoked or has expired: make a new one (POST /v1/keys)",
    )
}

/// Replace an API key
///
/// Makes a key of the same name and role, for as long as the old one was made for. The old one stays valid for
/// `overlap_hours`, or ends at once; it is replaced once. Needs the role admin.
#[utoipa::path(post, path = "/v1/keys/{key_id}/rotate", operation_id = "rotateKey", tag = "projects",
    params(("key_id" = ApiKeyId, Path)), request_body = RotateKey,
    responses((status = 201, description = "Made; `api_key` is shown only now", body = CreatedKey), Problems))]
pub(crate) async fn rotate(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<ApiKeyId>,
    Strict(how): Strict<RotateKey>,
) -> Result<Response, Problem> {
    if how.overlap_hours > OVERLAP_HOURS_MAX {
        let detail = format!("must be 0 to {OVERLAP_HOURS_MAX}");
        let fix = "a month is the longest overlap";
        return Err(Problem::invalid(vec![error("/overlap_hours", detail, fix)]));
    }
    let now = real_now();
    let old = find(&app, caller, id).await?;
    if let Some(newer) = old.replaced_by.filter(|_| old.revoked_at.is_none()) {
        let detail = format!("{newer} was made in its place: replace or revoke that one");
        return Err(Problem::conflict("key_is_replaced", detail));
    }
    let role = Role::parse(&old.role).ok_or_else(Problem::internal)?;
    let lasts = old.expires_at.map(|at| now + (at - old.created_at));
    let fresh = FreshKey::new(&old.name, role, lasts);
    let until = now + TimeDelta::hours(how.overlap_hours.into());
    let replaced = app
        .store
        .replace_key(caller.project, id, until, &fresh.stored(), now)
        .await?;
    if !replaced {
        return Err(is_over());
    }
    Ok(shown(&fresh, now))
}

/// Revoke an API key
///
/// It is refused from now on, and sessions that were begun with it end. Safe to repeat. The last admin's key is kept:
/// without it, only someone on the host could grant access. Needs the role admin.
#[utoipa::path(delete, path = "/v1/keys/{key_id}", operation_id = "revokeKey", tag = "projects",
    params(("key_id" = ApiKeyId, Path)),
    responses((status = 200, description = "Revoked", body = KeyView), Problems))]
pub(crate) async fn revoke(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<ApiKeyId>,
) -> Result<Json<KeyView>, Problem> {
    let now = real_now();
    let key = find(&app, caller, id).await?;
    if !app
        .store
        .revoke_unless_last_admin(caller.project, id, now)
        .await?
    {
        return Err(Problem::conflict(
            "last_admin_key",
            "this is the last valid key with the role admin: make another first (POST /v1/keys), \
             or revoke it on the host (bakeoff keys revoke)",
        ));
    }
    let revoked_at = key.revoked_at.or(Some(now));
    Ok(Json(KeyView {
        revoked_at,
        ..key.into()
    }))
}

async fn find(app: &App, caller: Caller, id: ApiKeyId) -> Result<ListedKey, Problem> {
    let keys = app.store.keys(Some(caller.project)).await?;
    let found = keys.into_iter().find(|key| key.id == id);
    found.ok_or_else(|| Problem::not_found(format!("there is no key {id} in this project")))
}

fn error(pointer: &str, detail: String, fix: &str) -> FieldError {
    FieldError {
        pointer: pointer.to_owned(),
        detail,
        fix: fix.to_owned(),
        rule: "key".to_owned(),
    }
}

//! Whom a CI template's runs are told to: commit statuses and check runs at GitHub, commit statuses and comments at
//! GitLab. They are sent by [`bakeoff_service::tasks::commit_statuses`].

use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ci::commit_status::{CodeHost, StatusTarget};
use bakeoff_domain::ci::template;
use bakeoff_domain::embedded;
use bakeoff_domain::ids::{CiRunId, TemplateId};
use regex::Regex;

use crate::ci::runs as ci_runs;
use crate::ci::{never_pushed, no_such};
use crate::plumbing::auth::{Admin, Caller, Editor};
use crate::plumbing::extract::{Id, Strict};
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_api::commit_status::{CommitStatusTarget, NewCommitStatusTarget};
use bakeoff_service::app::App;
use bakeoff_service::outgoing::code_host::Credentials;
use bakeoff_store::ci::Template;
use bakeoff_store::ci::commit_statuses::StoredTarget;
use bakeoff_store::to_json;

const CONTEXT_MAX: usize = 255;
const REPOSITORY_MAX: usize = 300;
const APP_ID_MAX: usize = 100;
/// Characters of an address, as it is written.
const URL_MAX: usize = 2000;
/// Characters of a token, and of a key.
const SECRET_MAX: usize = 16_000;

static GITHUB: LazyLock<Regex> =
    LazyLock::new(|| embedded::pattern("[A-Za-z0-9][A-Za-z0-9-]{0,99}/[A-Za-z0-9._-]{1,100}"));
static GITLAB: LazyLock<Regex> = LazyLock::new(|| {
    embedded::pattern(
        "[0-9]{1,18}|[A-Za-z0-9_][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}){1,10}",
    )
});

fn wrong(pointer: &str, detail: impl Into<String>, fix: &str) -> FieldError {
    FieldError {
        pointer: pointer.to_owned(),
        detail: detail.into(),
        fix: fix.to_owned(),
        rule: "commit-status".to_owned(),
    }
}

/// The address that a host is asked at, and what is wrong with it.
fn api_url(app: &App, new: &NewCommitStatusTarget) -> Result<String, FieldError> {
    let usual = match new.host {
        CodeHost::Github => "https://api.github.com",
        CodeHost::Gitlab => "https://gitlab.com/api/v4",
    };
    let asked = new.api_url.as_deref().unwrap_or(usual);
    let fix = "name the address of the API: https://api.github.com, https://HOST/api/v3, https://HOST/api/v4; networks of your own are allowed by whoever runs the service (--outgoing-allow)";
    let url = app.outgoing.check(asked);
    let url = url.map_err(|why| wrong("/api_url", why.to_string(), fix))?;
    if url.query().is_some() || url.fragment().is_some() || url.as_str().len() > URL_MAX {
        return Err(wrong("/api_url", "has a query, or is too long", fix));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// Credentials that are to be stored; `None` if those that are stored stay.
fn credentials(new: &NewCommitStatusTarget, errors: &mut Vec<FieldError>) -> Option<Credentials> {
    let (given, at) = match (&new.token, &new.app) {
        (None, None) => return None,
        (Some(_), Some(_)) => {
            errors.push(wrong("/app", "is given beside a token", "give one of them"));
            return None;
        }
        (Some(token), None) => (Credentials::Token(token.clone()), "/token"),
        (None, Some(_)) if new.host == CodeHost::Gitlab => {
            errors.push(wrong("/app", "is GitHub's", "give a token"));
            return None;
        }
        (None, Some(app)) => (
            Credentials::App {
                app_id: app.app_id.clone(),
                installation_id: app.installation_id,
                private_key: app.private_key.clone(),
            },
            "/app/private_key",
        ),
    };
    if let Some(app) = new.app.as_ref().filter(|app| app.app_id.len() > APP_ID_MAX) {
        let detail = format!("has {} characters", app.app_id.len());
        errors.push(wrong(
            "/app/app_id",
            detail,
            "give the App's client id or its number",
        ));
    }
    let length = given.secret().len();
    let problem = if length > SECRET_MAX {
        Some("is too long")
    } else {
        given.problem()
    };
    if let Some(problem) = problem {
        errors.push(wrong(at, problem, "copy it as its host shows it"));
    }
    Some(given)
}

/// What is wrong with names.
fn flaws(new: &NewCommitStatusTarget, context: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (is_name, example) = match new.host {
        CodeHost::Github => (GITHUB.is_match(&new.repository), "owner/name"),
        CodeHost::Gitlab => (
            GITLAB.is_match(&new.repository),
            "group/name, group/subgroup/name, or the project's number",
        ),
    };
    if !is_name
        || new.repository.len() > REPOSITORY_MAX
        || new
            .repository
            .split('/')
            .any(|part| part == "." || part == "..")
    {
        errors.push(wrong("/repository", "names no repository", example));
    }
    if context.is_empty()
        || context.chars().count() > CONTEXT_MAX
        || context.chars().any(char::is_control)
    {
        errors.push(wrong(
            "/context",
            format!("must have 1 to {CONTEXT_MAX} characters"),
            "leave it out: bakeoff/ and the template's name",
        ));
    }
    if new.comments && new.host == CodeHost::Github {
        errors.push(wrong(
            "/comments",
            "are GitLab's",
            "give an App: its check runs show the report",
        ));
    }
    errors
}

/// A target as it is wanted, and with what.
struct TargetRequest {
    target: StatusTarget,
    with: GivenOrKept,
}

enum GivenOrKept {
    New(Credentials),
    /// What is stored for the same host and address.
    Kept(StoredTarget),
}

/// What is wanted, if nothing is wrong with it.
fn wanted(
    app: &App,
    new: NewCommitStatusTarget,
    template: &str,
    earlier: Option<StoredTarget>,
) -> Result<TargetRequest, Problem> {
    let context = new.context.clone();
    let context = context.unwrap_or_else(|| format!("bakeoff/{template}"));
    let mut errors = flaws(&new, &context);
    let api_url = api_url(app, &new).unwrap_or_else(|error| {
        errors.push(error);
        String::new()
    });
    let given = credentials(&new, &mut errors);
    let kept = earlier
        .filter(|earlier| earlier.target.host == new.host && earlier.target.api_url == api_url);
    let with = given.map(GivenOrKept::New).or(kept.map(GivenOrKept::Kept));
    if with.is_none() && errors.is_empty() {
        errors.push(wrong(
            "/token",
            "is missing: none is stored for this host and address",
            "give a token, or an app",
        ));
    }
    let Some(with) = with.filter(|_| errors.is_empty()) else {
        return Err(Problem::invalid(errors));
    };
    let is_app = match &with {
        GivenOrKept::New(given) => matches!(given, Credentials::App { .. }),
        GivenOrKept::Kept(kept) => kept.target.is_app,
    };
    let target = StatusTarget {
        host: new.host,
        api_url,
        repository: new.repository,
        context,
        is_app,
        comments: new.comments,
    };
    Ok(TargetRequest { target, with })
}

/// Refuses a template whose runs no webhook can start.
fn check_pushes(template: &Template) -> Result<(), Problem> {
    let never = template::never_pushed(&to_json(&template.spec)?, &template.settings);
    never.map_or(Ok(()), |never| {
        Err(Problem::invalid(vec![never_pushed(&never, "/gate_only")]))
    })
}

/// Set a CI template's commit status
///
/// From now on the state of each run is shown beside its commit, from its start to its verdict, and what is not taken
/// is sent again for a day. Credentials are stored encrypted; for another host or address they have to be given anew.
#[utoipa::path(put, path = "/v1/ci-templates/{template_id}/commit-status", operation_id = "setCommitStatus", tag = "webhooks",
    params(("template_id" = TemplateId, Path)), request_body = NewCommitStatusTarget,
    responses((status = 200, description = "Set", body = CommitStatusTarget), Problems))]
pub(crate) async fn set(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<TemplateId>,
    Strict(new): Strict<NewCommitStatusTarget>,
) -> Result<Json<CommitStatusTarget>, Problem> {
    let template = app.store.template_version(caller.project, id, None).await?;
    let template = template.ok_or_else(|| no_such(id))?;
    let earlier = app.store.status_target(caller.project, id).await?;
    let gate_only = new.gate_only;
    if !gate_only {
        check_pushes(&template)?;
    }
    let TargetRequest { target, with } = wanted(&app, new, &template.name, earlier)?;
    let now = app.clock.now();
    let (sealed_credentials, credentials_set_at) = match with {
        GivenOrKept::New(given) => {
            let sealed = given.seal(&app.settings.secret_key, id, &target);
            let sealed = sealed.map_err(|error| {
                tracing::error!(%error, "credentials cannot be written");
                Problem::internal()
            })?;
            (sealed, now)
        }
        GivenOrKept::Kept(kept) => (kept.sealed_credentials, kept.credentials_set_at),
    };
    let stored = StoredTarget {
        target,
        gate_only,
        sealed_credentials,
        credentials_set_at,
        changed_at: now,
    };
    if app
        .store
        .set_status_target(caller.project, id, &stored)
        .await?
    {
        Ok(Json(stored.into()))
    } else {
        Err(no_such(id))
    }
}

/// Get a CI template's commit status
///
/// Where statuses of its runs are sent; credentials are never returned.
#[utoipa::path(get, path = "/v1/ci-templates/{template_id}/commit-status", operation_id = "getCommitStatus", tag = "webhooks",
    params(("template_id" = TemplateId, Path)),
    responses((status = 200, description = "Where statuses are sent", body = CommitStatusTarget), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TemplateId>,
) -> Result<Json<CommitStatusTarget>, Problem> {
    let found = app.store.status_target(caller.project, id).await?;
    found
        .map(|stored| Json(stored.into()))
        .ok_or_else(|| none_set(id))
}

fn none_set(id: TemplateId) -> Problem {
    Problem::not_found(format!(
        "the template {id} has no commit status: set one with PUT /v1/ci-templates/{id}/commit-status"
    ))
}

/// Delete a CI template's commit status
///
/// No more statuses are sent, and the credentials are forgotten at once: runs under way stay pending at the host. A template
/// that is deleted still reports its runs under way.
#[utoipa::path(delete, path = "/v1/ci-templates/{template_id}/commit-status", operation_id = "deleteCommitStatus", tag = "webhooks",
    params(("template_id" = TemplateId, Path)),
    responses((status = 204, description = "Deleted"), Problems))]
pub(crate) async fn delete(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<TemplateId>,
) -> Result<Response, Problem> {
    if app.store.delete_status_target(caller.project, id).await? {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(none_set(id))
    }
}

/// Send a CI run's commit status again
///
/// Sends the run's current state; it is retried for a day.
#[utoipa::path(post, path = "/v1/ci-runs/{run_id}/commit-status", operation_id = "sendCommitStatus", tag = "webhooks",
    params(("run_id" = CiRunId, Path)),
    responses((status = 202, description = "It is on its way", body = CiRunView), Problems))]
pub(crate) async fn send_again(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<CiRunId>,
) -> Result<(StatusCode, Json<CiRunView>), Problem> {
    let run = ci_runs::run(&app, &caller, id).await?;
    let now = app.clock.now();
    if !app.store.tell_again(id, run.template_id, now).await? {
        return Err(none_set(run.template_id));
    }
    let run = ci_runs::run(&app, &caller, id).await?;
    Ok((StatusCode::ACCEPTED, Json(run.into())))
}

//! CI templates: experiments that a webhook may start, with places for what it says of the commit.

pub(crate) mod commit_status;
pub(crate) mod deliveries;
pub(crate) mod incoming;
pub(crate) mod runs;
pub(crate) mod unmeasured;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ci::{Trigger, template};
use bakeoff_domain::finding::flaws::Flaw;
use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::ids::{ProjectId, TemplateId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::spec::ExperimentSpec;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use crate::plumbing::auth::{Admin, Caller};
use crate::plumbing::extract::{Id, Optional, Params, Strict};
use crate::plumbing::heavy::aside;
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use crate::specs::name_error;
use bakeoff_api::ci::{CiSecret, CiTemplate, NewTemplate, RotateSecret};
use bakeoff_api::page::Page;
use bakeoff_process::ids;
use bakeoff_service::app::App;
use bakeoff_service::auth::secrets::ci_secret;
use bakeoff_service::use_cases::intake;
use bakeoff_store::ci::{NewVersion, Template};
use bakeoff_store::to_json;

const OVERLAP_HOURS_DEFAULT: u32 = 24;
const OVERLAP_HOURS_MAX: u32 = 720;

pub(crate) fn field_error(flaw: Flaw, at: &str) -> FieldError {
    FieldError {
        pointer: format!("{at}{}", flaw.pointer),
        detail: flaw.detail,
        fix: flaw.fix,
        rule: "ci-template".to_owned(),
    }
}

/// A commit status that no webhook could ever end: the template takes in what none says.
pub(crate) fn never_pushed(what: &str, pointer: &str) -> FieldError {
    FieldError {
        pointer: pointer.to_owned(),
        detail: format!(
            "this template takes in {what}, which no webhook of a code host says: a required check would never succeed"
        ),
        fix: "say \"gate_only\": true in the commit status if bakeoff gate starts its runs, or have the template name ${ci.commit} in its place".to_owned(),
        rule: "commit-status".to_owned(),
    }
}

pub(crate) fn no_such(id: TemplateId) -> Problem {
    Problem::not_found(format!("there is no template {id} in this project"))
}

/// Create a CI template
///
/// An experiment, with places for what a trigger says of a commit: `"image": "repository:${ci.commit}"`. It is checked
/// now, as for a commit that does not exist, and not when CI runs. One in which nothing that the trigger says changes
/// what runs is refused: every commit would measure the same code.
#[utoipa::path(post, path = "/v1/ci-templates", operation_id = "createCiTemplate", tag = "webhooks", request_body = NewTemplate,
    responses((status = 201, description = "Stored; the secret is shown this once", body = CiSecret), Problems))]
pub(crate) async fn create(
    State(app): State<App>,
    Admin(caller): Admin,
    Strict(new): Strict<NewTemplate>,
) -> Result<(StatusCode, Json<CiSecret>), Problem> {
    let spec = checked(&app, caller.project, &new).await?;
    let id = TemplateId(ids::fresh());
    let version = NewVersion {
        name: &new.name,
        spec: &spec,
        settings: &new.settings,
    };
    app.store
        .insert_template(caller.project, id, version, app.clock.now())
        .await?;
    Ok((
        StatusCode::CREATED,
        Json(secret(&app, id, new.name, 1, None)),
    ))
}

/// What a trigger would start, if all is well with it: the spec with its references to stored workloads and profiles
/// filled in.
async fn checked(
    app: &App,
    project: ProjectId,
    new: &NewTemplate,
) -> Result<ExperimentSpec, Problem> {
    let mut errors: Vec<FieldError> = name_error(&new.name).into_iter().collect();
    let loaded = intake::load(app, project, new.spec.clone()).await?;
    let misplaced = loaded.misplaced().iter();
    let is_error = |one: &&Finding| one.severity == Severity::Error;
    errors.extend(misplaced.filter(is_error).map(in_spec));
    let spec = loaded.spec().clone();
    if spec.workload.is_none() {
        // It names one that is not there: the linter says so.
        let findings = aside(move || loaded.prepare()).await?.err();
        return Err(refusal(&findings.unwrap_or_default(), errors));
    }
    let written = to_json(&spec)?;
    let flaws = new.settings.flaws(&written);
    errors.extend(flaws.into_iter().map(|flaw| field_error(flaw, "")));
    let flaws = template::flaws(&written);
    errors.extend(flaws.into_iter().map(|flaw| field_error(flaw, "/spec")));
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let sample = template::sample(&written, &new.settings);
    let filled = filled(&written, new, &sample)?;
    let loaded = intake::load(app, project, filled).await?;
    match aside(move || loaded.prepare()).await? {
        Ok(prepared) => match too_little(new, prepared.least_usd()) {
            Some(flaw) => Err(Problem::invalid(vec![flaw])),
            None => Ok(spec),
        },
        Err(findings) => Err(refusal(&findings, Vec::new())),
    }
}

/// A limit that lets no run start; `least` is what its cheapest trial may cost.
fn too_little(new: &NewTemplate, least: Usd) -> Option<FieldError> {
    let caps = new.settings.caps(new.spec.budget_usd);
    let named = [
        ("usd_per_day", caps.usd_per_day),
        ("usd_per_month", caps.usd_per_month),
    ];
    let (name, cap) = named.into_iter().find(|(_, cap)| *cap < least)?;
    let detail = format!("is {cap}, and a trial may cost {least}: no run could start");
    Some(FieldError {
        pointer: format!("/settings/{name}"),
        detail,
        fix: "raise it, or lower max_runtime_seconds".to_owned(),
        rule: "ci-template".to_owned(),
    })
}

/// A finding, within the template.
fn in_spec(finding: &Finding) -> FieldError {
    let error = FieldError::from(finding);
    let pointer = format!("/spec{}", error.pointer);
    FieldError { pointer, ..error }
}

fn refusal(findings: &[Finding], mut errors: Vec<FieldError>) -> Problem {
    errors.extend(findings.iter().map(in_spec));
    Problem::invalid(errors)
}

fn filled(written: &Value, new: &NewTemplate, sample: &Trigger) -> Result<ExperimentSpec, Problem> {
    let filled = template::filled(written, &new.settings, sample);
    let filled = filled.map_err(|flaws| {
        let errors = flaws.into_iter().map(|flaw| field_error(flaw, "/spec"));
        Problem::invalid(errors.collect())
    })?;
    serde_json::from_value(filled).map_err(|error| Problem::malformed(error.to_string()))
}

/// A template's secret, in the forms of those who sign with it.
fn secret(
    app: &App,
    id: TemplateId,
    name: String,
    version: u32,
    until: Option<DateTime<Utc>>,
) -> CiSecret {
    let secret = ci_secret(&app.settings.secret_key, id, version);
    CiSecret {
        id,
        name,
        secret_version: version,
        secret: hex::encode(secret),
        signing_token: format!("whsec_{}", STANDARD.encode(secret)),
        github_path: format!("/v1/webhooks/github/{id}"),
        gitlab_path: format!("/v1/webhooks/gitlab/{id}"),
        previous_secret_until: until,
    }
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TemplatesParams {
    /// Items per page, 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// List CI templates
///
/// Newest first.
#[utoipa::path(get, path = "/v1/ci-templates", operation_id = "listCiTemplates", tag = "webhooks", params(TemplatesParams),
    responses((status = 200, description = "One page", body = Page<CiTemplate>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<TemplatesParams>,
) -> Result<Json<Page<CiTemplate>>, Problem> {
    let size = page::size(params.page_size)?;
    let before = page::read_token(params.page_token.as_deref(), "ci-templates")?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app.store.templates(caller.project, before, limit).await?;
    Ok(Json(page::cut(
        rows,
        size,
        "ci-templates",
        |row| row.id.0,
        CiTemplate::from,
    )))
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct VersionParams {
    /// An earlier version; the one that counts when absent.
    version: Option<u32>,
}

/// Get a CI template
#[utoipa::path(get, path = "/v1/ci-templates/{template_id}", operation_id = "getCiTemplate", tag = "webhooks",
    params(("template_id" = TemplateId, Path), VersionParams),
    responses((status = 200, description = "The template", body = CiTemplate), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TemplateId>,
    Params(params): Params<VersionParams>,
) -> Result<Json<CiTemplate>, Problem> {
    let found = app
        .store
        .template_version(caller.project, id, params.version)
        .await?;
    found
        .map(|template| Json(template.into()))
        .ok_or_else(|| no_such(id))
}

/// Change a CI template
///
/// Stores a new version, which the next trigger starts; earlier ones are kept. The secret stays.
#[utoipa::path(put, path = "/v1/ci-templates/{template_id}", operation_id = "changeCiTemplate", tag = "webhooks",
    params(("template_id" = TemplateId, Path)), request_body = NewTemplate,
    responses((status = 200, description = "The new version", body = CiTemplate), Problems))]
pub(crate) async fn change(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<TemplateId>,
    Strict(new): Strict<NewTemplate>,
) -> Result<Json<CiTemplate>, Problem> {
    let spec = checked(&app, caller.project, &new).await?;
    let target = app.store.status_target(caller.project, id).await?;
    let never = template::never_pushed(&to_json(&spec)?, &new.settings);
    if let Some(never) = never.filter(|_| target.is_some_and(|target| !target.gate_only)) {
        return Err(Problem::invalid(vec![never_pushed(&never, "/spec")]));
    }
    let version = NewVersion {
        name: &new.name,
        spec: &spec,
        settings: &new.settings,
    };
    let changed = app
        .store
        .change_template(caller.project, id, version, app.clock.now())
        .await?;
    let version = changed.ok_or_else(|| no_such(id))?;
    let found: Option<Template> = app
        .store
        .template_version(caller.project, id, Some(version))
        .await?;
    found
        .map(|template| Json(template.into()))
        .ok_or_else(|| no_such(id))
}

/// Rotate a CI template's secret
///
/// Shows the next secret, this once. The one before counts too until the overlap is over; the one before that does
/// not count any more.
#[utoipa::path(post, path = "/v1/ci-templates/{template_id}/rotate-secret", operation_id = "rotateCiSecret", tag = "webhooks",
    params(("template_id" = TemplateId, Path)), request_body = Option<RotateSecret>,
    responses((status = 200, description = "The new secret", body = CiSecret), Problems))]
pub(crate) async fn rotate(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<TemplateId>,
    Optional(asked): Optional<RotateSecret>,
) -> Result<Json<CiSecret>, Problem> {
    let hours = asked.overlap_hours.unwrap_or(OVERLAP_HOURS_DEFAULT);
    if hours > OVERLAP_HOURS_MAX {
        return Err(Problem::invalid(vec![FieldError {
            pointer: "/overlap_hours".to_owned(),
            detail: format!("is more than {OVERLAP_HOURS_MAX}"),
            fix: "rotate once the new secret is in use everywhere".to_owned(),
            rule: "ci-template".to_owned(),
        }]));
    }
    let found = app.store.template_version(caller.project, id, None).await?;
    let name = found.ok_or_else(|| no_such(id))?.name;
    let now = app.clock.now();
    let until = now + TimeDelta::hours(hours.into());
    let version = app
        .store
        .rotate_secret(caller.project, id, until, now)
        .await?;
    let version = version.ok_or_else(|| no_such(id))?;
    Ok(Json(secret(&app, id, name, version, Some(until))))
}

/// Delete a CI template
///
/// It starts nothing any more, and its name is free. What it started stays.
#[utoipa::path(delete, path = "/v1/ci-templates/{template_id}", operation_id = "deleteCiTemplate", tag = "webhooks",
    params(("template_id" = TemplateId, Path)),
    responses((status = 204, description = "Deleted"), Problems))]
pub(crate) async fn delete(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<TemplateId>,
) -> Result<Response, Problem> {
    let deleted = app
        .store
        .delete_template(caller.project, id, app.clock.now())
        .await?;
    if deleted {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(no_such(id))
    }
}

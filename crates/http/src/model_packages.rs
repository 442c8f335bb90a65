//! Models in SageMaker's Model Registry: registering a trial's, listing, approving.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::ModelPackageId;
use bakeoff_domain::model_package::check::Flaw;
use bakeoff_domain::model_package::{Approval, ModelPackageRequest};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Id, Params, Strict};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use crate::trials;
use bakeoff_api::model_packages::{ApproveModel, ModelPackageView, RegisterModel};
use bakeoff_api::page::Page;
use bakeoff_service::app::App;
use bakeoff_service::use_cases::model_packages::{NotRegistrable, prepare};
use bakeoff_store::StoreError;
use bakeoff_store::model_packages::{ModelPackage, NewPackage};

/// Characters of ApprovalDescription.
const NOTE_MAX: usize = 1024;

impl From<NotRegistrable> for Problem {
    fn from(none: NotRegistrable) -> Self {
        match none {
            NotRegistrable::NoModel(detail) => Self::conflict("no_model", detail),
            NotRegistrable::Wrong(flaws) => {
                Self::invalid(flaws.into_iter().map(FieldError::from).collect())
            }
            NotRegistrable::Store(error) => error.into(),
        }
    }
}

impl From<Flaw> for FieldError {
    fn from(flaw: Flaw) -> Self {
        Self {
            pointer: flaw.pointer,
            detail: flaw.detail,
            fix: flaw.fix,
            rule: "model-package".to_owned(),
        }
    }
}

fn view(package: ModelPackage) -> ModelPackageView {
    let request = package.request;
    ModelPackageView {
        id: package.id,
        experiment_id: package.experiment_id,
        trial_id: package.trial_id,
        job_id: package.job_id,
        region: package.region,
        group: request.group,
        version: package.version,
        arn: package.arn,
        state: package.state,
        reason: package.reason,
        approval: package.approval,
        wanted_approval: package.wanted_approval,
        approval_note: package.approval_note,
        next_try_at: package.due_at,
        description: request.description,
        image: request.image,
        model_s3_uri: request.model_s3_uri,
        statistics_s3_uri: request.statistics_s3_uri,
        environment: request.environment,
        content_types: request.content_types,
        response_types: request.response_types,
        realtime_instance_types: request.realtime_instance_types,
        transform_instance_types: request.transform_instance_types,
        metadata: request.metadata,
        created_at: package.created_at,
        changed_at: package.changed_at,
    }
}

/// Register a model
///
/// The model of a trial's last job, or of a tuning job's best trial, becomes a version of a model package group, with where it comes from and
/// what was measured. It is registered within seconds after the answer. Safe to repeat: a job's model is one
/// version of a group, and the same body finds it again (200).
#[utoipa::path(post, path = "/v1/model-packages", operation_id = "registerModel", tag = "models",
    request_body = RegisterModel,
    responses((status = 201, description = "Being registered", body = ModelPackageView,
        headers(("Location" = String, description = "Path of the model package"))),
        (status = 200, description = "It was asked for before", body = ModelPackageView), Problems))]
pub(crate) async fn register(
    State(app): State<App>,
    Editor(caller): Editor,
    Strict(asked): Strict<RegisterModel>,
) -> Result<Response, Problem> {
    let trial = trials::find(&app, caller, asked.trial_id).await?;
    let place = trials::place(&app, &trial)?;
    let prepared = prepare(&app, caller.project, &trial, asked).await?;
    let now = app.clock.now();
    let new = NewPackage {
        id: prepared.id,
        project_id: caller.project,
        experiment_id: trial.experiment_id,
        trial_id: trial.id,
        job_id: prepared.job,
        region: &place.region,
        request: &prepared.request,
    };
    let is_new = if prepared.has_failed {
        app.store.restart_model_package(&new, now).await?
    } else {
        app.store.insert_model_package(&new, now).await?
    };
    let group = &prepared.request.group;
    let stored = app
        .store
        .model_package_of(caller.project, prepared.job, group)
        .await?;
    let Some(stored) = stored else {
        return Err(Problem::unavailable("it has just been rejected; ask again"));
    };
    is_the_same(&stored, &prepared.request)?;
    let (status, location) = (
        if is_new {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        },
        format!("/v1/model-packages/{}", stored.id),
    );
    Ok((status, [(header::LOCATION, location)], Json(view(stored))).into_response())
}

/// Refuses a request that asks for something else than what is, or is becoming, registered.
fn is_the_same(stored: &ModelPackage, asked: &ModelPackageRequest) -> Result<(), Problem> {
    let fields = stored.request.differences(asked);
    if fields.is_empty() {
        return Ok(());
    }
    let (id, state, group) = (stored.id, stored.state.as_str(), &asked.group);
    let fields = fields.join(" and ");
    Err(Problem::conflict(
        "model_registered",
        format!(
            "this model is {state} in {group} as {id}, from a request with another {fields}: reject that one first, or name another group"
        ),
    ))
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PackageParams {
    /// Only versions of this group.
    group: Option<String>,
    /// Items per page, 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// List registered models
#[utoipa::path(get, path = "/v1/model-packages", operation_id = "listModelPackages", tag = "models", params(PackageParams),
    responses((status = 200, description = "A page, newest first", body = Page<ModelPackageView>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PackageParams>,
) -> Result<Json<Page<ModelPackageView>>, Problem> {
    let size = page::size(params.page_size)?;
    let group = params.group.as_deref();
    let filter = format!("model_packages {}", group.unwrap_or_default());
    let before = page::read_token(params.page_token.as_deref(), &filter)?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app
        .store
        .model_packages(caller.project, group, before, limit)
        .await?;
    Ok(Json(page::cut(
        rows,
        size,
        &filter,
        |package| package.id.0,
        view,
    )))
}

fn absent(id: ModelPackageId) -> Problem {
    Problem::not_found(format!("there is no model package {id} in this project"))
}

/// Get a registered model
#[utoipa::path(get, path = "/v1/model-packages/{model_package_id}", operation_id = "getModelPackage", tag = "models",
    params(("model_package_id" = ModelPackageId, Path)),
    responses((status = 200, description = "How far it is, and where it comes from", body = ModelPackageView), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ModelPackageId>,
) -> Result<Json<ModelPackageView>, Problem> {
    let found = app.store.model_package(caller.project, id).await?;
    Ok(Json(view(found.ok_or_else(|| absent(id))?)))
}

/// Approve or reject a model
///
/// SageMaker gets it within seconds; `approval` of the package is what it has.
#[utoipa::path(patch, path = "/v1/model-packages/{model_package_id}", operation_id = "setModelApproval", tag = "models",
    params(("model_package_id" = ModelPackageId, Path)), request_body = ApproveModel,
    responses((status = 200, description = "As it is now", body = ModelPackageView), Problems))]
pub(crate) async fn approve(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<ModelPackageId>,
    Strict(asked): Strict<ApproveModel>,
) -> Result<Json<ModelPackageView>, Problem> {
    let note = asked.note.as_deref();
    check(asked.approval, note)?;
    let now = app.clock.now();
    let wanted = app
        .store
        .want_approval(caller.project, id, asked.approval, note, now)
        .await
        .map_err(|error| match error {
            StoreError::Conflict { .. } => Problem::conflict(
                "model_replaced",
                "it was rejected, and the model registered anew: reject that version first",
            ),
            error => error.into(),
        })?;
    let found = app.store.model_package(caller.project, id).await?;
    let found = found.ok_or_else(|| absent(id))?;
    if !wanted {
        let why = found.reason.unwrap_or_default();
        return Err(Problem::conflict(
            "model_not_registered",
            format!("it was not registered: {why}. Register it again"),
        ));
    }
    Ok(Json(view(found)))
}

fn check(approval: Approval, note: Option<&str>) -> Result<(), Problem> {
    let wrong = |pointer: &str, detail: &str, fix: &str| {
        Problem::invalid(vec![FieldError {
            pointer: pointer.to_owned(),
            detail: detail.to_owned(),
            fix: fix.to_owned(),
            rule: "model-package".to_owned(),
        }])
    };
    if approval == Approval::Pending {
        let detail = "a model is approved or rejected here";
        return Err(wrong("/approval", detail, "use approved or rejected"));
    }
    let is_line = |note: &str| note.chars().count() <= NOTE_MAX && !note.contains(char::is_control);
    if note.is_some_and(|note| !is_line(note)) {
        let detail = "must be one line of at most 1024 characters";
        return Err(wrong("/note", detail, "shorten it"));
    }
    Ok(())
}

//! Versioned workloads and instance profiles.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use bakeoff_domain::catalog;
use bakeoff_domain::finding::{Severity, capped};
use bakeoff_domain::ids::{ProfileId, WorkloadId};
use bakeoff_domain::spec::{ProfileSpec, WorkloadSpec};
use bakeoff_planner::lint::{self, Document};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Id, Params, Strict};
use crate::plumbing::heavy::{self, aside};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::page::Page;
use bakeoff_api::specs::{ProfileView, WorkloadView};
use bakeoff_process::ids;
use bakeoff_service::app::App;
use bakeoff_store::experiments::specs::{self, StoredProfile, StoredWorkload};

fn workload_view(stored: StoredWorkload) -> WorkloadView {
    WorkloadView {
        id: stored.id,
        version: stored.version,
        created_at: stored.created_at,
        spec: stored.spec,
    }
}

fn profile_view(stored: StoredProfile) -> ProfileView {
    ProfileView {
        id: stored.id,
        name: stored.name,
        version: stored.version,
        instance_type: stored.instance_type,
        created_at: stored.created_at,
        spec: stored.spec,
    }
}

/// An instance profile to store.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct NewProfile {
    name: String,
    instance_type: String,
    spec: ProfileSpec,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// 1 to 500; 50 when absent.
    pub(crate) page_size: Option<u32>,
    pub(crate) page_token: Option<String>,
}

pub(crate) fn name_error(name: &str) -> Option<FieldError> {
    let is_good = (1..=100).contains(&name.chars().count());
    (!is_good).then(|| FieldError {
        pointer: "/name".to_owned(),
        detail: "the name is empty or too long".to_owned(),
        fix: "give it 1 to 100 characters".to_owned(),
        rule: "name-length".to_owned(),
    })
}

/// Rejects documents that are invalid in any experiment. A refusal may apply to one instance but
/// not to two, so it does not count.
async fn reject_unsound(document: Document) -> Result<(), Problem> {
    let findings = aside(move || lint::document(&document, &[])).await?;
    let errors: Vec<FieldError> = capped(findings)
        .iter()
        .filter(|one| one.severity == Severity::Error)
        .map(FieldError::from)
        .collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Problem::invalid(errors))
    }
}

/// Store a workload
#[utoipa::path(post, path = "/v1/workloads", operation_id = "createWorkload", tag = "workloads", request_body = WorkloadSpec,
    responses((status = 201, description = "Stored; an equal latest version is reused", body = WorkloadView), Problems))]
pub(crate) async fn create_workload(
    State(app): State<App>,
    Editor(caller): Editor,
    Strict(spec): Strict<WorkloadSpec>,
) -> Result<(StatusCode, Json<WorkloadView>), Problem> {
    if let Some(error) = name_error(&spec.name) {
        return Err(Problem::invalid(vec![error]));
    }
    reject_unsound(Document::Workload(Box::new(spec.clone()))).await?;
    let stored = app
        .store
        .create_workload(caller.project, ids::fresh(), &spec, app.clock.now())
        .await?;
    Ok((StatusCode::CREATED, Json(workload_view(stored))))
}

/// List workloads
#[utoipa::path(get, path = "/v1/workloads", operation_id = "listWorkloads", tag = "workloads", params(PageParams),
    responses((status = 200, description = "A page, newest first", body = Page<WorkloadView>), Problems))]
pub(crate) async fn list_workloads(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Result<Response, Problem> {
    let size = page::size(params.page_size)?;
    let before = page::read_token(params.page_token.as_deref(), "workloads")?;
    let rows = app
        .store
        .workloads(
            caller.project,
            before,
            i64::try_from(size + 1).unwrap_or(i64::MAX),
        )
        .await?;
    heavy::json(page::cut(
        rows,
        size,
        "workloads",
        |row| row.id.0,
        workload_view,
    ))
    .await
}

/// Get a workload
#[utoipa::path(get, path = "/v1/workloads/{workload_id}", operation_id = "getWorkload", tag = "workloads",
    params(("workload_id" = WorkloadId, Path)),
    responses((status = 200, description = "One version", body = WorkloadView), Problems))]
pub(crate) async fn get_workload(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<WorkloadId>,
) -> Result<Json<WorkloadView>, Problem> {
    let found = app.store.workload(caller.project, id).await?;
    let found = found
        .ok_or_else(|| Problem::not_found(format!("there is no workload {id} in this project")))?;
    Ok(Json(workload_view(found)))
}

/// Store an instance profile
#[utoipa::path(post, path = "/v1/instance-profiles", operation_id = "createInstanceProfile", tag = "instance-profiles",
    request_body = NewProfile,
    responses((status = 201, description = "Stored as the next version of its name", body = ProfileView), Problems))]
pub(crate) async fn create_profile(
    State(app): State<App>,
    Editor(caller): Editor,
    Strict(new): Strict<NewProfile>,
) -> Result<(StatusCode, Json<ProfileView>), Problem> {
    let mut errors: Vec<FieldError> = name_error(&new.name).into_iter().collect();
    if catalog::find(&new.instance_type).is_none() {
        errors.push(FieldError {
            pointer: "/instance_type".to_owned(),
            detail: format!(
                "`{}` is not a SageMaker training instance type",
                new.instance_type
            ),
            fix: format!(
                "did you mean {}?",
                catalog::nearest(&new.instance_type).join(", ")
            ),
            rule: "unknown-instance-type".to_owned(),
        });
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let instance_type = Some(new.instance_type.clone());
    reject_unsound(Document::InstanceProfile {
        instance_type,
        spec: Box::new(new.spec.clone()),
        at: "/spec",
    })
    .await?;
    let profile = specs::NewProfile {
        name: &new.name,
        instance_type: &new.instance_type,
        spec: &new.spec,
    };
    let stored = app
        .store
        .create_profile(caller.project, ids::fresh(), profile, app.clock.now())
        .await?;
    Ok((StatusCode::CREATED, Json(profile_view(stored))))
}

/// List instance profiles
#[utoipa::path(get, path = "/v1/instance-profiles", operation_id = "listInstanceProfiles", tag = "instance-profiles",
    params(PageParams),
    responses((status = 200, description = "A page, newest first", body = Page<ProfileView>), Problems))]
pub(crate) async fn list_profiles(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Result<Response, Problem> {
    let size = page::size(params.page_size)?;
    let before = page::read_token(params.page_token.as_deref(), "profiles")?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let wanted = app.store.profile_ids(caller.project, before, limit).await?;
    let mut rows = app.store.profiles_by_id(caller.project, &wanted).await?;
    rows.sort_by_key(|row| std::cmp::Reverse(row.id));
    heavy::json(page::cut(
        rows,
        size,
        "profiles",
        |row| row.id.0,
        profile_view,
    ))
    .await
}

/// Get an instance profile
#[utoipa::path(get, path = "/v1/instance-profiles/{profile_id}", operation_id = "getInstanceProfile", tag = "instance-profiles",
    params(("profile_id" = ProfileId, Path)),
    responses((status = 200, description = "One version", body = ProfileView), Problems))]
pub(crate) async fn get_profile(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ProfileId>,
) -> Result<Json<ProfileView>, Problem> {
    let found = app
        .store
        .profiles_by_id(caller.project, &[id.0])
        .await?
        .pop();
    let found = found.ok_or_else(|| {
        Problem::not_found(format!("there is no instance profile {id} in this project"))
    })?;
    Ok(Json(profile_view(found)))
}

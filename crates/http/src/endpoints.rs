//! Endpoints: create, list, get, change, delete. What is done about them is in [`bakeoff_service::tasks::deployer`].

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::endpoint::check::{HOURS_MAX, endpoint_flaws, served_model};
use bakeoff_domain::endpoint::scheduled_end::{NO_ROLE, no_end};
use bakeoff_domain::ids::EndpointId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::endpoint::{EndpointRequest, REVISIONS_MAX};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::spec::labels;
use bakeoff_domain::spec::pipeline::endpoint::{EndpointSpec, ServedSpec};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::experiments::Keyed;
use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Id, Params, Raw, Strict, parse};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use crate::projects::budgets;
use bakeoff_api::endpoints::{
    ChangeEndpoint, CreateEndpoint, CreatedEndpoint, EndpointView, deleted_by_aws,
};
use bakeoff_api::page::Page;
use bakeoff_service::app::App;
use bakeoff_service::use_cases::endpoints::{self, NotServable, ReadyEndpoint, ServingContext};
use bakeoff_store::endpoints::{Endpoint, Extended, Extension, NewRevision, WhichEndpoints};
use bakeoff_store::experiments::lifecycle::ExperimentCommand;
use bakeoff_store::experiments::steps::NewStepWork;
use bakeoff_store::money::caps::{NotReserved, Purchase};
use bakeoff_store::to_json;

const NAME_MAX: usize = 100;
const OWNER_MAX: usize = 200;

impl From<NotServable> for Problem {
    fn from(none: NotServable) -> Self {
        match none {
            NotServable::Wrong(flaws) => {
                Self::invalid(flaws.into_iter().map(FieldError::from).collect())
            }
            NotServable::NotYet(why) => Self::conflict("model_not_approved", why),
            NotServable::Never(why) => Self::conflict("model_not_servable", why),
            NotServable::NoScheduledEnd(why) => Self::conflict("no_scheduled_end", why),
            NotServable::Store(error) => error.into(),
        }
    }
}

fn wrong(pointer: &str, detail: impl Into<String>, fix: impl Into<String>) -> FieldError {
    FieldError {
        pointer: pointer.to_owned(),
        detail: detail.into(),
        fix: fix.into(),
        rule: "endpoint".to_owned(),
    }
}

/// Serve a model
///
/// Puts an approved version of the registry, or an image and a model, into service, sends the smoke test, and
/// deletes it when its time to live is over. The most that this can cost is reserved before anything is created.
#[utoipa::path(post, path = "/v1/endpoints", operation_id = "createEndpoint", tag = "endpoints",
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key with the same body counts once, for good")),
    request_body = CreateEndpoint,
    responses((status = 201, description = "Being created", body = CreatedEndpoint,
        headers(("Location" = String, description = "Path of the endpoint"))), Problems))]
pub(crate) async fn create(
    State(app): State<App>,
    Editor(caller): Editor,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<Response, Problem> {
    let keyed = Keyed::of(&headers, "POST /v1/endpoints\n", &body)?;
    if let Some(reply) = keyed.earlier_at(&app, caller, "/v1/endpoints").await? {
        return Ok(reply);
    }
    let (asked, mut flaws) = parse::<CreateEndpoint>(body).await?;
    flaws.extend(check(&app, &asked));
    if !flaws.is_empty() {
        return Err(Problem::invalid(flaws));
    }
    let owner = asked
        .owner
        .clone()
        .unwrap_or_else(|| caller.key.to_string());
    let around = ServingContext {
        project: caller.project,
        region: &asked.region,
        role_arn: asked.endpoint.role_arn.as_deref().unwrap_or_default(),
        output_s3_uri: "",
    };
    let ready = endpoints::endpoint(
        &app,
        around,
        asked.endpoint.clone(),
        asked.name.clone(),
        owner,
    );
    let mut ready = ready.await.map_err(|error| below("/endpoint", error))?;
    ready.endpoint.is_budget_stated = asked.budget_usd.is_some();
    let worst = ready.worst_usd;
    budgets::allow(&app, caller.project, Purchase::Endpoint, worst, worst).await?;
    let budget = asked.budget_usd.unwrap_or(ready.worst_usd);
    if budget < ready.worst_usd {
        let detail = format!(
            "it can cost {}: its time to live at its price",
            ready.worst_usd
        );
        let flaw = wrong(
            "/budget_usd",
            detail,
            "raise it, or shorten the time to live",
        );
        return Err(Problem::invalid(vec![flaw]));
    }
    let work = ready.work(caller.project, &asked.region, budget, &asked.labels);
    start(&app, caller, &ready, &work, &keyed).await
}

/// A flaw of the endpoint, at its place in the body.
fn below(pointer: &str, none: NotServable) -> Problem {
    match none {
        NotServable::Wrong(flaws) => Problem::invalid(
            flaws
                .into_iter()
                .map(|mut flaw| {
                    flaw.pointer = format!("{pointer}{}", flaw.pointer);
                    FieldError::from(flaw)
                })
                .collect(),
        ),
        none => none.into(),
    }
}

fn check(app: &App, asked: &CreateEndpoint) -> Vec<FieldError> {
    let mut flaws = Vec::new();
    let is_line = |text: &str, most: usize| {
        (1..=most).contains(&text.chars().count()) && !text.contains(char::is_control)
    };
    if !is_line(&asked.name, NAME_MAX) {
        flaws.push(wrong(
            "/name",
            "must be one line of 1 to 100 characters",
            "name it",
        ));
    }
    if asked
        .owner
        .as_ref()
        .is_some_and(|owner| !is_line(owner, OWNER_MAX))
    {
        let detail = "must be one line of 1 to 200 characters";
        flaws.push(wrong("/owner", detail, "name a person or a team"));
    }
    if !app.places.contains_key(&asked.region) {
        let served: Vec<&str> = app.places.keys().map(String::as_str).collect();
        let detail = format!("this service runs jobs in {} only", served.join(", "));
        flaws.push(wrong("/region", detail, "use one of them"));
    }
    flaws.extend(budgets::flaw(asked.budget_usd));
    let labels = labels::flaws(&asked.labels).into_iter();
    flaws.extend(
        labels.map(|flaw| wrong(&format!("/labels{}", flaw.pointer), flaw.detail, flaw.fix)),
    );
    if asked.endpoint.role_arn.is_none() {
        let detail = "is needed: the role that reads the model and pulls the image";
        flaws.push(wrong(
            "/endpoint/role_arn",
            detail,
            "use arn:aws:iam::<account>:role/<name>",
        ));
    }
    flaws
}

/// Writes an endpoint once, and answers with it.
async fn start(
    app: &App,
    caller: Caller,
    ready: &ReadyEndpoint,
    work: &NewStepWork<'_>,
    keyed: &Keyed<'_>,
) -> Result<Response, Problem> {
    let now = app.clock.now();
    let id = ready.endpoint.id;
    let usd = ready.usd_per_day_absent;
    let has_role = app.settings.scheduler_role_arn.is_some();
    let reply = to_json(&CreatedEndpoint {
        id,
        name: ready.endpoint.name.clone(),
        state: EndpointState::Creating,
        budget_usd: work.budget_usd,
        absent_service_usd_per_day: (!has_role).then_some(usd),
        end_at_aws: if has_role {
            deleted_by_aws(None)
        } else {
            format!("{}. {NO_ROLE}", no_end(usd))
        },
    })?;
    let once = keyed.once(&reply);
    let written = app.store.create_endpoint(work, &once, now).await;
    if written.is_ok() {
        app.wake_schedulers();
    }
    keyed
        .answer(app, caller, "/v1/endpoints", reply, written)
        .await
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EndpointParams {
    /// Items per page, 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// List endpoints
#[utoipa::path(get, path = "/v1/endpoints", operation_id = "listEndpoints", tag = "endpoints", params(EndpointParams),
    responses((status = 200, description = "A page, newest first", body = Page<EndpointView>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<EndpointParams>,
) -> Result<Json<Page<EndpointView>>, Problem> {
    let size = page::size(params.page_size)?;
    let before = page::read_token(params.page_token.as_deref(), "endpoints")?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let which = WhichEndpoints::Before(before);
    let rows = app.store.endpoints(caller.project, which, limit).await?;
    let now = app.clock.now();
    let has_role = app.settings.scheduler_role_arn.is_some();
    Ok(Json(page::cut(
        rows,
        size,
        "endpoints",
        |row| row.id.0,
        |row| EndpointView::of(row, Vec::new(), has_role, now),
    )))
}

async fn find(app: &App, caller: Caller, id: EndpointId) -> Result<Endpoint, Problem> {
    let one = WhichEndpoints::One(id);
    let found = app.store.endpoints(caller.project, one, 1).await?.pop();
    found.ok_or_else(|| Problem::not_found(format!("there is no endpoint {id} in this project")))
}

async fn shown(app: &App, caller: Caller, id: EndpointId) -> Result<Json<EndpointView>, Problem> {
    let endpoint = find(app, caller, id).await?;
    let revisions = app.store.endpoint_revisions(id).await?;
    let has_role = app.settings.scheduler_role_arn.is_some();
    let now = app.clock.now();
    Ok(Json(EndpointView::of(endpoint, revisions, has_role, now)))
}

/// Get an endpoint
#[utoipa::path(get, path = "/v1/endpoints/{endpoint_id}", operation_id = "getEndpoint", tag = "endpoints",
    params(("endpoint_id" = EndpointId, Path)),
    responses((status = 200, description = "What it serves, and what it costs", body = EndpointView), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<EndpointId>,
) -> Result<Json<EndpointView>, Problem> {
    shown(&app, caller, id).await
}

/// Change an endpoint
///
/// Extends its time to live, has it serve another model, or an earlier revision again. A longer time to live is reserved:
/// a budget that was stated stays, unless the same request names a larger one; that of a pipeline's step grows within the
/// pipeline's.
#[utoipa::path(patch, path = "/v1/endpoints/{endpoint_id}", operation_id = "changeEndpoint", tag = "endpoints",
    params(("endpoint_id" = EndpointId, Path)), request_body = ChangeEndpoint,
    responses((status = 200, description = "As it is now", body = EndpointView), Problems))]
pub(crate) async fn change(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<EndpointId>,
    Strict(asked): Strict<ChangeEndpoint>,
) -> Result<Json<EndpointView>, Problem> {
    if let Some(flaw) = budgets::flaw(asked.budget_usd) {
        return Err(Problem::invalid(vec![flaw]));
    }
    if asked.budget_usd.is_some() && asked.time_to_live_hours.is_none() {
        let flaw = wrong(
            "/budget_usd",
            "is only taken with time_to_live_hours",
            "leave it out",
        );
        return Err(Problem::invalid(vec![flaw]));
    }
    let endpoint = find(&app, caller, id).await?;
    match (asked.time_to_live_hours, &asked.model, asked.revision) {
        (Some(hours), None, None) => extend(&app, &endpoint, hours, asked.budget_usd).await?,
        (None, Some(model), None) => update(&app, caller, &endpoint, model).await?,
        (None, None, Some(revision)) => {
            let now = app.clock.now();
            if !app.store.roll_back_to(id, revision, now).await? {
                let detail = format!(
                    "{id} is {}, and serves revision {}",
                    state(&endpoint),
                    endpoint.revision
                );
                return Err(Problem::conflict(
                    "endpoint_not_changeable",
                    format!("{detail}: name another of its revisions, while it is in service"),
                ));
            }
        }
        _ => {
            let detail = "must have one of time_to_live_hours, model and revision";
            let flaw = wrong("", detail, "change one thing at a time");
            return Err(Problem::invalid(vec![flaw]));
        }
    }
    shown(&app, caller, id).await
}

fn state(endpoint: &Endpoint) -> String {
    endpoint.state.as_str().replace('_', " ")
}

fn not_serving(endpoint: &Endpoint) -> Problem {
    Problem::conflict(
        "endpoint_not_changeable",
        format!(
            "{} is {}: only an endpoint that serves, and is not being changed, can be changed",
            endpoint.id,
            state(endpoint)
        ),
    )
}

/// Extends its time to live to so many hours; one that it has already changes nothing, so that it may be repeated.
async fn extend(
    app: &App,
    endpoint: &Endpoint,
    hours: u32,
    budget: Option<Usd>,
) -> Result<(), Problem> {
    let now = app.clock.now();
    let has = u32::try_from(endpoint.time_to_live.num_hours()).unwrap_or(u32::MAX);
    if hours < has || hours > HOURS_MAX {
        let detail = format!("must be between the {has} hours that it has and {HOURS_MAX}");
        let fix = "delete it to end it earlier";
        return Err(Problem::invalid(vec![wrong(
            "/time_to_live_hours",
            detail,
            fix,
        )]));
    }
    if !endpoint.state.serves() || endpoint.is_stopping {
        return Err(not_serving(endpoint));
    }
    if hours == has {
        return Ok(());
    }
    let (project, region) = (endpoint.project_id, &endpoint.region);
    let request = endpoint.request()?;
    let lives = |hours: u32| {
        Job::Endpoint(Box::new(EndpointRequest {
            time_to_live_seconds: hours.saturating_mul(3600),
            ..request.clone()
        }))
    };
    // What is around its time to live is reserved already.
    let before = endpoints::priced(app, project, region, &lives(has)).await?;
    let after = endpoints::priced(app, project, region, &lives(hours)).await?;
    let usd = after.worst.total_usd - before.worst.total_usd;
    let by = Extension {
        hours: hours - has,
        usd,
        budget_usd: budget,
    };
    match app.store.extend_endpoint(endpoint, by, now).await? {
        Extended::Done => Ok(()),
        no => Err(not_extended(endpoint, hours, no)),
    }
}

/// Why a time to live was not extended, with the way out.
fn not_extended(endpoint: &Endpoint, hours: u32, no: Extended) -> Problem {
    match no {
        Extended::NotServing if endpoint.state == EndpointState::InService => {
            let detail = "AWS's answer to its creation is still awaited: ask again in a minute";
            Problem::conflict("endpoint_not_changeable", detail.to_owned())
        }
        Extended::Done | Extended::NotServing => not_serving(endpoint),
        Extended::Changed => {
            let detail = "it was changed at the same time: read it, and ask again".to_owned();
            Problem::conflict("endpoint_not_changeable", detail)
        }
        Extended::OfPipeline(pipeline) => Problem::conflict(
            "of_a_pipeline",
            format!(
                "its budget is its pipeline's: leave budget_usd out, and where the pipeline's does not suffice, raise that \
                 with POST /v1/pipelines/{pipeline}/resume"
            ),
        ),
        Extended::Stated {
            budget_usd,
            needed_usd,
        } => {
            let detail = format!(
                "is {budget_usd}, and {hours} hours can cost {needed_usd} in all: a budget that was stated is not raised by itself"
            );
            let least = needed_usd.0.ceil().normalize();
            let fix = format!("name it in the same request: \"budget_usd\": {least}");
            Problem::invalid(vec![wrong("/budget_usd", detail, fix)])
        }
        Extended::NotReserved(NotReserved::Short(short)) => {
            Problem::invalid(vec![budgets::short("/time_to_live_hours", &short)])
        }
        Extended::NotReserved(why @ (NotReserved::HeldBack(_) | NotReserved::RunsAtOnce(_))) => {
            Problem::conflict("endpoint_not_changeable", why.why())
        }
    }
}

async fn update(
    app: &App,
    caller: Caller,
    endpoint: &Endpoint,
    model: &ServedSpec,
) -> Result<(), Problem> {
    if endpoint.state != EndpointState::InService || endpoint.is_stopping {
        return Err(not_serving(endpoint));
    }
    let revisions = app.store.endpoint_revisions(endpoint.id).await?;
    if revisions
        .last()
        .is_some_and(|last| last.revision >= REVISIONS_MAX)
    {
        let detail = format!("it has had {REVISIONS_MAX} revisions: create another endpoint");
        return Err(Problem::conflict("endpoint_not_changeable", detail));
    }
    let spec = EndpointSpec {
        model: model.clone(),
        ..endpoint.spec.clone()
    };
    let first = endpoint.request()?;
    let around = ServingContext {
        project: caller.project,
        region: &endpoint.region,
        role_arn: &first.model.role_arn,
        output_s3_uri: "",
    };
    let served = endpoints::served(app, around, model).await?;
    let flaws = endpoint_flaws(&spec, "", served.weights_gib);
    if !flaws.is_empty() {
        return Err(NotServable::Wrong(flaws).into());
    }
    let request = served_model(model, endpoints::surroundings(around, &served));
    let new = NewRevision {
        model: &request,
        model_package_id: model.model_package_id,
    };
    let is_wanted = app
        .store
        .want_revision(endpoint, &new, app.clock.now())
        .await?;
    if is_wanted {
        Ok(())
    } else {
        Err(not_serving(endpoint))
    }
}

/// Resume an endpoint
///
/// Queues its job again where that waits for a person: after a permission was given, a quota was raised, or a pause. Safe
/// to repeat.
#[utoipa::path(post, path = "/v1/endpoints/{endpoint_id}/resume", operation_id = "resumeEndpoint", tag = "endpoints",
    params(("endpoint_id" = EndpointId, Path)),
    responses((status = 200, description = "As it is now", body = EndpointView), Problems))]
pub(crate) async fn resume(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<EndpointId>,
) -> Result<Json<EndpointView>, Problem> {
    let endpoint = find(&app, caller, id).await?;
    let (of, now) = (endpoint.experiment_id, app.clock.now());
    let resume = ExperimentCommand::Resume;
    if !app.store.command(caller.project, of, resume, now).await? {
        let detail = format!("{id} is {}: nothing of it waits", state(&endpoint));
        return Err(Problem::conflict("endpoint_not_resumable", detail));
    }
    app.wake_schedulers();
    shown(&app, caller, id).await
}

/// Delete an endpoint
///
/// It is deleted as soon as SageMaker takes that: one that is being created or updated cannot be deleted before.
/// Then its configuration and its model. Safe to repeat.
#[utoipa::path(delete, path = "/v1/endpoints/{endpoint_id}", operation_id = "deleteEndpoint", tag = "endpoints",
    params(("endpoint_id" = EndpointId, Path)),
    responses((status = 202, description = "Being deleted", body = EndpointView), Problems))]
pub(crate) async fn delete(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<EndpointId>,
) -> Result<Response, Problem> {
    let endpoint = find(&app, caller, id).await?;
    let now = app.clock.now();
    app.store
        .delete_endpoint(&endpoint, "deleted by hand", now)
        .await?;
    app.wake_schedulers();
    Ok((StatusCode::ACCEPTED, shown(&app, caller, id).await?).into_response())
}

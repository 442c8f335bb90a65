//! HTTP: the route table, which is also the OpenAPI document. A handler parses, calls the store or
//! the read model, and renders the result; it never changes AWS and makes no decisions. Statuses
//! are named in `problem`.

mod catalog;
mod ci;
mod dashboard;
mod docs;
mod endpoints;
mod events;
mod examples;
mod experiments;
mod imports;
mod model_packages;
mod operations;
mod pipelines;
mod plans;
mod plumbing;
mod projects;
mod runs;
mod samples;
mod series;
mod sessions;
mod specs;
mod trials;
mod webhook_endpoints;

pub use plumbing::problem::{FieldError, Problem};
pub use plumbing::server::{Limits, serve};

use axum::Router;
use axum::routing::get;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use bakeoff_service::app::App;

use crate::ci::{commit_status, incoming, runs as ci_runs, unmeasured};
use crate::experiments::{additions, archive, changes, comparison, full_runs, lists, looks};
use crate::operations::{aws_events, doctor, health, usage};
use crate::pipelines::purchases;
use crate::plumbing::{access, etag, parameters, request_id, server, web};
use crate::projects::{keys, spending};
use crate::trials::{artifacts, checkpoints, corrections, logs, tuning};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Bakeoff",
        description = "Runs one training workload on several SageMaker instance types side by side, keeps the ledger to the cent, and says which instance to buy and why.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/", description = "This service")),
    components(schemas(Problem, FieldError)),
    modifiers(&Bearer),
    security(("api_key" = [])),
    tags(
        (name = "experiments", description = "Start, follow, compare, decide"),
        (name = "plans", description = "Before a dollar is spent: plans and the linter"),
        (name = "pipelines", description = "Data preparation, comparison, tuning, full run, evaluation, registration and endpoints as steps"),
        (name = "endpoints", description = "Models that serve, until their time to live is over"),
        (name = "trials", description = "One candidate of an experiment"),
        (name = "runs", description = "Training that SageMaker never saw"),
        (name = "metrics", description = "Measured series: sent in, and read back"),
        (name = "workloads", description = "What is trained, versioned"),
        (name = "instance-profiles", description = "How it is configured for an instance type, versioned"),
        (name = "models", description = "Models of trials in SageMaker's Model Registry"),
        (name = "catalog", description = "Instance types and effective-dated prices"),
        (name = "projects", description = "The tenant and its budget"),
        (name = "webhooks", description = "CI: templates, triggers, verdicts, commit statuses; and webhooks that go out"),
        (name = "operations", description = "Health"),
        (name = "sessions", description = "People logged in with a browser")
    )
)]
struct Document;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let mut scheme = Http::new(HttpAuthScheme::Bearer);
        scheme.description = Some("An API key: `bk_…`, made with `bakeoff keys create`".to_owned());
        if let Some(components) = document.components.as_mut() {
            components.add_security_scheme("api_key", SecurityScheme::Http(scheme));
        }
    }
}

fn routes() -> OpenApiRouter<App> {
    let resources = [
        experiment_routes,
        trial_routes,
        run_routes,
        pipeline_routes,
        endpoint_routes,
        model_package_routes,
        spec_routes,
        catalog_routes,
        plan_routes,
        project_routes,
        ci_routes,
        webhook_routes,
        operation_routes,
        session_routes,
    ];
    let router = OpenApiRouter::with_openapi(Document::openapi());
    resources
        .into_iter()
        .fold(router, |router, add| add(router))
}

fn experiment_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(experiments::create, lists::list))
        .routes(routes!(experiments::get, changes::change, archive::delete))
        .routes(routes!(experiments::cancel))
        .routes(routes!(experiments::pause))
        .routes(routes!(experiments::resume))
        .routes(routes!(experiments::trials))
        .routes(routes!(experiments::attempts))
        .routes(routes!(experiments::recommendation))
        .routes(routes!(looks::answers))
        .routes(routes!(looks::race))
        .routes(routes!(lists::facets))
        .routes(routes!(experiments::ledger))
        .routes(routes!(comparison::of_experiment))
        .routes(routes!(comparison::side_by_side))
        .routes(routes!(comparison::convergence))
        .routes(routes!(comparison::calibration))
        .routes(routes!(full_runs::preview, full_runs::create))
        .routes(routes!(additions::add_candidate))
        .routes(routes!(archive::archive))
        .routes(routes!(archive::unarchive))
        .routes(routes!(archive::restore))
        .routes(routes!(events::of_project))
        .routes(routes!(events::of_experiment))
}

fn trial_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(trials::get))
        .routes(routes!(trials::stop))
        .routes(routes!(additions::retry))
        .routes(routes!(trials::attempts))
        .routes(routes!(trials::diagnosis))
        .routes(routes!(corrections::correct))
        .routes(routes!(samples::push_trial, samples::of_trial))
        .routes(routes!(series::list))
        .routes(routes!(events::of_trial))
        .routes(routes!(logs::of_trial))
        .routes(routes!(artifacts::list))
        .routes(routes!(checkpoints::list))
        .routes(routes!(checkpoints::prune))
        .routes(routes!(checkpoints::copy))
        .routes(routes!(tuning::get))
}

/// Training outside SageMaker.
fn run_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(runs::create, runs::list))
        .routes(routes!(runs::get))
        .routes(routes!(runs::end))
        .routes(routes!(samples::push_run, samples::of_run))
}

fn pipeline_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(pipelines::create, pipelines::list))
        .routes(routes!(pipelines::get))
        .routes(routes!(pipelines::ledger))
        .routes(routes!(pipelines::cancel))
        .routes(routes!(pipelines::resume))
        .routes(routes!(purchases::approve))
        .routes(routes!(purchases::refuse))
}

fn endpoint_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(endpoints::create, endpoints::list))
        .routes(routes!(
            endpoints::get,
            endpoints::change,
            endpoints::delete
        ))
        .routes(routes!(endpoints::resume))
}

fn model_package_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(model_packages::register, model_packages::list))
        .routes(routes!(model_packages::get, model_packages::approve))
}

/// Workloads and instance profiles.
fn spec_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(specs::create_workload, specs::list_workloads))
        .routes(routes!(specs::get_workload))
        .routes(routes!(specs::create_profile, specs::list_profiles))
        .routes(routes!(specs::get_profile))
}

fn catalog_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(catalog::instance_types))
        .routes(routes!(catalog::instance_type))
        .routes(routes!(catalog::prices))
        .routes(routes!(catalog::rates))
        .routes(routes!(catalog::refresh_prices))
        .routes(routes!(catalog::put_price))
}

fn plan_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(plans::plan))
        .routes(routes!(plans::lint))
        .routes(routes!(imports::import))
        .routes(routes!(plans::rules))
}

fn project_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(projects::current))
        .routes(routes!(projects::put_budget))
        .routes(routes!(projects::put_limits))
        .routes(routes!(spending::spending))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(keys::rotate))
}

/// CI templates, what triggers them, their runs, and what is shown of them.
fn ci_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(ci::create, ci::list))
        .routes(routes!(ci::get, ci::change, ci::delete))
        .routes(routes!(ci::rotate))
        .routes(routes!(ci_runs::trigger))
        .routes(routes!(ci_runs::pin))
        .routes(routes!(unmeasured::list))
        .routes(routes!(ci_runs::list))
        .routes(routes!(ci_runs::get))
        .routes(routes!(ci_runs::report))
        .routes(routes!(ci_runs::accept))
        .routes(routes!(
            commit_status::set,
            commit_status::get,
            commit_status::delete
        ))
        .routes(routes!(commit_status::send_again))
        .routes(routes!(incoming::bakeoff))
        .routes(routes!(incoming::github))
        .routes(routes!(incoming::gitlab))
}

/// Webhooks that go out.
fn webhook_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(webhook_endpoints::create, webhook_endpoints::list))
        .routes(routes!(
            webhook_endpoints::get,
            webhook_endpoints::change,
            webhook_endpoints::delete
        ))
        .routes(routes!(webhook_endpoints::rotate))
        .routes(routes!(webhook_endpoints::test))
        .routes(routes!(webhook_endpoints::deliveries))
        .routes(routes!(webhook_endpoints::get_delivery))
        .routes(routes!(webhook_endpoints::replay))
}

fn operation_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(aws_events::push))
        .routes(routes!(usage::aws_usage))
        .routes(routes!(usage::prometheus))
        .routes(routes!(doctor::check))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(health::version))
}

fn session_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(sessions::log_in))
        .routes(routes!(sessions::link))
        .routes(routes!(keys::whoami))
        .routes(routes!(sessions::current, sessions::log_out))
}

/// Pages for people, which are no part of the API.
fn docs_routes() -> Router<App> {
    Router::new()
        .route("/docs", get(docs::to_index))
        .route("/docs/", get(docs::index))
        .route("/docs/style.css", get(docs::style))
        .route("/docs/{*path}", get(docs::one))
}

/// The OpenAPI document, as committed in `openapi/bakeoff.json`.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = routes().to_openapi();
    examples::add(&mut document);
    document
}

/// The router of the whole service.
pub fn router(app: App) -> Router {
    let (router, mut document) = routes().split_for_parts();
    examples::add(&mut document);
    let bare = parameters::bare(&document);
    let origins = &app.settings.web_origins;
    let cors = (!origins.is_empty()).then(|| web::cors(origins));
    router
        .route_layer(axum::middleware::from_fn_with_state(
            bare,
            parameters::refuse,
        ))
        .merge(SwaggerUi::new("/docs/api").url("/openapi.json", document))
        .merge(docs_routes())
        .fallback(dashboard::serve)
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .layer(axum::middleware::from_fn(etag::conditional))
        .layer(web::csrf(origins))
        .layer(option_layer(cors))
        .layer(CatchPanicLayer::custom(request_id::panicked))
        .layer(axum::middleware::from_fn(server::answer_in_time))
        .layer(axum::middleware::from_fn(access::log))
        .layer(axum::middleware::from_fn(request_id::attach))
        // Outermost: what is inside reads and completes the bodies of answers.
        .layer(web::compression())
        .with_state(app)
}

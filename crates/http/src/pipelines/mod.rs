//! Pipelines: start, list, get, cancel, resume. What their steps do is in [`bakeoff_service::tasks::conductor`].

pub(crate) mod purchases;

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use bakeoff_domain::finding::flaws::Flaw;
use bakeoff_domain::ids::{ExperimentId, PipelineId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::least_budget;
use bakeoff_domain::pipeline::budgets::with_step_budgets;
use bakeoff_domain::pipeline::check::{Graph, check, needs, oversized, stopped_winners};
use bakeoff_domain::pipeline::{PipelineState, StepState};
use bakeoff_domain::spec::pipeline::PipelineSpec;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::experiments::{Keyed, LedgerParams, ledger_page};
use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Id, Optional, Params, Raw, parse};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use crate::projects::budgets;
use bakeoff_api::money::LedgerEntryView;
use bakeoff_api::page::Page;
use bakeoff_api::pipelines::{
    CreatedPipeline, CreatedStep, PipelineView, ResumePipeline, StepParts, StepView,
};
use bakeoff_process::ids;
use bakeoff_service::app::App;
use bakeoff_service::use_cases::endpoints;
use bakeoff_service::use_cases::pipelines::early;
use bakeoff_store::StoreError;
use bakeoff_store::experiments::lifecycle::ExperimentCommand;
use bakeoff_store::experiments::steps::StepTrial;
use bakeoff_store::money::caps::Purchase;
use bakeoff_store::pipelines::purchases::OpenPurchase;
use bakeoff_store::pipelines::{NewPipeline, Pipeline, Step};
use bakeoff_store::to_json;

impl From<Flaw> for FieldError {
    fn from(flaw: Flaw) -> Self {
        Self {
            pointer: flaw.pointer,
            detail: flaw.detail,
            fix: flaw.fix,
            rule: "pipeline".to_owned(),
        }
    }
}

/// Start a pipeline
///
/// Checks all of it and starts the steps that wait for nothing. A comparison whose members are all known is
/// linted at once, taking the outputs of earlier steps for granted; what cannot be known before is checked when its
/// step begins.
#[utoipa::path(post, path = "/v1/pipelines", operation_id = "createPipeline", tag = "pipelines",
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key with the same body counts once, for good")),
    request_body = PipelineSpec,
    responses((status = 201, description = "Started", body = CreatedPipeline,
        headers(("Location" = String, description = "Path of the pipeline"))), Problems))]
pub(crate) async fn create(
    State(app): State<App>,
    Editor(caller): Editor,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<Response, Problem> {
    let keyed = Keyed::of(&headers, "POST /v1/pipelines\n", &body)?;
    if let Some(reply) = keyed.earlier_at(&app, caller, "/v1/pipelines").await? {
        return Ok(reply);
    }
    let (spec, mut wrong) = parse::<PipelineSpec>(body).await?;
    let large = oversized(&spec);
    if !large.is_empty() {
        return Err(Problem::invalid(
            large.into_iter().map(Into::into).collect(),
        ));
    }
    let graph = check(&spec).unwrap_or_else(|flaws| {
        wrong.extend(flaws.into_iter().map(FieldError::from));
        Graph::default()
    });
    wrong.extend(stopped_winners(&spec).into_iter().map(FieldError::from));
    let found = Box::pin(early::findings(&app, caller.project, &spec)).await?;
    wrong.extend(found.iter().map(FieldError::from));
    wrong.extend(without_end(&app, &spec));
    if !wrong.is_empty() {
        return Err(Problem::invalid(wrong));
    }
    start(&app, caller, &spec, &graph, &keyed).await
}

/// Steps that would bill by themselves without an end at AWS, where the installation requires one: told before the steps
/// ahead of them are paid for.
fn without_end(app: &App, spec: &PipelineSpec) -> Vec<FieldError> {
    let Some(why) = endpoints::lacks_required_end(app) else {
        return Vec::new();
    };
    let numbered = spec.steps.iter().enumerate();
    let ending = numbered.filter(|(_, step)| step.endpoint.is_some() || step.transform.is_some());
    ending
        .map(|(place, _)| FieldError {
            pointer: format!("/steps/{place}"),
            detail: "it has no end at AWS".to_owned(),
            fix: why.clone(),
            rule: "scheduled_end".to_owned(),
        })
        .collect()
}

/// Writes a pipeline once, and answers with it.
async fn start(
    app: &App,
    caller: Caller,
    spec: &PipelineSpec,
    graph: &Graph,
    keyed: &Keyed<'_>,
) -> Result<Response, Problem> {
    let least = least_budget();
    budgets::allow(
        app,
        caller.project,
        Purchase::Pipeline,
        least,
        spec.budget_usd,
    )
    .await?;
    let new = NewPipeline {
        id: PipelineId(ids::fresh()),
        project_id: caller.project,
        spec,
        kinds: &graph.kinds,
    };
    let mut reply = created(new.id, spec, graph);
    for (told, step) in reply.steps.iter_mut().zip(&spec.steps) {
        if let Some(end) = endpoints::step_end(app, caller.project, &spec.region, step).await? {
            told.absent_service_usd_per_day = end.usd_per_day_absent;
            told.end_at_aws = Some(end.says);
        }
    }
    let reply = to_json(&reply)?;
    let once = keyed.once(&reply);
    let now = app.clock.now();
    let written = app.store.create_pipeline(&new, &once, now).await;
    keyed
        .answer(app, caller, "/v1/pipelines", reply, written)
        .await
}

fn created(id: PipelineId, spec: &PipelineSpec, graph: &Graph) -> CreatedPipeline {
    let kinds = graph.kinds.iter().zip(needed_names(spec));
    let steps = spec.steps.iter().zip(kinds);
    CreatedPipeline {
        id,
        name: spec.name.clone(),
        state: PipelineState::Running,
        steps: steps
            .map(|(step, (kind, needs))| CreatedStep {
                name: step.name.clone(),
                kind: *kind,
                needs,
                absent_service_usd_per_day: None,
                end_at_aws: None,
            })
            .collect(),
    }
}

/// Pipelines with their steps, in the order given.
async fn views(app: &App, pipelines: Vec<Pipeline>) -> Result<Vec<PipelineView>, StoreError> {
    let all: Vec<Uuid> = pipelines.iter().map(|pipeline| pipeline.id.0).collect();
    let steps = app.store.pipeline_steps(&all).await?;
    let mut known = StepContext::load(app, &all, &steps).await?;
    let mut by_pipeline: BTreeMap<PipelineId, Vec<Step>> = BTreeMap::new();
    for step in steps {
        by_pipeline.entry(step.pipeline_id).or_default().push(step);
    }
    let views = pipelines.into_iter().map(|pipeline| {
        let own = by_pipeline.remove(&pipeline.id).unwrap_or_default();
        let steps = known.views(&pipeline, own);
        PipelineView::of(pipeline, steps)
    });
    Ok(views.collect())
}

/// The jobs and the open questions of some pipelines' steps.
struct StepContext {
    trials: BTreeMap<ExperimentId, Vec<StepTrial>>,
    questions: Vec<OpenPurchase>,
}

impl StepContext {
    async fn load(app: &App, pipelines: &[Uuid], steps: &[Step]) -> Result<Self, StoreError> {
        let experiments: Vec<Uuid> = steps
            .iter()
            .filter_map(|step| Some(step.experiment_id?.0))
            .collect();
        let mut trials: BTreeMap<ExperimentId, Vec<StepTrial>> = BTreeMap::new();
        for (experiment, trial) in app.store.step_trials(&experiments).await? {
            trials.entry(experiment).or_default().push(trial);
        }
        let questions = app.store.open_purchases(pipelines).await?;
        Ok(Self { trials, questions })
    }

    fn views(&mut self, pipeline: &Pipeline, steps: Vec<Step>) -> Vec<StepView> {
        let needs = needed_names(&pipeline.spec);
        let view = |step: Step| {
            let trials = step.experiment_id.and_then(|id| self.trials.remove(&id));
            StepView::from(StepParts {
                needs: needs.get(step.place).cloned().unwrap_or_default(),
                question: open_question(&self.questions, pipeline, &step),
                trials: trials.unwrap_or_default(),
                step,
            })
        };
        steps.into_iter().map(view).collect()
    }
}

/// The question a step is waiting on. A stored question stays open when the answer became clear, the pipeline was
/// cancelled or its seven days ran out, so the states decide.
fn open_question(
    questions: &[OpenPurchase],
    pipeline: &Pipeline,
    step: &Step,
) -> Option<OpenPurchase> {
    let is_asking = pipeline.state == PipelineState::Running && step.state == StepState::Waiting;
    let mut own = questions.iter().filter(|_| is_asking);
    let found = own.find(|open| (open.pipeline_id, open.place) == (pipeline.id, step.place));
    found.copied()
}

/// The names of the steps that each step needs.
fn needed_names(spec: &PipelineSpec) -> Vec<Vec<String>> {
    let name = |place: usize| spec.steps.get(place).map(|step| step.name.clone());
    let all = needs(spec).into_iter();
    all.map(|places| places.into_iter().filter_map(name).collect())
        .collect()
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PipelineParams {
    /// Items per page, 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// List pipelines
#[utoipa::path(get, path = "/v1/pipelines", operation_id = "listPipelines", tag = "pipelines", params(PipelineParams),
    responses((status = 200, description = "A page, newest first", body = Page<PipelineView>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PipelineParams>,
) -> Result<Json<Page<PipelineView>>, Problem> {
    let size = page::size(params.page_size)?;
    let before = page::read_token(params.page_token.as_deref(), "pipelines")?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app.store.pipelines(caller.project, before, limit).await?;
    let rows = views(&app, rows).await?;
    Ok(Json(page::cut(
        rows,
        size,
        "pipelines",
        |row| row.id.0,
        |row| row,
    )))
}

pub(crate) fn absent(id: PipelineId) -> Problem {
    Problem::not_found(format!("there is no pipeline {id} in this project"))
}

pub(crate) async fn shown(
    app: &App,
    caller: Caller,
    id: PipelineId,
) -> Result<Json<PipelineView>, Problem> {
    let found = app.store.pipeline(caller.project, id).await?;
    let view = views(app, found.into_iter().collect()).await?.pop();
    Ok(Json(view.ok_or_else(|| absent(id))?))
}

/// Get a pipeline
#[utoipa::path(get, path = "/v1/pipelines/{pipeline_id}", operation_id = "getPipeline", tag = "pipelines",
    params(("pipeline_id" = PipelineId, Path)),
    responses((status = 200, description = "How far it is, and what it has cost", body = PipelineView), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<PipelineId>,
) -> Result<Json<PipelineView>, Problem> {
    shown(&app, caller, id).await
}

/// The ledger of a pipeline
///
/// Every reservation, release and settlement of all its steps, oldest first.
#[utoipa::path(get, path = "/v1/pipelines/{pipeline_id}/ledger", operation_id = "getPipelineLedger", tag = "pipelines",
    params(("pipeline_id" = PipelineId, Path), LedgerParams),
    responses((status = 200, description = "A page of entries", body = Page<LedgerEntryView>), Problems))]
pub(crate) async fn ledger(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<PipelineId>,
    Params(params): Params<LedgerParams>,
) -> Result<Json<Page<LedgerEntryView>>, Problem> {
    let found = app.store.pipeline(caller.project, id).await?;
    found.ok_or_else(|| absent(id))?;
    let (after, size) = params.page()?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app.store.pipeline_ledger(id, after, limit).await?;
    Ok(ledger_page(rows, size))
}

/// Cancel a pipeline
///
/// Starts nothing more, and stops what runs; what has completed stays. Safe to repeat.
#[utoipa::path(post, path = "/v1/pipelines/{pipeline_id}/cancel", operation_id = "cancelPipeline", tag = "pipelines",
    params(("pipeline_id" = PipelineId, Path)),
    responses((status = 200, description = "As it is now", body = PipelineView), Problems))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<PipelineId>,
) -> Result<Json<PipelineView>, Problem> {
    let now = app.clock.now();
    app.store.cancel_pipeline(caller.project, id, now).await?;
    shown(&app, caller, id).await
}

/// Resume a pipeline
///
/// Takes up one that failed or was cancelled, at the steps that have not completed, with a larger budget if one is
/// named, and other budgets of steps that have not begun. In a running one, it queues jobs again that wait for a person,
/// after a quota was raised or a pause. Of a completed one, it raises the budget alone: an endpoint that serves on may
/// then be extended.
#[utoipa::path(post, path = "/v1/pipelines/{pipeline_id}/resume", operation_id = "resumePipeline", tag = "pipelines",
    params(("pipeline_id" = PipelineId, Path)), request_body(content = Option<ResumePipeline>, description = "Nothing, or other budgets"),
    responses((status = 200, description = "As it is now", body = PipelineView), Problems))]
pub(crate) async fn resume(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<PipelineId>,
    Optional(asked): Optional<ResumePipeline>,
) -> Result<Json<PipelineView>, Problem> {
    let now = app.clock.now();
    let found = app.store.pipeline(caller.project, id).await?;
    let found = found.ok_or_else(|| absent(id))?;
    if let Some(flaw) = budgets::flaw(asked.budget_usd) {
        return Err(Problem::invalid(vec![flaw]));
    }
    may_resume(&found, asked.budget_usd)?;
    let spec = Box::pin(with_budgets(&app, &found, &asked)).await?;
    let resumed = app
        .store
        .resume_pipeline(&found, asked.budget_usd, spec.as_ref(), now)
        .await?;
    if !resumed {
        let detail = "somebody has just cancelled it, or it has just completed: look again";
        return Err(Problem::conflict("pipeline_not_resumable", detail));
    }
    if found.state == PipelineState::Running {
        let steps = app.store.pipeline_steps(&[id.0]).await?;
        let works = steps.iter().filter(|step| !step.state.is_over());
        for experiment in works.filter_map(|step| step.experiment_id) {
            let resume = ExperimentCommand::Resume;
            app.store
                .command(caller.project, experiment, resume, now)
                .await?;
        }
    }
    shown(&app, caller, id).await
}

/// The pipeline with the budgets that are asked for, if any of a step is: as it must be when it is created.
async fn with_budgets(
    app: &App,
    found: &Pipeline,
    asked: &ResumePipeline,
) -> Result<Option<PipelineSpec>, Problem> {
    if asked.step_budgets_usd.is_empty() {
        return Ok(None);
    }
    let steps = app.store.pipeline_steps(&[found.id.0]).await?;
    let states: Vec<StepState> = steps.iter().map(|step| step.state).collect();
    let changed = with_step_budgets(&found.spec, &states, &asked.step_budgets_usd);
    let changed = changed
        .map_err(|flaws| Problem::invalid(flaws.into_iter().map(FieldError::from).collect()))?;
    let budget_usd = asked.budget_usd.unwrap_or(found.budget_usd);
    let spec = PipelineSpec {
        budget_usd,
        ..changed
    };
    let is_open = |place: &usize| {
        let state = states.get(*place).copied();
        state.is_some_and(|state| !matches!(state, StepState::Running | StepState::Completed))
    };
    let short = Box::pin(early::short_budgets(app, found.project_id, &spec, is_open)).await?;
    if short.is_empty() {
        Ok(Some(spec))
    } else {
        Err(Problem::invalid(
            short.iter().map(FieldError::from).collect(),
        ))
    }
}

fn may_resume(found: &Pipeline, budget: Option<Usd>) -> Result<(), Problem> {
    let is_raise = found.state == PipelineState::Completed && budget.is_some();
    if !is_raise
        && matches!(
            found.state,
            PipelineState::Cancelling | PipelineState::Completed
        )
    {
        let state = found.state.as_str();
        let detail =
            format!("it is {state}: only one that failed, was cancelled or waits is resumed");
        return Err(Problem::conflict("pipeline_not_resumable", detail));
    }
    if budget.is_some_and(|usd| usd < found.budget_usd) {
        return Err(Problem::invalid(vec![FieldError {
            pointer: "/budget_usd".to_owned(),
            detail: format!(
                "it has {} already: a budget is not lowered",
                found.budget_usd
            ),
            fix: "name a larger one, or leave it out".to_owned(),
            rule: "pipeline".to_owned(),
        }]));
    }
    Ok(())
}

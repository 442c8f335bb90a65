//! What a pipeline's step asks of a person before it buys: approve a candidate, or refuse.

use axum::Json;
use axum::extract::{Path, State};
use bakeoff_domain::event::DecidedPurchase;
use bakeoff_domain::ids::{ExperimentId, PipelineId};
use bakeoff_domain::pipeline::PipelineState;
use bakeoff_domain::ranking::purchase::{RowName, find};
use bakeoff_domain::spec::PurchaseOption;
use serde::Deserialize;

use crate::pipelines::{absent, shown};
use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Optional, Raw, parse};
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::pipelines::PipelineView;
use bakeoff_api::purchases::{ApprovePurchase, RefusePurchase};
use bakeoff_service::app::App;
use bakeoff_service::read;
use bakeoff_store::pipelines::Pipeline;
use bakeoff_store::pipelines::purchases::Decision;

const REASON_MAX: usize = 1000;

/// A step of a pipeline, as a path names it.
#[derive(Debug, Deserialize)]
pub(crate) struct StepPath {
    pipeline_id: String,
    step: String,
}

/// A step that waits for a person.
struct Asking {
    pipeline: Pipeline,
    step: String,
    /// Whose answer it is about.
    experiment: ExperimentId,
}

/// The open question of a step.
async fn asking(app: &App, caller: Caller, path: StepPath) -> Result<Asking, Problem> {
    let StepPath {
        pipeline_id: id,
        step,
    } = path;
    let id: PipelineId = id
        .parse()
        .map_err(|_| Problem::not_found(format!("there is no pipeline {id} in this project")))?;
    let found = app.store.pipeline(caller.project, id).await?;
    let pipeline = found.ok_or_else(|| absent(id))?;
    let mut steps = pipeline.spec.steps.iter();
    let place = steps.position(|one| one.name == step);
    let place = place.ok_or_else(|| Problem::not_found(format!("{id} has no step {step}")))?;
    let questions = app.store.purchase_questions(id).await?;
    let open = questions
        .into_iter()
        .find(|one| one.place == place && one.decision == Decision::Open);
    let Some(open) = open.filter(|_| pipeline.state == PipelineState::Running) else {
        let detail = format!("step {step} waits for no person: see what it does in the pipeline");
        return Err(Problem::conflict("no_purchase_waits", detail));
    };
    Ok(Asking {
        experiment: open.experiment_id,
        pipeline,
        step,
    })
}

async fn decide(
    app: &App,
    caller: Caller,
    asking: &Asking,
    option: Option<PurchaseOption>,
    decided: DecidedPurchase,
) -> Result<Json<PipelineView>, Problem> {
    let now = app.clock.now();
    let (pipeline, experiment) = (&asking.pipeline, asking.experiment);
    let written = app
        .store
        .decide_purchase(pipeline, experiment, option, decided, now)
        .await?;
    if !written {
        let detail = "it was just decided by another request, or the pipeline is over: look again";
        return Err(Problem::conflict("no_purchase_waits", detail));
    }
    shown(app, caller, pipeline.id).await
}

fn invalid(pointer: &str, detail: String, fix: &str) -> Problem {
    Problem::invalid(vec![FieldError {
        pointer: pointer.to_owned(),
        detail,
        fix: fix.to_owned(),
        rule: "purchase".to_owned(),
    }])
}

/// Approve what a step buys
///
/// For a step that waits for a person: names the ranked candidate that it buys. It holds for every step of the
/// pipeline that acts on the same answer.
#[utoipa::path(post, path = "/v1/pipelines/{pipeline_id}/steps/{step}/approve", operation_id = "approvePurchase", tag = "pipelines",
    params(("pipeline_id" = PipelineId, Path), ("step" = String, Path, description = "Name of the step")),
    request_body = ApprovePurchase,
    responses((status = 200, description = "As it is now", body = PipelineView), Problems))]
pub(crate) async fn approve(
    State(app): State<App>,
    Editor(caller): Editor,
    Path(path): Path<StepPath>,
    Raw(body): Raw,
) -> Result<Json<PipelineView>, Problem> {
    let asking = asking(&app, caller, path).await?;
    let (asked, unknown) = parse::<ApprovePurchase>(body).await?;
    if !unknown.is_empty() {
        return Err(Problem::invalid(unknown));
    }
    let id = asking.experiment;
    let experiment = app.store.experiment(caller.project, id).await?;
    let experiment = experiment.ok_or_else(|| {
        Problem::not_found(format!("there is no experiment {id} in this project"))
    })?;
    let answer = read::recommendation(&app.store, &experiment, app.clock.now()).await?;
    let name = RowName {
        candidate: &asked.candidate,
        purchase_option: asked.purchase_option,
    };
    let row =
        find(&answer, name).map_err(|why| invalid("/candidate", why, "name a ranked candidate"))?;
    let decided = DecidedPurchase {
        pipeline_id: asking.pipeline.id,
        step: asking.step.clone(),
        candidate: Some(row.candidate.clone()),
        by: caller.key.to_string(),
        reason: None,
    };
    let option = Some(row.purchase_option);
    decide(&app, caller, &asking, option, decided).await
}

/// Refuse what a step would buy
///
/// For a step that waits for a person: it fails, and what needs it is skipped. A resumed pipeline asks again.
#[utoipa::path(post, path = "/v1/pipelines/{pipeline_id}/steps/{step}/refuse", operation_id = "refusePurchase", tag = "pipelines",
    params(("pipeline_id" = PipelineId, Path), ("step" = String, Path, description = "Name of the step")),
    request_body(content = Option<RefusePurchase>, description = "Nothing, or why"),
    responses((status = 200, description = "As it is now", body = PipelineView), Problems))]
pub(crate) async fn refuse(
    State(app): State<App>,
    Editor(caller): Editor,
    Path(path): Path<StepPath>,
    Optional(asked): Optional<RefusePurchase>,
) -> Result<Json<PipelineView>, Problem> {
    let asking = asking(&app, caller, path).await?;
    let reason = asked.reason.as_deref().unwrap_or_default();
    if reason.chars().count() > REASON_MAX || reason.contains('\0') {
        let detail = "must be a text of at most 1,000 characters".to_owned();
        return Err(invalid("/reason", detail, "shorten it"));
    }
    let decided = DecidedPurchase {
        pipeline_id: asking.pipeline.id,
        step: asking.step.clone(),
        candidate: None,
        by: caller.key.to_string(),
        reason: asked.reason,
    };
    decide(&app, caller, &asking, None, decided).await
}

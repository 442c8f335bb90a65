//! The full run of an experiment's answer: what it would be, and starting it.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::spec::full_run::{Choice, FullRunSpec};

use crate::experiments::{Keyed, find, start};
use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Id, Params, Raw, parse};
use crate::plumbing::heavy::{self, aside};
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::experiments::CreatedExperiment;
use bakeoff_api::full_runs::FullRunPreview;
use bakeoff_service::app::App;
use bakeoff_service::use_cases::full_run::{self, NoFullRun, Purpose};

/// A budget that no full run reaches: a preview asks what is needed.
const ANY_BUDGET: i64 = 100_000_000;

impl From<NoFullRun> for Problem {
    fn from(none: NoFullRun) -> Self {
        match none {
            NoFullRun::NotNow(detail) => Self::conflict("no_full_run", detail),
            NoFullRun::Unknown {
                pointer,
                detail,
                fix,
            } => Self::invalid(vec![FieldError {
                pointer: pointer.to_owned(),
                detail,
                fix: fix.to_owned(),
                rule: "full-run".to_owned(),
            }]),
            NoFullRun::Aws(error) => {
                Self::of_aws(error, "the trial's checkpoints", "s3:ListBucket there")
            }
            NoFullRun::Store(error) => error.into(),
        }
    }
}

/// What the full run would be
///
/// The exact CreateTrainingJob body, what was projected of it, the checkpoint it goes on from, and
/// the least budget it may start with. Writes nothing.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/full-run", operation_id = "previewFullRun", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), Choice),
    responses((status = 200, description = "As it would start", body = FullRunPreview), Problems))]
pub(crate) async fn preview(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
    Params(choice): Params<Choice>,
) -> Result<Response, Problem> {
    let experiment = find(&app, caller, id).await?;
    let run = FullRunSpec::of(choice, Usd(ANY_BUDGET.into()));
    let found = full_run::load(&app, &experiment, &run, Purpose::Show).await?;
    let (of, checkpoint_at) = (found.of, found.checkpoint_at);
    let view = aside(move || {
        let mut spec = found.loaded.spec().clone();
        let mut plan = found.loaded.preview();
        let needed = Usd(plan.worst_case_usd.0.ceil());
        (spec.budget_usd, plan.budget_usd) = (needed, needed);
        FullRunPreview {
            full_run_of: of.into(),
            checkpoint_at,
            budget_usd: needed,
            spec,
            plan: plan.into(),
        }
    })
    .await?;
    heavy::json(view).await
}

/// Start the full run
///
/// Sends the body that was measured, with the length of the full run and under its own budget, and
/// goes on from the trial's checkpoints where there are any. It is an experiment with one trial:
/// watched, billed and cancelled like any other; its recommendation shows what was projected beside
/// what is measured. One at a time for each experiment.
#[utoipa::path(post, path = "/v1/experiments/{experiment_id}/full-run", operation_id = "startFullRun", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key with the same body counts once, for good")),
    request_body = FullRunSpec,
    responses((status = 201, description = "Started", body = CreatedExperiment,
        headers(("Location" = String, description = "Path of the full run's experiment"))), Problems))]
pub(crate) async fn create(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<ExperimentId>,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<Response, Problem> {
    let place = format!("POST /v1/experiments/{id}/full-run\n");
    let keyed = Keyed::of(&headers, &place, &body)?;
    if let Some(reply) = keyed.earlier(&app, caller).await? {
        return Ok(reply);
    }
    let (run, unknown) = parse::<FullRunSpec>(body).await?;
    if !unknown.is_empty() {
        return Err(Problem::invalid(unknown));
    }
    let experiment = find(&app, caller, id).await?;
    let loaded = full_run::load(&app, &experiment, &run, Purpose::Start)
        .await?
        .loaded;
    let prepared = aside(move || loaded.prepare()).await?;
    let prepared = prepared
        .map_err(|findings| Problem::invalid(findings.iter().map(FieldError::from).collect()))?;
    start(&app, caller, &prepared, &keyed).await
}

//! Trials: one candidate of an experiment, and its attempts. Measured series are in
//! [`crate::samples`].

pub(crate) mod artifacts;
pub(crate) mod checkpoints;
pub(crate) mod corrections;
pub(crate) mod logs;
pub(crate) mod tuning;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bakeoff_domain::ids::TrialId;

use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Id, Optional};
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::diagnosis::TrialDiagnosisView;
use bakeoff_api::experiments::StopTrial;
use bakeoff_api::page::Page;
use bakeoff_api::trials::{AttemptView, TrialView};
use bakeoff_service::app::{App, Place};
use bakeoff_service::read;
use bakeoff_store::experiments::race::{Judged, Verdict};
use bakeoff_store::experiments::trials::Trial;

pub(crate) async fn find(app: &App, caller: Caller, id: TrialId) -> Result<Trial, Problem> {
    let found = app.store.trial(caller.project, id).await?;
    found.ok_or_else(|| absent(id))
}

/// The region that a trial runs in.
pub(crate) fn place(app: &App, trial: &Trial) -> Result<Place, Problem> {
    let served = app.places.get(&trial.region).cloned();
    served.ok_or_else(|| {
        let detail = format!("this service does not serve {}", trial.region);
        Problem::unavailable(&detail)
    })
}

fn absent(id: TrialId) -> Problem {
    Problem::not_found(format!("there is no trial {id} in this project"))
}

async fn view(app: &App, caller: Caller, id: TrialId) -> Result<TrialView, Problem> {
    let found = app.store.shown_trial(caller.project, id).await?;
    let found = found.ok_or_else(|| absent(id))?;
    Ok(read::trial_view(found, app.clock.now()))
}

/// Get a trial
#[utoipa::path(get, path = "/v1/trials/{trial_id}", operation_id = "getTrial", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 200, description = "The trial with its plan and attempts", body = TrialView), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
) -> Result<Json<TrialView>, Problem> {
    Ok(Json(view(&app, caller, id).await?))
}

pub(crate) fn of_a_step() -> Problem {
    Problem::conflict(
        "of_a_step",
        "it is the job of a pipeline's step or of an endpoint: cancel the pipeline, or delete the endpoint",
    )
}

/// Reason of a stop, characters.
const REASON_MAX: usize = 1000;

/// Stop a trial
///
/// Of one that waits, is parked or runs: its job is stopped (SageMaker gives it 120 seconds) and settled, and the others go
/// on. What it has measured counts. Safe to repeat.
#[utoipa::path(post, path = "/v1/trials/{trial_id}/stop", operation_id = "stopTrial", tag = "trials",
    params(("trial_id" = TrialId, Path)), request_body = Option<StopTrial>,
    responses((status = 202, description = "Being stopped, or already over", body = TrialView), Problems))]
pub(crate) async fn stop(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<TrialId>,
    Optional(asked): Optional<StopTrial>,
) -> Result<(StatusCode, Json<TrialView>), Problem> {
    let trial = find(&app, caller, id).await?;
    let reason = asked.reason.unwrap_or_else(|| "stopped by hand".to_owned());
    if reason.chars().count() > REASON_MAX {
        return Err(Problem::invalid(vec![FieldError {
            pointer: "/reason".to_owned(),
            detail: format!("has more than {REASON_MAX} characters"),
            fix: "shorten it".to_owned(),
            rule: "reason-length".to_owned(),
        }]));
    }
    // What a step's trial does is its pipeline's, or its endpoint's, to end.
    let experiment = app.store.experiment(caller.project, trial.experiment_id);
    if experiment.await?.is_none() {
        return Err(of_a_step());
    }
    let stops = vec![Judged { trial: id, reason }];
    let verdict = Verdict {
        stops,
        starts: Vec::new(),
        by_hand: true,
    };
    let now = app.clock.now();
    let experiment = trial.experiment_id;
    app.store
        .apply_verdict(caller.project, experiment, &verdict, now)
        .await?;
    app.wake_schedulers();
    Ok((StatusCode::ACCEPTED, Json(view(&app, caller, id).await?)))
}

/// Attempts of a trial
#[utoipa::path(get, path = "/v1/trials/{trial_id}/attempts", operation_id = "listAttempts", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 200, description = "One SageMaker job each, in order", body = Page<AttemptView>), Problems))]
pub(crate) async fn attempts(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
) -> Result<Json<Page<AttemptView>>, Problem> {
    Ok(Json(Page {
        items: view(&app, caller, id).await?.attempts,
        next_page_token: None,
    }))
}

/// Diagnosis of a trial
///
/// Why its jobs failed, from what SageMaker reports and the end of their logs, with advice and, where a
/// machine can make it, a change; the last lines are kept with it. While a job runs: what its utilisation
/// says.
#[utoipa::path(get, path = "/v1/trials/{trial_id}/diagnosis", operation_id = "getTrialDiagnosis", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 200, description = "Each attempt, and advice", body = TrialDiagnosisView), Problems))]
pub(crate) async fn diagnosis(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
) -> Result<Json<TrialDiagnosisView>, Problem> {
    let trial = find(&app, caller, id).await?;
    let shown = app.store.shown_trial(caller.project, id).await?;
    let shown = shown.ok_or_else(|| absent(id))?;
    // What is stored is shown also where this service does not serve the region.
    let aws = app.places.get(&trial.region).map(|place| &*place.aws);
    let region = &trial.region;
    Ok(Json(
        read::diagnosis::of_trial(&app.store, aws, shown, region).await?,
    ))
}

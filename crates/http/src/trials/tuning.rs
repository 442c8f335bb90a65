//! The trials that SageMaker started for a tuning job.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::ids::TrialId;

use crate::plumbing::auth::Caller;
use crate::plumbing::extract::Id;
use crate::plumbing::problem::{Problem, Problems};
use crate::trials;
use bakeoff_api::tuning::{Tuned, TuningView};
use bakeoff_service::app::App;

/// Trials of a tuning job
///
/// Hyperparameters, objective and cost of each training job that SageMaker started for a tuning, and the best
/// objective against dollars. Read every five minutes while it runs.
#[utoipa::path(get, path = "/v1/trials/{trial_id}/tuned", operation_id = "getTunedTrials", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 200, description = "All of them", body = TuningView), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
) -> Result<Json<TuningView>, Problem> {
    let trial = trials::find(&app, caller, id).await?;
    let experiment = [trial.experiment_id.0];
    let all = app.store.step_trials(&experiment).await?;
    let found = all.into_iter().find(|(_, one)| one.id == id);
    let not_tuned = || Problem::not_found(format!("{id} is no tuning job"));
    let (_, found) = found.ok_or_else(not_tuned)?;
    let request = found.plan.tuning().ok_or_else(not_tuned)?;
    let tuned = Tuned {
        trial_id: id,
        job_name: found.job_name.as_ref(),
        request,
        usd_per_hour: found.plan.price.as_ref().map(|price| price.usd_per_hour),
        settled_usd: found.settled_usd,
    };
    let trials = found.tuned.unwrap_or_default();
    Ok(Json(TuningView::of(tuned, &trials)))
}

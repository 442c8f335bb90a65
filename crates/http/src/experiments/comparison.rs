//! Comparison tables: for one experiment, or for any experiments, trials and runs of a project side
//! by side.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::{ExperimentId, RunId, TrialId};
use bakeoff_domain::measure::metric;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::experiments::find;
use crate::plumbing::auth::Caller;
use crate::plumbing::extract::{Id, Params};
use crate::plumbing::problem::{Problem, Problems};
use crate::plumbing::table::{self, Format, Kind};
use crate::plumbing::{heavy, page};
use bakeoff_api::calibration::Calibration;
use bakeoff_api::comparison::{Comparison, ComparisonTable, Convergence};
use bakeoff_service::app::App;
use bakeoff_service::read::{self, Selection};
use bakeoff_store::experiments::runs::Run;

/// Maximum number of experiments, single trials and runs in one table.
const SIDE_BY_SIDE_MAX: usize = 100;

/// Columns of a row, in the order of its fields.
const COLUMNS: &[(&str, Kind)] = &[
    ("candidate", Kind::Text),
    ("instance_type", Kind::Text),
    ("instance_count", Kind::Whole),
    ("accelerator_count", Kind::Whole),
    ("purchase_option", Kind::Text),
    ("state", Kind::Text),
    ("tokens_per_second", Kind::Real),
    ("tokens_per_second_half_width", Kind::Real),
    ("tokens_per_second_from_at", Kind::Time),
    ("tokens_per_second_until_at", Kind::Time),
    ("tokens_per_second_source", Kind::Text),
    ("tokens_per_second_basis", Kind::Text),
    ("samples_per_second", Kind::Real),
    ("steps_per_second", Kind::Real),
    ("steps_per_hour", Kind::Real),
    ("gpu_utilization_percent", Kind::Real),
    ("gpu_memory_utilization_percent", Kind::Real),
    ("mfu_percent", Kind::Real),
    ("train_loss", Kind::Real),
    ("validation_loss", Kind::Real),
    ("step", Kind::Whole),
    ("planned_steps", Kind::Whole),
    ("progress", Kind::Real),
    ("remaining_hours", Kind::Real),
    ("remaining_hours_low", Kind::Real),
    ("remaining_hours_high", Kind::Real),
    ("remaining_usd", Kind::Real),
    ("remaining_usd_low", Kind::Real),
    ("remaining_usd_high", Kind::Real),
    ("pace_change_percent", Kind::Real),
    ("pace_has_changed", Kind::Flag),
    ("stalled_since", Kind::Time),
    ("usd_per_million_tokens", Kind::Real),
    ("usd_per_step", Kind::Real),
    ("usd_per_epoch", Kind::Real),
    ("training_seconds", Kind::Whole),
    ("billable_seconds", Kind::Whole),
    ("starting_seconds", Kind::Whole),
    ("downloading_seconds", Kind::Whole),
    ("uploading_seconds", Kind::Whole),
    ("setup_share", Kind::Real),
    ("downloading_share", Kind::Real),
    ("training_share", Kind::Real),
    ("uploading_share", Kind::Real),
    ("wasted_share", Kind::Real),
    ("cost_usd", Kind::Real),
    ("wasted_usd", Kind::Real),
    ("storage_cost_usd", Kind::Real),
    ("metrics_cost_usd", Kind::Real),
    ("other_cost_usd", Kind::Real),
    ("total_usd", Kind::Real),
    ("spot_saved_usd", Kind::Real),
    ("cost_estimated", Kind::Flag),
    ("usd_per_hour", Kind::Real),
    ("price_source", Kind::Text),
    ("price_status", Kind::Text),
    ("price_effective_from", Kind::Time),
    ("price_note", Kind::Text),
    ("global_batch", Kind::Whole),
    ("comparable", Kind::Flag),
    ("attempts", Kind::Whole),
    ("interruptions", Kind::Whole),
    ("secondary_status", Kind::Text),
    ("reason", Kind::Text),
    ("diagnosis", Kind::Text),
    ("kind", Kind::Text),
    ("experiment_id", Kind::Text),
    ("trial_id", Kind::Text),
    ("run_id", Kind::Text),
];

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FormatParams {
    /// Overrides the Accept header: for browsers and `pandas.read_csv`.
    #[param(inline)]
    format: Option<Format>,
}

/// Compare the trials of an experiment
///
/// Speed, cost and price source of every trial, including trials that may not be ranked. JSON adds
/// the expectations to the rows; CSV, NDJSON and Parquet contain the rows, with the same columns.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/comparison", operation_id = "getComparison", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), FormatParams),
    responses((status = 200, description = "The table",
        content((Comparison = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                (Vec<u8> = "application/vnd.apache.parquet"))), Problems))]
pub(crate) async fn of_experiment(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
    Params(params): Params<FormatParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let experiment = find(&app, caller, id).await?;
    let table = read::comparison(&app.store, &experiment, app.clock.now()).await?;
    match Format::chosen(params.format, &headers) {
        Format::Json => Ok(([(header::VARY, "Accept")], heavy::json(table).await?).into_response()),
        format => table::rows(format, COLUMNS, table.rows).await,
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SideBySideParams {
    /// Experiment; repeat for several.
    #[serde(default)]
    experiment_id: Vec<ExperimentId>,
    /// Single trial; repeat for several.
    #[serde(default)]
    trial_id: Vec<TrialId>,
    /// External run; repeat for several.
    #[serde(default)]
    run_id: Vec<RunId>,
    /// Overrides the Accept header: for browsers and `pandas.read_csv`.
    #[param(inline)]
    format: Option<Format>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CurveParams {
    /// Experiment; repeat for several.
    #[serde(default)]
    experiment_id: Vec<ExperimentId>,
    /// Single trial; repeat for several.
    #[serde(default)]
    trial_id: Vec<TrialId>,
    /// External run; repeat for several.
    #[serde(default)]
    run_id: Vec<RunId>,
    /// Metric; `train_loss` when absent.
    metric: Option<String>,
    /// Also report where each curve first stayed at or below this value.
    target: Option<f64>,
    /// Overrides the Accept header: for browsers and `pandas.read_csv`.
    #[param(inline)]
    format: Option<Format>,
}

const CURVE_COLUMNS: &[(&str, Kind)] = &[
    ("candidate", Kind::Text),
    ("at", Kind::Time),
    ("step", Kind::Whole),
    ("tokens", Kind::Real),
    ("hours", Kind::Real),
    ("usd", Kind::Real),
    ("value", Kind::Real),
    ("trial_id", Kind::Text),
    ("run_id", Kind::Text),
];

/// Compare predictions with measurements
///
/// How good the predicted speeds of the project's newest experiments were, by instance type: how
/// many of the 90 % intervals held what was measured since, the median error, and the bias.
#[utoipa::path(get, path = "/v1/calibration", operation_id = "getCalibration", tag = "experiments",
    responses((status = 200, description = "One row for each instance type", body = Calibration), Problems))]
pub(crate) async fn calibration(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<Calibration>, Problem> {
    let found = read::calibration::of_project(&app.store, caller.project, app.clock.now()).await?;
    Ok(Json(found))
}

/// Compare convergence
///
/// The loss of trials and runs against steps, tokens, hours and dollars: shows which gets furthest
/// for its money, not only for its time.
#[utoipa::path(get, path = "/v1/convergence", operation_id = "compareConvergence", tag = "experiments", params(CurveParams),
    responses((status = 200, description = "The curves, five minutes a point",
        content((Convergence = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                (Vec<u8> = "application/vnd.apache.parquet"))), Problems))]
pub(crate) async fn convergence(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<CurveParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let asked = params.experiment_id.len() + params.trial_id.len() + params.run_id.len();
    check_count(asked)?;
    let selection = selected(
        &app,
        caller,
        params.experiment_id,
        params.trial_id,
        &params.run_id,
    )
    .await?;
    let name = params.metric.as_deref().unwrap_or(metric::TRAIN_LOSS);
    let name = metric::standard(name).map_or(name, |standard| standard.name);
    let curves = read::curves(&app.store, &selection, name, params.target, app.clock.now()).await?;
    match Format::chosen(params.format, &headers) {
        Format::Json => {
            Ok(([(header::VARY, "Accept")], heavy::json(curves).await?).into_response())
        }
        format => table::rows(format, CURVE_COLUMNS, curves.rows).await,
    }
}

fn check_count(asked: usize) -> Result<(), Problem> {
    if (1..=SIDE_BY_SIDE_MAX).contains(&asked) {
        return Ok(());
    }
    let detail =
        format!("give 1 to {SIDE_BY_SIDE_MAX} ids in all, with experiment_id, trial_id and run_id");
    Err(page::parameter("experiment_id", detail))
}

/// Compare experiments, trials and runs
///
/// All their rows in one table, without a ranking: rows of different workloads are not comparable.
#[utoipa::path(get, path = "/v1/comparison", operation_id = "compareSideBySide", tag = "experiments", params(SideBySideParams),
    responses((status = 200, description = "The table",
        content((ComparisonTable = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                (Vec<u8> = "application/vnd.apache.parquet"))), Problems))]
pub(crate) async fn side_by_side(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<SideBySideParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let asked = params.experiment_id.len() + params.trial_id.len() + params.run_id.len();
    check_count(asked)?;
    let selection = selected(
        &app,
        caller,
        params.experiment_id,
        params.trial_id,
        &params.run_id,
    )
    .await?;
    let table = read::comparison_of(&app.store, &selection, app.clock.now()).await?;
    match Format::chosen(params.format, &headers) {
        Format::Json => Ok(([(header::VARY, "Accept")], heavy::json(table).await?).into_response()),
        format => table::rows(format, COLUMNS, table.rows).await,
    }
}

async fn selected(
    app: &App,
    caller: Caller,
    whole: Vec<ExperimentId>,
    only: Vec<TrialId>,
    runs: &[RunId],
) -> Result<Selection, Problem> {
    let owners = app
        .store
        .experiments_of_trials(caller.project, &only)
        .await?;
    if let Some(missing) = only.iter().find(|id| !owners.contains_key(id)) {
        return Err(absent("trial", missing));
    }
    let ids: Vec<Uuid> = whole.iter().chain(owners.values()).map(|id| id.0).collect();
    let mut experiments = app.store.experiments_by_id(caller.project, &ids).await?;
    experiments.sort_by_key(|experiment| ids.iter().position(|id| *id == experiment.id.0));
    if let Some(missing) = whole
        .iter()
        .find(|id| experiments.iter().all(|one| one.id != **id))
    {
        return Err(absent("experiment", missing));
    }
    Ok(Selection {
        experiments,
        only,
        whole,
        runs: selected_runs(app, caller, runs).await?,
    })
}

async fn selected_runs(app: &App, caller: Caller, ids: &[RunId]) -> Result<Vec<Run>, Problem> {
    let runs = app.store.runs_by_id(caller.project, ids).await?;
    match ids.iter().find(|id| runs.iter().all(|run| run.id != **id)) {
        Some(missing) => Err(absent("run", missing)),
        None => Ok(runs),
    }
}

fn absent(what: &str, id: &dyn std::fmt::Display) -> Problem {
    Problem::not_found(format!("there is no {what} {id} in this project"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bakeoff_api::comparison::ComparisonRow;

    /// The table's columns are the fields of a row, in their order.
    #[test]
    fn the_columns_are_the_fields() {
        assert_eq!(
            table::fields(&ComparisonRow::default()),
            COLUMNS.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        );
    }
}

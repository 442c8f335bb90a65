//! Comparison tables: of one experiment, or of any experiments and runs of a project side by side.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::{ExperimentId, RunId};
use serde::Deserialize;
use utoipa::IntoParams;

use super::auth::Caller;
use super::experiments::find;
use super::extract::{Id, Params};
use super::page;
use super::problem::{Problem, Problems};
use super::table::{self, Format, Kind};
use crate::app::App;
use crate::read;
use crate::view::{Comparison, ComparisonTable};

/// Experiments, and runs, in one table.
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
    ("samples_per_second", Kind::Real),
    ("steps_per_second", Kind::Real),
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
    ("stalled_since", Kind::Time),
    ("usd_per_million_tokens", Kind::Real),
    ("usd_per_step", Kind::Real),
    ("usd_per_epoch", Kind::Real),
    ("training_seconds", Kind::Whole),
    ("billable_seconds", Kind::Whole),
    ("starting_seconds", Kind::Whole),
    ("downloading_seconds", Kind::Whole),
    ("uploading_seconds", Kind::Whole),
    ("cost_usd", Kind::Real),
    ("wasted_usd", Kind::Real),
    ("metrics_cost_usd", Kind::Real),
    ("other_cost_usd", Kind::Real),
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
    ("kind", Kind::Text),
    ("experiment_id", Kind::Text),
    ("trial_id", Kind::Text),
    ("run_id", Kind::Text),
];

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FormatParams {
    /// Instead of the Accept header: for browsers and `pandas.read_csv`.
    #[param(inline)]
    format: Option<Format>,
}

/// Compare the trials of an experiment
///
/// Speed, cost and price source of every trial; rows that may not be ranked are in the table too. JSON has the expectations
/// beside the rows; CSV, NDJSON and Parquet have the rows, with the same columns.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/comparison", operation_id = "getComparison", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), FormatParams),
    responses((status = 200, description = "The table",
        content((Comparison = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                (Vec<u8> = "application/vnd.apache.parquet"))), Problems))]
pub(super) async fn of_experiment(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
    Params(params): Params<FormatParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let experiment = find(&app, caller, id).await?;
    let table = read::comparison(&app.store, &experiment, app.clock.now()).await?;
    match Format::chosen(params.format, &headers) {
        Format::Json => Ok(([(header::VARY, "Accept")], Json(table)).into_response()),
        format => table::rows(format, COLUMNS, &table.rows),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SideBySideParams {
    /// Repeat for several.
    #[serde(default)]
    experiment_id: Vec<ExperimentId>,
    /// Repeat for several.
    #[serde(default)]
    run_id: Vec<RunId>,
    /// Instead of the Accept header: for browsers and `pandas.read_csv`.
    #[param(inline)]
    format: Option<Format>,
}

/// Compare experiments and runs
///
/// All their rows in one table. Nothing is ranked here: rows of different workloads are not comparable.
#[utoipa::path(get, path = "/v1/comparison", operation_id = "compareSideBySide", tag = "experiments", params(SideBySideParams),
    responses((status = 200, description = "The table",
        content((ComparisonTable = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                (Vec<u8> = "application/vnd.apache.parquet"))), Problems))]
pub(super) async fn side_by_side(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<SideBySideParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let asked = params.experiment_id.len() + params.run_id.len();
    if !(1..=SIDE_BY_SIDE_MAX).contains(&asked) {
        let detail = format!("name 1 to {SIDE_BY_SIDE_MAX} experiments and runs, with experiment_id and run_id");
        return Err(page::parameter("experiment_id", detail));
    }
    let mut experiments = Vec::new();
    for id in &params.experiment_id {
        experiments.push(find(&app, caller, *id).await?);
    }
    let runs = app.store.runs_by_id(caller.project, &params.run_id).await?;
    if let Some(missing) = params.run_id.iter().find(|id| runs.iter().all(|run| run.id != **id)) {
        return Err(Problem::not_found(format!("there is no run {missing} in this project")));
    }
    let table = read::comparison_of(&app.store, &experiments, &runs, app.clock.now()).await?;
    match Format::chosen(params.format, &headers) {
        Format::Json => Ok(([(header::VARY, "Accept")], Json(table)).into_response()),
        format => table::rows(format, COLUMNS, &table.rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ComparisonRow;

    /// The table's columns are the fields of a row, in their order.
    #[test]
    fn the_columns_are_the_fields() {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.serialize(ComparisonRow::default()).unwrap();
        let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
        let fields: Vec<&str> = text.lines().next().unwrap().split(',').collect();
        assert_eq!(fields, COLUMNS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}

//! Spending: the ledger summed by day, experiment or trial.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::plumbing::auth::Caller;
use crate::plumbing::extract::Params;
use crate::plumbing::problem::{Problem, Problems};
use crate::plumbing::table::{self, Format, Kind};
use crate::plumbing::{heavy, page};
use bakeoff_api::money::{Spending, SpendingRow};
use bakeoff_service::app::App;
use bakeoff_store::money::spending::{By, ComponentSpending, Saved, Span};

const DAYS_DEFAULT: i64 = 30;
const DAYS_MAX: i64 = 400;
/// Maximum of groups times components in one answer.
const ROWS_MAX: i64 = 50_000;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GroupBy {
    /// Day in UTC: a job that ran over midnight counts on both days.
    #[default]
    Day,
    Experiment,
    Trial,
    Project,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SpendingParams {
    /// `day` (the default), `experiment`, `trial` or `project`.
    #[serde(default)]
    #[param(inline)]
    group_by: GroupBy,
    /// Only this experiment.
    experiment_id: Option<ExperimentId>,
    /// Include usage from this time on; 30 days before `until` when absent.
    from: Option<DateTime<Utc>>,
    /// Include usage before this time; now when absent.
    until: Option<DateTime<Utc>>,
    /// Overrides the Accept header: for browsers and `pandas.read_csv`.
    #[param(inline)]
    format: Option<Format>,
}

/// Day, experiment, trial: set for the ones grouped by.
type Group = (Option<DateTime<Utc>>, Option<Uuid>, Option<Uuid>);

const COLUMNS: &[(&str, Kind)] = &[
    ("day", Kind::Text),
    ("experiment_id", Kind::Text),
    ("experiment_name", Kind::Text),
    ("trial_id", Kind::Text),
    ("training_usd", Kind::Real),
    ("processing_usd", Kind::Real),
    ("tuning_usd", Kind::Real),
    ("transform_usd", Kind::Real),
    ("hosting_usd", Kind::Real),
    ("warm_pool_usd", Kind::Real),
    ("storage_usd", Kind::Real),
    ("orphaned_jobs_usd", Kind::Real),
    ("cloudwatch_usd", Kind::Real),
    ("total_usd", Kind::Real),
    ("estimated", Kind::Flag),
    ("spot_saved_usd", Kind::Real),
];

/// Spending of the project
///
/// Settled costs, grouped. Running jobs are settled when they end; the comparison shows their cost
/// so far.
#[utoipa::path(get, path = "/v1/spending", operation_id = "getSpending", tag = "projects", params(SpendingParams),
    responses((status = 200, description = "The table",
        content((Spending = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                (Vec<u8> = "application/vnd.apache.parquet"))), Problems))]
pub(crate) async fn spending(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<SpendingParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let span = span(&params, caller.project, app.clock.now())?;
    let by = match params.group_by {
        GroupBy::Day => By::Day,
        GroupBy::Experiment => By::Experiment,
        GroupBy::Trial => By::Trial,
        GroupBy::Project => By::Project,
    };
    let spent = app.store.spent(&span, by, ROWS_MAX + 1).await?;
    if i64::try_from(spent.len()).unwrap_or(i64::MAX) > ROWS_MAX {
        return Err(page::parameter(
            "group_by",
            "too many groups; give an experiment_id or a shorter period",
        ));
    }
    let saved = app.store.saved_by_spot(&span, by).await?;
    let Summed { mut rows, total } = summed(&spent, &saved);
    name(&app, caller.project, &mut rows).await?;
    match Format::chosen(params.format, &headers) {
        Format::Json => {
            let table = Spending {
                currency: "USD".to_owned(),
                from: span.from,
                until: span.until,
                rows,
                total,
            };
            Ok(([(header::VARY, "Accept")], heavy::json(table).await?).into_response())
        }
        format => table::rows(format, COLUMNS, rows).await,
    }
}

/// Says the name of each row's experiment.
async fn name(app: &App, project: ProjectId, rows: &mut [SpendingRow]) -> Result<(), Problem> {
    let ids: BTreeSet<Uuid> = rows
        .iter()
        .filter_map(|row| Some(row.experiment_id?.0))
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = ids.into_iter().collect();
    let names = app.store.experiment_names(project, &ids).await?;
    for row in rows {
        row.experiment_name = row.experiment_id.and_then(|id| names.get(&id.0).cloned());
    }
    Ok(())
}

fn span(params: &SpendingParams, project: ProjectId, now: DateTime<Utc>) -> Result<Span, Problem> {
    let until = params.until.unwrap_or(now);
    let usual = until.checked_sub_signed(TimeDelta::days(DAYS_DEFAULT));
    let Some(from) = params.from.or(usual) else {
        return Err(page::parameter("until", "too far in the past"));
    };
    if !(TimeDelta::zero()..=TimeDelta::days(DAYS_MAX)).contains(&(until - from)) {
        return Err(page::parameter(
            "from",
            format!("must be within the {DAYS_MAX} days before `until`"),
        ));
    }
    Ok(Span {
        project,
        experiment: params.experiment_id,
        from,
        until,
    })
}

/// Rows by group, in order, and their total.
struct Summed {
    rows: Vec<SpendingRow>,
    total: SpendingRow,
}

fn summed(spent: &[ComponentSpending], saved: &[Saved]) -> Summed {
    let mut groups: BTreeMap<Group, SpendingRow> = BTreeMap::new();
    let mut total = SpendingRow::default();
    for one in spent {
        let row = groups
            .entry((one.day, one.experiment, one.trial))
            .or_default();
        for row in [row, &mut total] {
            row.add(one.component, one.usd);
            row.estimated |= one.estimated;
        }
    }
    for one in saved {
        groups
            .entry((one.day, one.experiment, one.trial))
            .or_default()
            .spot_saved_usd += one.usd;
        total.spot_saved_usd += one.usd;
    }
    let named = groups
        .into_iter()
        .map(|((day, experiment, trial), row)| SpendingRow {
            day: day.map(|day| day.date_naive()),
            experiment_id: experiment.map(ExperimentId),
            trial_id: trial.map(TrialId),
            ..row
        });
    Summed {
        rows: named.collect(),
        total,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_the_fields() {
        assert_eq!(
            table::fields(&SpendingRow::default()),
            COLUMNS.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        );
    }
}

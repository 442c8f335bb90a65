//! Spending: the ledger added up by day, experiment or trial.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::money::Usd;
use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::auth::Caller;
use super::extract::Params;
use super::problem::{Problem, Problems};
use super::table::{self, Format, Kind};
use super::{heavy, page};
use crate::app::App;
use crate::store::money::spending::{By, Saved, Span, Spent};

const DAYS_DEFAULT: i64 = 30;
const DAYS_MAX: i64 = 400;
/// Groups times components of one answer.
const ROWS_MAX: i64 = 50_000;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum GroupBy {
    /// Of UTC: a job that ran over midnight counts on both.
    #[default]
    Day,
    Experiment,
    Trial,
    Project,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SpendingParams {
    /// `day` (the default), `experiment`, `trial` or `project`.
    #[serde(default)]
    #[param(inline)]
    group_by: GroupBy,
    /// Of this experiment only.
    experiment_id: Option<ExperimentId>,
    /// What was used from here on; 30 days before `until` when absent.
    from: Option<DateTime<Utc>>,
    /// Until here, exclusive; now when absent.
    until: Option<DateTime<Utc>>,
    /// Instead of the Accept header: for browsers and `pandas.read_csv`.
    #[param(inline)]
    format: Option<Format>,
}

/// Day, experiment, trial: those that are grouped by.
type Group = (Option<DateTime<Utc>>, Option<Uuid>, Option<Uuid>);

/// What was spent in one group, settled.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub(super) struct SpendingRow {
    day: Option<NaiveDate>,
    experiment_id: Option<ExperimentId>,
    trial_id: Option<TrialId>,
    training_usd: Usd,
    warm_pool_usd: Usd,
    storage_usd: Usd,
    /// Jobs that ran astray.
    stray_usd: Usd,
    /// Reading metrics.
    cloudwatch_usd: Usd,
    total_usd: Usd,
    /// True while a part of it is an estimate.
    estimated: bool,
    /// What managed spot did not bill; by day, on that of the attempt's end.
    spot_saved_usd: Usd,
}

const COLUMNS: &[(&str, Kind)] = &[
    ("day", Kind::Text),
    ("experiment_id", Kind::Text),
    ("trial_id", Kind::Text),
    ("training_usd", Kind::Real),
    ("warm_pool_usd", Kind::Real),
    ("storage_usd", Kind::Real),
    ("stray_usd", Kind::Real),
    ("cloudwatch_usd", Kind::Real),
    ("total_usd", Kind::Real),
    ("estimated", Kind::Flag),
    ("spot_saved_usd", Kind::Real),
];

/// What was spent.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct Spending {
    currency: String,
    from: DateTime<Utc>,
    until: DateTime<Utc>,
    rows: Vec<SpendingRow>,
    total: SpendingRow,
}

/// What was spent
///
/// The settled ledger of the project, added up. What runs is settled at its end; the comparison
/// shows what it has cost so far.
#[utoipa::path(get, path = "/v1/spending", operation_id = "getSpending", tag = "projects", params(SpendingParams),
    responses((status = 200, description = "The table",
        content((Spending = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                (Vec<u8> = "application/vnd.apache.parquet"))), Problems))]
pub(super) async fn spending(
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
            "there are too many groups; name an experiment_id, or a shorter span",
        ));
    }
    let saved = app.store.saved_by_spot(&span, by).await?;
    let Summed { rows, total } = summed(&spent, &saved);
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

fn span(params: &SpendingParams, project: ProjectId, now: DateTime<Utc>) -> Result<Span, Problem> {
    let until = params.until.unwrap_or(now);
    let usual = until.checked_sub_signed(TimeDelta::days(DAYS_DEFAULT));
    let Some(from) = params.from.or(usual) else {
        return Err(page::parameter("until", "it is too long ago"));
    };
    if !(TimeDelta::zero()..=TimeDelta::days(DAYS_MAX)).contains(&(until - from)) {
        return Err(page::parameter(
            "from",
            format!("it is not within the {DAYS_MAX} days before `until`"),
        ));
    }
    Ok(Span {
        project,
        experiment: params.experiment_id,
        from,
        until,
    })
}

/// Rows by group, in their order, and what they come to.
struct Summed {
    rows: Vec<SpendingRow>,
    total: SpendingRow,
}

fn summed(spent: &[Spent], saved: &[Saved]) -> Summed {
    let mut groups: BTreeMap<Group, SpendingRow> = BTreeMap::new();
    let mut total = SpendingRow::default();
    for one in spent {
        let row = groups
            .entry((one.day, one.experiment, one.trial))
            .or_default();
        for row in [row, &mut total] {
            row.add(&one.component, one.usd);
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

impl SpendingRow {
    fn add(&mut self, component: &str, usd: Usd) {
        self.total_usd += usd;
        match component {
            "training" => self.training_usd += usd,
            "warm_pool" => self.warm_pool_usd += usd,
            "storage" => self.storage_usd += usd,
            "stray" => self.stray_usd += usd,
            _ => self.cloudwatch_usd += usd,
        }
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

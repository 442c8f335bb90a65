//! Lists of experiments, and how many there are of each kind.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::money::Usd;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::plumbing::auth::Caller;
use crate::plumbing::extract::Params;
use crate::plumbing::heavy;
use crate::plumbing::page;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::experiments::{
    ExperimentFacets, ExperimentSummary, Facet, StateCount, TrialCounts,
};
use bakeoff_api::page::Page;
use bakeoff_service::app::App;
use bakeoff_store::experiments::lists::{self, ExperimentFilter, ExperimentLine, PageOf};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// State; repeat for several.
    #[serde(default)]
    state: Vec<ExperimentState>,
    /// Part of the name, case-insensitive.
    name_contains: Option<String>,
    /// `team=legal`; repeat for several, which must all be there.
    #[serde(default)]
    label: Vec<String>,
    /// An API key's id, a CI template's, or a pipeline's; `me` for the key of this request.
    created_by: Option<String>,
    /// A workload's name.
    workload: Option<String>,
    /// That a candidate runs on: `ml.g5.12xlarge`.
    instance_type: Option<String>,
    /// Dollars that are spent and settled.
    #[param(value_type = Option<f64>)]
    settled_usd_min: Option<Decimal>,
    #[param(value_type = Option<f64>)]
    settled_usd_max: Option<Decimal>,
    /// `true`: only those in the archive; otherwise only the others.
    archived: Option<bool>,
    /// `true`: only those that were deleted and can be restored, archived or not.
    deleted: Option<bool>,
    created_after: Option<DateTime<Utc>>,
    created_before: Option<DateTime<Utc>>,
    /// `-created_at` (newest first, the default) or `created_at`.
    sort: Option<String>,
    /// 1 to 500; 50 when absent.
    page_size: Option<u32>,
    page_token: Option<String>,
}

impl ListParams {
    fn filter(self) -> ExperimentFilter {
        let states: Vec<String> = self
            .state
            .iter()
            .map(|state| state.as_str().to_owned())
            .collect();
        ExperimentFilter {
            states: (!states.is_empty()).then_some(states),
            name_contains: self.name_contains,
            labels: self.label,
            created_by: self.created_by,
            workload: self.workload,
            instance_type: self.instance_type,
            settled_usd_min: self.settled_usd_min.map(Usd),
            settled_usd_max: self.settled_usd_max.map(Usd),
            archived: self.archived.unwrap_or(false),
            deleted: self.deleted.unwrap_or(false),
            created_after: self.created_after,
            created_before: self.created_before,
        }
    }
}

/// List experiments
///
/// Each with what it has cost and what it says. Its specification and findings are with the experiment itself.
#[utoipa::path(get, path = "/v1/experiments", operation_id = "listExperiments", tag = "experiments", params(ListParams),
    responses((status = 200, description = "A page, newest first", body = Page<ExperimentSummary>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Response, Problem> {
    let newest_first = match params.sort.as_deref() {
        None | Some("-created_at") => true,
        Some("created_at") => false,
        Some(_) => return Err(page::parameter("sort", "must be created_at or -created_at")),
    };
    if let Some(label) = params.label.iter().find(|label| !label.contains('=')) {
        let detail = format!("`{label}` has no value: write name=value, as in label=team=legal");
        return Err(page::parameter("label", detail));
    }
    let (page_size, page_token) = (params.page_size, params.page_token.clone());
    let mut filter = params.filter();
    if filter.created_by.as_deref() == Some("me") {
        filter.created_by = Some(caller.key.to_string());
    }
    let tag = format!("{filter:?}{newest_first}");
    let size = page::size(page_size)?;
    let from = page::read_token(page_token.as_deref(), &tag)?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let page = PageOf {
        newest_first,
        from,
        limit,
    };
    let rows = app
        .store
        .experiment_lines(caller.project, &filter, page)
        .await?;
    heavy::json(page::cut(rows, size, &tag, |row| row.id.0, summary)).await
}

fn summary(line: ExperimentLine) -> ExperimentSummary {
    let lists::TrialCounts {
        waiting,
        running,
        parked,
        completed,
        stopped,
        failed,
        refused,
    } = line.trials;
    ExperimentSummary {
        id: line.id,
        name: line.name,
        state: line.state,
        workload: format!("{} v{}", line.workload, line.workload_version),
        budget_usd: line.budget_usd,
        reserved_usd: line.reserved_usd,
        settled_usd: line.settled_usd,
        paused_reason: line.paused_reason,
        trials: TrialCounts {
            waiting,
            running,
            parked,
            completed,
            stopped,
            failed,
            refused,
        },
        answer: line.answer.map(Into::into),
        full_run_of: line.full_run_of,
        labels: line.labels,
        created_by: line.created_by,
        creator: line.creator,
        archived_at: line.archived_at,
        deleted_at: line.deleted_at,
        revision: line.revision,
        created_at: line.created_at,
        ended_at: line.ended_at,
    }
}

/// Experiments by kind
///
/// How many there are in each state, of each creator and of each workload: the values that the list's filters take.
#[utoipa::path(get, path = "/v1/experiments/facets", operation_id = "countExperiments", tag = "experiments",
    responses((status = 200, description = "Counts; those in the archive are left out", body = ExperimentFacets), Problems))]
pub(crate) async fn facets(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<ExperimentFacets>, Problem> {
    let facets = app.store.experiment_facets(caller.project).await?;
    let facet = |one: lists::Facet| Facet {
        value: one.value,
        name: one.name,
        count: one.count,
    };
    let states = facets.states.into_iter();
    Ok(Json(ExperimentFacets {
        states: states
            .map(|(state, count)| StateCount { state, count })
            .collect(),
        creators: facets.creators.into_iter().map(facet).collect(),
        workloads: facets.workloads.into_iter().map(facet).collect(),
    }))
}

//! What people change of an experiment: `PATCH /v1/experiments/{experiment_id}`.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use bakeoff_domain::event::Change;
use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::money::budget::{least_budget, limit_flaw};
use bakeoff_domain::spec::{PRIORITY_MAX, labels};

use crate::experiments::find;
use crate::plumbing::auth::Editor;
use crate::plumbing::extract::{Id, Strict};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::experiments::{ExperimentChange, ExperimentView};
use bakeoff_service::app::App;
use bakeoff_service::read;
use bakeoff_store::experiments::changes::Changed;

const DEADLINE_HOURS_MAX: u32 = 8760;

/// Change an experiment
///
/// Labels can be changed at any time, and the budget unless it was cancelled; while it runs, also the priority, and how
/// long its trials wait for capacity. The budget goes no lower than what is spent and reserved. Trials that wait for it are
/// tried again at once; one that was refused for it can be retried. With `If-Match`, the `revision` that the change is
/// based on, it is refused if somebody else has changed the experiment since.
#[utoipa::path(patch, path = "/v1/experiments/{experiment_id}", operation_id = "changeExperiment", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), ("If-Match" = Option<String>, Header, description = "The revision, in quotes")),
    request_body = ExperimentChange,
    responses((status = 200, description = "Changed", body = ExperimentView), Problems))]
pub(crate) async fn change(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<ExperimentId>,
    headers: HeaderMap,
    Strict(asked): Strict<ExperimentChange>,
) -> Result<Json<ExperimentView>, Problem> {
    let errors = change_errors(&asked);
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    find(&app, caller, id).await?;
    let based_on = based_on(&headers)?;
    let change = Change {
        budget_usd: asked.budget_usd,
        priority: asked.priority,
        deadline_hours: asked.deadline_hours,
        labels: asked.labels,
        ..Change::default()
    };
    let now = app.clock.now();
    let changed = app
        .store
        .change_experiment(caller.project, id, &change, based_on, now);
    match changed.await? {
        Changed::Done => {
            app.wake_schedulers();
            Ok(Json(read::experiment_view(find(&app, caller, id).await?)))
        }
        Changed::Over => Err(Problem::conflict(
            "not_running",
            "the experiment has ended, or is being cancelled: labels can still be changed, and the budget if it was not cancelled",
        )),
        Changed::Since(revision) => Err(Problem::changed_since(format!(
            "the experiment has revision {revision} now; read it, and decide again"
        ))),
        Changed::Committed(committed) => Err(Problem::invalid(vec![wrong(
            "/budget_usd",
            format!("is less than the {committed} that are spent and reserved"),
            "stop trials first, or leave at least that",
        )])),
        Changed::OfPipeline => Err(Problem::conflict(
            "of_a_pipeline",
            "its budget is its pipeline's: POST /v1/pipelines/{pipeline_id}/resume with budget_usd",
        )),
    }
}

fn wrong(pointer: &str, detail: impl Into<String>, fix: &str) -> FieldError {
    FieldError {
        pointer: pointer.to_owned(),
        detail: detail.into(),
        fix: fix.to_owned(),
        rule: "experiment-change".to_owned(),
    }
}

fn change_errors(asked: &ExperimentChange) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let flaw = asked
        .budget_usd
        .and_then(|usd| limit_flaw(usd, least_budget()));
    let flaw = flaw.map(|detail| wrong("/budget_usd", detail, "cancel the experiment to end it"));
    errors.extend(flaw);
    if asked
        .priority
        .is_some_and(|priority| priority.unsigned_abs() > PRIORITY_MAX.unsigned_abs())
    {
        errors.push(wrong(
            "/priority",
            "is not -100 to 100",
            "give a number in that range",
        ));
    }
    if asked
        .deadline_hours
        .is_some_and(|hours| hours > DEADLINE_HOURS_MAX)
    {
        errors.push(wrong(
            "/deadline_hours",
            "is more than a year",
            "give at most 8760",
        ));
    }
    let labels = asked.labels.iter().flat_map(labels::flaws);
    errors.extend(
        labels.map(|flaw| wrong(&format!("/labels{}", flaw.pointer), flaw.detail, &flaw.fix)),
    );
    if *asked == ExperimentChange::default() {
        errors.push(wrong(
            "",
            "nothing is to be changed",
            "name budget_usd, priority, deadline_hours or labels",
        ));
    }
    errors
}

/// The revision that a change is based on, if it says so.
fn based_on(headers: &HeaderMap) -> Result<Option<u32>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    match value.to_str().unwrap_or_default() {
        "*" => Ok(None),
        text => {
            let revision = text.trim_matches('"').parse();
            let wrong = |_| {
                page::parameter(
                    "If-Match",
                    "is not the experiment's revision, such as \"3\"",
                )
            };
            revision.map(Some).map_err(wrong)
        }
    }
}

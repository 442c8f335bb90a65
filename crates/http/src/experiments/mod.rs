//! Experiments: create, get, cancel; trials, recommendation, ledger. Lists of them, comparisons, and how their answers
//! grew have files of their own.

pub(crate) mod additions;
pub(crate) mod archive;
pub(crate) mod changes;
pub(crate) mod comparison;
pub(crate) mod full_runs;
pub(crate) mod lists;
pub(crate) mod looks;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::spec::ExperimentSpec;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Id, Params, Raw, parse};
use crate::plumbing::heavy::{self, aside};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use crate::projects::budgets;
use bakeoff_api::decisions::RecommendationView;
use bakeoff_api::experiments::{CreatedExperiment, ExperimentView};
use bakeoff_api::money::LedgerEntryView;
use bakeoff_api::page::Page;
use bakeoff_api::trials::{AttemptOfTrial, TrialView};
use bakeoff_process::clock::real_sleep;
use bakeoff_service::app::App;
use bakeoff_service::read;
use bakeoff_service::replica::event_board::Topic;
use bakeoff_service::use_cases::intake::{self, PreparedExperiment};
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::lifecycle::ExperimentCommand;
use bakeoff_store::money::caps::Purchase;
use bakeoff_store::money::ledger::LedgerRow;
use bakeoff_store::requests::{Once, StoredReply};
use bakeoff_store::{StoreError, to_json};

const WAIT_SECONDS_MAX: u64 = 60;

pub(crate) async fn find(
    app: &App,
    caller: Caller,
    id: ExperimentId,
) -> Result<Experiment, Problem> {
    let found = app.store.experiment(caller.project, id).await?;
    let found = found.filter(|found| found.deleted_at.is_none());
    found.ok_or_else(|| no_such(id))
}

/// Refuses an experiment that the caller's project does not have; one of a pipeline's step or of an endpoint counts.
pub(crate) async fn require_any(
    app: &App,
    caller: Caller,
    id: ExperimentId,
) -> Result<(), Problem> {
    let has = app.store.has_experiment(caller.project, id).await?;
    has.then_some(()).ok_or_else(|| no_such(id))
}

pub(crate) fn no_such(id: ExperimentId) -> Problem {
    Problem::not_found(format!("there is no experiment {id} in this project"))
}

/// Start an experiment
///
/// Checks, plans and starts it. Findings that invalidate the whole request are returned as a 422,
/// all at once; findings that refuse one candidate are recorded with its trials, and the others
/// run.
#[utoipa::path(post, path = "/v1/experiments", operation_id = "createExperiment", tag = "experiments",
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key with the same body counts once, for good")),
    request_body = ExperimentSpec,
    responses((status = 201, description = "Started", body = CreatedExperiment,
        headers(("Location" = String, description = "Path of the experiment"))), Problems))]
pub(crate) async fn create(
    State(app): State<App>,
    Editor(caller): Editor,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<Response, Problem> {
    let keyed = Keyed::of(&headers, "POST /v1/experiments\n", &body)?;
    if let Some(reply) = keyed.earlier(&app, caller).await? {
        return Ok(reply);
    }
    let (spec, unknown) = parse::<ExperimentSpec>(body).await?;
    let loaded = intake::load(&app, caller.project, spec).await?;
    let prepared = match aside(move || loaded.prepare()).await? {
        Ok(prepared) if unknown.is_empty() => prepared,
        Ok(_) => return Err(Problem::invalid(unknown)),
        Err(findings) => {
            let found = findings.iter().map(FieldError::from);
            return Err(Problem::invalid(unknown.into_iter().chain(found).collect()));
        }
    };
    start(&app, caller, &prepared, &keyed).await
}

/// A request that may be sent again: its key, if it has one, and what it asks for.
pub(crate) struct Keyed<'a> {
    key: Option<&'a str>,
    fingerprint: [u8; 32],
}

impl<'a> Keyed<'a> {
    /// `place`: the method and the path, which belong to what is asked for.
    pub(crate) fn of(headers: &'a HeaderMap, place: &str, body: &[u8]) -> Result<Self, Problem> {
        Ok(Self {
            key: idempotency_key(headers)?,
            fingerprint: Sha256::digest([place.as_bytes(), body].concat()).into(),
        })
    }

    /// The answer to the same request, if it was sent before.
    pub(crate) async fn earlier(
        &self,
        app: &App,
        caller: Caller,
    ) -> Result<Option<Response>, Problem> {
        self.earlier_at(app, caller, "/v1/experiments").await
    }

    /// The same, of what is created below another path.
    pub(crate) async fn earlier_at(
        &self,
        app: &App,
        caller: Caller,
        path: &str,
    ) -> Result<Option<Response>, Problem> {
        let Some(key) = self.key else {
            return Ok(None);
        };
        let stored = app.store.stored_reply(caller.project, key).await?;
        stored
            .map(|reply| replay(reply, &self.fingerprint, path))
            .transpose()
    }

    /// Answers with what was created below a path; with the earlier answer, if an equal request was faster.
    pub(crate) async fn answer(
        &self,
        app: &App,
        caller: Caller,
        path: &str,
        reply: serde_json::Value,
        written: Result<(), StoreError>,
    ) -> Result<Response, Problem> {
        match written {
            Ok(()) => Ok(created(reply, path)),
            Err(StoreError::Conflict { constraint }) => {
                let earlier = self.earlier_at(app, caller, path).await?;
                earlier.ok_or_else(|| StoreError::Conflict { constraint }.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The key with the reply to remember for it.
    pub(crate) fn once<'b>(&'b self, reply: &'b serde_json::Value) -> Once<'b> {
        self.key.map_or(Once::No, |key| Once::Key {
            key,
            fingerprint: &self.fingerprint,
            status: 201,
            body: reply,
        })
    }
}

/// Writes an experiment once, and answers with it.
pub(crate) async fn start(
    app: &App,
    caller: Caller,
    prepared: &PreparedExperiment,
    keyed: &Keyed<'_>,
) -> Result<Response, Problem> {
    budgets::allow(
        app,
        caller.project,
        Purchase::Experiment,
        prepared.least_usd(),
        prepared.budget_usd(),
    )
    .await?;
    let reply = to_json(&prepared.view())?;
    let once = keyed.once(&reply);
    let by = caller.key.to_string();
    let written = prepared.start(app, caller.project, &by, &once).await;
    keyed
        .answer(app, caller, "/v1/experiments", reply, written)
        .await
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = value
        .to_str()
        .ok()
        .filter(|key| (1..=255).contains(&key.len()));
    key.map(Some).ok_or_else(|| {
        page::parameter(
            "Idempotency-Key",
            "must have 1 to 255 visible ASCII characters",
        )
    })
}

fn created(body: serde_json::Value, path: &str) -> Response {
    let location = format!(
        "{path}/{}",
        body.get("id")
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default()
    );
    (
        StatusCode::CREATED,
        [(header::LOCATION, location)],
        Json(body),
    )
        .into_response()
}

fn replay(reply: StoredReply, fingerprint: &[u8], path: &str) -> Result<Response, Problem> {
    if reply.fingerprint != fingerprint {
        return Err(Problem::key_reused());
    }
    let mut response = created(reply.body, path);
    response.headers_mut().insert(
        "idempotent-replayed",
        header::HeaderValue::from_static("true"),
    );
    Ok(response)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitParams {
    /// Wait until the experiment has ended, or for this many seconds (at most 60).
    wait_seconds: Option<u64>,
}

/// Get an experiment
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}", operation_id = "getExperiment", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), WaitParams),
    responses((status = 200, description = "The experiment", body = ExperimentView), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
    Params(params): Params<WaitParams>,
) -> Result<Json<ExperimentView>, Problem> {
    let wait = params.wait_seconds.unwrap_or(0);
    if wait > WAIT_SECONDS_MAX {
        return Err(page::parameter(
            "wait_seconds",
            format!("must be at most {WAIT_SECONDS_MAX}"),
        ));
    }
    // Subscribe before the first read, so that no event in between is missed.
    let mut events = app.events.subscribe(Topic::Experiment(id));
    let mut found = find(&app, caller, id).await?;
    let timeout = real_sleep(std::time::Duration::from_secs(wait));
    tokio::pin!(timeout);
    while wait > 0 && found.ended_at.is_none() {
        tokio::select! {
            () = &mut timeout => break,
            () = events.changed() => found = find(&app, caller, id).await?,
        }
    }
    Ok(Json(read::experiment_view(found)))
}

/// Cancel an experiment
///
/// Stops running jobs (SageMaker gives them 120 seconds) and settles their cost. Idempotent.
#[utoipa::path(post, path = "/v1/experiments/{experiment_id}/cancel", operation_id = "cancelExperiment", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 202, description = "Cancelling, or already over", body = ExperimentView), Problems))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<ExperimentId>,
) -> Result<Response, Problem> {
    let view = command(&app, caller, id, ExperimentCommand::Cancel).await?;
    Ok((StatusCode::ACCEPTED, view).into_response())
}

async fn command(
    app: &App,
    caller: Caller,
    id: ExperimentId,
    command: ExperimentCommand,
) -> Result<Json<ExperimentView>, Problem> {
    find(app, caller, id).await?;
    app.store
        .command(caller.project, id, command, app.clock.now())
        .await?;
    app.wake_schedulers();
    Ok(Json(read::experiment_view(find(app, caller, id).await?)))
}

/// Pause an experiment
///
/// Starts nothing new; running jobs continue and are billed. Idempotent.
#[utoipa::path(post, path = "/v1/experiments/{experiment_id}/pause", operation_id = "pauseExperiment", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 200, description = "Paused, or already over", body = ExperimentView), Problems))]
pub(crate) async fn pause(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<ExperimentId>,
) -> Result<Json<ExperimentView>, Problem> {
    command(&app, caller, id, ExperimentCommand::Pause).await
}

/// Resume an experiment
///
/// Lifts a pause, whoever set it, and queues parked trials again. Resolve the reasons given for the
/// pause or parking first. An experiment that ended without its parked trials runs again, unless it is of a CI run that
/// has its verdict: that commit is measured again with `bakeoff gate --again`.
#[utoipa::path(post, path = "/v1/experiments/{experiment_id}/resume", operation_id = "resumeExperiment", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 200, description = "Resumed, or already over", body = ExperimentView), Problems))]
pub(crate) async fn resume(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<ExperimentId>,
) -> Result<Json<ExperimentView>, Problem> {
    let resumed = command(&app, caller, id, ExperimentCommand::Resume).await?;
    // Where it has done nothing, and could have.
    if let Some(run) = app.store.judged_run_of(id).await? {
        return Err(Problem::conflict(
            "ci-run-is-judged",
            format!(
                "{run} has its verdict, which these trials would not change: bakeoff gate --again measures the commit again"
            ),
        ));
    }
    Ok(resumed)
}

/// Trials of an experiment
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/trials", operation_id = "listTrials", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 200, description = "All trials with their attempts", body = Page<TrialView>), Problems))]
pub(crate) async fn trials(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
) -> Result<Response, Problem> {
    find(&app, caller, id).await?;
    let items = read::trial_views(&app.store, caller.project, id, app.clock.now()).await?;
    heavy::json(Page {
        items,
        next_page_token: None,
    })
    .await
}

/// Attempts of an experiment
///
/// Every job of its trials, with its phases and interruptions, in the order of the specification: where the hours went.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/attempts", operation_id = "listExperimentAttempts", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 200, description = "All attempts of all trials", body = Page<AttemptOfTrial>), Problems))]
pub(crate) async fn attempts(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
) -> Result<Response, Problem> {
    let experiment = find(&app, caller, id).await?;
    let items = read::attempts(&app.store, &experiment, app.clock.now()).await?;
    heavy::json(Page {
        items,
        next_page_token: None,
    })
    .await
}

/// Which instance to buy, and why
///
/// Provisional while trials run. Trials that are not comparable are listed unranked, with the
/// changes that would make them comparable.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/recommendation", operation_id = "getRecommendation", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 200, description = "The recommendation", body = RecommendationView), Problems))]
pub(crate) async fn recommendation(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
) -> Result<Json<RecommendationView>, Problem> {
    let experiment = find(&app, caller, id).await?;
    let recommendation = read::recommendation(&app.store, &experiment, app.clock.now()).await?;
    let repricings = app.store.repricings(id).await?;
    let (name, state) = (experiment.name, experiment.state);
    Ok(Json(RecommendationView {
        experiment_id: id,
        name,
        state,
        recommendation: recommendation.into(),
        repricings: repricings.into_iter().map(Into::into).collect(),
    }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LedgerParams {
    /// 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// Token from the previous page, or the id of the last entry seen.
    page_token: Option<i64>,
}

impl LedgerParams {
    /// The last entry seen, and how many are on a page.
    pub(crate) fn page(&self) -> Result<(i64, usize), Problem> {
        Ok((self.page_token.unwrap_or(0), page::size(self.page_size)?))
    }
}

/// A page of a ledger, of which one row more was read.
pub(crate) fn ledger_page(rows: Vec<LedgerRow>, size: usize) -> Json<Page<LedgerEntryView>> {
    Json(page::cut_by_number(rows, size, |row| row.id, Into::into))
}

/// The ledger of an experiment
///
/// Every reservation, release and settlement, oldest first. A running job is settled when it ends;
/// the comparison shows its cost so far. Also of the experiment that an endpoint names.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/ledger", operation_id = "getLedger", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), LedgerParams),
    responses((status = 200, description = "A page of entries", body = Page<LedgerEntryView>), Problems))]
pub(crate) async fn ledger(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
    Params(params): Params<LedgerParams>,
) -> Result<Json<Page<LedgerEntryView>>, Problem> {
    require_any(&app, caller, id).await?;
    let (after, size) = params.page()?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app.store.ledger(id, after, limit).await?;
    Ok(ledger_page(rows, size))
}

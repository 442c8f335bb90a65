//! CI runs: started for a commit by a trigger, judged by their template's gate, accepted as the baseline of later
//! ones. How a webhook proves who sent it is in [`crate::ci::incoming`].

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ci::gate::Verdict;
use bakeoff_domain::ci::unmeasured::Unmeasured;
use bakeoff_domain::ci::{Event, Sender, Trigger, template};
use bakeoff_domain::ids::{CiRunId, TemplateId};
use bakeoff_domain::spec::ExperimentSpec;
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::ci::deliveries::SignedDelivery;
use crate::ci::unmeasured;
use crate::ci::{field_error, no_such};
use crate::plumbing::auth::{Admin, Caller, Editor};
use crate::plumbing::extract::{Id, Params, Strict};
use crate::plumbing::heavy::aside;
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::ci::{CiStarted, CiTrigger};
use bakeoff_api::ci_runs::{CiAcceptance, CiRelease, CiRunView};
use bakeoff_api::page::Page;
use bakeoff_process::ids;
use bakeoff_service::app::App;
use bakeoff_service::read::ci_report;
use bakeoff_service::use_cases::intake::{self, PreparedExperiment};
use bakeoff_store::ci::joining::{Delivered, Joining};
use bakeoff_store::ci::runs::{CiRun, WhichRuns};
use bakeoff_store::ci::{Delivery, Template, repositories};
use bakeoff_store::requests::Once;
use bakeoff_store::{StoreError, to_json};

pub(crate) type Answer = Result<(StatusCode, Json<CiStarted>), Problem>;

fn started(started: Delivered, duplicate: bool) -> (StatusCode, Json<CiStarted>) {
    let answer = CiStarted {
        experiment_id: Some(started.experiment),
        run_id: started.run,
        duplicate,
        ignored: None,
    };
    (StatusCode::ACCEPTED, Json(answer))
}

pub(crate) fn ignored(why: impl Into<String>) -> (StatusCode, Json<CiStarted>) {
    let answer = CiStarted {
        experiment_id: None,
        run_id: None,
        duplicate: false,
        ignored: Some(why.into()),
    };
    (StatusCode::OK, Json(answer))
}

/// What a delivery has started before.
fn again(earlier: Delivered) -> Answer {
    if earlier.is_of_another_commit {
        return Err(Problem::conflict(
            "delivery-id-reused",
            "this delivery_id has started another commit: use one for each run of CI",
        ));
    }
    Ok(started(earlier, true))
}

/// The event of a merge request may come after that of its push, which has started the run.
async fn note_pull_request(
    app: &App,
    earlier: Delivered,
    trigger: &Trigger,
) -> Result<(), StoreError> {
    if let Some((run, number)) = earlier.run.zip(trigger.pull_request) {
        let now = app.clock.now();
        app.store.note_pull_request(run, number, now).await?;
    }
    Ok(())
}

/// Starts what a delivery tells of, or says which run measures it already. What is refused is kept, with the reason.
pub(crate) async fn start(app: &App, template: Template, told: SignedDelivery) -> Answer {
    let answer = found_or_started(app, &template, &told).await;
    if let Err(problem) = &answer
        && problem.is_refusal()
    {
        let now = app.clock.now();
        unmeasured::note_refusal(app, template.id, &told, problem, Some(now)).await;
    }
    answer
}

/// What is told, as it is stored.
fn delivery<'a>(template: &Template, told: &'a SignedDelivery, what_runs: &'a str) -> Delivery<'a> {
    let settings = &template.settings;
    let branch = told.trigger.branch.as_deref();
    Delivery {
        template: template.id,
        template_version: template.version,
        id: &told.id,
        sender: told.sender,
        event: told.event,
        trigger: &told.trigger,
        what_runs,
        run: CiRunId(ids::fresh()),
        is_repeat: told.is_repeat,
        supersedes: branch.is_some_and(|branch| settings.supersedes(branch)),
        is_repository_stated: settings.repository.is_some(),
    }
}

async fn found_or_started(app: &App, template: &Template, told: &SignedDelivery) -> Answer {
    let trigger = &told.trigger;
    let what_runs = template::what_runs(&to_json(&template.spec)?, &template.settings, trigger);
    let delivery = delivery(template, told, &what_runs);
    let found = app.store.delivered(&delivery).await?;
    let newer = if delivery.supersedes {
        app.store.newer_commit(&delivery).await?
    } else {
        None
    };
    match (found, newer) {
        (Some(earlier), _) if !earlier.is_by_another => {
            note_pull_request(app, earlier, trigger).await?;
            again(earlier)
        }
        (Some(_) | None, _) if told.is_repeat => begin(app, template, &delivery).await,
        // A newer commit has ended the run of the one that the branch was put back to.
        (Some(earlier), None) if earlier.is_put_back => {
            let delivery = Delivery {
                is_repeat: true,
                ..delivery
            };
            begin(app, template, &delivery).await
        }
        (Some(earlier), newer) => join(app, template, &delivery, earlier, newer.is_none()).await,
        (None, Some(newer)) => {
            let why = format!("superseded by {newer}, a newer commit whose webhook came first");
            let (outcome, now) = (Unmeasured::Refused, app.clock.now());
            unmeasured::note(app, template.id, told, outcome, &why, Some(now)).await?;
            Ok(ignored(why))
        }
        (None, None) => begin(app, template, &delivery).await,
    }
}

/// Has a delivery join the run that measures the same. `is_newest`: no later commit of its branch is known.
async fn join(
    app: &App,
    template: &Template,
    delivery: &Delivery<'_>,
    earlier: Delivered,
    is_newest: bool,
) -> Answer {
    if let Some(run) = earlier.run {
        let gate = template.settings.gate.as_ref();
        let branch = delivery.trigger.branch.as_ref();
        let joining = Joining {
            is_of_baseline: gate.is_some_and(|gate| Some(&gate.baseline_branch) == branch),
            is_newest,
        };
        let now = app.clock.now();
        app.store.join_run(delivery, run, joining, now).await?;
    }
    note_pull_request(app, earlier, delivery.trigger).await?;
    again(earlier)
}

/// Starts a run, unless another delivery of the same is faster: then it is that one's.
async fn begin(app: &App, template: &Template, delivery: &Delivery<'_>) -> Answer {
    let prepared = prepared(app, template, delivery.trigger).await?;
    let once = Once::Delivery(*delivery);
    let by = template.id.to_string();
    let started_now = prepared.start(app, template.project_id, &by, &once);
    match started_now.await {
        Ok(()) => Ok(started(
            Delivered {
                experiment: prepared.id,
                run: Some(delivery.run),
                is_of_another_commit: false,
                is_by_another: false,
                is_put_back: false,
            },
            false,
        )),
        Err(StoreError::Conflict { constraint })
            if constraint == "ci_deliveries_pkey" || constraint == "ci_runs_of_what_runs" =>
        {
            match app.store.delivered(delivery).await? {
                Some(earlier) if earlier.is_by_another => {
                    let newer = app.store.newer_commit(delivery).await?;
                    join(app, template, delivery, earlier, newer.is_none()).await
                }
                Some(earlier) => again(earlier),
                None => Err(Problem::unavailable("try again")),
            }
        }
        Err(StoreError::Missing {
            table: "ci_templates",
            ..
        }) => Err(no_such(template.id)),
        Err(StoreError::Missing {
            table: repositories::BOUND,
            ..
        }) => Err(Problem::unavailable(
            "another repository has just been bound to this template; try again",
        )),
        Err(error) => Err(error.into()),
    }
}

/// The experiment of a trigger, ready to start.
async fn prepared(
    app: &App,
    template: &Template,
    trigger: &Trigger,
) -> Result<PreparedExperiment, Problem> {
    let loaded = intake::load(app, template.project_id, spec(template, trigger)?).await?;
    let prepared = aside(move || loaded.prepare()).await?;
    prepared.map_err(|findings| Problem::invalid(findings.iter().map(FieldError::from).collect()))
}

/// The experiment that a trigger starts: its commit is in what runs, or it is refused.
fn spec(template: &Template, trigger: &Trigger) -> Result<ExperimentSpec, Problem> {
    let written = to_json(&template.spec)?;
    // One from before templates took anything in.
    let flaws = template::flaws(&written);
    let flaws = flaws.into_iter().map(|flaw| field_error(flaw, "template:"));
    let mut errors: Vec<FieldError> = flaws.collect();
    let filled = template::filled(&written, &template.settings, trigger);
    let filled = filled.unwrap_or_else(|flaws| {
        errors.extend(flaws.into_iter().map(|flaw| field_error(flaw, "")));
        Value::Null
    });
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let mut spec: ExperimentSpec =
        serde_json::from_value(filled).map_err(|error| Problem::malformed(error.to_string()))?;
    let name = format!("{}@{}", spec.name, trigger.short_commit());
    spec.name = name.chars().take(100).collect();
    if let Some(workload) = &mut spec.workload {
        workload.code_version.clone_from(&trigger.commit);
    }
    if let Some(branch) = &trigger.branch {
        spec.notes.push(format!("started by CI from {branch}"));
    }
    Ok(spec)
}

/// A trigger in our own form, and what is wrong with its delivery id.
pub(crate) fn told(
    trigger: CiTrigger,
    mut errors: Vec<FieldError>,
) -> Result<SignedDelivery, Problem> {
    if !(1..=255).contains(&trigger.delivery_id.len()) {
        errors.push(FieldError {
            pointer: "/delivery_id".to_owned(),
            detail: "must have 1 to 255 characters".to_owned(),
            fix: "use the CI run's own id".to_owned(),
            rule: "delivery-id".to_owned(),
        });
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    Ok(SignedDelivery {
        id: trigger.delivery_id.clone(),
        sender: Sender::Bakeoff,
        event: Event::Trigger,
        is_repeat: trigger.repeat,
        trigger: trigger.into(),
    })
}

/// Start a CI run
///
/// The same as the signed `POST /v1/webhooks/ci`, for callers with an API key: a script in CI, `bakeoff gate`. A commit
/// that has a run with the same inputs joins it, whoever told of it, unless the body says `repeat`. The body's
/// `delivery_id` counts once.
#[utoipa::path(post, path = "/v1/ci-templates/{template_id}/runs", operation_id = "startCiRun", tag = "webhooks",
    params(("template_id" = TemplateId, Path)), request_body = CiTrigger,
    responses((status = 202, description = "Started, now or by this delivery before", body = CiStarted), Problems))]
pub(crate) async fn trigger(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<TemplateId>,
    Strict(trigger): Strict<CiTrigger>,
) -> Answer {
    let told = told(trigger, Vec::new())?;
    let template = app.store.template_version(caller.project, id, None).await?;
    start(&app, template.ok_or_else(|| no_such(id))?, told).await
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunsParams {
    template_id: Option<TemplateId>,
    /// A commit's whole SHA.
    commit: Option<String>,
    verdict: Option<Verdict>,
    /// Items per page, 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// List CI runs
///
/// Newest first.
#[utoipa::path(get, path = "/v1/ci-runs", operation_id = "listCiRuns", tag = "webhooks", params(RunsParams),
    responses((status = 200, description = "One page", body = Page<CiRunView>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<RunsParams>,
) -> Result<Json<Page<CiRunView>>, Problem> {
    let size = page::size(params.page_size)?;
    let which = WhichRuns {
        template: params.template_id,
        commit: params.commit.as_deref(),
        verdict: params.verdict,
    };
    let filter = format!("ci-runs {which:?}");
    let before = page::read_token(params.page_token.as_deref(), &filter)?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app
        .store
        .ci_runs(caller.project, which, before, limit)
        .await?;
    Ok(Json(page::cut(
        rows,
        size,
        &filter,
        |row| row.id.0,
        CiRunView::from,
    )))
}

pub(crate) async fn run(app: &App, caller: &Caller, id: CiRunId) -> Result<CiRun, Problem> {
    let run = app.store.ci_run(caller.project, id).await?;
    run.ok_or_else(|| Problem::not_found(format!("there is no CI run {id} in this project")))
}

/// Get a CI run
///
/// With the gate's verdict, once the newest experiment is over, and the figures that it rests on.
#[utoipa::path(get, path = "/v1/ci-runs/{run_id}", operation_id = "getCiRun", tag = "webhooks",
    params(("run_id" = CiRunId, Path)),
    responses((status = 200, description = "The run", body = CiRunView), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<CiRunId>,
) -> Result<Json<CiRunView>, Problem> {
    Ok(Json(run(&app, &caller, id).await?.into()))
}

/// Forms of a report.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReportForm {
    #[default]
    Markdown,
    Junit,
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReportParams {
    /// `markdown`, for a comment or a job's summary, or `junit`; Markdown when absent.
    #[param(inline)]
    format: Option<ReportForm>,
}

/// Get the report of a CI run
///
/// As Markdown, for a comment or a job's summary, or as JUnit XML.
#[utoipa::path(get, path = "/v1/ci-runs/{run_id}/report", operation_id = "getCiReport", tag = "webhooks",
    params(("run_id" = CiRunId, Path), ReportParams),
    responses((status = 200, description = "The report", body = String, content_type = "text/markdown"), Problems))]
pub(crate) async fn report(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<CiRunId>,
    Params(params): Params<ReportParams>,
) -> Result<Response, Problem> {
    let run = run(&app, &caller, id).await?.into();
    let (kind, text) = match params.format.unwrap_or_default() {
        ReportForm::Markdown => ("text/markdown; charset=utf-8", ci_report::markdown(&run)),
        ReportForm::Junit => (
            "application/xml",
            ci_report::junit(&run).map_err(|error| {
                tracing::error!(%error, "writing a JUnit report failed");
                Problem::internal()
            })?,
        ),
    };
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Accept a CI run, or not
///
/// Later runs are compared with accepted ones. By rule, what passes or stays open on the baseline's branch is accepted.
/// One that regressed is accepted by hand, when the change was meant: CI takes it as a success, and later runs are
/// compared with it, and with none before it. So is one that is much better, with `begins_level`, to hold later commits to
/// it. Of a pull request only CI's view changes: the level begins with the run of the branch that it comes to.
#[utoipa::path(put, path = "/v1/ci-runs/{run_id}/acceptance", operation_id = "acceptCiRun", tag = "webhooks",
    params(("run_id" = CiRunId, Path)), request_body = CiAcceptance,
    responses((status = 200, description = "The run", body = CiRunView), Problems))]
pub(crate) async fn accept(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<CiRunId>,
    Strict(asked): Strict<CiAcceptance>,
) -> Result<Json<CiRunView>, Problem> {
    let found = run(&app, &caller, id).await?;
    let by = caller.key.to_string();
    let by = asked.accepted.then_some(by.as_str());
    let has_regressed = found.verdict == Some(Verdict::Regressed);
    let begins_level = asked.begins_level.unwrap_or(has_regressed);
    if !app
        .store
        .accept_ci_run(&found, by, begins_level, app.clock.now())
        .await?
    {
        return Err(Problem::conflict(
            "nothing-measured",
            "the run has no verdict yet, or nothing was measured: there is nothing to compare with",
        ));
    }
    Ok(Json(run(&app, &caller, id).await?.into()))
}

/// Pin a template's release
///
/// Every later run is compared with this run too, beside its baseline, so that many small steps show.
#[utoipa::path(put, path = "/v1/ci-templates/{template_id}/release", operation_id = "pinCiRelease", tag = "webhooks",
    params(("template_id" = TemplateId, Path)), request_body = CiRelease,
    responses((status = 200, description = "Pinned", body = CiRelease), Problems))]
pub(crate) async fn pin(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<TemplateId>,
    Strict(asked): Strict<CiRelease>,
) -> Result<Json<CiRelease>, Problem> {
    if app
        .store
        .pin_release(caller.project, id, asked.run_id)
        .await?
    {
        return Ok(Json(asked));
    }
    if app
        .store
        .template_version(caller.project, id, None)
        .await?
        .is_none()
    {
        return Err(no_such(id));
    }
    Err(Problem::invalid(vec![FieldError {
        pointer: "/run_id".to_owned(),
        detail: "is no run of this template that has measured something".to_owned(),
        fix: "take one of GET /v1/ci-runs?template_id=…".to_owned(),
        rule: "ci-template".to_owned(),
    }]))
}

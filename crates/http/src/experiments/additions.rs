//! What people add to an experiment: another candidate, or a trial once more.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bakeoff_domain::event::Change;
use bakeoff_domain::finding::{BUDGET_BELOW_TRIAL, Finding};
use bakeoff_domain::ids::{ExperimentId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::spec::CandidateSpec;

use crate::experiments::find;
use crate::plumbing::auth::Editor;
use crate::plumbing::extract::{Id, Strict};
use crate::plumbing::heavy::aside;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use crate::projects::budgets;
use crate::trials;
use bakeoff_api::experiments::AddedTrials;
use bakeoff_service::app::App;
use bakeoff_service::use_cases::additions::{self, NotAdded, WantedTrials};
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::additions::{Added, Fixed};

/// What to do about a budget.
const RAISE: &str = "raise it (PATCH /v1/experiments/{experiment_id} with budget_usd)";

type Answer = Result<(StatusCode, Json<AddedTrials>), Problem>;

/// Add a candidate to an experiment
///
/// Its trials are checked and planned like those of a new experiment, at today's prices and within what is left of the
/// budget, and run beside the others. An experiment that has ended runs again, and is decided again. Not possible for
/// pipelines, CI runs and full runs, nor once the experiment was cancelled. A name counts once: a repeat is refused.
#[utoipa::path(post, path = "/v1/experiments/{experiment_id}/candidates", operation_id = "addCandidate", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)), request_body = CandidateSpec,
    responses((status = 201, description = "Added", body = AddedTrials), Problems))]
pub(crate) async fn add_candidate(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<ExperimentId>,
    Strict(candidate): Strict<CandidateSpec>,
) -> Answer {
    let experiment = find(&app, caller, id).await?;
    let mut spec = experiment.resolved.spec().clone();
    let change = Change {
        candidate: Some(candidate.name.clone()),
        ..Change::default()
    };
    spec.candidates.push(candidate);
    let wanted = WantedTrials {
        index: spec.candidates.len() - 1,
        spec,
        change,
        is_wanted: Box::new(|_| true),
    };
    add(&app, &experiment, wanted).await
}

/// Retry a trial
///
/// Runs the candidate of a trial that has failed, was stopped or was refused once more, as a new trial: from its first
/// step, planned anew, at today's prices and within what is left of the budget; a race does not stop it. A trial can be
/// retried once; if the retry fails, retry that one. An experiment that has ended runs again, and is decided again; what
/// a stopped trial has measured still counts.
#[utoipa::path(post, path = "/v1/trials/{trial_id}/retry", operation_id = "retryTrial", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 201, description = "Added", body = AddedTrials), Problems))]
pub(crate) async fn retry(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<TrialId>,
) -> Answer {
    let trial = trials::find(&app, caller, id).await?;
    let experiment = app.store.experiment(caller.project, trial.experiment_id);
    let Some(experiment) = experiment.await? else {
        return Err(trials::of_a_step());
    };
    if !is_retryable(trial.state) {
        return Err(not_retryable(trial.state));
    }
    let wanted = WantedTrials::retry(&experiment, &trial, Change::default());
    let wanted = wanted.ok_or_else(Problem::internal)?;
    add(&app, &experiment, wanted).await
}

fn is_retryable(state: TrialState) -> bool {
    matches!(
        state,
        TrialState::Failed | TrialState::Stopped | TrialState::Refused
    )
}

fn not_retryable(state: TrialState) -> Problem {
    let way_out = match state {
        TrialState::Parked => "resume the experiment (POST /v1/experiments/{experiment_id}/resume)",
        TrialState::Completed => "for another measurement, add the candidate under another name",
        _ => "wait for its end, or stop it (POST /v1/trials/{trial_id}/stop)",
    };
    Problem::conflict(
        "trial_not_retryable",
        format!(
            "the trial is {}; one that has failed, was stopped or refused can be retried: {way_out}",
            state.as_str()
        ),
    )
}

/// Plans the trials of one candidate that are wanted, and adds them.
async fn add(app: &App, experiment: &Experiment, wanted: WantedTrials) -> Answer {
    let index = wanted.index;
    let why_not = |why| problem(why, experiment, index);
    let checking = additions::load(app, experiment, wanted);
    let checking = checking.await.map_err(why_not)?;
    let checked = aside(move || checking.check()).await?.map_err(why_not)?;
    let added = additions::add(app, experiment, checked);
    let added = added.await.map_err(why_not)?;
    let revision = experiment.revision + 1;
    let view = AddedTrials::of(experiment.id, revision, added.findings, added.trials);
    Ok((StatusCode::CREATED, Json(view)))
}

fn problem(why: NotAdded, experiment: &Experiment, index: usize) -> Problem {
    match why {
        NotAdded::Spent => Problem::conflict(
            "budget_spent",
            format!(
                "all of its budget, {}, is spent: {RAISE}",
                experiment.budget_usd
            ),
        ),
        NotAdded::Refused { findings, left } => refused(&findings, index, left),
        NotAdded::OverLimit(short) => Problem::invalid(vec![budgets::short("/budget_usd", &short)]),
        NotAdded::NotNow(added) => not_now(added),
        NotAdded::Unchecked(_) => Problem::internal(),
        NotAdded::Store(error) => error.into(),
    }
}

/// Findings at pointers into the body, which is the candidate, not the experiment. `left`: of the budget.
fn refused(findings: &[Finding], index: usize, left: Usd) -> Problem {
    let own = format!("/candidates/{index}");
    let errors = findings.iter().map(|finding| {
        let mut error = FieldError::from(finding);
        if finding.rule == BUDGET_BELOW_TRIAL {
            error.detail =
                format!("one trial may cost more than the {left} that are left of the budget");
            RAISE.clone_into(&mut error.fix);
        }
        let pointer = error.pointer.strip_prefix(&own).map(str::to_owned);
        FieldError {
            pointer: pointer.unwrap_or_else(|| error.pointer.clone()),
            ..error
        }
    });
    Problem::invalid(errors.collect())
}

/// The experiment or the trial is not in a state for it.
fn not_now(added: Added) -> Problem {
    match added {
        Added::Done => Problem::internal(),
        Added::Cancelled => Problem::conflict(
            "not_running",
            "the experiment was cancelled or deleted: start another one",
        ),
        Added::Since(revision) => Problem {
            retryable: true,
            ..Problem::conflict(
                "changed_meanwhile",
                format!(
                    "the experiment was changed meanwhile, and has revision {revision} now: try again"
                ),
            )
        },
        Added::Fixed(Fixed::Pipeline) => Problem::conflict(
            "of_a_pipeline",
            "it is the work of a pipeline's step: POST /v1/pipelines/{pipeline_id}/resume does failed steps once more",
        ),
        Added::Fixed(Fixed::CiRun) => Problem::conflict(
            "of_a_ci_run",
            "a gate compares it with others of its template: start the commit again with a new delivery_id (POST /v1/ci-templates/{template_id}/runs), or change the template",
        ),
        Added::Fixed(Fixed::FullRun) => Problem::conflict(
            "of_a_full_run",
            "it is a full run: POST /v1/experiments/{experiment_id}/full-run starts another, from its checkpoints",
        ),
        Added::Before(trial) => Problem::conflict(
            "retried_before",
            format!("{trial} does it once more already: retry that one, if it has failed too"),
        ),
        Added::NotRetryable(state) => not_retryable(state),
    }
}

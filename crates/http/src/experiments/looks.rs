//! How an experiment's answer grew: its race, look by look, and each answer that differed from the one before it.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::ranking::looks;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::experiments::find;
use crate::plumbing::auth::Caller;
use crate::plumbing::extract::{Id, Params};
use crate::plumbing::heavy;
use crate::plumbing::page;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::looks::{AnswerVersion, RaceView};
use bakeoff_api::page::Page;
use bakeoff_service::app::App;
use bakeoff_service::read;

/// How the race went
///
/// Each look at the experiment's trials that said something new, by dollars spent: how the choices stood, with their
/// intervals. And what became of each trial: who is out, at what price and why.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/race", operation_id = "getRace", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 200, description = "The race", body = RaceView), Problems))]
pub(crate) async fn race(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
) -> Result<Json<RaceView>, Problem> {
    let experiment = find(&app, caller, id).await?;
    let race = read::race(&app.store, &experiment, app.clock.now()).await?;
    Ok(Json(race))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AnswersParams {
    /// The newest so many, 1 to 500; 50 when absent.
    page_size: Option<u32>,
}

/// The answers it has had
///
/// Each answer that differed from the one before it (another first, another conclusion, another choice measured), with
/// the change in words, oldest first. Answers from before they were kept are not there.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/recommendations", operation_id = "listRecommendations", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), AnswersParams),
    responses((status = 200, description = "The newest answers", body = Page<AnswerVersion>), Problems))]
pub(crate) async fn answers(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
    Params(params): Params<AnswersParams>,
) -> Result<Response, Problem> {
    find(&app, caller, id).await?;
    let size = page::size(params.page_size)?;
    let limit = i64::try_from(size).unwrap_or(i64::MAX);
    let found = app.store.former_answers(id, limit).await?;
    let before = std::iter::once(None).chain(found.iter().map(Some));
    let changes: Vec<Vec<String>> = before
        .zip(&found)
        .map(|(before, one)| {
            let before = before.map(|before| looks::changes(&before.answer, &one.answer));
            before.unwrap_or_default()
        })
        .collect();
    let items = (1..).zip(found.into_iter().zip(changes));
    let items = items.map(|(number, (one, changes))| AnswerVersion {
        number,
        found_at: one.looked_at,
        spent_usd: one.spent_usd,
        changes,
        recommendation: one.answer.into(),
    });
    heavy::json(Page {
        items: items.collect(),
        next_page_token: None,
    })
    .await
}

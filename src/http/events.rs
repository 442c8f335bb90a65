//! Events of an experiment or a trial: a page, or a stream (SSE) that resumes at `Last-Event-ID`.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::{ExperimentId, TrialId};
use futures::Stream;
use serde::Deserialize;
use utoipa::IntoParams;

use super::auth::Caller;
use super::experiments;
use super::extract::{Id, Params};
use super::page::{self, Page};
use super::problem::{Problem, Problems};
use crate::app::App;
use crate::view::EventView;

const BATCH: i64 = 200;
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
    /// 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// Of the page before; or the id of the last event seen.
    page_token: Option<i64>,
}

/// Events of an experiment
///
/// With `Accept: text/event-stream` a stream that resumes at `Last-Event-ID`; else a page, oldest first.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/events", operation_id = "listExperimentEvents", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), EventParams),
    responses((status = 200, description = "Events", content((Page<EventView> = "application/json"), (String = "text/event-stream"))), Problems))]
pub(super) async fn of_experiment(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    experiments::find(&app, caller, id).await?;
    answer(app, (id, None), &params, &headers).await
}

/// Events of a trial
#[utoipa::path(get, path = "/v1/trials/{trial_id}/events", operation_id = "listTrialEvents", tag = "trials",
    params(("trial_id" = TrialId, Path), EventParams),
    responses((status = 200, description = "Events", content((Page<EventView> = "application/json"), (String = "text/event-stream"))), Problems))]
pub(super) async fn of_trial(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let trial = super::trials::find(&app, caller, id).await?;
    answer(app, (trial.experiment_id, Some(id)), &params, &headers).await
}

async fn answer(
    app: App,
    of: (ExperimentId, Option<TrialId>),
    params: &EventParams,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let resumed = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let after = resumed.or(params.page_token).unwrap_or(0);
    if accept.contains("text/event-stream") {
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
        return Ok(Sse::new(stream(app, of, after)).keep_alive(keep_alive).into_response());
    }
    let size = page::size(params.page_size)?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app.store.events_after(of.0, of.1, after, limit).await?;
    Ok(Json(page::cut_by_number(rows, size, |row| row.id)).into_response())
}

/// Reads what is there, then waits to be told that there is more; always by id, so nothing is missed or told twice.
fn stream(
    app: App,
    of: (ExperimentId, Option<TrialId>),
    after: i64,
) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    let told = app.events.subscribe();
    let start = (app, told, after, Vec::<EventView>::new().into_iter());
    futures::stream::unfold(start, move |(app, mut told, mut after, mut batch)| async move {
        loop {
            if let Some(event) = batch.next() {
                after = event.id;
                let sse = SseEvent::default().id(event.id.to_string()).event(event.kind.clone());
                let sse = sse.json_data(event).unwrap_or_default();
                return Some((Ok(sse), (app, told, after, batch)));
            }
            told.mark_unchanged();
            // A database that is away for a moment is asked again when it is told of something.
            let more = app.store.events_after(of.0, of.1, after, BATCH).await.unwrap_or_default();
            if more.is_empty() {
                told.changed().await.ok()?;
            }
            batch = more.into_iter();
        }
    })
}

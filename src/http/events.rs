//! Events of an experiment or a trial: a page, or a stream (SSE) that resumes at `Last-Event-ID`.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
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
use super::extract::{Id, Params, text_of};
use super::page;
use super::problem::{Problem, Problems};
use crate::api::events::EventView;
use crate::api::page::Page;
use crate::app::App;
use crate::clock::real_sleep;
use crate::event_board::{STREAMS_OF_KEY_MAX, StreamPlace, Subscription};
use crate::store::events::Event;
use crate::store::{Store, StoreError};

const BATCH: i64 = 200;
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Maximum duration of a stream.
const STREAM_FOR: Duration = Duration::from_mins(15);
/// A stream's key may be revoked: it is checked before events are read, and this often when there
/// are none.
const CHECK_KEY_EVERY: Duration = Duration::from_secs(45);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
    /// 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// Token from the previous page, or the id of the last event seen.
    page_token: Option<i64>,
}

/// Events of an experiment
///
/// With `Accept: text/event-stream`, a stream that resumes at `Last-Event-ID` and ends after 15
/// minutes; otherwise a page, oldest first.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/events", operation_id = "listExperimentEvents", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), EventParams),
    responses((status = 200, description = "Events", content((Page<EventView> = "application/json"), (String = "text/event-stream"))),
        (status = 429, description = "Too many streams are open with this key", body = Problem, content_type = "application/problem+json"),
        Problems))]
pub(super) async fn of_experiment(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    experiments::find(&app, caller, id).await?;
    let of = Subject {
        experiment: id,
        trial: None,
    };
    answer(app, caller, of, &params, &headers).await
}

/// Events of a trial
#[utoipa::path(get, path = "/v1/trials/{trial_id}/events", operation_id = "listTrialEvents", tag = "trials",
    params(("trial_id" = TrialId, Path), EventParams),
    responses((status = 200, description = "Events", content((Page<EventView> = "application/json"), (String = "text/event-stream"))),
        (status = 429, description = "Too many streams are open with this key", body = Problem, content_type = "application/problem+json"),
        Problems))]
pub(super) async fn of_trial(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let trial = super::trials::find(&app, caller, id).await?;
    let of = Subject {
        experiment: trial.experiment_id,
        trial: Some(id),
    };
    answer(app, caller, of, &params, &headers).await
}

/// The subject of events: an experiment, or one of its trials.
#[derive(Debug, Clone, Copy)]
struct Subject {
    experiment: ExperimentId,
    trial: Option<TrialId>,
}

impl Subject {
    async fn events_after(
        self,
        store: &Store,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Event>, StoreError> {
        store
            .events_after(self.experiment, self.trial, after, limit)
            .await
    }
}

async fn answer(
    app: App,
    caller: Caller,
    of: Subject,
    params: &EventParams,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let accept = text_of(headers, &header::ACCEPT);
    let resumed = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let after = resumed.or(params.page_token).unwrap_or(0);
    if accept.contains("text/event-stream") {
        let place = app.events.open_stream(caller.key);
        let place = place.ok_or_else(|| Problem::too_many_streams(STREAMS_OF_KEY_MAX))?;
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
        return Ok(Sse::new(stream(app, caller, place, of, after))
            .keep_alive(keep_alive)
            .into_response());
    }
    let size = page::size(params.page_size)?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = of.events_after(&app.store, after, limit).await?;
    Ok(Json(page::cut_by_number(
        rows,
        size,
        |row| row.id,
        EventView::from,
    ))
    .into_response())
}

/// The state of a stream.
struct Streaming {
    app: App,
    caller: Caller,
    _place: StreamPlace,
    told: Subscription,
    /// The last event that was sent.
    after: i64,
    batch: std::vec::IntoIter<Event>,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Reads the stored events, then waits to be woken for more; always by id, so no event is missed or
/// sent twice. The stream ends after a time limit or when its key is revoked; the client resumes at
/// `Last-Event-ID`.
fn stream(
    app: App,
    caller: Caller,
    place: StreamPlace,
    of: Subject,
    after: i64,
) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    let told = app.events.subscribe(of.experiment);
    let batch = Vec::new().into_iter();
    let end = Box::pin(real_sleep(STREAM_FOR));
    let start = Streaming {
        app,
        caller,
        _place: place,
        told,
        after,
        batch,
        end,
    };
    futures::stream::unfold(start, move |mut on| async move {
        loop {
            if let Some(event) = on.batch.next() {
                on.after = event.id;
                let sse = SseEvent::default()
                    .id(event.id.to_string())
                    .event(event.kind.clone());
                let sse = sse.json_data(EventView::from(event)).unwrap_or_default();
                return Some((Ok(sse), on));
            }
            if !on.caller.is_live(&on.app).await {
                return None;
            }
            on.told.mark_unchanged();
            // If the database is briefly away, it is read again at the next wake.
            let more = of.events_after(&on.app.store, on.after, BATCH).await;
            let more = more.unwrap_or_default();
            if more.is_empty() {
                tokio::select! {
                    () = on.told.changed() => {}
                    () = real_sleep(CHECK_KEY_EVERY) => {}
                    () = on.end.as_mut() => return None,
                }
            }
            on.batch = more.into_iter();
        }
    })
}

//! A project's feed of events, or the part about an experiment or a trial: a page, or a stream (SSE)
//! that resumes at `Last-Event-ID`.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::{ExperimentId, TrialId};
use futures::{FutureExt, Stream, StreamExt};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::experiments;
use crate::plumbing::auth::Caller;
use crate::plumbing::extract::{Id, Params, text_of};
use crate::plumbing::page;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::events::EventView;
use bakeoff_api::page::Page;
use bakeoff_process::clock::real_sleep;
use bakeoff_service::app::App;
use bakeoff_service::replica::event_board::{STREAMS_OF_KEY_MAX, StreamPlace, Subscription, Topic};
use bakeoff_store::events::{FeedEntry, FeedPart};

const BATCH: i64 = 200;
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client waits before it reconnects.
const RETRY: Duration = Duration::from_secs(2);
/// Maximum duration of a stream.
const STREAM_FOR: Duration = Duration::from_mins(15);
/// A stream's key may be revoked, or its session ended: that is checked before events are read, and this often when there
/// are none.
const CHECK_KEY_EVERY: Duration = Duration::from_secs(45);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventParams {
    /// 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// Token from the previous page, or the id of the last event seen.
    page_token: Option<i64>,
    /// Newest first: the page before `page_token`, or the last one. Not for streams, which go forward.
    #[serde(default)]
    newest: bool,
    /// Only events that need a person.
    #[serde(default)]
    alarms_only: bool,
}

/// Events of the project
///
/// One feed of everything that happens, in order: whoever has read up to an id has missed nothing
/// before it. With `Accept: text/event-stream`, a stream that resumes at `Last-Event-ID` and ends
/// after 15 minutes; otherwise a page, oldest first unless `newest` is set.
#[utoipa::path(get, path = "/v1/events", operation_id = "listEvents", tag = "projects", params(EventParams),
    responses((status = 200, description = "Events", content((Page<EventView> = "application/json"), (String = "text/event-stream"))),
        (status = 429, description = "Too many streams are open with this key", body = Problem, content_type = "application/problem+json"),
        Problems))]
pub(crate) async fn of_project(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let of = FeedPart {
        project_id: caller.project,
        experiment_id: None,
        trial_id: None,
        alarms_only: params.alarms_only,
    };
    answer(app, caller, of, &params, &headers).await
}

/// Events of an experiment
///
/// With `Accept: text/event-stream`, a stream that resumes at `Last-Event-ID` and ends with the
/// experiment, or after 15 minutes; 204 when nothing more is to be expected. Otherwise a page,
/// oldest first unless `newest` is set.
#[utoipa::path(get, path = "/v1/experiments/{experiment_id}/events", operation_id = "listExperimentEvents", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path), EventParams),
    responses((status = 200, description = "Events", content((Page<EventView> = "application/json"), (String = "text/event-stream"))),
        (status = 204, description = "The stream has ended: the experiment is over, and everything was sent"),
        (status = 429, description = "Too many streams are open with this key", body = Problem, content_type = "application/problem+json"),
        Problems))]
pub(crate) async fn of_experiment(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ExperimentId>,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    experiments::require_any(&app, caller, id).await?;
    let of = FeedPart {
        project_id: caller.project,
        experiment_id: Some(id),
        trial_id: None,
        alarms_only: params.alarms_only,
    };
    answer(app, caller, of, &params, &headers).await
}

/// Events of a trial
///
/// As for an experiment; the stream ends with the trial's experiment.
#[utoipa::path(get, path = "/v1/trials/{trial_id}/events", operation_id = "listTrialEvents", tag = "trials",
    params(("trial_id" = TrialId, Path), EventParams),
    responses((status = 200, description = "Events", content((Page<EventView> = "application/json"), (String = "text/event-stream"))),
        (status = 204, description = "The stream has ended: the experiment is over, and everything was sent"),
        (status = 429, description = "Too many streams are open with this key", body = Problem, content_type = "application/problem+json"),
        Problems))]
pub(crate) async fn of_trial(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let trial = crate::trials::find(&app, caller, id).await?;
    let of = FeedPart {
        project_id: caller.project,
        experiment_id: Some(trial.experiment_id),
        trial_id: Some(id),
        alarms_only: params.alarms_only,
    };
    answer(app, caller, of, &params, &headers).await
}

async fn answer(
    app: App,
    caller: Caller,
    of: FeedPart,
    params: &EventParams,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let accept = text_of(headers, &header::ACCEPT);
    let resumed = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let after = resumed.or(params.page_token).unwrap_or(0);
    if accept.contains("text/event-stream") {
        // A browser reconnects whenever a stream ends, unless it is told that there is no more.
        if app.store.feed_is_over(of, after).await? {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        let place = app.events.open_stream(caller.key);
        let place = place.ok_or_else(|| Problem::too_many_streams(STREAMS_OF_KEY_MAX))?;
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
        let retry = futures::stream::iter([Ok(SseEvent::default().retry(RETRY))]);
        let events = retry.chain(stream(app, caller, place, of, after));
        return Ok(Sse::new(events).keep_alive(keep_alive).into_response());
    }
    let size = page::size(params.page_size)?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = if params.newest {
        let before = params.page_token.unwrap_or(i64::MAX);
        app.store.events_before(of, before, limit).await?
    } else {
        app.store.events_after(of, after, limit).await?
    };
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
    batch: std::vec::IntoIter<FeedEntry>,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Reads the stored events, then waits to be woken for more; always by id, so no event is missed or
/// sent twice. Events have no name of their own, so that a browser's `onmessage` gets all of them.
/// The stream ends with its experiment, after a time limit, or when its key is revoked or its session ended; the client
/// resumes at `Last-Event-ID`.
fn stream(
    app: App,
    caller: Caller,
    place: StreamPlace,
    of: FeedPart,
    after: i64,
) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    let topic = match of.experiment_id {
        Some(experiment) => Topic::Experiment(experiment),
        None => Topic::Project(of.project_id),
    };
    let told = app.events.subscribe(topic);
    let start = Streaming {
        app,
        caller,
        _place: place,
        told,
        after,
        batch: Vec::new().into_iter(),
        end: Box::pin(real_sleep(STREAM_FOR)),
    };
    futures::stream::unfold(start, move |mut on| async move {
        loop {
            if let Some(event) = on.batch.next() {
                on.after = event.id;
                let sse = SseEvent::default().id(event.id.to_string());
                let sse = sse.json_data(EventView::from(event)).unwrap_or_default();
                return Some((Ok(sse), on));
            }
            // The time limit also ends a stream whose client is still reading a long history.
            let is_over = on.end.as_mut().now_or_never().is_some();
            if is_over || !on.caller.is_live(&on.app).await {
                return None;
            }
            on.told.mark_unchanged();
            // If the database is briefly away, it is read again at the next wake.
            let more = on.app.store.events_after(of, on.after, BATCH).await;
            let more = more.unwrap_or_default();
            if more.is_empty() {
                if matches!(on.app.store.feed_is_over(of, on.after).await, Ok(true)) {
                    return None;
                }
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

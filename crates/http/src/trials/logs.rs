//! Logs of trials, read from CloudWatch when they are asked for: a part, or a stream (SSE) that resumes
//! at `Last-Event-ID`.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::{ProjectId, TrialId};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::links;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{Stream, StreamExt};
use regex::RegexBuilder;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::plumbing::auth::Caller;
use crate::plumbing::extract::{Id, Params, text_of};
use crate::plumbing::page::parameter;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::logs::LogPartView;
use bakeoff_process::clock::{Stopwatch, real_sleep};
use bakeoff_service::app::{App, Place};
use bakeoff_service::live::job_log::{self, LogPart, LogPlace, LogQuery, LoggedJob};
use bakeoff_service::replica::event_board::{STREAMS_OF_KEY_MAX, StreamPlace};
use bakeoff_store::experiments::trials::{Attempt, Trial};

const LINES: u32 = 200;
const LINES_MAX: u32 = 5_000;
/// Memory that a pattern may take once compiled.
const PATTERN_BYTES: usize = 256 * 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(2);
/// Pause between two looks at a log without news, in real time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const STREAM_SECONDS: f64 = 900.0;
/// Lines may arrive so long after they were written (domain clock).
const ARRIVES_WITHIN: TimeDelta = TimeDelta::minutes(2);

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogParams {
    /// Number of the attempt; the latest that has a job when absent.
    attempt: Option<u32>,
    /// Of a tuning: TrainingJobName of the one of its trials whose log is wanted; see `GET …/tuned`.
    training_job: Option<String>,
    /// Only lines of this host, such as `algo-1`.
    host: Option<String>,
    /// Only lines from this moment on.
    since: Option<DateTime<Utc>>,
    /// Only lines before this moment.
    until: Option<DateTime<Utc>>,
    /// Only lines that match this regular expression.
    grep: Option<String>,
    /// The last so many lines, 1 to 5000, instead of the first.
    tail: Option<u32>,
    /// Lines at most, 1 to 5000; 200 when absent.
    page_size: Option<u32>,
    /// Token from the previous part.
    page_token: Option<String>,
}

impl LogParams {
    fn wanted(&self) -> Result<LogQuery, Problem> {
        let grep = self.grep.as_deref().map(|pattern| {
            RegexBuilder::new(pattern)
                .size_limit(PATTERN_BYTES)
                .build()
                .map_err(|error| parameter("grep", error.to_string()))
        });
        Ok(LogQuery {
            host: self.host.clone(),
            since: self.since,
            until: self.until,
            grep: grep.transpose()?,
        })
    }
}

/// Log of a trial
///
/// Read from CloudWatch when asked for; nothing is stored. Lines of all hosts are merged by time, and
/// those of a restarted job follow. With `Accept: text/event-stream`, a stream of parts that follows the
/// job (and the attempts after it), resumes at `Last-Event-ID`, and ends with an event named `end` when
/// the trial is over.
#[utoipa::path(get, path = "/v1/trials/{trial_id}/logs", operation_id = "getTrialLogs", tag = "trials",
    params(("trial_id" = TrialId, Path), LogParams),
    responses((status = 200, description = "Lines, by time", content((LogPartView = "application/json"), (String = "text/event-stream"))),
        (status = 429, description = "Too many streams are open with this key", body = Problem, content_type = "application/problem+json"),
        Problems))]
pub(crate) async fn of_trial(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
    Params(params): Params<LogParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let log = Log::find(app, caller, id, &params).await?;
    if text_of(&headers, &header::ACCEPT).contains("text/event-stream") {
        return stream(log, caller, &params, &headers);
    }
    let part = match (params.tail, params.page_token.as_deref()) {
        (Some(_), Some(_)) => {
            return Err(parameter("tail", "does not go together with page_token"));
        }
        (Some(tail), None) => log.tail(lines("tail", tail)?).await,
        (None, at) => {
            let most = lines("page_size", params.page_size.unwrap_or(LINES))?;
            let at = at.map(token).transpose()?;
            let (log, place) = log.at(at).await?;
            return Ok(
                Json(log.view(log.after(place, most).await.map_err(refused)?)).into_response(),
            );
        }
    };
    Ok(Json(log.view(part.map_err(refused)?)).into_response())
}

fn stream(
    log: Log,
    caller: Caller,
    params: &LogParams,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let resumed = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok());
    let place = log.app.events.open_stream(caller.key);
    let place = place.ok_or_else(|| Problem::too_many_streams(STREAMS_OF_KEY_MAX))?;
    let at = resumed.or(params.page_token.as_deref());
    let at = at.map(token).transpose()?;
    let tail = params.tail.filter(|_| at.is_none());
    let tail = tail.map(|tail| lines("tail", tail)).transpose()?;
    let retry = futures::stream::iter([Ok(SseEvent::default().retry(RETRY))]);
    let events = retry.chain(follow(log, caller, place, at, tail));
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(events).keep_alive(keep_alive).into_response())
}

fn lines(name: &str, asked: u32) -> Result<usize, Problem> {
    if (1..=LINES_MAX).contains(&asked) {
        return Ok(usize::try_from(asked).unwrap_or(usize::MAX));
    }
    Err(parameter(
        name,
        format!("must be 1 to {LINES_MAX}, not {asked}"),
    ))
}

/// A place in the log of one attempt.
#[derive(Clone)]
struct LogCursor {
    attempt: u32,
    place: LogPlace,
}

/// `<attempt>;<place>`.
fn token(text: &str) -> Result<LogCursor, Problem> {
    let parts = text.split_once(';');
    let at = parts.and_then(|(attempt, place)| {
        Some(LogCursor {
            attempt: attempt.parse().ok()?,
            place: LogPlace::parse(place)?,
        })
    });
    at.ok_or_else(|| parameter("page_token", "malformed"))
}

/// What AWS says when a log cannot be read.
fn refused(error: AwsError) -> Problem {
    Problem::of_aws(
        error,
        "the log",
        "logs:DescribeLogStreams and logs:GetLogEvents on /aws/sagemaker/TrainingJobs (or ProcessingJobs)",
    )
}

/// The log of an attempt, and who asks.
#[derive(Clone)]
struct Log {
    app: App,
    place: Place,
    project: ProjectId,
    trial: TrialId,
    kind: JobKind,
    attempt: Attempt,
    /// Of a tuning: the training job that is looked at.
    training_job: Option<String>,
    wanted: LogQuery,
}

impl Log {
    async fn find(
        app: App,
        caller: Caller,
        id: TrialId,
        params: &LogParams,
    ) -> Result<Self, Problem> {
        let trial = crate::trials::find(&app, caller, id).await?;
        let place = crate::trials::place(&app, &trial)?;
        let shown = app.store.shown_trial(caller.project, id).await?;
        let attempts = shown.map_or_else(Vec::new, |shown| shown.attempts);
        let wanted = attempts
            .into_iter()
            .filter(|attempt| params.attempt.is_none_or(|number| attempt.number == number));
        let attempt =
            wanted
                .max_by_key(|attempt| attempt.number)
                .ok_or_else(|| match params.attempt {
                    Some(number) => {
                        Problem::not_found(format!("this trial has no attempt {number}"))
                    }
                    None => Problem::not_found(format!(
                        "this trial has no job yet: it is {}",
                        trial.state.as_str()
                    )),
                })?;
        let kind = trial.plan.kind();
        Ok(Self {
            training_job: training_job(&app, &trial, params).await?,
            app,
            place,
            project: caller.project,
            trial: id,
            kind,
            attempt,
            wanted: params.wanted()?,
        })
    }

    /// The attempt that a token leads into, and the place in it.
    async fn at(mut self, at: Option<LogCursor>) -> Result<(Self, LogPlace), Problem> {
        let Some(LogCursor { attempt, place }) = at else {
            return Ok((self, LogPlace::default()));
        };
        if attempt != self.attempt.number {
            let shown = self.app.store.shown_trial(self.project, self.trial).await?;
            let attempts = shown.map_or_else(Vec::new, |shown| shown.attempts);
            let found = attempts.into_iter().find(|one| one.number == attempt);
            self.attempt = found.ok_or_else(|| parameter("page_token", "malformed"))?;
        }
        Ok((self, place))
    }

    fn job(&self) -> LoggedJob<'_> {
        let own = &self.attempt.job_name;
        LoggedJob {
            kind: self.kind,
            name: self.training_job.as_ref().unwrap_or(own),
        }
    }

    async fn after(&self, place: LogPlace, most: usize) -> Result<LogPart, AwsError> {
        job_log::after(&self.place.aws, self.job(), &self.wanted, place, most).await
    }

    async fn tail(&self, most: usize) -> Result<LogPart, AwsError> {
        job_log::tail(&self.place.aws, self.job(), &self.wanted, most).await
    }

    /// Whether no more lines are to be expected.
    fn is_over(&self) -> bool {
        let now = self.app.clock.now();
        let settled = self.attempt.phase.is_over();
        settled
            && self
                .attempt
                .ended_at
                .is_none_or(|ended| now - ended > ARRIVES_WITHIN)
    }

    fn view(&self, part: LogPart) -> LogPartView {
        let is_all = part.is_at_end && self.is_over();
        LogPartView {
            attempt: self.attempt.number,
            job_name: self.job().name.to_owned(),
            next_page_token: (!is_all).then(|| self.token(&part.place)),
            is_at_end: part.is_at_end,
            left_out_streams: u32::try_from(part.left_out).unwrap_or(u32::MAX),
            console_url: links::log(self.kind, &self.place.region, self.job().name),
            lines: part.lines.into_iter().map(Into::into).collect(),
        }
    }

    fn token(&self, place: &LogPlace) -> String {
        format!("{};{place}", self.attempt.number)
    }
}

/// The training job whose log is wanted of a tuning, which writes none of its own.
async fn training_job(
    app: &App,
    trial: &Trial,
    params: &LogParams,
) -> Result<Option<String>, Problem> {
    let is_tuning = trial.plan.kind() == JobKind::Tuning;
    let Some(asked) = &params.training_job else {
        return if is_tuning {
            let detail = format!(
                "a tuning job writes no log: name one of its trials, which GET /v1/trials/{}/tuned lists",
                trial.id
            );
            Err(parameter("training_job", detail))
        } else {
            Ok(None)
        };
    };
    let all = app.store.step_trials(&[trial.experiment_id.0]).await?;
    let own = all.into_iter().find(|(_, one)| one.id == trial.id);
    let tuned = own.and_then(|(_, one)| one.tuned).unwrap_or_default();
    if tuned.trials.iter().any(|one| one.job_name == *asked) {
        return Ok(Some(asked.clone()));
    }
    let detail = format!("{} has no trial of this name", trial.id);
    Err(parameter("training_job", detail))
}

/// The state of a stream.
struct Following {
    log: Log,
    caller: Caller,
    _open: StreamPlace,
    at: Option<LogCursor>,
    tail: Option<usize>,
    since: Stopwatch,
    is_told_end: bool,
}

/// Reads from the last place, again and again: a service that restarts, or a client that reconnects, goes
/// on where the last part ended.
fn follow(
    log: Log,
    caller: Caller,
    open: StreamPlace,
    at: Option<LogCursor>,
    tail: Option<usize>,
) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    let start = Following {
        log,
        caller,
        _open: open,
        at,
        tail,
        since: Stopwatch::start(),
        is_told_end: false,
    };
    futures::stream::unfold(start, |mut on| async move {
        loop {
            if on.is_told_end
                || on.since.elapsed().as_secs_f64() > STREAM_SECONDS
                || !on.caller.is_live(&on.log.app).await
            {
                return None;
            }
            match on.next_part().await {
                Some(event) => return Some((Ok(event), on)),
                None => real_sleep(LOOK_EVERY).await,
            }
        }
    })
}

impl Following {
    /// The next part as an event; `None` if there is nothing new, or it could not be read now: the place
    /// stays where it is.
    async fn next_part(&mut self) -> Option<SseEvent> {
        let read = match (self.tail, self.at.clone()) {
            (Some(most), _) => self.log.tail(most).await,
            (None, at) => {
                let (log, place) = match self.log.clone().at(at).await {
                    Ok(found) => found,
                    Err(problem) if problem.retryable || problem.status >= 500 => return None,
                    // A place that this trial never had.
                    Err(problem) => {
                        self.is_told_end = true;
                        return Some(SseEvent::default().event("error").data(problem.to_json()));
                    }
                };
                self.log = log;
                let most = usize::try_from(LINES).unwrap_or(usize::MAX);
                self.log.after(place, most).await
            }
        };
        let part = match read {
            Ok(part) => part,
            Err(error @ AwsError::Denied(_)) => {
                self.is_told_end = true;
                let problem = refused(error).to_json();
                return Some(SseEvent::default().event("error").data(problem));
            }
            Err(error) => {
                tracing::info!(%error, "following a log: reading it failed; trying again");
                return None;
            }
        };
        self.tail = None;
        self.at = Some(self.here(part.place.clone()));
        if part.lines.is_empty() {
            return if part.is_at_end {
                self.turn().await
            } else {
                None
            };
        }
        let id = self.log.token(&part.place);
        let data = self.log.view(part);
        Some(
            SseEvent::default()
                .id(id)
                .json_data(data)
                .unwrap_or_default(),
        )
    }

    fn here(&self, place: LogPlace) -> LogCursor {
        LogCursor {
            attempt: self.log.attempt.number,
            place,
        }
    }

    /// LogCursor the end of a log: looks whether its job is over, and whether another attempt follows.
    async fn turn(&mut self) -> Option<SseEvent> {
        let Log {
            app,
            project,
            trial,
            ..
        } = &self.log;
        let shown = app.store.shown_trial(*project, *trial).await.ok()??;
        let (state, attempts) = (shown.state, shown.attempts);
        let number = self.log.attempt.number;
        let next = attempts.iter().find(|one| one.number > number).cloned();
        if let Some(own) = attempts.into_iter().find(|one| one.number == number) {
            self.log.attempt = own;
        }
        if !self.log.is_over() {
            return None;
        }
        if let Some(next) = next {
            self.log.attempt = next;
            self.at = Some(self.here(LogPlace::default()));
            return None;
        }
        self.is_told_end = state.is_terminal();
        self.is_told_end
            .then(|| SseEvent::default().event("end").data("{}"))
    }
}

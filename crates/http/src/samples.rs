//! Metrics of trials and runs: sent by scripts and importers, read back as series.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use bakeoff_domain::ids::{ProjectId, RunId, TrialId};
use bakeoff_domain::measure::metric::{self, Source, Subject};
use bakeoff_domain::measure::rollup::{Columns, thin};
use bakeoff_domain::measure::samples::{
    self, Batch, Conflict, LineError, NotRead, ReadOptions, Report,
};
use bakeoff_domain::measure::steady::{BUCKET_SECONDS, Bucket, steady};
use chrono::{DateTime, Datelike, TimeDelta, Utc};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::plumbing::auth::{Caller, Editor, Pusher};
use crate::plumbing::extract::{Id, Params, whole};
use crate::plumbing::heavy::{self, BODY_ASIDE_FROM, aside};
use crate::plumbing::problem::{FieldError, Problem, Problems};
use crate::plumbing::table::{self, Column, Format, Table};
use bakeoff_api::pushed::Pushed;
use bakeoff_api::series::{MetricSeries, PointColumns};
use bakeoff_service::app::App;
use bakeoff_service::auth::push_token;
use bakeoff_service::read::figures::preferred;
use bakeoff_service::read::sent;
use bakeoff_store::series::{Appended, SERIES_MAX, Samples, Series, SeriesName};

/// Maximum size of a push's body.
pub(crate) const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A run must have started in this century.
const STARTED_YEARS: std::ops::Range<i32> = 2000..2100;
/// How far the clock of a training machine may be ahead of ours.
const AHEAD_MAX: TimeDelta = TimeDelta::minutes(10);
/// From as many points on, a body is a file, and is checked against what is known of the run.
const CHECKED_FROM: usize = 20;
/// Default number of points that a series is thinned to.
const POINTS_DEFAULT: usize = 2000;
const POINTS_MAX: usize = 10_000;
/// A series with this many buckets is shown as buckets; a shorter one as points.
const BUCKETS_ENOUGH: usize = 200;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PushParams {
    /// Accept the valid lines and report the others, instead of refusing everything: for truncated
    /// logs.
    #[serde(default)]
    skip_bad_lines: bool,
    /// `imported` is a log of a training framework. `pushed` is sent by the script itself, and
    /// takes precedence.
    #[serde(default)]
    #[param(inline)]
    source: PushSource,
    /// Start of the run, for what counts time from there (`trainer_state.json`, `elapsed_time`).
    started_at: Option<DateTime<Utc>>,
    /// Name of the metric, for files that say none (TensorBoard's table of one scalar).
    metric: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum PushSource {
    #[default]
    Pushed,
    Imported,
}

/// Send metrics of a trial
///
/// JSON lines (`{"timestamp": 1763596800, "step": 7, "loss": 2.5}`, any names), or a file as it was written: exports of
/// W&B, TensorBoard, MLflow and nvidia-smi, Hugging Face's trainer_state.json, tables with a header line, and the logs of
/// the usual frameworks as text. What it is, is told by its content. The answer says what was recognised as what, what was
/// not read and why, and what is odd.
///
/// Sending a point twice is harmless: points are identified by metric, time and step, and keep their first value; another
/// value is a conflict, and is named. NaN and infinities are stored, but excluded from means.
///
/// A training job started by Bakeoff needs no key: it uses `BAKEOFF_PUSH_TOKEN` from its
/// environment as the bearer token, with `BAKEOFF_URL` and `BAKEOFF_TRIAL_ID`, and may send the
/// metrics of its own trial until an hour after the trial's end (`serve --public-url`).
#[utoipa::path(post, path = "/v1/trials/{trial_id}/metrics", operation_id = "pushTrialMetrics", tag = "metrics",
    params(("trial_id" = TrialId, Path), PushParams),
    request_body(content((String = "application/x-ndjson"), (String = "application/json"), (String = "text/csv"), (String = "text/plain"))),
    responses((status = 200, description = "Stored", body = Pushed), Problems))]
pub(crate) async fn push_trial(
    State(app): State<App>,
    pusher: Pusher,
    Id(id): Id<TrialId>,
    Params(params): Params<PushParams>,
    request: Request,
) -> Result<Json<Pushed>, Problem> {
    let subject = Subject::Trial(id);
    let project = match pusher {
        Pusher::Editor(caller) => {
            owned(&app, caller, subject).await?;
            Some(caller.project)
        }
        Pusher::Token(token) => {
            if !push_token::is_of(&token, &app.settings.secret_key, id) {
                return Err(Problem::unauthenticated(
                    "the push token is not valid for this trial",
                ));
            }
            let Some(ended_at) = app.store.end_of_trial(id).await? else {
                return Err(Problem::not_found(format!("there is no trial {id}")));
            };
            if params.source != PushSource::Pushed {
                return Err(Problem::forbidden(
                    "a push token may only send the script's own measurements: omit `source`",
                ));
            }
            if !push_token::is_open(ended_at, app.clock.now()) {
                return Err(Problem::forbidden(
                    "the trial ended more than an hour ago: its push token has expired",
                ));
            }
            None
        }
    };
    push(&app, project, subject, params, request).await
}

/// Send metrics of an external run
///
/// Same formats and rules as for a trial.
#[utoipa::path(post, path = "/v1/runs/{run_id}/metrics", operation_id = "pushRunMetrics", tag = "metrics",
    params(("run_id" = RunId, Path), PushParams),
    request_body(content((String = "application/x-ndjson"), (String = "application/json"), (String = "text/csv"), (String = "text/plain"))),
    responses((status = 200, description = "Stored", body = Pushed), Problems))]
pub(crate) async fn push_run(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<RunId>,
    Params(mut params): Params<PushParams>,
    request: Request,
) -> Result<Json<Pushed>, Problem> {
    if params.started_at.is_none() {
        let run = app.store.runs_by_id(caller.project, &[id]).await?.pop();
        params.started_at = run.and_then(|run| run.started_at);
    }
    owned(&app, caller, Subject::Run(id)).await?;
    push(
        &app,
        Some(caller.project),
        Subject::Run(id),
        params,
        request,
    )
    .await
}

async fn owned(app: &App, caller: Caller, subject: Subject) -> Result<(), Problem> {
    if app.store.owns(caller.project, subject).await? {
        return Ok(());
    }
    Err(Problem::not_found(match subject {
        Subject::Trial(id) => format!("there is no trial {id} in this project"),
        Subject::Run(id) => format!("there is no run {id} in this project"),
    }))
}

/// Stores what was sent; by whoever may read the project, it is checked against what is known of the run.
async fn push(
    app: &App,
    project: Option<ProjectId>,
    subject: Subject,
    params: PushParams,
    request: Request,
) -> Result<Json<Pushed>, Problem> {
    if params
        .started_at
        .is_some_and(|at| !STARTED_YEARS.contains(&at.year()))
    {
        return Err(crate::plumbing::page::parameter(
            "started_at",
            "must be between 2000 and 2100",
        ));
    }
    let body = whole(request, BODY_BYTES_MAX).await?;
    let now = app.clock.now();
    let asked = BodyOptions {
        latest: now + AHEAD_MAX,
        skip_bad_lines: params.skip_bad_lines,
        started_at: params.started_at,
        metric: params.metric,
    };
    let mut batch = parse(body, asked).await?.map_err(refused)?;
    if let Some(project) = project.filter(|_| batch.points.len() >= CHECKED_FROM) {
        let notes = sent::check(&app.store, project, subject, &batch).await?;
        batch.report.notes.extend(notes);
    }
    let source = match params.source {
        PushSource::Pushed => Source::Pushed,
        PushSource::Imported => Source::Imported,
    };
    let named = batch.names.into_iter().map(|name| SeriesName {
        subject,
        name,
        metric: None,
    });
    let samples = Samples {
        named: named.collect(),
        points: batch.points,
    };
    let appended = app.store.append(source, &samples, now).await?;
    let skipped = batch.skipped.into_iter();
    Ok(Json(Pushed {
        stored: appended.stored,
        duplicates: appended.duplicates,
        skipped: skipped.map(Into::into).collect(),
        skipped_in_all: batch.skipped_in_all,
        report: with_unstored(batch.report, &appended, &samples).into(),
    }))
}

/// Adds what contradicts points that were stored before, and metrics beyond those that may be sent.
fn with_unstored(mut report: Report, appended: &Appended, samples: &Samples) -> Report {
    let mut cells: BTreeMap<usize, u64> = appended.no_room.iter().map(|name| (*name, 0)).collect();
    let counted = if cells.is_empty() {
        &[]
    } else {
        samples.points.as_slice()
    };
    for point in counted {
        if let Some(count) = cells.get_mut(&point.name) {
            *count += 1;
        }
    }
    for (name, cells) in cells {
        report.not_read.push(NotRead {
            column: samples
                .named
                .get(name)
                .map(|one| one.name.clone())
                .unwrap_or_default(),
            why: format!(
                "{SERIES_MAX} metrics were sent before: a name is a metric, not a moment of it"
            ),
            cells,
        });
    }
    report.conflicts_in_all += appended.conflicts_in_all;
    for one in &appended.conflicts {
        let metric = samples.named.get(one.name).map(|named| named.name.clone());
        report.add_conflict(Conflict {
            metric: metric.unwrap_or_default(),
            at: one.at,
            step: one.step,
            kept: Some(one.kept).filter(|value| value.is_finite()),
            ignored: Some(one.ignored).filter(|value| value.is_finite()),
        });
    }
    report
}

/// How a body is to be read.
struct BodyOptions {
    latest: DateTime<Utc>,
    skip_bad_lines: bool,
    started_at: Option<DateTime<Utc>>,
    metric: Option<String>,
}

async fn parse(body: Bytes, asked: BodyOptions) -> Result<Result<Batch, Vec<LineError>>, Problem> {
    let size = body.len();
    let read = move || {
        let reading = ReadOptions {
            latest: asked.latest,
            skip_bad_lines: asked.skip_bad_lines,
            started_at: asked.started_at,
            metric: asked.metric.as_deref(),
        };
        samples::read(&body, reading)
    };
    if size < BODY_ASIDE_FROM {
        Ok(read())
    } else {
        aside(read).await
    }
}

fn refused(errors: Vec<LineError>) -> Problem {
    let of_line = |error: LineError| FieldError {
        pointer: format!("/{}", error.line),
        detail: error.detail,
        fix: "correct the line, or add ?skip_bad_lines=true".to_owned(),
        rule: "metric-line".to_owned(),
    };
    Problem::invalid(errors.into_iter().map(of_line).collect())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SeriesParams {
    /// A standard name (`tokens_per_second`, `train_loss`, `gpu_utilization_percent`), or the name
    /// as reported.
    metric: String,
    /// `auto` (at most `points` points, with every extreme kept), `raw` (every point), or `buckets`
    /// (five minutes each).
    #[serde(default)]
    #[param(inline)]
    resolution: Resolution,
    /// Maximum number of points with `auto`, 10 to 10000; 2000 when absent.
    points: Option<usize>,
    /// Overrides the Accept header: for browsers and `pandas.read_parquet`.
    #[param(inline)]
    format: Option<Format>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Resolution {
    #[default]
    Auto,
    Raw,
    Buckets,
}

/// One metric of a trial
#[utoipa::path(get, path = "/v1/trials/{trial_id}/metrics", operation_id = "getTrialMetric", tag = "metrics",
    params(("trial_id" = TrialId, Path), SeriesParams),
    responses((status = 200, description = "The series of the source that is believed; CSV, NDJSON and Parquet have every point",
        content((MetricSeries = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                (Vec<u8> = "application/vnd.apache.parquet"))), Problems))]
pub(crate) async fn of_trial(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
    Params(params): Params<SeriesParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    read(&app, caller, Subject::Trial(id), params, &headers).await
}

/// One metric of an external run
#[utoipa::path(get, path = "/v1/runs/{run_id}/metrics", operation_id = "getRunMetric", tag = "metrics",
    params(("run_id" = RunId, Path), SeriesParams),
    responses((status = 200, description = "The series, as for a trial",
        content((MetricSeries = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                (Vec<u8> = "application/vnd.apache.parquet"))), Problems))]
pub(crate) async fn of_run(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<RunId>,
    Params(params): Params<SeriesParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    read(&app, caller, Subject::Run(id), params, &headers).await
}

async fn find(
    app: &App,
    caller: Caller,
    subject: Subject,
    metric: &str,
) -> Result<Series, Problem> {
    owned(app, caller, subject).await?;
    let standard = metric::standard(metric).map(|found| found.name.to_owned());
    let names: Vec<String> = standard
        .iter()
        .cloned()
        .chain([metric.to_owned()])
        .collect();
    let found = preferred(app.store.series_of(&[subject.uuid()], Some(&names)).await?);
    let by_name = |name: &String| {
        found
            .iter()
            .find(|one| one.metric == *name || one.name == *name)
            .cloned()
    };
    if let Some(series) = names.iter().find_map(by_name) {
        return Ok(series);
    }
    let all = preferred(app.store.series_of(&[subject.uuid()], None).await?);
    let names: Vec<&str> = all.iter().map(|one| one.metric.as_str()).collect();
    let known = if names.is_empty() {
        "none yet".to_owned()
    } else {
        names.join(", ")
    };
    Err(Problem::not_found(format!(
        "there is no metric `{metric}` here; available: {known}"
    )))
}

async fn points(app: &App, series: &Series) -> Result<Columns, Problem> {
    let stored = app.store.points(series).await?;
    Ok(aside(move || stored.columns()).await??)
}

fn table_of(columns: Columns) -> Table {
    let steps = columns
        .step
        .iter()
        .map(|step| (*step >= 0).then_some(i64::from(*step)))
        .collect();
    let times = columns.at.iter().copied().map(Some).collect();
    let values = columns.value.into_iter().map(Some).collect();
    vec![
        ("at", Column::Time(times)),
        ("step", Column::Whole(steps)),
        ("value", Column::Real(values)),
    ]
}

/// JSON has no number for non-finite values.
pub(crate) fn point_columns(columns: &Columns) -> PointColumns {
    PointColumns {
        at_seconds: columns.at.iter().map(|at| seconds(*at)).collect(),
        step: columns
            .step
            .iter()
            .map(|step| (*step >= 0).then_some(*step))
            .collect(),
        value: columns
            .value
            .iter()
            .map(|value| value.is_finite().then_some(*value))
            .collect(),
    }
}

async fn read(
    app: &App,
    caller: Caller,
    subject: Subject,
    params: SeriesParams,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let most = params.points.unwrap_or(POINTS_DEFAULT);
    if !(10..=POINTS_MAX).contains(&most) {
        return Err(crate::plumbing::page::parameter(
            "points",
            format!("must be 10 to {POINTS_MAX}"),
        ));
    }
    let series = find(app, caller, subject, &params.metric).await?;
    let format = Format::chosen(params.format, headers);
    if format != Format::Json {
        let columns = points(app, &series).await?;
        return table::respond(format, move || table_of(columns)).await;
    }
    let buckets: Vec<Bucket> = app
        .store
        .rollups(&[series.id])
        .await?
        .into_iter()
        .map(|(_, bucket)| bucket)
        .collect();
    let by_buckets = match params.resolution {
        Resolution::Buckets => true,
        Resolution::Raw => false,
        // ReadOptions a long series that still grows takes time in proportion to its length; a
        // compacted one is quick.
        Resolution::Auto => {
            !series.is_compacted
                && buckets.len() >= BUCKETS_ENOUGH
                && usize::try_from(series.points).unwrap_or(0) > most
        }
    };
    let points = if by_buckets {
        None
    } else {
        let all = points(app, &series).await?;
        Some(if params.resolution == Resolution::Raw {
            all
        } else {
            aside(move || thin(&all, most)).await?
        })
    };
    let steady = if let Some(settled) = &series.steady {
        settled.clone()
    } else {
        let own = app.store.buckets(&[series.id]).await?;
        own.values().next().and_then(|buckets| steady(buckets))
    };
    heavy::json(MetricSeries {
        metric: series.metric,
        name: series.name,
        unit: series.unit,
        source: series.source,
        stored_points: series.points,
        non_finite_points: series.non_finite,
        points: points.as_ref().map(point_columns),
        buckets: if by_buckets {
            merged(buckets, most).into_iter().map(Into::into).collect()
        } else {
            Vec::new()
        },
        bucket_seconds: BUCKET_SECONDS,
        steady: steady.map(Into::into),
    })
    .await
}

#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds of this century lie below 2^53"
)]
fn seconds(at: DateTime<Utc>) -> f64 {
    at.timestamp_micros() as f64 / 1e6
}

/// Merges neighbouring buckets until at most `most` are left; extremes are kept.
fn merged(buckets: Vec<Bucket>, most: usize) -> Vec<Bucket> {
    let width = buckets.len().div_ceil(most.max(1)).max(1);
    let mut merged: Vec<Bucket> = Vec::with_capacity(buckets.len().div_ceil(width));
    for (place, bucket) in buckets.into_iter().enumerate() {
        match merged.last_mut().filter(|_| place % width != 0) {
            Some(last) => last.absorb(&bucket),
            None => merged.push(bucket),
        }
    }
    merged
}

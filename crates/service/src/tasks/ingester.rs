//! The ingester: due attempts → one batched GetMetricData (at most 500 series) with overlap →
//! normalise → upsert with rollups and cursors in one transaction. What to read and what it means is
//! in the domain (`measure/cloudwatch.rs`).

use std::collections::BTreeMap;

use bakeoff_domain::ids::JobId;
use bakeoff_domain::measure::cloudwatch::{self, JobSeries};
use bakeoff_domain::measure::metric::{MetricDefinition, Source, Subject};
use bakeoff_domain::measure::samples::Point;
use bakeoff_domain::ports::{ITERATION_QUERIES_MAX, IterationQuery, Window};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::metrics::{MetricQuery, Series};
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use crate::aws::Operation;
use bakeoff_process::crash;
use bakeoff_store::StoreError;
use bakeoff_store::series::metrics::{MetricsDue, Progress, Requested};
use bakeoff_store::series::{Samples, SeriesName};

/// Attempts claimed in one query.
const DUE_MAX: i64 = 500;
/// If this process dies, another reader picks them up after this time.
const HOLD: TimeDelta = TimeDelta::minutes(10);
/// Maximum number of pages of one answer: 500 series of two weeks of minutes fit in 101.
const PAGES_MAX: u32 = 128;
/// Runs one tick; returns how many attempts were read.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let mut count = 0;
    loop {
        let read = some(app).await?;
        count += read;
        if read < usize::try_from(DUE_MAX).unwrap_or(0) {
            return Ok(count);
        }
    }
}

async fn some(app: &App) -> Result<usize, StoreError> {
    let now = app.clock.now();
    // Each metric read is billed: a copy of the database leaves reads to its original.
    if !app.fence.may_stop(now) {
        return Ok(0);
    }
    let due = app
        .store
        .claim_due_metrics(&app.place.region, now, HOLD, DUE_MAX)
        .await?;
    let count = due.len();
    // Final reads have longer windows, and old attempts a coarser period: batch them apart, so that
    // they do not widen the reads of the others.
    let mut groups: BTreeMap<(bool, TimeDelta), Vec<MetricsDue>> = BTreeMap::new();
    for attempt in due {
        let start = attempt.job.window(now).map_or(now, |span| span.start);
        groups
            .entry((
                attempt.job.is_last_read(now),
                cloudwatch::period(start, now),
            ))
            .or_default()
            .push(attempt);
    }
    for ((_, period), group) in groups {
        for batch in cloudwatch::batches(group, |due| &due.job) {
            // A failed write for one batch must not hold up the others; its hold brings it back.
            if let Err(error) = read(app, batch, period, now).await {
                tracing::warn!(%error, "writing metrics failed for some attempts");
            }
        }
    }
    Ok(count)
}

async fn read(
    app: &App,
    batch: Vec<MetricsDue>,
    period: TimeDelta,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    app.pulse.beat();
    if app.settings.sagemaker_metrics && !read_iterations(app, &batch, now).await? {
        // The claim's hold brings them back.
        return Ok(());
    }
    let windows: Vec<_> = batch.iter().map(|due| due.job.window(now)).collect();
    let (ready, waiting): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .zip(windows)
        .partition(|(_, window)| window.is_some());
    let mut progress: Vec<Progress> = waiting
        .into_iter()
        .map(|(attempt, _)| advance(app, attempt, now, now))
        .collect();
    let mut samples: BTreeMap<JobId, Samples> = BTreeMap::new();
    let start = ready
        .iter()
        .filter_map(|(_, span)| span.map(|span| span.start))
        .min();
    let end = ready
        .iter()
        .filter_map(|(_, span)| span.map(|span| span.end))
        .max();
    if let Some((start, end)) = start.zip(end) {
        let ready: Vec<MetricsDue> = ready.into_iter().map(|(attempt, _)| attempt).collect();
        match ask(app, &ready, Window { period, start, end }).await? {
            Ok(series) => {
                for (attempt, own) in ready.into_iter().zip(series) {
                    let is_complete = own.iter().all(Series::is_whole);
                    samples.insert(
                        attempt.account.job_id,
                        samples_of(&attempt, attempt.job.normalise(&own)),
                    );
                    if is_complete || attempt.job.is_given_up(now) {
                        progress.push(advance(app, attempt, end, now));
                    } else {
                        // Keep what arrived; the cursor stays, and the claim's hold brings the
                        // attempt back.
                        tracing::info!(
                            job = attempt.job.name,
                            "CloudWatch returned incomplete metrics; retrying"
                        );
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, attempts = ready.len(), "reading metrics failed");
                // The claim's hold brings them back, but not forever: money must not stay reserved
                // for a read that is denied.
                let given_up = ready.into_iter().filter(|due| due.job.is_given_up(now));
                progress.extend(given_up.map(|attempt| advance(app, attempt, now, now)));
            }
        }
    }
    write(app, progress, samples, now).await
}

/// Requests the series of some attempts; returns them per attempt, in the order of its queries.
/// Each page is counted before it is requested: AWS bills it whatever happens to the reply, or to
/// us.
async fn ask(
    app: &App,
    attempts: &[MetricsDue],
    window: Window,
) -> Result<Result<Vec<Vec<Series>>, AwsError>, StoreError> {
    let counts: Vec<usize> = attempts.iter().map(|due| due.job.queries().len()).collect();
    let booked = |times: i64| -> Vec<Requested> {
        let all = attempts.iter().zip(&counts);
        all.map(|(attempt, count)| Requested {
            attempt: attempt.account.job_id,
            metrics: i64::try_from(*count)
                .unwrap_or(i64::MAX)
                .saturating_mul(times),
        })
        .collect()
    };
    let all: Vec<MetricQuery> = attempts.iter().flat_map(|due| due.job.queries()).collect();
    let mut series = vec![Series::default(); all.len()];
    let mut token = None;
    for _ in 0..PAGES_MAX {
        app.pulse.beat();
        if let Err(error) = app.place.aws.wait_for(Operation::GetMetricData).await {
            return Ok(Err(error));
        }
        if !app.store.count_requested(&booked(1)).await? {
            app.store.count_requested(&booked(-1)).await?;
            return Ok(Err(AwsError::Unknown(
                "another reader has already settled some of the attempts".to_owned(),
            )));
        }
        crash::point("before_metrics");
        let page = app.place.aws.metrics_page(&all, window, token).await;
        crash::point("after_metrics");
        if !page.is_billed {
            app.store.count_requested(&booked(-1)).await?;
        }
        let page = match page.reply {
            Ok(page) => page,
            Err(error) => return Ok(Err(error)),
        };
        for (one, more) in series.iter_mut().zip(page.items) {
            one.extend(more);
        }
        token = page.next;
        if token.is_none() {
            // Another account's CloudWatch has no data on our jobs and reports that as complete. A
            // series with points is ours, because its job name is.
            if series.iter().any(|one| one.points.is_empty()) {
                app.place.aws.doubt_account();
                if let Err(error) = super::confirm_account(app).await? {
                    return Ok(Err(error));
                }
            }
            let mut series = series.into_iter();
            return Ok(Ok(counts
                .iter()
                .map(|count| series.by_ref().take(*count).collect())
                .collect()));
        }
    }
    Ok(Err(AwsError::Unknown(format!(
        "GetMetricData returned more than {PAGES_MAX} pages"
    ))))
}

/// A final read settles money, in a transaction of its own, so that no transaction ever locks two
/// budget rows.
async fn write(
    app: &App,
    progress: Vec<Progress>,
    mut samples: BTreeMap<JobId, Samples>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let (last, running): (Vec<_>, Vec<_>) = progress
        .into_iter()
        .partition(|step| step.next_at.is_none());
    for step in last {
        crash::point("before_last_metrics");
        // Final metrics are only a fallback, so money does not wait for them.
        if let Err(error) = keep_final(app, &step.due, now).await {
            tracing::warn!(%error, job = step.due.job.name, "writing the final metric values of a job failed");
        }
        let own = samples.remove(&step.due.account.job_id).unwrap_or_default();
        app.store.record_metrics(&own, &[step], now).await?;
        app.pulse.beat();
    }
    let mut all = Samples::default();
    for own in samples.into_values() {
        all.extend(own);
    }
    if running.is_empty() && all.points.is_empty() {
        return Ok(());
    }
    app.store.record_metrics(&all, &running, now).await
}

/// Stores the final metrics that SageMaker keeps of a job: a fallback where nothing else was read.
/// Repeating it changes nothing.
async fn keep_final(app: &App, due: &MetricsDue, now: DateTime<Utc>) -> Result<(), StoreError> {
    if due.final_metrics.is_empty() {
        return Ok(());
    }
    let mut samples = Samples::default();
    for (place, last) in due.final_metrics.iter().enumerate() {
        samples.named.push(series_of_trial(due, &last.name));
        samples.points.push(Point {
            name: place,
            step: None,
            at: last.at,
            value: last.value,
        });
    }
    app.store
        .append(Source::Final, &samples, now)
        .await
        .map(drop)
}

/// Reads SageMaker's own series of ended jobs, once. False means try again later; series that are
/// denied or unknown to SageMaker are not requested again, and hold nothing up.
async fn read_iterations(
    app: &App,
    batch: &[MetricsDue],
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let over = batch
        .iter()
        .filter(|due| due.job.is_last_read(now) && !due.job.is_given_up(now));
    let asked: Vec<(&MetricsDue, &MetricDefinition, IterationQuery)> = over
        .filter_map(|attempt| Some((attempt, attempt.job_arn.as_ref()?)))
        .flat_map(|(attempt, arn)| {
            let query = |metric: &MetricDefinition| IterationQuery {
                metric: metric.name.clone(),
                job_arn: arn.clone(),
            };
            attempt
                .job
                .metrics
                .iter()
                .map(move |metric| (attempt, metric, query(metric)))
        })
        .collect();
    for some in asked.chunks(ITERATION_QUERIES_MAX) {
        let queries: Vec<IterationQuery> = some.iter().map(|(_, _, query)| query.clone()).collect();
        let series = match app.place.aws.read_iterations(&queries).await {
            Ok(series) => series,
            Err(AwsError::Throttled(_) | AwsError::Unknown(_) | AwsError::Expired(_)) => {
                return Ok(false);
            }
            Err(error @ AwsError::Denied(_)) => {
                tracing::warn!(%error, "AWS denied BatchGetMetrics");
                return Ok(true);
            }
            Err(error) => {
                tracing::warn!(%error, "reading some of SageMaker's own metrics failed");
                continue;
            }
        };
        let mut samples = Samples::default();
        for (place, ((attempt, metric, _), points)) in some.iter().zip(series).enumerate() {
            let subject = Subject::Trial(attempt.account.trial_id);
            samples.named.push(SeriesName {
                subject,
                name: metric.name.clone(),
                metric: metric.meaning.standard(),
            });
            samples.points.extend(points.into_iter().map(|point| Point {
                name: place,
                step: point.step.and_then(|step| i32::try_from(step).ok()),
                at: point.at,
                value: point.value,
            }));
        }
        app.store
            .append(Source::SagemakerMetrics, &samples, now)
            .await?;
    }
    Ok(true)
}

/// The cursor after a read, and the time of the next; none after the final read.
fn advance(app: &App, due: MetricsDue, cursor: DateTime<Utc>, now: DateTime<Utc>) -> Progress {
    let next_at = match due.job.ended_at {
        _ if due.job.is_last_read(now) => None,
        Some(end) => Some(app.settings.metrics_slot(end + cloudwatch::FINAL_AFTER)),
        None => Some(app.settings.metrics_slot(now)),
    };
    Progress {
        due,
        cursor,
        next_at,
    }
}

/// The trial's series of a reported name, with the meaning that its workload gives to the name.
fn series_of_trial(due: &MetricsDue, name: &str) -> SeriesName {
    let metric = due.job.metrics.iter().find(|metric| metric.name == name);
    SeriesName {
        subject: Subject::Trial(due.account.trial_id),
        name: name.to_owned(),
        metric: metric.and_then(|metric| metric.meaning.standard()),
    }
}

/// The series of a job as samples of its trial.
fn samples_of(due: &MetricsDue, series: Vec<JobSeries>) -> Samples {
    let mut samples = Samples::default();
    for (place, one) in series.into_iter().enumerate() {
        samples.named.push(series_of_trial(due, &one.name));
        samples
            .points
            .extend(one.points.into_iter().map(|(at, value)| Point {
                name: place,
                step: None,
                at,
                value,
            }));
    }
    samples
}

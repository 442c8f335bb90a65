//! The ingester: due attempts → one batched GetMetricData (at most 500 series) with overlap →
//! normalise → upsert with rollups and cursors in one transaction. What a metric means is the
//! domain's business.

use std::collections::BTreeMap;

use bakeoff_domain::catalog;
use bakeoff_domain::ids::AttemptId;
use bakeoff_domain::measure::metric::{
    HOST_METRICS, MetricDefinition, Source, Subject, normalised,
};
use bakeoff_domain::measure::samples::Point;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::ports::{
    ITERATION_QUERIES_MAX, IterationQuery, MetricQuery, QUERIES_MAX, Series, Window,
};
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use crate::aws::Operation;
use crate::crash;
use crate::store::StoreError;
use crate::store::attempts::METRICS_FINAL_AFTER;
use crate::store::metrics::{MetricsDue, Progress, Requested};
use crate::store::series::{Named, Samples};

/// Attempts taken in one tick.
const DUE_MAX: i64 = 500;
/// Another reader finds them again after this long, should we die.
const HOLD: TimeDelta = TimeDelta::minutes(10);
/// A last read that has failed for so long after the job's end is given up: the figures stay as
/// they are.
const GIVE_UP_AFTER: TimeDelta = TimeDelta::hours(6);
/// Pages of one answer: 500 series of two weeks of minutes fit in 101.
const PAGES_MAX: u32 = 128;
/// Read again before the cursor: points may come late.
const OVERLAP: TimeDelta = TimeDelta::minutes(3);

/// How long CloudWatch has minutes, with a day to spare.
const MINUTES_KEPT: TimeDelta = TimeDelta::days(14);

/// One tick; returns how many attempts were read.
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
    // Each metric that is read is billed: a copy leaves that to its original.
    if !app.fence.may_stop(now) {
        return Ok(0);
    }
    let due = app.store.claim_due_metrics(now, HOLD, DUE_MAX).await?;
    let count = due.len();
    // Last reads have their own, longer windows, and old ones a coarser period: batched apart, so
    // that they do not spoil everybody's.
    let mut groups: BTreeMap<(bool, TimeDelta), Vec<MetricsDue>> = BTreeMap::new();
    for attempt in due {
        let start = window(&attempt, now).map_or(now, |window| window.0);
        groups
            .entry((is_last(&attempt, now), period(start, now)))
            .or_default()
            .push(attempt);
    }
    for ((_, period), group) in groups {
        for batch in batches(group) {
            // One that cannot be written must not keep the others waiting; its hold brings it back.
            if let Err(error) = read(app, batch, period, now).await {
                tracing::warn!(%error, "metrics of some attempts could not be written");
            }
        }
    }
    Ok(count)
}

/// What CloudWatch still has of a moment: minutes for 15 days, five minutes for 63, hours for 455
/// (CloudWatch user guide).
fn period(start: DateTime<Utc>, now: DateTime<Utc>) -> TimeDelta {
    match (now - start).num_days() {
        ..=14 => TimeDelta::minutes(1),
        15..=62 => TimeDelta::minutes(5),
        _ => TimeDelta::hours(1),
    }
}

fn is_last(attempt: &MetricsDue, now: DateTime<Utc>) -> bool {
    attempt
        .settled_end_at
        .is_some_and(|end| end + METRICS_FINAL_AFTER <= now)
}

fn is_hopeless(attempt: &MetricsDue, now: DateTime<Utc>) -> bool {
    attempt
        .settled_end_at
        .is_some_and(|end| end + GIVE_UP_AFTER <= now)
}

fn batches(attempts: Vec<MetricsDue>) -> Vec<Vec<MetricsDue>> {
    let mut batches: Vec<Vec<MetricsDue>> = Vec::new();
    let mut room = 0;
    for attempt in attempts {
        let wanted = queries(&attempt).len();
        if wanted > room || batches.is_empty() {
            batches.push(Vec::new());
            room = QUERIES_MAX;
        }
        room = room.saturating_sub(wanted);
        if let Some(batch) = batches.last_mut() {
            batch.push(attempt);
        }
    }
    batches
}

/// The hosts' series first, then the script's.
fn queries(attempt: &MetricsDue) -> Vec<MetricQuery> {
    let mut queries = Vec::new();
    for host in 1..=attempt.instance_count {
        queries.extend(HOST_METRICS.iter().map(|metric| MetricQuery {
            metric: (*metric).to_owned(),
            dimension: "Host",
            value: format!("{}/algo-{host}", attempt.job_name),
        }));
    }
    queries.extend(attempt.metrics.iter().map(|metric| MetricQuery {
        metric: metric.name.clone(),
        dimension: "TrainingJobName",
        value: attempt.job_name.clone(),
    }));
    queries.truncate(QUERIES_MAX);
    queries
}

/// The window of one attempt; `None` while its job has not started.
fn window(attempt: &MetricsDue, now: DateTime<Utc>) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
    let started = attempt.started_at?;
    if let Some(end) = attempt.settled_end_at.filter(|_| is_last(attempt, now)) {
        // The whole once more, as far as CloudWatch has its minutes: means of more must not take
        // the place of what was read.
        let read = attempt
            .cursor
            .filter(|_| now - started > MINUTES_KEPT)
            .map(|cursor| cursor - OVERLAP);
        return Some((
            minute(read.unwrap_or(started)),
            minute(end) + TimeDelta::minutes(2),
        ));
    }
    let start = attempt.cursor.map_or(started, |cursor| cursor - OVERLAP);
    let window = (minute(start), minute(now));
    (window.0 < window.1).then_some(window)
}

fn minute(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp(at.timestamp().div_euclid(60) * 60, 0).unwrap_or(at)
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
    let windows: Vec<_> = batch.iter().map(|attempt| window(attempt, now)).collect();
    let (ready, waiting): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .zip(windows)
        .partition(|(_, window)| window.is_some());
    let mut progress: Vec<Progress> = waiting
        .into_iter()
        .map(|(attempt, _)| advance(app, attempt, now, now))
        .collect();
    let mut samples: BTreeMap<AttemptId, Samples> = BTreeMap::new();
    let start = ready
        .iter()
        .filter_map(|(_, window)| window.map(|w| w.0))
        .min();
    let end = ready
        .iter()
        .filter_map(|(_, window)| window.map(|w| w.1))
        .max();
    if let Some((start, end)) = start.zip(end) {
        let ready: Vec<MetricsDue> = ready.into_iter().map(|(attempt, _)| attempt).collect();
        match ask(app, &ready, Window { period, start, end }).await? {
            Ok(series) => {
                for (attempt, own) in ready.into_iter().zip(series) {
                    let asked = queries(&attempt);
                    let is_complete = own.iter().all(Series::is_whole);
                    samples.insert(
                        attempt.account.attempt_id,
                        normalise(&attempt, &asked, &own),
                    );
                    if is_complete || is_hopeless(&attempt, now) {
                        progress.push(advance(app, attempt, end, now));
                    } else {
                        // What came is kept; the cursor stays, and the claim's hold brings it back.
                        tracing::info!(
                            job = attempt.job_name,
                            "CloudWatch did not tell all of its metrics; asking again"
                        );
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, attempts = ready.len(), "metrics could not be read");
                // The claim's hold brings them back, but not for ever: money must not stay reserved
                // for a read that is denied.
                let given_up = ready
                    .into_iter()
                    .filter(|attempt| is_hopeless(attempt, now));
                progress.extend(given_up.map(|attempt| advance(app, attempt, now, now)));
            }
        }
    }
    write(app, progress, samples, now).await
}

/// Asks for the series of some attempts: those of each, in the order of its queries. Each page is
/// counted before it is asked for: whatever becomes of the reply, or of us, AWS bills it.
async fn ask(
    app: &App,
    attempts: &[MetricsDue],
    window: Window,
) -> Result<Result<Vec<Vec<Series>>, AwsError>, StoreError> {
    let counts: Vec<usize> = attempts
        .iter()
        .map(|attempt| queries(attempt).len())
        .collect();
    let booked = |times: i64| -> Vec<Requested> {
        let all = attempts.iter().zip(&counts);
        all.map(|(attempt, count)| Requested {
            attempt: attempt.account.attempt_id,
            metrics: i64::try_from(*count).unwrap_or_default() * times,
        })
        .collect()
    };
    let all: Vec<MetricQuery> = attempts.iter().flat_map(queries).collect();
    let mut series = vec![Series::default(); all.len()];
    let mut token = None;
    for _ in 0..PAGES_MAX {
        app.pulse.beat();
        if let Err(error) = app.aws.wait_for(Operation::GetMetricData).await {
            return Ok(Err(error));
        }
        if !app.store.count_requested(&booked(1)).await? {
            app.store.count_requested(&booked(-1)).await?;
            return Ok(Err(AwsError::Unknown(
                "another reader was faster, and has settled some of them".to_owned(),
            )));
        }
        crash::point("before_metrics");
        let page = app.aws.metrics_page(&all, window, token).await;
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
            // Another account's CloudWatch knows nothing of our jobs, and says that this is all.
            // What has points is ours by its name.
            if series.iter().any(|one| one.points.is_empty()) {
                app.aws.doubt_account();
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
        "GetMetricData has more than {PAGES_MAX} pages"
    ))))
}

/// A last read settles money: a transaction of its own, so that no two rows of a budget are ever
/// locked in one.
async fn write(
    app: &App,
    progress: Vec<Progress>,
    mut samples: BTreeMap<AttemptId, Samples>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let (last, running): (Vec<_>, Vec<_>) = progress
        .into_iter()
        .partition(|step| step.next_at.is_none());
    for step in last {
        crash::point("before_last_metrics");
        // The least that is known of it: money does not wait for it.
        if let Err(error) = keep_final(app, &step.due, now).await {
            tracing::warn!(%error, job = step.due.job_name, "the last values of a job could not be written");
        }
        let own = samples
            .remove(&step.due.account.attempt_id)
            .unwrap_or_default();
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

/// The last values that SageMaker keeps of a job's own metrics: the least that is known of it,
/// where nothing else was read. Again changes nothing.
async fn keep_final(app: &App, due: &MetricsDue, now: DateTime<Utc>) -> Result<(), StoreError> {
    if due.final_metrics.is_empty() {
        return Ok(());
    }
    let mut samples = Samples::default();
    for (place, last) in due.final_metrics.iter().enumerate() {
        let metric = due.metrics.iter().find(|metric| metric.name == last.name);
        samples.named.push(Named {
            subject: Subject::Trial(due.account.trial_id),
            name: last.name.clone(),
            metric: metric.and_then(|metric| metric.meaning.standard()),
        });
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

/// SageMaker's own series of jobs that are over, once. False: ask again later; what is denied or
/// unknown to SageMaker is not asked for again, and keeps nothing waiting.
async fn read_iterations(
    app: &App,
    batch: &[MetricsDue],
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let over = batch
        .iter()
        .filter(|attempt| is_last(attempt, now) && !is_hopeless(attempt, now));
    let asked: Vec<(&MetricsDue, &MetricDefinition, IterationQuery)> = over
        .filter_map(|attempt| Some((attempt, attempt.job_arn.as_ref()?)))
        .flat_map(|(attempt, arn)| {
            let query = |metric: &MetricDefinition| IterationQuery {
                metric: metric.name.clone(),
                job_arn: arn.clone(),
            };
            attempt
                .metrics
                .iter()
                .map(move |metric| (attempt, metric, query(metric)))
        })
        .collect();
    for some in asked.chunks(ITERATION_QUERIES_MAX) {
        let queries: Vec<IterationQuery> = some.iter().map(|(_, _, query)| query.clone()).collect();
        let series = match app.aws.read_iterations(&queries).await {
            Ok(series) => series,
            Err(AwsError::Throttled(_) | AwsError::Unknown(_) | AwsError::Expired(_)) => {
                return Ok(false);
            }
            Err(error @ AwsError::Denied(_)) => {
                tracing::warn!(%error, "AWS denies BatchGetMetrics");
                return Ok(true);
            }
            Err(error) => {
                tracing::warn!(%error, "some of SageMaker's own metrics could not be read");
                continue;
            }
        };
        let mut samples = Samples::default();
        for (place, ((attempt, metric, _), points)) in some.iter().zip(series).enumerate() {
            let subject = Subject::Trial(attempt.account.trial_id);
            samples.named.push(Named {
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

/// The cursor after a read, and when the next is due: none after the last.
fn advance(app: &App, due: MetricsDue, cursor: DateTime<Utc>, now: DateTime<Utc>) -> Progress {
    let next_at = match due.settled_end_at {
        _ if is_last(&due, now) => None,
        Some(end) => Some(app.settings.metrics_slot(end + METRICS_FINAL_AFTER)),
        None => Some(app.settings.metrics_slot(now)),
    };
    Progress {
        due,
        cursor,
        next_at,
    }
}

/// Shares of one device, hosts averaged; the script's own metrics as they are.
fn normalise(attempt: &MetricsDue, asked: &[MetricQuery], series: &[Series]) -> Samples {
    let instance = catalog::find(&attempt.instance_type);
    let (vcpus, gpus) = instance.map_or((1, 1), |found| {
        (found.vcpus.unwrap_or(1), found.accelerator_count)
    });
    let mut sums: BTreeMap<&str, BTreeMap<DateTime<Utc>, (f64, u32)>> = BTreeMap::new();
    for (query, points) in asked.iter().zip(series) {
        for (at, value) in &points.points {
            let share = if query.dimension == "Host" {
                normalised(&query.metric, *value, vcpus, gpus)
            } else {
                *value
            };
            let entry = sums
                .entry(&query.metric)
                .or_default()
                .entry(*at)
                .or_default();
            *entry = (entry.0 + share, entry.1 + 1);
        }
    }
    let meaning = |name: &str| {
        attempt
            .metrics
            .iter()
            .find(|metric| metric.name == name)?
            .meaning
            .standard()
    };
    let mut samples = Samples::default();
    for (place, (name, values)) in sums.into_iter().enumerate() {
        let subject = Subject::Trial(attempt.account.trial_id);
        samples.named.push(Named {
            subject,
            name: name.to_owned(),
            metric: meaning(name),
        });
        let point = |(at, (sum, count))| Point {
            name: place,
            step: None,
            at,
            value: sum / f64::from(count),
        };
        samples.points.extend(values.into_iter().map(point));
    }
    samples
}

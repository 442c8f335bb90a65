//! What CloudWatch knows about a job: the script's log lines matched by its metric definitions, and
//! the utilisation of its hosts, as one-minute points. GPU and CPU percentages are sums over
//! devices, as SageMaker publishes them.

use chrono::{DateTime, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use regex::Regex;
use serde_json::{Value, json};

use crate::jobs::job::Job;
use crate::machines::physics::Training;
use crate::world::World;

/// A minute's metrics become visible this long after it ends.
const DELAY_SECONDS: i64 = 60;

/// One requested series.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) metric: String,
    pub(crate) dimension: String,
    pub(crate) value: String,
    pub(crate) period_seconds: i64,
    pub(crate) start: DateTime<Utc>,
    pub(crate) end: DateTime<Utc>,
}

/// Points of a series, oldest first. Counts the request against its job, because CloudWatch bills
/// by metric requested.
pub(crate) fn series(
    world: &mut World,
    request: &Request,
    now: DateTime<Utc>,
) -> Vec<(DateTime<Utc>, f64)> {
    let job_name = job_of(&request.value);
    let Some(job) = world.job(&job_name) else {
        return Vec::new();
    };
    let regex = definition(job, &request.metric);
    let period = TimeDelta::seconds(request.period_seconds.max(60));
    let visible = now - TimeDelta::seconds(DELAY_SECONDS);
    let mut at = floor(request.start.max(job.created_at), period);
    let mut points = Vec::new();
    while at < request.end && at + period <= visible {
        if let Some(value) = bucket(job, request, regex.as_ref(), at, period) {
            points.push((at, value));
        }
        at += period;
    }
    *world.metrics_requested.entry(job_name).or_default() += 1;
    points
}

/// The job that a dimension's value names, either directly or through one of its hosts.
pub(crate) fn job_of(value: &str) -> String {
    let job = value.split_once("/algo-");
    job.map_or(value, |(job, _)| job).to_owned()
}

/// What is published for each metric that the job defines: the number of points, and their sum.
pub(crate) fn published(job: &Job, now: DateTime<Utc>) -> Value {
    let lines = log(job, now - TimeDelta::seconds(DELAY_SECONDS));
    let definitions = job.request["AlgorithmSpecification"]["MetricDefinitions"].as_array();
    let names = definitions
        .into_iter()
        .flatten()
        .filter_map(|definition| definition["Name"].as_str());
    let of = |name: &str| {
        let regex = definition(job, name)?;
        let values: Vec<f64> = lines
            .iter()
            .filter_map(|(_, line)| matched(&regex, line))
            .collect();
        Some((
            name.to_owned(),
            json!({ "points": values.len(), "sum": values.iter().sum::<f64>() }),
        ))
    };
    Value::Object(names.filter_map(of).collect())
}

fn floor(at: DateTime<Utc>, period: TimeDelta) -> DateTime<Utc> {
    let seconds = at.timestamp().div_euclid(period.num_seconds()) * period.num_seconds();
    DateTime::from_timestamp(seconds, 0).unwrap_or(at)
}

/// The average over the minutes of a period.
fn bucket(
    job: &Job,
    request: &Request,
    regex: Option<&Regex>,
    at: DateTime<Utc>,
    period: TimeDelta,
) -> Option<f64> {
    let minutes = period.num_minutes();
    let value_at = |minute: i64| {
        let moment = at + TimeDelta::minutes(minute);
        match request.dimension.as_str() {
            "Host" => host(job, &request.metric, moment),
            _ => matched(regex?, &log_line(job, moment)?),
        }
    };
    let values: Vec<f64> = (0..minutes).filter_map(value_at).collect();
    let count = u32::try_from(values.len())
        .ok()
        .filter(|count| *count > 0)?;
    Some(values.iter().sum::<f64>() / f64::from(count))
}

fn definition(job: &Job, metric: &str) -> Option<Regex> {
    let definitions = job.request["AlgorithmSpecification"]["MetricDefinitions"].as_array()?;
    let found = definitions
        .iter()
        .find(|definition| definition["Name"] == metric)?;
    Regex::new(found["Regex"].as_str()?).ok()
}

/// A minute of training.
struct Minute {
    /// Work done by its end, in seconds at full speed.
    work: f64,
    /// Share of full speed while the script was doing steps; `None` if it did none.
    share: Option<f64>,
}

/// The minute at a moment, if a training phase covers all of it.
fn in_training(job: &Job, at: DateTime<Utc>) -> Option<Minute> {
    let end = at + TimeDelta::minutes(1);
    let phase = job
        .timeline
        .phases
        .iter()
        .find(|phase| phase.status == "Training" && phase.start <= at && end <= phase.end)?;
    let elapsed = (end - phase.start).as_seconds_f64();
    Some(Minute {
        work: phase.work_before + job.script.curve.work_in(elapsed),
        share: job.script.curve.share_between(elapsed - 60.0, elapsed),
    })
}

fn noise(job: &Job, at: DateTime<Utc>, salt: u64) -> f64 {
    let minute = at.timestamp().unsigned_abs() / 60;
    StdRng::seed_from_u64(job.seed ^ minute.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt)
        .random_range(-1.0..1.0)
}

/// Tokens since the run's first step, those before its checkpoint included.
fn tokens_after(training: &Training, work: f64) -> f64 {
    training.first_step * training.tokens_per_step + work * training.tokens_per_second
}

/// The step that a job is at, at some moment of a training phase.
pub(crate) fn step_at(job: &Job, at: DateTime<Utc>) -> Option<f64> {
    let training = job.script.training.as_ref()?;
    let mut phases = job.timeline.phases.iter();
    let phase =
        phases.find(|phase| phase.status == "Training" && phase.start <= at && at <= phase.end)?;
    let elapsed = (at - phase.start).as_seconds_f64();
    let work = phase.work_before + job.script.curve.work_in(elapsed);
    Some((tokens_after(training, work) / training.tokens_per_step).floor())
}

/// The line that the training script prints in a minute in which it does steps.
pub(crate) fn log_line(job: &Job, at: DateTime<Utc>) -> Option<String> {
    let training = job.script.training.as_ref()?;
    let minute = in_training(job, at)?;
    let speed = training.tokens_per_second * minute.share? * (1.0 + 0.008 * noise(job, at, 1));
    let tokens = tokens_after(training, minute.work);
    let step = (tokens / training.tokens_per_step).floor();
    let loss = training.loss(tokens) + 0.01 * noise(job, at, 2);
    let samples = speed / 2048.0;
    // A run that has diverged goes on without a loss.
    let diverges_at = hyperparameter(job, "diverges_at_step");
    let loss = if diverges_at.is_some_and(|at| step >= at) {
        f64::NAN
    } else {
        loss
    };
    Some(format!(
        "step={step} loss={loss:.4} eval_loss={:.4} tokens_per_second={speed:.1} samples_per_second={samples:.2}",
        loss + 0.03
    ))
}

/// A number that the job's hyperparameters set for the script.
fn hyperparameter(job: &Job, name: &str) -> Option<f64> {
    let text = job.request["HyperParameters"][name].as_str()?;
    text.trim_matches('"').parse().ok()
}

/// Minutes of training so far, in time order, each with the line that the script printed.
fn log(job: &Job, now: DateTime<Utc>) -> Vec<(DateTime<Utc>, String)> {
    let minute = TimeDelta::minutes(1);
    let mut lines = Vec::new();
    for phase in job
        .timeline
        .phases
        .iter()
        .filter(|phase| phase.status == "Training")
    {
        let mut at = floor(phase.start, minute);
        while at + minute <= phase.end.min(now) {
            lines.extend(log_line(job, at).map(|line| (at, line)));
            at += minute;
        }
    }
    lines
}

fn matched(regex: &Regex, line: &str) -> Option<f64> {
    regex.captures(line)?.get(1)?.as_str().parse().ok()
}

/// FinalMetricDataList: the last value of each defined metric.
pub(crate) fn last_values(job: &Job, now: DateTime<Utc>) -> Vec<(String, DateTime<Utc>, f64)> {
    let lines = log(job, now);
    let definitions = job.request["AlgorithmSpecification"]["MetricDefinitions"].as_array();
    let names = definitions
        .into_iter()
        .flatten()
        .filter_map(|definition| definition["Name"].as_str());
    let last = |name: &str| {
        let regex = definition(job, name)?;
        let (at, value) = lines
            .iter()
            .rev()
            .find_map(|(at, line)| Some((*at, matched(&regex, line)?)))?;
        Some((name.to_owned(), at, value))
    };
    names.filter_map(last).collect()
}

/// One query of BatchGetMetrics: a job's metric by iteration, if the job told SageMaker to keep it.
pub(crate) fn iterations(world: &World, query: &Value, now: DateTime<Utc>) -> Value {
    let arn = query["ResourceArn"].as_str().unwrap_or("");
    let name = arn.rsplit_once('/').map_or(arn, |(_, name)| name);
    let Some(job) = world.job(name).filter(|job| job.arn == arn) else {
        return json!({ "Status": "ValidationError", "Message": "The resource does not exist" });
    };
    let is_kept = job.request["AlgorithmSpecification"]["EnableSageMakerMetricsTimeSeries"] == true;
    let metric = query["MetricName"].as_str().unwrap_or("");
    let Some(regex) = definition(job, metric).filter(|_| is_kept) else {
        return json!({ "Status": "Complete", "XAxisValues": [], "MetricValues": [] });
    };
    let is_by_step = query["XAxisType"] == "IterationNumber";
    let (axis, values) = axis_and_values(job, &regex, is_by_step, now);
    json!({ "Status": "Complete", "XAxisValues": axis, "MetricValues": values })
}

/// The values so far that have a step, each with its place on the x-axis: the step, or the time.
fn axis_and_values(
    job: &Job,
    regex: &Regex,
    is_by_step: bool,
    now: DateTime<Utc>,
) -> (Vec<Value>, Vec<f64>) {
    let steps = Regex::new("step=([0-9]+)").ok();
    let (mut axis, mut values) = (Vec::new(), Vec::new());
    for (at, line) in log(job, now) {
        let step = steps.as_ref().and_then(|steps| matched(steps, &line));
        if let (Some(value), Some(step)) = (matched(regex, &line), step) {
            axis.push(if is_by_step {
                json!(step.to_string().parse::<i64>().ok())
            } else {
                json!(at.timestamp())
            });
            values.push(value);
        }
    }
    (axis, values)
}

/// Utilisation of one host, summed over its devices where SageMaker does so.
fn host(job: &Job, metric: &str, at: DateTime<Utc>) -> Option<f64> {
    let is_running = job.timeline.phases.iter().any(|phase| {
        matches!(phase.status, "Downloading" | "Training" | "Uploading")
            && phase.start <= at
            && at < phase.end
    });
    if !is_running {
        return None;
    }
    let is_idle = hyperparameter(job, "idles_after_step")
        .zip(step_at(job, at))
        .is_some_and(|(after, step)| step >= after);
    let busy = if in_training(job, at).is_some() && !is_idle {
        1.0
    } else {
        0.03
    };
    let wobble = 1.0 + 0.02 * noise(job, at, 3);
    let gpus = f64::from(job.instance.accelerator_count);
    let cores = f64::from(job.instance.vcpus.unwrap_or(8));
    let parameters = job
        .script
        .training
        .as_ref()
        .map_or(1e9, |training| training.parameters);
    let memory = (parameters / 1e8).clamp(20.0, 90.0);
    Some(match metric {
        "GPUUtilization" if gpus > 0.0 => 94.0 * gpus * busy * wobble,
        "GPUMemoryUtilization" if gpus > 0.0 => memory * gpus * busy * wobble,
        "CPUUtilization" => 12.0 * cores * wobble,
        "MemoryUtilization" => 31.0 * wobble,
        "DiskUtilization" => 9.0,
        _ => return None,
    })
}

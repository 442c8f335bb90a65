//! Rules of the debugger and profiler: what SageMaker reports of them, and the reports that the
//! profiler writes to S3. They are evaluated some minutes longer than the job runs.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::jobs::job::Job;
use crate::machines::timeline::Failure;
use crate::output::metrics;

/// How long the evaluation takes after the job's end.
const TAKES: TimeDelta = TimeDelta::minutes(5);
/// Minutes until the first step that the profiler allows.
const INITIALIZATION_MINUTES: i64 = 20;
const STATUSES: [(&str, &str); 2] = [
    ("DebugRuleConfigurations", "DebugRuleEvaluationStatuses"),
    (
        "ProfilerRuleConfigurations",
        "ProfilerRuleEvaluationStatuses",
    ),
];
/// The profiler's rules that have a report.
const REPORTS: [&str; 9] = [
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "StepOutlier",
];

/// When the rules of a job are evaluated; `None` while it runs, and of one that never had instances.
fn evaluated_at(job: &Job) -> Option<DateTime<Utc>> {
    job.timeline.billing_start()?;
    Some(job.timeline.end()? + TAKES)
}

/// How often a rule of the profiler triggers.
fn triggered(job: &Job, rule: &str) -> u64 {
    let training = job
        .timeline
        .phases
        .iter()
        .find(|phase| phase.status == "Training");
    let first = training.map(|phase| phase.start);
    let waited = first.zip(job.timeline.billing_start());
    let is_late =
        waited.is_some_and(|(first, start)| (first - start).num_minutes() > INITIALIZATION_MINUTES);
    u64::from(rule == "MaxInitializationTime" && is_late)
}

/// Whether a rule finds what it looks for.
fn has_issues(job: &Job, rule: &str) -> bool {
    let script = job.failure.and_then(Failure::of_script);
    let diverged = script.is_some_and(|script| script.name == "loss-not-a-number");
    match rule {
        "ExplodingTensor" | "LossNotDecreasing" => diverged,
        "ProfilerReport" => REPORTS.iter().any(|report| triggered(job, report) > 0),
        own => triggered(job, own) > 0,
    }
}

/// The name of the built-in rule that a configuration invokes.
fn invoked(configuration: &Value) -> &str {
    configuration["RuleParameters"]["rule_to_invoke"]
        .as_str()
        .unwrap_or_default()
}

/// The fields of DescribeTrainingJob on rules; none where none is configured.
pub(crate) fn statuses(job: &Job, now: DateTime<Utc>) -> Vec<(&'static str, Value)> {
    let configured = STATUSES.into_iter().filter_map(|(asked, told)| {
        let rules = job.request[asked].as_array()?;
        let statuses = rules.iter().map(|rule| status(job, rule, now));
        Some((told, statuses.collect()))
    });
    configured.collect()
}

fn status(job: &Job, configuration: &Value, now: DateTime<Utc>) -> Value {
    let name = &configuration["RuleConfigurationName"];
    let rule = invoked(configuration);
    let done = evaluated_at(job).filter(|at| *at <= now);
    let mut status = json!({"RuleConfigurationName": name, "RuleEvaluationStatus": "InProgress"});
    if let Some(at) = done {
        status["LastModifiedTime"] = json!(at.timestamp());
        status["RuleEvaluationStatus"] = json!("NoIssuesFound");
        if has_issues(job, rule) {
            let end = job.timeline.end().unwrap_or(at);
            let step = metrics::step_at(job, end - TimeDelta::minutes(1)).unwrap_or(0.0);
            status["RuleEvaluationStatus"] = json!("IssuesFound");
            status["StatusDetails"] = json!(format!(
                "RuleEvaluationConditionMet: Evaluation of the rule {rule} at step {step:.0} resulted in the condition being met\n"
            ));
        }
    }
    status
}

/// The files that the profiler has written by now, with their contents, and when.
pub(crate) fn reports(job: &Job, now: DateTime<Utc>) -> Option<Reports> {
    let at = evaluated_at(job).filter(|at| *at <= now)?;
    let rules = job.request["ProfilerRuleConfigurations"].as_array()?;
    let rule = rules
        .iter()
        .find(|rule| invoked(rule) == "ProfilerReport")?;
    let output = job.request["ProfilerConfig"]["S3OutputPath"].as_str()?;
    let (output, name) = (output.trim_end_matches('/'), &job.name);
    let configured = rule["RuleConfigurationName"].as_str()?;
    let folder =
        format!("{output}/{name}/rule-output/{configured}/profiler-output/profiler-reports");
    let minutes = job.timeline.training_seconds(now) / 60;
    let files = REPORTS.map(|rule| {
        let times = triggered(job, rule);
        let report = json!({"RuleTriggered": times, "Violations": times, "Datapoints": minutes,
            "Details": {}, "RuleParameters": ""});
        (format!("{folder}/{rule}.json"), report.to_string())
    });
    Some(Reports {
        at,
        files: files.into(),
    })
}

/// Files of the profiler.
#[derive(Debug)]
pub(crate) struct Reports {
    pub(crate) at: DateTime<Utc>,
    /// Address and content.
    pub(crate) files: Vec<(String, String)>,
}

//! Reports of SageMaker's profiler: where they lie in S3, which rules triggered, and what to do about
//! each.
//!
//! Source: SageMaker developer guide, "SageMaker Profiler interactive report"; the keys are
//! `<output>/<job>/rule-output/<rule configuration>/profiler-output/profiler-reports/<rule>.json`.

use serde::Deserialize;

use crate::sagemaker::observed::RuleEvaluation;

/// A rule that wrote a report and triggered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Triggered {
    /// The profiler's name of the rule, such as `LowGPUUtilization`.
    pub rule: String,
    /// How often.
    pub times: u64,
    /// Points that it looked at.
    pub datapoints: Option<u64>,
    pub finding: String,
    pub advice: String,
}

/// A rule of the report, and what it means.
struct Rule {
    name: &'static str,
    finding: &'static str,
    advice: &'static str,
}

/// The rules that `ProfilerReport` runs, with the thresholds that the SDK sends
/// (smdebug_rulesconfig 1.0.1); but OverallSystemUsage, which only gathers figures.
const RULES: [Rule; 9] = [
    Rule {
        name: "LowGPUUtilization",
        finding: "Accelerators were less than 70 % busy (95th percentile), or their use went up and down",
        advice: "Raise the micro-batch, add data-loader workers, and look for waits between steps",
    },
    Rule {
        name: "IOBottleneck",
        finding: "Accelerators waited while the host read or wrote",
        advice: "Use FastFile mode or fewer, larger files, and read ahead",
    },
    Rule {
        name: "CPUBottleneck",
        finding: "Accelerators waited while the processors were more than 90 % busy",
        advice: "Prepare the data beforehand, decode less per sample, or use a type with more vCPUs per accelerator",
    },
    Rule {
        name: "Dataloader",
        finding: "Data-loader workers were too few or too many for the processors",
        advice: "Use about as many workers per accelerator as it has vCPUs",
    },
    Rule {
        name: "BatchSize",
        finding: "Accelerators, their memory and the processors were all less than 70 % used",
        advice: "Raise the micro-batch, or use a smaller type",
    },
    Rule {
        name: "GPUMemoryIncrease",
        finding: "Accelerator memory grew from step to step",
        advice: "Keep no tensors that carry gradients (use loss.item() for sums and logs)",
    },
    Rule {
        name: "LoadBalancing",
        finding: "Some accelerators did more than others",
        advice: "Give every rank the same number of tokens, and check that all accelerators are used",
    },
    Rule {
        name: "MaxInitializationTime",
        finding: "It took more than 20 minutes until the first step",
        advice: "Fetch less before the first step: FastFile mode, weights in S3 and not from the internet, a smaller image",
    },
    Rule {
        name: "StepOutlier",
        finding: "Some steps took far longer than the rest (more than 3 standard deviations)",
        advice: "Look at what happens in them: saving, evaluation, garbage collection, a slow host",
    },
];

/// Names of the rules that have a report.
pub fn report_names() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.name)
}

/// The folder of the reports that a rule of a job wrote; `None` if it writes none. The SDK calls the
/// rule `ProfilerReport`, followed by a number.
pub fn reports_uri(output_s3_uri: &str, job_name: &str, rule: &RuleEvaluation) -> Option<String> {
    let is_report = rule.name.starts_with("ProfilerReport");
    let output = output_s3_uri.trim_end_matches('/');
    let name = &rule.name;
    is_report
        .then(|| format!("{output}/{job_name}/rule-output/{name}/profiler-output/profiler-reports"))
}

/// The part of a report that counts.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    rule_triggered: u64,
    datapoints: Option<u64>,
}

/// What a rule's report says; `None` if it did not trigger, or is no report.
pub fn triggered(name: &str, report: &[u8]) -> Option<Triggered> {
    let rule = RULES.iter().find(|rule| rule.name == name)?;
    let report: Report = serde_json::from_slice(report).ok()?;
    (report.rule_triggered > 0).then(|| Triggered {
        rule: rule.name.to_owned(),
        times: report.rule_triggered,
        datapoints: report.datapoints,
        finding: rule.finding.to_owned(),
        advice: rule.advice.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_report_that_triggered_says_anything() {
        let report = br#"{"RuleTriggered": 12, "Violations": 12, "Datapoints": 480, "Details": {"algo-1": {}}, "RuleParameters": "x"}"#;
        let found = triggered("IOBottleneck", report).unwrap();
        assert_eq!((found.times, found.datapoints), (12, Some(480)));
        assert_eq!(triggered("Unknown", report), None);
        assert_eq!(triggered("BatchSize", br#"{"RuleTriggered": 0}"#), None);
        assert_eq!(triggered("BatchSize", br#"{"RuleTriggered": NaN}"#), None);
        assert_eq!(triggered("BatchSize", b"<html>"), None);
    }

    #[test]
    fn only_the_rule_that_reports_has_a_folder() {
        let rule = |name: &str| RuleEvaluation {
            name: name.to_owned(),
            status: "IssuesFound".to_owned(),
            details: String::new(),
            modified_at: None,
        };
        let folder = reports_uri("s3://b/out/", "job-1", &rule("ProfilerReport-1790000000"));
        assert_eq!(
            folder.as_deref(),
            Some(
                "s3://b/out/job-1/rule-output/ProfilerReport-1790000000/profiler-output/profiler-reports"
            )
        );
        assert_eq!(
            reports_uri("s3://b/out", "job-1", &rule("VanishingGradient")),
            None
        );
    }
}

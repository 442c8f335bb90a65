//! Metric definitions: what SageMaker takes, whether a speed follows, and what a pattern would make of the
//! lines that frameworks are known to print.

use std::collections::BTreeMap;

use bakeoff_domain::finding::Finding;
use bakeoff_domain::measure::metric::MetricDefinition;
use bakeoff_domain::spec::WorkloadSpec;
use bakeoff_domain::spec::metric_definitions::{self, OtherMeaning};
use regex::Regex;

use crate::lint::patterns::compiled;
use crate::rules::found;

pub(super) fn check(workload: &WorkloadSpec, findings: &mut Vec<Finding>) {
    if workload.metrics.len() > 40 {
        findings.push(
            found("metric-count", "/workload/metrics")
                .says(format!("{} metric definitions", workload.metrics.len()))
                .fix("SageMaker allows at most 40"),
        );
        return;
    }
    let set = metric_definitions::set_of(&workload.metrics);
    if let Some(set) = set {
        let says = set.says.as_deref().unwrap_or_default();
        findings.push(
            found("metrics-of-framework", "/workload/metrics").says(format!(
                "metrics are read as {} prints them. {says}",
                set.label
            )),
        );
    }
    let mut judged = BTreeMap::new();
    for (index, metric) in workload.metrics.iter().enumerate() {
        if metric.name.is_empty() || metric.name.len() > 255 {
            findings.push(
                found("metric-name", format!("/workload/metrics/{index}/name"))
                    .says("the name is empty or longer than 255 characters")
                    .fix("use the name on your dashboards, such as train:loss"),
            );
        }
        let at = format!("/workload/metrics/{index}/regex");
        let pattern = judged
            .entry(metric.regex.as_str())
            .or_insert_with_key(|regex| compiled(regex));
        match pattern {
            None => findings.push(
                found("metric-regex", at)
                    .says(format!(
                        "`{}` is not a regular expression with a capture group around the number",
                        metric.regex
                    ))
                    .fix(r"use a pattern such as tokens_per_second=([0-9.]+)"),
            ),
            // The table's own patterns are tried on its lines by a test.
            Some(_) if set.is_some() => {}
            Some(pattern) => on_known_lines(metric, pattern, index, findings),
        }
    }
    if !workload
        .metrics
        .iter()
        .any(|metric| metric.meaning.is_speed())
    {
        findings.push(
            found("no-speed-metric", "/workload/metrics")
                .says("no metric tells how fast the training is: nothing can be ranked")
                .fix(format!(
                    "name what prints the log, \"metrics\": \"hf-trainer\" (or {}), or add a definition with \"meaning\": \"tokens_per_second\", \
                     \"samples_per_second\", \"steps_per_second\" or \"step\"",
                    metric_definitions::names()
                )),
        );
    }
}

/// Tries a pattern on the lines that frameworks are known to print.
fn on_known_lines(
    metric: &MetricDefinition,
    pattern: &Regex,
    index: usize,
    findings: &mut Vec<Finding>,
) {
    let at = format!("/workload/metrics/{index}");
    if let Some(misread) = metric_definitions::misread(pattern) {
        let fix = misread.instead.map_or_else(
            || "SageMaker takes no number with commas: read steps instead, or print the number plainly".to_owned(),
            |instead| format!("use {instead}"),
        );
        findings.push(
            found("metric-pattern-misreads", format!("{at}/regex"))
                .says(format!(
                    "in {}'s `{}` it would read {} for {}",
                    misread.label, misread.line, misread.read, misread.stands
                ))
                .fix(fix),
        );
    }
    if let Some(other) = metric_definitions::other_meaning(pattern, metric.meaning) {
        findings.push(means_something_else(metric, other, &at));
    }
}

/// A pattern that reads what means something else, alone or beside what is claimed.
fn means_something_else(metric: &MetricDefinition, other: OtherMeaning, at: &str) -> Finding {
    let word = |meaning| {
        serde_json::to_value(meaning)
            .unwrap_or_default()
            .to_string()
    };
    let (label, definition) = (other.label, other.definition);
    let (read, claimed) = (word(definition.meaning), word(metric.meaning));
    let Some(own) = other.as_claimed else {
        return found("metric-meaning", format!("{at}/meaning"))
            .says(format!(
                "it reads {label}'s {}, which is {read}; {claimed} is claimed",
                definition.name
            ))
            .fix(format!("set \"meaning\": {read}"));
    };
    found("metric-meaning", format!("{at}/regex"))
        .says(format!(
            "in {label}'s line it reads {} beside {}: the values of two metrics would be taken for one's",
            definition.name, own.name
        ))
        .fix(format!(
            "for {label} use {}; in lines of your own begin with what stands before the name, (?:^|[\\s,]){}",
            own.regex, metric.regex
        ))
}

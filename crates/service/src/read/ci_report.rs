//! A CI run's verdict as a report: Markdown for a comment or a job's summary, JUnit XML for CI's list of tests.

use std::fmt::Write;

use bakeoff_domain::ci::gate::Verdict;
use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};

use bakeoff_api::ci_runs::{CiChange, CiLimitView, CiRunView};

/// Digits of a commit in a heading.
const SHORT: usize = 12;

fn mark(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        None => "⏳ pending",
        Some(Verdict::Passed) => "✅ passed",
        Some(Verdict::Regressed) => "❌ regressed",
        Some(Verdict::Inconclusive) => "⚪ inconclusive",
        Some(Verdict::Error) => "⚠️ error",
    }
}

/// Text that Markdown leaves as it is, in a table too.
pub fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '!' | '@' => {
                safe.push('\\');
                safe.push(character);
            }
            _ if character.is_control() => safe.push(' '),
            _ => safe.push(character),
        }
    }
    safe
}

fn changed(change: Option<CiChange>) -> String {
    change.map_or_else(
        || "–".to_owned(),
        |change| {
            format!(
                "{:+.1} % [{:+.1}, {:+.1}]",
                change.percent, change.low_percent, change.high_percent
            )
        },
    )
}

fn row(limit: &CiLimitView) -> String {
    let shown = |figure: Option<f64>| {
        figure.map_or_else(|| "–".to_owned(), |figure| limit.measure.shown(figure))
    };
    let trials = limit.baseline_trials.map_or_else(
        || format!("{} / a number", limit.trials),
        |earlier| format!("{} / {earlier}", limit.trials),
    );
    format!(
        "| {} | {} | {} | {} | {} | {} % | {trials} | {} |",
        mark(Some(limit.verdict)),
        plain(&limit.candidate),
        shown(limit.measured),
        shown(limit.baseline),
        changed(limit.change),
        limit.worse_by_percent,
        changed(limit.release),
    )
}

/// A heading, a table of the figures, and how to read it.
pub fn markdown(run: &CiRunView) -> String {
    let commit = run.commit.get(..SHORT).unwrap_or(&run.commit);
    let mut text = String::new();
    let template = plain(&run.template_name);
    let _ = writeln!(text, "### {} — {template} at {commit}\n", mark(run.verdict));
    let _ = writeln!(text, "{}\n", plain(&run.summary));
    if !run.limits.is_empty() {
        text.push_str("| verdict | candidate | measured | baseline | worse by | margin | trials | vs release |\n");
        text.push_str("|---|---|---|---|---|---|---|---|\n");
        for limit in &run.limits {
            text.push_str(&row(limit));
            text.push('\n');
        }
        text.push_str(
            "\nWorse by: positive is worse; the bounds are one-sided, and in 4 % of equal commits a lower one is above 0. \
             Dollars are at one price. Trials: of the commit / of the baseline.\n",
        );
    }
    for one in &run.unmeasured {
        let _ = writeln!(
            text,
            "\n- {} was not measured: {}",
            plain(&one.candidate),
            plain(&one.why)
        );
    }
    let _ = writeln!(text, "\nRun {}", run.id);
    text
}

fn case(name: String, verdict: Verdict, sentence: &str) -> TestCase {
    let status = match verdict {
        Verdict::Passed => TestCaseStatus::success(),
        Verdict::Inconclusive => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(sentence);
            status
        }
        Verdict::Regressed | Verdict::Error => {
            let kind = if verdict == Verdict::Error {
                NonSuccessKind::Error
            } else {
                NonSuccessKind::Failure
            };
            let mut status = TestCaseStatus::non_success(kind);
            status.set_message(sentence).set_type(verdict.as_str());
            status
        }
    };
    let mut case = TestCase::new(name, status);
    case.set_classname("bakeoff.gate");
    case
}

/// One test case for each figure of each candidate; inconclusive ones are skipped.
pub fn junit(run: &CiRunView) -> Result<String, SerializeError> {
    let mut suite = TestSuite::new(run.template_name.clone());
    for limit in &run.limits {
        let name = format!("{} {}", limit.candidate, limit.measure.as_str());
        suite.add_test_case(case(name, limit.verdict, &limit.sentence));
    }
    for one in &run.unmeasured {
        if !one.has_failed {
            suite.add_test_case(case(one.candidate.clone(), Verdict::Inconclusive, &one.why));
            continue;
        }
        suite.add_test_case(case(one.candidate.clone(), Verdict::Error, &one.why));
    }
    if suite.test_cases.is_empty() {
        let verdict = run.verdict.unwrap_or(Verdict::Inconclusive);
        suite.add_test_case(case(run.commit.clone(), verdict, &run.summary));
    }
    suite.set_timestamp(run.created_at.fixed_offset());
    let mut report = Report::new("bakeoff gate");
    report.add_test_suite(suite);
    report.to_string()
}

//! Prints an experiment on the command line: the plan, the table, and the recommendation with its
//! reasons.

use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::measure::calibration::Figure;
use bakeoff_domain::ranking::recommendation::Conclusion;
use bakeoff_domain::spec::{CpuOffload, PurchaseOption};
use bakeoff_planner::predict::fit::Verdict;
use bakeoff_planner::predict::forecast::Interval;
use bakeoff_planner::preview::{CandidatePreview, Preview};
use comfy_table::{Cell, Color, Table};

use serde::Serialize;

use crate::cli::tables::{self, plain, right, table};
use bakeoff_api::calibration::Calibration;
use bakeoff_api::comparison::{Comparison, ComparisonRow};
use bakeoff_api::decisions::RankedView;
use bakeoff_api::decisions::RecommendationView;
use bakeoff_api::experiments::CreatedExperiment;
use bakeoff_api::findings::FindingView;
use bakeoff_api::full_runs::FullRunPreview;

fn purchase(option: PurchaseOption) -> &'static str {
    match option {
        PurchaseOption::OnDemand => "on demand",
        PurchaseOption::Spot => "spot",
    }
}

/// The final tables of an experiment.
#[derive(Debug, Serialize)]
pub(super) struct FinalTables {
    pub(super) comparison: Comparison,
    pub(super) recommendation: RecommendationView,
}

/// Prints what was started, and the linter's findings.
pub(super) fn created(experiment: &CreatedExperiment) {
    println!(
        "{} ({}): {} trials, worst case {} for one attempt of each",
        experiment.name,
        experiment.id,
        experiment.trials.len(),
        experiment.worst_case_usd
    );
    findings(&experiment.findings);
    println!();
}

/// `2 errors, 1 warning`.
pub(super) fn counted(findings: &[Finding]) -> String {
    let kinds = [
        (Severity::Error, "error", "errors"),
        (Severity::Refused, "refusal", "refusals"),
        (Severity::Warning, "warning", "warnings"),
        (Severity::Info, "note", "notes"),
    ];
    let count = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let words = kinds
        .into_iter()
        .filter_map(|(severity, one, many)| match count(severity) {
            0 => None,
            1 => Some(format!("1 {one}")),
            number => Some(format!("{number} {many}")),
        });
    words.collect::<Vec<String>>().join(", ")
}

/// Converts local findings to the form the API shows.
pub(super) fn shown(findings: &[Finding]) -> Vec<FindingView> {
    findings.iter().cloned().map(Into::into).collect()
}

/// Prints findings, worst first.
pub(super) fn findings(findings: &[FindingView]) {
    let mut sorted: Vec<&FindingView> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for finding in sorted {
        let mark = match finding.severity {
            Severity::Error | Severity::Refused => "✘",
            Severity::Warning => "!",
            Severity::Info => "·",
        };
        let place = if finding.pointer.is_empty() {
            "the document"
        } else {
            &finding.pointer
        };
        println!("  {mark} {place}  [{}]", finding.rule);
        println!("      {}", finding.message);
        let machine = if finding.patch.is_empty() {
            ""
        } else {
            " (`bakeoff lint --fix` applies it)"
        };
        println!("      to fix it: {}{machine}", finding.fix);
        println!("      source: {}", finding.source);
    }
}

/// Prints what an experiment would do and cost.
pub(super) fn preview(preview: &Preview) {
    let mark = if preview.would_start { "✔" } else { "✘" };
    println!(
        "{mark} {} in {}: prediction only, nothing started\n",
        preview.name, preview.region
    );
    let mut rows = table(&[
        "candidate",
        "instance",
        "purchase",
        "fits",
        "GiB per GPU",
        "tokens/s (90 %)",
        "full run, h",
        "full run, $",
        "max $ per trial",
        "$/h",
    ]);
    for candidate in &preview.candidates {
        rows.add_row(candidate_row(candidate));
    }
    tables::print(rows);
    println!(
        "one attempt of each trial reserves at most {} of the {} budget",
        preview.worst_case_usd, preview.budget_usd
    );
    starts(preview);
    advice(preview);
    if !preview.findings.is_empty() {
        println!("\n{}", counted(&preview.findings));
        findings(&shown(&preview.findings));
    }
    let basis: std::collections::BTreeSet<&String> = preview
        .candidates
        .iter()
        .filter_map(|one| one.plan.forecast.as_ref())
        .flat_map(|one| &one.basis)
        .collect();
    println!("\nbased on:");
    for line in basis {
        println!("  {line}");
    }
    println!("  shipped prices; for their sources: bakeoff plan --json, GET /v1/prices\n");
}

/// What does not start at once, and how long candidates are expected to wait for their first instance.
fn starts(preview: &Preview) {
    for candidate in &preview.candidates {
        let plan = &candidate.plan;
        let (mark, why) = match (&plan.skipped, &candidate.cannot_win, &plan.held) {
            (Some(skipped), _, _) => ("✘", skipped.clone()),
            (None, Some(reason), _) => ("✘", format!("cannot win: {reason}")),
            (None, None, Some(held)) => ("·", held.clone()),
            (None, None, None) => continue,
        };
        println!(
            "  {mark} {} {}: {why}",
            plan.candidate,
            purchase(plan.purchase_option)
        );
    }
    let started = preview.candidates.iter();
    let started = started.filter(|one| one.plan.skipped.is_none() && one.cannot_win.is_none());
    for plan in started.map(|candidate| &candidate.plan) {
        let name = format!("{} {}", plan.candidate, purchase(plan.purchase_option));
        if let Some(wait) = plan.expected_wait.filter(|wait| wait.is_long()) {
            println!(
                "  · {name}: waits about {:.1} h for instances (median of {} earlier starts); counted in the full run's hours, not its dollars",
                wait.hours, wait.starts
            );
        }
        if let Some(factor) = plan.intervals_divided_by {
            println!(
                "  · {name}: evaluates and saves {factor:.0} × as often as the full run (\"recurring\")"
            );
        }
    }
}

fn candidate_row(candidate: &CandidatePreview) -> Vec<Cell> {
    let plan = &candidate.plan;
    let count = if plan.instance_count > 1 {
        format!("{} × ", plan.instance_count)
    } else {
        String::new()
    };
    let verdict = plan
        .fit
        .as_ref()
        .map_or(("unknown", Color::Reset), |fit| match fit.verdict {
            Verdict::Fits => ("fits", Color::Green),
            Verdict::Uncertain => ("uncertain", Color::Yellow),
            Verdict::DoesNotFit => ("does not fit", Color::Red),
            Verdict::Unknown => ("unknown", Color::Reset),
        });
    let memory = plan.fit.as_ref().map_or_else(unknown, |fit| {
        let capacity = fit
            .accelerator_capacity_gib
            .map_or_else(unknown, |gib| format!("{gib:.0}"));
        format!("{:.0} of {capacity}", fit.accelerator_gib)
    });
    let forecast = plan.forecast.as_ref();
    let speed = forecast.map_or_else(unknown, |one| {
        let Interval {
            low,
            expected,
            high,
        } = one.tokens_per_second;
        format!("{expected:.0} ({low:.0}–{high:.0})")
    });
    let hours = forecast.map_or_else(unknown, |one| {
        let Interval {
            low,
            expected,
            high,
        } = one.full_run_hours;
        format!("{expected:.1} ({low:.1}–{high:.1})")
    });
    let dollars = forecast
        .and_then(|one| one.full_run_usd)
        .map_or_else(unknown, |usd| match usd.expected {
            Some(expected) => format!("{:.0} ({:.0}–{:.0})", expected.0, usd.low.0, usd.high.0),
            None => format!("{:.0}–{:.0}", usd.low.0, usd.high.0),
        });
    let worst = plan
        .worst_case
        .map_or_else(unknown, |worst| format!("{:.2}", worst.total_usd.0));
    let price = plan.price.as_ref().map_or_else(unknown, |price| {
        price.usd_per_hour.0.round_dp(4).normalize().to_string()
    });
    vec![
        Cell::new(if candidate.repeats > 1 {
            format!("{} × {}", plan.candidate, candidate.repeats)
        } else {
            plan.candidate.clone()
        }),
        Cell::new(format!("{count}{}", plan.instance_type)),
        Cell::new(purchase(plan.purchase_option)),
        Cell::new(verdict.0).fg(verdict.1),
        right(memory),
        right(speed),
        right(hours),
        right(dollars),
        right(worst),
        right(price),
    ]
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// Prints the advice for each instance type, once.
fn advice(preview: &Preview) {
    let mut seen: Vec<(&str, u32)> = Vec::new();
    for candidate in &preview.candidates {
        let kind = (
            candidate.plan.instance_type.as_str(),
            candidate.plan.instance_count,
        );
        let has_none = candidate.advice.is_none() && candidate.no_advice.is_none();
        if seen.contains(&kind) || has_none {
            continue;
        }
        seen.push(kind);
        if seen.len() == 1 {
            println!("\nadvice, by instance type:");
        }
        match (&candidate.advice, &candidate.no_advice) {
            (Some(advice), _) => {
                let profile = &advice.profile;
                let speed = advice.tokens_per_second.map_or_else(String::new, |speed| {
                    format!(", {speed:.0} tokens/s predicted")
                });
                let recomputes = if profile.activation_checkpointing {
                    ", recomputing activations"
                } else {
                    ""
                };
                let offloads = match profile.cpu_offload {
                    CpuOffload::None => "",
                    CpuOffload::Optimizer => ", optimizer in host memory",
                    CpuOffload::OptimizerAndParameters => {
                        ", optimizer and parameters in host memory"
                    }
                };
                println!(
                    "  {}: ZeRO {}, micro-batch {} × accumulation {}{offloads}{recomputes}{speed}",
                    kind.0,
                    profile.zero_stage,
                    profile.micro_batch_per_gpu,
                    profile.gradient_accumulation_steps
                );
                for reason in &advice.reasons {
                    println!("      · {reason}");
                }
                for traffic in &advice.traffic {
                    println!(
                        "      · {} of {}: {:.2} GB per step from each accelerator",
                        traffic.collective,
                        traffic.of,
                        traffic.bytes_per_step / 1e9
                    );
                }
            }
            (None, Some(reason)) => println!("  {}: {reason}", kind.0),
            (None, None) => {}
        }
    }
}

/// Prints what a full run would be.
pub(super) fn full_run(shown: &FullRunPreview) {
    let of = &shown.full_run_of;
    for candidate in &shown.plan.candidates {
        println!(
            "{}: {} on {} {}",
            shown.spec.name,
            candidate.plan.candidate,
            candidate.plan.instance_type,
            purchase(candidate.plan.purchase_option)
        );
    }
    let hours = of.hours.map_or_else(String::new, |[low, high]| {
        format!(" ({low:.1} to {high:.1})")
    });
    let usd = of
        .cost_usd
        .map_or_else(String::new, |[low, high]| format!(" ({low} to {high})"));
    println!(
        "  projected     {:.1} h{hours}, {}{usd}: from {} at {:.0} tokens/s",
        of.projected_hours, of.projected_cost_usd, of.trial_id, of.tokens_per_second
    );
    let start = match (of.from_checkpoint, shown.checkpoint_at) {
        (true, Some(at)) if of.checkpoint.is_some() => format!(
            "goes on from {} of {at}: {:.1} h and {} of the trial lie before it",
            of.checkpoint.as_deref().unwrap_or_default(),
            of.head_hours,
            of.head_usd
        ),
        (true, Some(at)) => {
            format!("goes on from the trial's checkpoints; the newest was seen at {at}")
        }
        (true, None) => {
            "goes on from the trial's checkpoints, if there are any: none was seen yet".to_owned()
        }
        (false, _) if shown.spec.checkpoint.is_some() => "at its first step".to_owned(),
        (false, _) => "at its first step: the experiment has no place for checkpoints".to_owned(),
    };
    println!("  starts        {start}");
    println!(
        "  limits        {:.0} h, after which SageMaker ends it",
        f64::from(shown.spec.max_runtime_seconds) / 3600.0
    );
    println!(
        "  needs         {} as its budget: the worst case of one attempt; a retry needs as much again",
        shown.budget_usd
    );
    if !shown.plan.would_start {
        println!("✘ it would not start:");
    }
    findings(&shown.plan.findings);
}

/// A table of how good predictions were.
pub(super) fn calibration(found: &Calibration) -> Table {
    let mut rows = table(&[
        "figure",
        "instance",
        "predicted from",
        "trials",
        "interval held (stated)",
        "median error",
        "bias",
    ]);
    for row in &found.rows {
        rows.add_row(vec![
            Cell::new(row.figure.as_str()),
            Cell::new(&row.instance_type),
            Cell::new(match (row.figure, row.is_adjusted) {
                (Figure::FullRunHours | Figure::FullRunCostUsd, _) => "its trial",
                (Figure::RemainingHours, _) => "its steps",
                (_, true) => "the law and own runs",
                (_, false) => "the law",
            }),
            right(row.trials),
            right(format!(
                "{:.0} % ({} %)",
                row.held_percent, row.stated_percent
            )),
            right(format!("{:.1} %", row.median_error_percent)),
            right(format!("{:+.1} %", row.bias_percent)),
        ]);
    }
    rows
}

pub(super) fn ended(ended: &FinalTables) {
    let comparison = &ended.comparison;
    println!("\n{} — measured", comparison.name);
    tables::print(measurements(&comparison.rows, false));
    for row in &comparison.rows {
        if let (TrialState::Stopped, Some(reason)) = (row.state, &row.reason) {
            let option = row.purchase_option.map_or("", purchase);
            println!("  stopped: {} {option}: {}", row.candidate, plain(reason));
        }
        if let (TrialState::Failed, Some(why)) = (row.state, &row.diagnosis) {
            let option = row.purchase_option.map_or("", purchase);
            println!("  failed: {} {option}: {}", row.candidate, plain(why));
        }
    }
    println!(
        "settled {} of the {} budget (metrics included); cost is SageMaker's billable seconds × the price shown\n",
        comparison.settled_usd, comparison.budget_usd
    );
    recommendation(ended);
}

/// A table of what was measured; of several experiments and runs, each row says whose it is.
pub(super) fn measurements(rows: &[ComparisonRow], are_of_several: bool) -> Table {
    let own = [
        "candidate",
        "instance",
        "purchase",
        "state",
        "tokens/s (95 %)",
        "GPU %",
        "billed s",
        "cost",
        "price $/h",
        "price source",
    ];
    let headers: Vec<&str> = are_of_several
        .then_some("of")
        .into_iter()
        .chain(own)
        .collect();
    let mut found = table(&headers);
    for row in rows {
        let run = row.run_id.map(|id| id.to_string());
        let of = run.or_else(|| row.experiment_id.map(|id| id.to_string()));
        let of = of.filter(|_| are_of_several).map(Cell::new);
        found.add_row(of.into_iter().chain(measured(row)).collect::<Vec<Cell>>());
    }
    found
}

fn measured(row: &ComparisonRow) -> Vec<Cell> {
    let speed = row.tokens_per_second.zip(row.tokens_per_second_half_width);
    vec![
        Cell::new(&row.candidate),
        Cell::new(&row.instance_type),
        Cell::new(row.purchase_option.map_or("", purchase)),
        Cell::new(state(row)),
        right(speed.map_or_else(
            || "–".to_owned(),
            |(mean, half)| format!("{mean:.0} ± {half:.0}"),
        )),
        right(
            row.gpu_utilization_percent
                .map_or_else(|| "–".to_owned(), |percent| format!("{percent:.0}")),
        ),
        right(row.billable_seconds),
        right(
            row.cost_usd
                .map_or_else(|| "unknown".to_owned(), |usd| usd.to_string()),
        ),
        right(row.usd_per_hour.map_or_else(
            || "unknown".to_owned(),
            |usd| usd.0.round_dp(4).normalize().to_string(),
        )),
        Cell::new(price_source(row)),
    ]
}

/// `completed, attempt 3, 2 interruptions`.
fn state(row: &ComparisonRow) -> String {
    let retried = if row.attempts > 1 {
        format!(", attempt {}", row.attempts)
    } else {
        String::new()
    };
    let interrupted = if row.interruptions > 0 {
        format!(", {} interruptions", row.interruptions)
    } else {
        String::new()
    };
    format!("{}{retried}{interrupted}", row.state.as_str())
}

/// The source, followed by the day and the status of the price; empty without a source.
fn price_source(row: &ComparisonRow) -> String {
    let Some(source) = &row.price_source else {
        return String::new();
    };
    let day = row
        .price_effective_from
        .map_or_else(String::new, |at| at.format(" %Y-%m-%d").to_string());
    let status = row
        .price_status
        .map_or_else(String::new, |status| format!(" ({})", status.as_str()));
    format!("{source}{day}{status}")
}

fn recommendation(ended: &FinalTables) {
    let view = &ended.recommendation.recommendation;
    if !view.ranked.is_empty() {
        println!("{} — full run, projected", ended.comparison.name);
        let mut ranked = table(&[
            "rank",
            "candidate",
            "instance",
            "purchase",
            "$/M tokens",
            "hours",
            "cost",
            "90 % of runs cost",
            "P(best)",
            "",
        ]);
        for row in &view.ranked {
            ranked.add_row(projected(row));
        }
        tables::print(ranked);
    }
    let mark = match view.conclusion {
        Conclusion::Clear | Conclusion::Reached => "✔",
        Conclusion::Leading => "≈",
        Conclusion::Infeasible | Conclusion::NotEnoughEvidence => "✘",
        Conclusion::FullRun => "·",
    };
    println!("{mark} {}", plain(&view.headline));
    for reason in &view.reasons {
        println!("  · {}", plain(reason));
    }
    if !view.not_ranked.is_empty() {
        println!("  not ranked:");
    }
    for row in &view.not_ranked {
        println!(
            "  ✘ {} {} ({}): {}",
            row.instance_type,
            purchase(row.purchase_option),
            row.candidate,
            row.reason
        );
        if let Some(fix) = &row.fix {
            println!("      to fix it: {fix}");
        }
    }
    println!("  based on:");
    for line in &view.basis {
        println!("    {line}");
    }
    if let Some(evidence) = &view.evidence_sha256 {
        println!("    evidence: sha256 {evidence}");
    }
    println!();
}

fn projected(row: &RankedView) -> Vec<Cell> {
    let notes = match (row.feasible, row.pareto) {
        (false, _) => "over the limits",
        (true, true) => "Pareto",
        (true, false) => "",
    };
    let color = if row.rank == 1 {
        Color::Green
    } else {
        Color::Reset
    };
    vec![
        right(row.rank).fg(color),
        Cell::new(&row.candidate).fg(color),
        Cell::new(&row.instance_type),
        Cell::new(purchase(row.purchase_option)),
        right(format!("{:.4}", row.usd_per_million_tokens.0)),
        right(format!("{:.1}", row.projected_hours)),
        right(row.projected_cost_usd),
        right(row.odds.as_ref().map_or_else(
            || "–".to_owned(),
            |odds| format!("{} to {}", odds.cost_usd_low, odds.cost_usd_high),
        )),
        right(
            row.odds
                .as_ref()
                .map_or_else(|| "–".to_owned(), |odds| format!("{:.2}", odds.p_best)),
        ),
        Cell::new(notes),
    ]
}

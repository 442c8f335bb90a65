//! What the command line shows of an experiment: the plan, the table, the recommendation with its reasons.

use bakeoff_domain::recommend::{Conclusion, Ranked};
use bakeoff_domain::spec::PurchaseOption;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};

use super::run::Ended;
use crate::view::{ComparisonRow, CreatedExperiment};

fn purchase(option: PurchaseOption) -> &'static str {
    match option {
        PurchaseOption::OnDemand => "on demand",
        PurchaseOption::Spot => "spot",
    }
}

fn table(headers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(headers.iter().copied());
    table
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// What was started, and what the linter has to say about it.
pub(super) fn created(experiment: &CreatedExperiment) {
    println!(
        "{} ({}): {} trials, at most {} if all of them ran to their limits",
        experiment.name,
        experiment.id,
        experiment.trials.len(),
        experiment.worst_case_usd
    );
    for finding in &experiment.findings {
        println!("  {:?} {}: {}", finding.severity, finding.rule, finding.message);
        println!("      to mend it: {}", finding.fix);
    }
    println!();
}

pub(super) fn ended(ended: &Ended) {
    let comparison = &ended.comparison;
    println!("\n{} — measured", comparison.name);
    let mut rows = table(&[
        "candidate",
        "instance",
        "bought",
        "state",
        "tokens/s (95 %)",
        "GPU %",
        "billed s",
        "cost",
        "price $/h",
        "price source",
    ]);
    for row in &comparison.rows {
        rows.add_row(measured(row));
    }
    println!("{rows}");
    println!(
        "settled {} of a budget of {} (metrics included); cost is SageMaker's billable seconds × the price named\n",
        comparison.settled_usd, comparison.budget_usd
    );
    recommendation(ended);
}

fn measured(row: &ComparisonRow) -> Vec<Cell> {
    let speed = row.tokens_per_second.zip(row.tokens_per_second_half_width);
    let status = row.price_status.map(|status| format!(" ({})", status.as_str())).unwrap_or_default();
    let day = row.price_effective_from.map(|at| at.format(" %Y-%m-%d").to_string()).unwrap_or_default();
    let retried = if row.attempts > 1 { format!(", attempt {}", row.attempts) } else { String::new() };
    let interrupted =
        if row.interruptions > 0 { format!(", {} interruptions", row.interruptions) } else { String::new() };
    vec![
        Cell::new(&row.candidate),
        Cell::new(&row.instance_type),
        Cell::new(row.purchase_option.map_or("", purchase)),
        Cell::new(format!("{}{retried}{interrupted}", row.state.as_str())),
        right(speed.map_or_else(|| "–".to_owned(), |(mean, half)| format!("{mean:.0} ± {half:.0}"))),
        right(row.gpu_utilization_percent.map_or_else(|| "–".to_owned(), |percent| format!("{percent:.0}"))),
        right(row.billable_seconds),
        right(row.cost_usd.map_or_else(|| "unknown".to_owned(), |usd| usd.to_string())),
        right(row.usd_per_hour.map_or_else(|| "unknown".to_owned(), |usd| usd.0.round_dp(4).normalize().to_string())),
        Cell::new(row.price_source.as_ref().map_or_else(String::new, |source| format!("{source}{day}{status}"))),
    ]
}

fn recommendation(ended: &Ended) {
    let view = &ended.recommendation.recommendation;
    if !view.ranked.is_empty() {
        println!("{} — the full run, projected", ended.comparison.name);
        let mut ranked =
            table(&["rank", "candidate", "instance", "bought", "$/M tokens", "hours", "cost", "at most", ""]);
        for row in &view.ranked {
            ranked.add_row(projected(row));
        }
        println!("{ranked}");
    }
    let mark = match view.conclusion {
        Conclusion::Clear => "✔",
        Conclusion::Leading => "≈",
        Conclusion::Infeasible | Conclusion::NotEnoughEvidence => "✘",
    };
    println!("{mark} {}", view.headline);
    for reason in &view.reasons {
        println!("  · {reason}");
    }
    if !view.not_ranked.is_empty() {
        println!("  not ranked:");
    }
    for row in &view.not_ranked {
        println!("  ✘ {} {} ({}): {}", row.instance_type, purchase(row.purchase_option), row.candidate, row.reason);
        if let Some(fix) = &row.fix {
            println!("      to mend it: {fix}");
        }
    }
    println!("  what this rests on:");
    for line in &view.basis {
        println!("    {line}");
    }
    println!();
}

fn projected(row: &Ranked) -> Vec<Cell> {
    let notes = match (row.feasible, row.pareto) {
        (false, _) => "over the limits",
        (true, true) => "Pareto",
        (true, false) => "",
    };
    let color = if row.rank == 1 { Color::Green } else { Color::Reset };
    vec![
        right(row.rank).fg(color),
        Cell::new(&row.candidate).fg(color),
        Cell::new(&row.instance_type),
        Cell::new(purchase(row.purchase_option)),
        right(format!("{:.4}", row.usd_per_million_tokens.0)),
        right(format!("{:.1}", row.projected_hours)),
        right(row.projected_cost_usd),
        right(row.projected_cost_usd_max),
        Cell::new(notes),
    ]
}

//! `bakeoff spend`: what a project has spent, settled to the cent.

use bakeoff_api::money::{Spending, SpendingRow};
use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use comfy_table::{Cell, Table};

use crate::cli::client::{Client, Target};
use crate::cli::output::{Format, Output};
use crate::cli::tables::{right, table};

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Group {
    Day,
    Experiment,
    Trial,
    Project,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff spend
  bakeoff spend --by experiment --from 2026-06-01T00:00:00Z --output csv")]
pub(in crate::cli) struct SpendOptions {
    /// One row for each.
    #[arg(long, value_enum, default_value = "day")]
    by: Group,
    /// Only usage from this time on (RFC 3339); 30 days before --until when absent.
    #[arg(long)]
    from: Option<DateTime<Utc>>,
    /// Only usage before this time (RFC 3339); now when absent.
    #[arg(long)]
    until: Option<DateTime<Utc>>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    target: Target,
}

pub(in crate::cli) async fn run(options: SpendOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let by = match options.by {
        Group::Day => "day",
        Group::Experiment => "experiment",
        Group::Trial => "trial",
        Group::Project => "project",
    };
    let mut query = vec![("group_by", by.to_owned())];
    query.extend(options.from.map(|at| ("from", at.to_rfc3339())));
    query.extend(options.until.map(|at| ("until", at.to_rfc3339())));
    let path = format!("/v1/spending?{}", serde_html_form::to_string(query)?);
    if options.output.format() == Format::Csv {
        print!("{}", client.text(&format!("{path}&format=csv")).await?);
        return Ok(());
    }
    let found: Spending = client.get(&path).await?;
    if options.output.is_table() {
        println!(
            "{} settled from {} to {}; {} saved by spot",
            found.total.total_usd,
            found.from.format("%F"),
            found.until.format("%F"),
            found.total.spot_saved_usd
        );
        if found.rows.is_empty() {
            return Ok(());
        }
    }
    options.output.print(&found, || rows(&found, by))
}

fn rows(found: &Spending, by: &str) -> Table {
    let mut rows = table(&[
        by,
        "training",
        "other jobs",
        "hosting",
        "storage",
        "metrics",
        "total",
        "note",
    ]);
    for row in &found.rows {
        rows.add_row(cells(row, of(row)));
    }
    rows.add_row(cells(&found.total, "all".to_owned()));
    rows
}

fn of(row: &SpendingRow) -> String {
    let day = row.day.map(|day| day.to_string());
    let trial = row.trial_id.map(|id| id.to_string());
    let experiment = row.experiment_id.map(|id| id.to_string());
    let id = day.or(trial).or(experiment).unwrap_or_default();
    // Each on its own line: an id is to be copied.
    match &row.experiment_name {
        Some(name) => format!("{name}\n{id}"),
        None => id,
    }
}

fn cells(row: &SpendingRow, of: String) -> Vec<Cell> {
    let jobs = row.processing_usd + row.tuning_usd + row.transform_usd;
    let kept = row.warm_pool_usd + row.storage_usd;
    let estimated = if row.estimated {
        "partly estimated"
    } else {
        ""
    };
    vec![
        Cell::new(of),
        right(row.training_usd + row.orphaned_jobs_usd),
        right(jobs),
        right(row.hosting_usd),
        right(kept),
        right(row.cloudwatch_usd),
        right(row.total_usd),
        Cell::new(estimated),
    ]
}

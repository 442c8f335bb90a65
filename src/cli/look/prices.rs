//! `bakeoff prices`: what an hour of training costs, from when, and who says so.

use bakeoff_api::catalog::PriceView;
use bakeoff_api::operations::Version;
use bakeoff_api::page::Page;
use chrono::{DateTime, Utc};
use clap::Args;
use comfy_table::{Cell, Table};

use crate::cli::client::{Client, Target};
use crate::cli::output::Output;
use crate::cli::tables::{right, table};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff prices ml.p5.48xlarge ml.p5e.48xlarge
  bakeoff prices --region eu-west-1 --as-of 2026-01-01T00:00:00Z --output csv")]
pub(in crate::cli) struct PricesOptions {
    /// Only these instance types; all when absent.
    instance_types: Vec<String>,
    /// Only this region.
    #[arg(long)]
    region: Option<String>,
    /// The prices in force at this moment (RFC 3339); now when absent.
    #[arg(long)]
    as_of: Option<DateTime<Utc>>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    target: Target,
}

pub(in crate::cli) async fn run(options: PricesOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let types = options.instance_types.iter().cloned();
    let mut query: Vec<(&str, String)> = types.map(|one| ("instance_type", one)).collect();
    query.extend(options.region.map(|region| ("region", region)));
    let as_of = match options.as_of {
        Some(at) => at,
        // By the service's own clock, which a simulation turns faster.
        None => client.get::<Version>("/v1/version").await?.now,
    };
    query.push(("as_of", as_of.to_rfc3339()));
    let query = serde_html_form::to_string(query)?;
    let page: Page<PriceView> = client.get(&format!("/v1/prices?{query}")).await?;
    let found = page.items;
    if options.output.is_table() && found.is_empty() {
        println!("no price is known for that: an admin sets one with PUT /v1/prices/INSTANCE_TYPE");
        return Ok(());
    }
    options.output.print(&found, || rows(&found))
}

fn rows(found: &[PriceView]) -> Table {
    let mut rows = table(&[
        "instance",
        "region",
        "$/h",
        "status",
        "in force from",
        "source",
    ]);
    for one in found {
        rows.add_row(vec![
            Cell::new(&one.instance_type),
            Cell::new(&one.region),
            right(one.usd_per_hour.0.round_dp(4).normalize()),
            Cell::new(one.status.as_str()),
            Cell::new(one.effective_from.format("%F")),
            Cell::new(&one.source),
        ]);
    }
    rows
}

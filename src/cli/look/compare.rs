//! `bakeoff compare ID…`: experiments, trials and external runs side by side.

use anyhow::bail;
use bakeoff_api::comparison::ComparisonTable;
use clap::Args;

use crate::cli::any_id::AnyId;
use crate::cli::client::{Client, Target};
use crate::cli::output::{Format, Output};
use crate::cli::report;

#[derive(Debug, Args)]
#[command(
    after_help = "Example: bakeoff compare exp_0190… run_0191… --output csv > table.csv

CSV has all columns of the API's table, documented at /docs/api."
)]
pub(in crate::cli) struct CompareOptions {
    /// Experiments (exp_), trials (trl_) and external runs (run_).
    #[arg(required = true)]
    ids: Vec<AnyId>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    target: Target,
}

pub(in crate::cli) async fn run(options: CompareOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let named = options.ids.iter().map(|id| match id {
        AnyId::Experiment(_) => Ok(("experiment_id", id.to_string())),
        AnyId::Trial(_) => Ok(("trial_id", id.to_string())),
        AnyId::Run(_) => Ok(("run_id", id.to_string())),
        _ => bail!("{id} cannot be compared: name experiments, trials or external runs"),
    });
    let query: Vec<(&str, String)> = named.collect::<anyhow::Result<_>>()?;
    let path = format!("/v1/comparison?{}", serde_html_form::to_string(query)?);
    if options.output.format() == Format::Csv {
        print!("{}", client.text(&format!("{path}&format=csv")).await?);
        return Ok(());
    }
    let found: ComparisonTable = client.get(&path).await?;
    let are_several = options.ids.len() > 1;
    options
        .output
        .print(&found, || report::measurements(&found.rows, are_several))?;
    if options.output.is_table() {
        println!(
            "as of {}; measured by the jobs themselves, at the price shown",
            found.as_of.format("%F %T UTC")
        );
    }
    Ok(())
}

//! `bakeoff plan FILE…`: shows what an experiment would do and cost, without a service, at the
//! shipped prices.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::money::price;
use bakeoff_domain::money::worst_case::Tariff;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_planner::lint;
use bakeoff_planner::plan::{choose_starts, plan, refuse_above_budget};
use bakeoff_planner::preview::{Preview, preview};
use chrono::TimeDelta;
use clap::Args;

use super::{lint as linter, report};
use bakeoff_api::plans::PreviewView;
use bakeoff_process::clock::real_now;
use bakeoff_service::document;

/// Placeholder for the installation's part of job names.
const INSTALLATION: &str = "offline";

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff plan experiment.json

Exits with 1 if an experiment would not start.")]
pub(super) struct PlanOptions {
    /// Experiments, as JSON or YAML, with workload and profiles inline.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print the whole plan as JSON: requests, advice, memory breakdown.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &PlanOptions) -> anyhow::Result<ExitCode> {
    let mut previews = Vec::new();
    for file in &options.files {
        let value = linter::read(file)?;
        let (spec, unknown) = document::read::<ExperimentSpec>(&value);
        let spec = match spec {
            Ok(spec) if unknown.is_empty() => spec,
            Ok(_) => bail!("{}: {}", file.display(), lines(&unknown)),
            Err(error) => bail!(
                "{}: {}",
                file.display(),
                lines(&[unknown, vec![error]].concat())
            ),
        };
        let preview = planned(&spec);
        if !options.json {
            report::preview(&preview);
        }
        previews.push(preview);
    }
    let all_would = previews.iter().all(|preview| preview.would_start);
    if options.json {
        // As POST /v1/plans answers.
        let shown: Vec<PreviewView> = previews.into_iter().map(Into::into).collect();
        println!("{}", serde_json::to_string_pretty(&shown)?);
    }
    Ok(if all_would {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn lines(findings: &[Finding]) -> String {
    let one =
        |finding: &Finding| format!("{}: {} {}", finding.pointer, finding.message, finding.fix);
    findings.iter().map(one).collect::<Vec<String>>().join("\n")
}

fn planned(spec: &ExperimentSpec) -> Preview {
    let (prices, rates) = price::shipped();
    let mut findings = lint::lint(spec, &linter::shipped_prices(&spec.region));
    let tariff = Tariff {
        prices: &prices,
        rates: &rates,
    };
    let now = real_now();
    let mut plans = plan(spec, &findings, tariff, TimeDelta::minutes(5), now);
    findings.extend(refuse_above_budget(spec, &mut plans));
    choose_starts(spec, &mut plans, now);
    preview(spec, findings, plans, INSTALLATION)
}

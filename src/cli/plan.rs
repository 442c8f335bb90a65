//! `bakeoff plan FILE…`: shows what an experiment would do and cost, without a service, at the
//! shipped prices.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::money::price;
use bakeoff_domain::money::worst_case::Tariff;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_planner::lint::{self, Kind};
use bakeoff_planner::plan::{PlanContext, choose_starts, plan, refuse_above_budget};
use bakeoff_planner::predict::forecast;
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
    let mut are_read = true;
    for file in &options.files {
        let spec = match experiment(file) {
            Ok(spec) => spec,
            Err(error) => {
                linter::cannot_read(&error);
                are_read = false;
                continue;
            }
        };
        let preview = planned(&spec);
        if !options.json {
            report::preview(&preview);
        }
        previews.push(preview);
    }
    let all_would = are_read && previews.iter().all(|preview| preview.would_start);
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

fn experiment(file: &Path) -> anyhow::Result<ExperimentSpec> {
    let value = linter::read(file)?;
    if let Some(kind) = lint::kind_of(&value).filter(|kind| *kind != Kind::Experiment) {
        let makes = match kind {
            Kind::TrainingJob
            | Kind::Estimator
            | Kind::ModelTrainer
            | Kind::ModelConfig
            | Kind::DeepspeedConfig => ": `bakeoff init` makes one of it",
            _ => "",
        };
        bail!(
            "{} ({}) is no experiment{makes}",
            file.display(),
            kind.in_words()
        );
    }
    let (spec, unknown) = document::read::<ExperimentSpec>(&value);
    match spec {
        Ok(spec) if unknown.is_empty() => Ok(spec),
        Ok(_) => bail!("{}:{}", file.display(), lines(&unknown)),
        Err(error) => bail!(
            "{}:{}",
            file.display(),
            lines(&[unknown, vec![error]].concat())
        ),
    }
}

fn lines(findings: &[Finding]) -> String {
    let one = |finding: &Finding| {
        format!(
            "\n  {}  {}\n      to fix it: {}",
            finding.pointer, finding.message, finding.fix
        )
    };
    findings.iter().map(one).collect()
}

fn planned(spec: &ExperimentSpec) -> Preview {
    let (prices, rates) = price::shipped();
    let calibration = &forecast::calibrated(spec);
    let known = lint::LintContext {
        prices: &linter::shipped_prices(&spec.region),
        calibration,
    };
    let mut findings = lint::lint_with(spec, known);
    let now = real_now();
    let context = PlanContext {
        tariff: Tariff {
            prices: &prices,
            rates: &rates,
        },
        calibration,
        metrics_interval: TimeDelta::minutes(5),
        now,
    };
    let mut plans = plan(spec, &findings, context);
    findings.extend(refuse_above_budget(spec, &mut plans));
    choose_starts(spec, &mut plans, now);
    preview(spec, findings, plans, calibration, INSTALLATION)
}

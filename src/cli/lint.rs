//! `bakeoff lint FILE…`: checks documents of any kind, without a service, at the shipped prices;
//! `--fix` applies the fixes that can be automated.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::money::price::{self, Price};
use bakeoff_planner::lint::{Kind, kind_of};
use bakeoff_planner::render::estimator;
use clap::Args;
use serde_json::{Value, json};

use super::{input, pipelines, report};
use bakeoff_process::clock::real_now;
use bakeoff_service::document;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff lint my-estimator.json
  bakeoff lint --fix my-job.json
  bakeoff lint --request my-estimator.json | jq .

Exits with 1 if there are errors.")]
pub(super) struct LintOptions {
    /// Documents, as JSON or YAML: experiments, workloads, profiles and external runs; bodies of SageMaker's training,
    /// tuning, processing and transform jobs, models and endpoint configurations; arguments of the SDK's
    /// estimators and of its ModelTrainer; pipeline definitions, state machines and CloudFormation
    /// templates; a model's config.json; a DeepSpeed configuration.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Kind of the documents, if their members do not reveal it: training_job, estimator, ….
    #[arg(long, value_parser = kind)]
    kind: Option<Kind>,
    /// Apply the automatic fixes and write each file back.
    #[arg(long)]
    fix: bool,
    /// Print the CreateTrainingJob body that the SDK sends for an estimator's arguments, with the defaults
    /// that it fills in, without checking anything.
    #[arg(long, conflicts_with = "fix")]
    request: bool,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

fn kind(text: &str) -> Result<Kind, String> {
    let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    Kind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == text)
        .ok_or_else(|| format!("use one of {}", known.join(", ")))
}

/// The shipped prices now in force in a region.
pub(super) fn shipped_prices(region: &str) -> Vec<Price> {
    price::all_in_force(&price::shipped().0, region, real_now())
}

pub(super) fn read(path: &Path) -> anyhow::Result<Value> {
    let document = input::document(path)?;
    if pipelines::is_pipeline(&document) {
        bail!(
            "{} is a pipeline: `bakeoff run` has all of it checked before anything starts",
            path.display()
        );
    }
    Ok(document)
}

/// The findings for one file.
struct Checked {
    kind: Kind,
    findings: Vec<Finding>,
    /// How many findings there were before the fixes.
    before: usize,
}

pub(super) fn run(options: &LintOptions) -> anyhow::Result<ExitCode> {
    let mut reports = Vec::new();
    let mut is_sound = true;
    for file in &options.files {
        // What one file says is no reason to leave out the others.
        let checked = if options.request {
            request(file).map(|()| None)
        } else {
            check(file, options).map(Some)
        };
        match checked {
            Ok(Some(Checked {
                kind,
                findings,
                before,
            })) => {
                is_sound &= findings
                    .iter()
                    .all(|finding| finding.severity < Severity::Refused);
                if options.json {
                    reports.push(json!({"file": file, "kind": kind, "findings": findings}));
                } else {
                    show(file, kind, &findings, before);
                }
            }
            Ok(None) => {}
            Err(error) => {
                cannot_read(&error);
                is_sound = false;
            }
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    }
    Ok(if is_sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Says why a file was not read, where the others are read on.
pub(super) fn cannot_read(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

/// Prints the request that the SDK sends for a file's arguments.
fn request(file: &Path) -> anyhow::Result<()> {
    let value = read(file)?;
    if let Some(kind) = kind_of(&value).filter(|kind| *kind != Kind::Estimator) {
        bail!(
            "{} ({}): --request takes the arguments of an estimator",
            file.display(),
            kind.in_words()
        );
    }
    let stamp = real_now().format("%Y-%m-%d-%H-%M-%S-%3f").to_string();
    let body = estimator::body(&value, &stamp)
        .map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    println!("{}", serde_json::to_string_pretty(&body)?);
    Ok(())
}

fn check(file: &Path, options: &LintOptions) -> anyhow::Result<Checked> {
    let value = read(file)?;
    if options.fix && input::is_yaml(file) {
        bail!(
            "{}: --fix writes JSON, and would lose its comments: make the changes that `bakeoff lint` names",
            file.display()
        );
    }
    let region = value.get("region").and_then(Value::as_str);
    let prices = shipped_prices(region.unwrap_or("us-east-1"));
    let Some((kind, mut findings)) = document::check(&value, options.kind, &prices) else {
        bail!(
            "{}: cannot tell what kind of document this is. If it is one of these, name it with --kind: {}",
            file.display(),
            Kind::ALL.map(Kind::as_str).join(", ")
        );
    };
    let before = findings.len();
    if options.fix {
        let fixed = document::apply_fixes(&value, kind, &prices);
        if fixed != value {
            std::fs::write(file, serde_json::to_string_pretty(&fixed)? + "\n")?;
            findings = document::check(&fixed, Some(kind), &prices)
                .map_or_else(Vec::new, |(_, left)| left);
        }
    }
    Ok(Checked {
        kind,
        findings,
        before,
    })
}

fn show(file: &Path, kind: Kind, findings: &[Finding], before: usize) {
    let kind = kind.in_words();
    let fixed = before.saturating_sub(findings.len());
    let fixed = if fixed > 0 {
        format!(", {fixed} fixed")
    } else {
        String::new()
    };
    if findings.is_empty() {
        println!("✔ {} ({kind}): no findings{fixed}", file.display());
        return;
    }
    println!(
        "{} ({kind}): {}{fixed}",
        file.display(),
        report::counted(findings)
    );
    report::findings(&report::shown(findings));
}

//! `bakeoff gate`: measures a commit in CI, waits for the verdict of the template's gate, and exits with it: 0 passed,
//! 1 regressed, 2 inconclusive, 3 no result, 64 wrong usage.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bakeoff_domain::ci::commit_status::CiState;
use bakeoff_domain::ci::gate::Verdict;
use bakeoff_domain::ids::{CiRunId, TemplateId};
use bakeoff_domain::lifecycle::state::TrialState;
use clap::Args;

use super::client::{Client, Target};
use super::{pair, run};
use bakeoff_api::ci::{CiStarted, CiTrigger};
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_api::comparison::Comparison;
use bakeoff_process::clock::{Stopwatch, real_sleep};
use bakeoff_process::ids;
use bakeoff_service::read::ci_report;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// No verdict.
const NO_RESULT: u8 = 3;

#[derive(Debug, Args)]
pub(super) struct GateOptions {
    #[command(flatten)]
    target: Target,
    /// The template to start. With --run, nothing is started.
    #[arg(long, required_unless_present = "run", requires = "commit")]
    template: Option<TemplateId>,
    /// A run that a webhook has started: wait for its verdict.
    #[arg(long, conflicts_with_all = ["template", "commit"])]
    run: Option<CiRunId>,
    /// The commit's SHA.
    #[arg(long)]
    commit: Option<String>,
    /// `refs/heads/main`, `refs/tags/v1`.
    #[arg(long = "ref", value_name = "REF")]
    reference: Option<String>,
    /// The commit's branch: only that of the gate's baseline becomes one.
    #[arg(long)]
    branch: Option<String>,
    /// The number of its pull request, or merge request.
    #[arg(long)]
    pull_request: Option<u64>,
    /// The image built from the commit: by digest, or with a tag that has the commit in it.
    #[arg(long)]
    image: Option<String>,
    /// The sources of the commit.
    #[arg(long, value_name = "S3_URI")]
    source: Option<String>,
    /// A hyperparameter that the template takes in; may be repeated.
    #[arg(long = "hyperparameter", value_name = "KEY=VALUE", value_parser = pair)]
    hyperparameters: Vec<(String, String)>,
    /// Measure the commit again although it has a run with the same inputs, and pay for it again. Without this
    /// option, the command waits for that run, no matter what started it: a webhook, or an earlier try of this CI job.
    #[arg(long, conflicts_with = "run")]
    again: bool,
    /// Counts once: a retry with the same id waits for the same run. A new one when absent.
    #[arg(long)]
    delivery_id: Option<String>,
    /// Minutes to wait for a verdict.
    #[arg(long, default_value_t = 1440)]
    timeout_minutes: u64,
    /// Append the report to this file, such as $GITHUB_STEP_SUMMARY.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write the report as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Exit with 0 or 1 for an inconclusive run too, as the template's gate says.
    #[arg(long)]
    by_policy: bool,
    /// Print the run as JSON instead of the report.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(options: GateOptions) -> ExitCode {
    match judged(&options).await {
        Ok(Some(run)) => exit_code(&run, options.by_policy),
        Ok(None) => {
            eprintln!("no verdict after {} minutes", options.timeout_minutes);
            ExitCode::from(NO_RESULT)
        }
        Err(error) => {
            eprintln!("Error: {error:?}");
            ExitCode::from(NO_RESULT)
        }
    }
}

fn exit_code(run: &CiRunView, by_policy: bool) -> ExitCode {
    ExitCode::from(match (run.verdict, run.state) {
        // One that has regressed is a success once a person has accepted it.
        (Some(Verdict::Passed), _) | (Some(Verdict::Regressed), CiState::Success) => 0,
        (Some(Verdict::Regressed), _) => 1,
        (Some(Verdict::Inconclusive), CiState::Success) if by_policy => 0,
        (Some(Verdict::Inconclusive), _) if by_policy => 1,
        (Some(Verdict::Inconclusive), _) => 2,
        (Some(Verdict::Error) | None, _) => NO_RESULT,
    })
}

async fn judged(options: &GateOptions) -> anyhow::Result<Option<CiRunView>> {
    let client = Client::new(&options.target)?;
    let id = match (options.run, options.template) {
        (Some(run), _) => run,
        (None, template) => start(&client, options, template.context("--template")?).await?,
    };
    let patience = Duration::from_secs(options.timeout_minutes.saturating_mul(60));
    let waited = Stopwatch::start();
    let mut said = String::new();
    let run = loop {
        let run: CiRunView = client.get(&format!("/v1/ci-runs/{id}")).await?;
        if run.verdict.is_some() {
            break run;
        }
        if waited.elapsed() > patience {
            return Ok(None);
        }
        if !options.json && said != run.summary {
            eprintln!("{}", run.summary);
            said.clone_from(&run.summary);
        }
        let newest = run
            .experiment_ids
            .last()
            .context("the run has no experiment")?;
        // What waits, or is paused, may have its verdict before its experiment ends.
        run::follow(&client, &[*newest], !options.json, |table| {
            table.state.is_over() || !is_busy(table) || waited.elapsed() > patience
        })
        .await?;
        real_sleep(LOOK_EVERY).await;
    };
    print(options, &run)?;
    Ok(Some(run))
}

/// Whether a job of an experiment runs.
fn is_busy(table: &Comparison) -> bool {
    let mut states = table.rows.iter().map(|row| row.state);
    states.any(|state| match state {
        TrialState::Submitting | TrialState::Running | TrialState::Stopping => true,
        TrialState::Queued
        | TrialState::Parked
        | TrialState::Refused
        | TrialState::Completed
        | TrialState::Failed
        | TrialState::Stopped => false,
    })
}

async fn start(
    client: &Client,
    options: &GateOptions,
    template: TemplateId,
) -> anyhow::Result<CiRunId> {
    let fresh = || ids::fresh().to_string();
    let trigger = CiTrigger {
        delivery_id: options.delivery_id.clone().unwrap_or_else(fresh),
        commit: options.commit.clone().context("--commit")?,
        reference: options.reference.clone(),
        branch: options.branch.clone(),
        pull_request: options.pull_request,
        image: options.image.clone(),
        source_s3_uri: options.source.clone(),
        hyperparameters: options
            .hyperparameters
            .iter()
            .cloned()
            .collect::<BTreeMap<_, _>>(),
        repeat: options.again,
    };
    let path = format!("/v1/ci-templates/{template}/runs");
    // The delivery id makes it count once.
    let started: CiStarted = client
        .post_again(&path, &serde_json::to_vec(&trigger)?)
        .await?;
    let id = started.run_id.with_context(|| {
        let none = || "the service has started no run".to_owned();
        started.ignored.clone().unwrap_or_else(none)
    })?;
    let how = if started.duplicate {
        "already measures"
    } else {
        "measures"
    };
    eprintln!("{id} {how} {}", trigger.commit);
    Ok(id)
}

fn print(options: &GateOptions, run: &CiRunView) -> anyhow::Result<()> {
    let report = ci_report::markdown(run);
    if let Some(path) = &options.markdown {
        use std::io::Write;
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path);
        let mut file = file.with_context(|| path.display().to_string())?;
        file.write_all(report.as_bytes())?;
    }
    if let Some(path) = &options.junit {
        std::fs::write(path, ci_report::junit(run)?).with_context(|| path.display().to_string())?;
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(run)?);
    } else {
        println!("{report}");
    }
    Ok(())
}

//! `bakeoff cancel`, `stop` and `retry`: what ends something, and what does a trial once more.

use anyhow::bail;
use bakeoff_api::experiments::{AddedTrials, ExperimentView, StopTrial};
use bakeoff_api::pipelines::PipelineView;
use bakeoff_api::trials::TrialView;
use bakeoff_domain::ids::TrialId;
use clap::Args;

use super::any_id::AnyId;
use super::client::{Client, Target};
use super::tables::plain;
use super::{pipelines, report};

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff cancel exp_0190…

You pay for what its jobs have used by then; trials that wait do not start.")]
pub(super) struct CancelOptions {
    /// An experiment (exp_) or a pipeline (pip_).
    id: AnyId,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff stop trl_0190… --reason 'the loss has diverged'")]
pub(super) struct StopOptions {
    /// The trial (trl_); the others of its experiment go on.
    trial: TrialId,
    /// Why; shown as the trial's reason.
    #[arg(long)]
    reason: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff retry trl_0190…

Only for a trial that failed, was stopped or was refused. It may cost as much again, within the experiment's budget.")]
pub(super) struct RetryOptions {
    /// The trial (trl_) to do once more.
    trial: TrialId,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn cancel(options: CancelOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let id = options.id;
    match id {
        AnyId::Experiment(_) => {
            let path = format!("/v1/experiments/{id}/cancel");
            let found: ExperimentView = client.post_again(&path, b"").await?;
            if options.json {
                println!("{}", serde_json::to_string_pretty(&found)?);
                return Ok(());
            }
            if found.state.is_over() {
                println!(
                    "{} is {} already: nothing was stopped",
                    plain(&found.name),
                    found.state.as_str()
                );
                println!("next: bakeoff show {id}");
                return Ok(());
            }
            println!(
                "{} is {}: {} settled, {} still reserved for jobs that are stopped now",
                plain(&found.name),
                found.state.as_str(),
                found.settled_usd,
                found.reserved_usd
            );
            println!("next: bakeoff watch {id} until everything is settled");
            Ok(())
        }
        AnyId::Pipeline(_) => {
            let path = format!("/v1/pipelines/{id}/cancel");
            let found: PipelineView = client.post_again(&path, b"").await?;
            pipelines::show(&found, options.json)
        }
        _ => bail!(
            "{id} cannot be cancelled: name an experiment or a pipeline; `bakeoff stop` ends a trial, `bakeoff \
             endpoints delete` an endpoint"
        ),
    }
}

pub(super) async fn stop(options: StopOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let why = StopTrial {
        reason: options.reason,
    };
    let path = format!("/v1/trials/{}/stop", options.trial);
    let found: TrialView = client.post_again(&path, &serde_json::to_vec(&why)?).await?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(());
    }
    let (id, state) = (found.id, found.state);
    if state.is_terminal() {
        println!("{id} is {} already: nothing was stopped", state.as_str());
    } else {
        println!("{id} is {}, and is being stopped", state.as_str());
    }
    println!("next: bakeoff show {}", found.experiment_id);
    Ok(())
}

pub(super) async fn retry(options: RetryOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let path = format!("/v1/trials/{}/retry", options.trial);
    let added: AddedTrials = client.post(&path, b"").await?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&added)?);
        return Ok(());
    }
    for trial in &added.trials {
        println!(
            "{} retries {}, for at most {}",
            trial.id, options.trial, added.worst_case_usd
        );
    }
    report::findings(&added.findings);
    println!("next: bakeoff watch {}", added.experiment_id);
    Ok(())
}

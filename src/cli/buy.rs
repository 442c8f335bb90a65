//! `bakeoff buy EXPERIMENT`: shows the full run of an experiment's answer; with a budget, starts it.

use std::process::ExitCode;
use std::time::Duration;

use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::spec::PurchaseOption;
use bakeoff_domain::spec::full_run::{Choice, FullRunSpec};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rust_decimal::Decimal;

use super::client::{Client, Target};
use super::{report, run};
use bakeoff_api::checkpoints::{CopyCheckpoint, CopyState, CopyView};
use bakeoff_api::experiments::CreatedExperiment;
use bakeoff_api::full_runs::FullRunPreview;
use bakeoff_process::clock::real_sleep;
use bakeoff_process::ids;

/// How often to look how far a copy is.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff buy exp_0190…                              # shows it, with its exact body
  bakeoff buy exp_0190… --budget-usd 1200 --watch    # starts it")]
pub(super) struct BuyOptions {
    /// The experiment whose answer is bought, `exp_…`.
    experiment: ExperimentId,
    /// Hard cap on what the run may spend; without it, the run is only shown.
    #[arg(long)]
    budget_usd: Option<Decimal>,
    /// A ranked candidate other than the recommended one.
    #[arg(long)]
    candidate: Option<String>,
    /// `on_demand` or `spot`, where the candidate is ranked under both.
    #[arg(long, value_parser = purchase_option)]
    purchase_option: Option<PurchaseOption>,
    /// Start at the first step, not from the trial's checkpoints.
    #[arg(long)]
    from_scratch: bool,
    /// The trial's checkpoint to go on from, such as checkpoint-500; the newest when absent. With a budget, it
    /// is copied to a prefix of its own first, where it stays.
    #[arg(long, conflicts_with = "from_scratch")]
    checkpoint: Option<String>,
    /// SageMaker's MaxRuntimeInSeconds; a quarter more than the projection when absent.
    #[arg(long)]
    max_runtime_seconds: Option<u32>,
    /// A hyperparameter that differs from the trial's, `key=value`; repeat for several.
    #[arg(long = "hyperparameter", value_parser = super::pair, requires = "budget_usd")]
    hyperparameters: Vec<(String, String)>,
    #[command(flatten)]
    target: Target,
    /// Follow the run until it ends.
    #[arg(long)]
    watch: bool,
    /// Print JSON instead of tables: what the run would be, with its exact CreateTrainingJob body.
    #[arg(long)]
    json: bool,
}

pub(super) fn purchase_option(text: &str) -> Result<PurchaseOption, String> {
    PurchaseOption::parse(text).ok_or_else(|| "on_demand or spot".to_owned())
}

pub(super) async fn run(options: BuyOptions) -> anyhow::Result<ExitCode> {
    let client = Client::new(&options.target)?;
    let place = format!("/v1/experiments/{}/full-run", options.experiment);
    let choice = Choice {
        candidate: options.candidate,
        purchase_option: options.purchase_option,
        from_checkpoint: options.from_scratch.then_some(false),
        checkpoint: options.checkpoint,
        max_runtime_seconds: options.max_runtime_seconds,
    };
    let Some(budget) = options.budget_usd else {
        let query = serde_html_form::to_string(&choice)?;
        let shown: FullRunPreview = client.get(&format!("{place}?{query}")).await?;
        if options.json {
            println!("{}", serde_json::to_string_pretty(&shown)?);
        } else {
            report::full_run(&shown);
            let again = format!("bakeoff buy {}{}", options.experiment, flags(&choice));
            println!("\nthe exact body: {again} --json");
            println!(
                "to start it:    {again} --budget-usd {} --watch",
                shown.budget_usd.0
            );
        }
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(name) = &choice.checkpoint {
        let query = serde_html_form::to_string(&choice)?;
        let shown: FullRunPreview = client.get(&format!("{place}?{query}")).await?;
        copied(&client, &shown, name, options.json).await?;
    }
    let wanted = FullRunSpec {
        hyperparameters: options.hyperparameters.into_iter().collect(),
        ..FullRunSpec::of(choice, Usd(budget))
    };
    let body = serde_json::to_vec(&wanted)?;
    let key = ids::fresh().to_string();
    let started: CreatedExperiment = client.post_once(&place, &body, &key).await?;
    if options.watch {
        return run::to_the_end(&client, &[started.id], options.json).await;
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&started)?);
    } else {
        report::created(&started);
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until a checkpoint is copied, with a progress bar.
async fn copied(
    client: &Client,
    shown: &FullRunPreview,
    name: &str,
    is_quiet: bool,
) -> anyhow::Result<()> {
    let path = format!("/v1/trials/{}/checkpoints/copy", shown.full_run_of.trial_id);
    let wish = CopyCheckpoint {
        checkpoint: name.to_owned(),
    };
    let body = serde_json::to_vec(&wish)?;
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
        "  copying {msg} {bar:24.green} {bytes} of {total_bytes}",
    )?);
    if is_quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.set_message(name.to_owned());
    loop {
        // Asking again is how its progress is read.
        let copy: CopyView = client.post_again(&path, &body).await?;
        bar.set_length(copy.bytes);
        bar.set_position(copy.copied_bytes);
        if copy.state == CopyState::Done {
            bar.abandon();
            return Ok(());
        }
        real_sleep(LOOK_EVERY).await;
    }
}

/// A choice as options of this command.
fn flags(choice: &Choice) -> String {
    let parts = [
        choice
            .candidate
            .as_ref()
            .map(|name| format!(" --candidate '{name}'")),
        choice
            .purchase_option
            .map(|option| format!(" --purchase-option {}", option.as_str())),
        choice.from_checkpoint.map(|_| " --from-scratch".to_owned()),
        choice
            .checkpoint
            .as_ref()
            .map(|name| format!(" --checkpoint '{name}'")),
        choice
            .max_runtime_seconds
            .map(|seconds| format!(" --max-runtime-seconds {seconds}")),
    ];
    parts.into_iter().flatten().collect()
}

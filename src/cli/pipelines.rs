//! `bakeoff pipelines`, and `bakeoff run` of a pipeline: starts it, follows its steps, cancels and resumes it.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bakeoff_domain::ids::PipelineId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::pipeline::{PipelineState, StepState};
use bakeoff_domain::spec::PurchaseOption;
use clap::{Args, Subcommand};
use comfy_table::Table;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rust_decimal::Decimal;
use serde_json::Value;

use super::client::{Client, Target};
use super::output::Output;
use super::tables;
use bakeoff_api::pipelines::{CreatedPipeline, PipelineView, ResumePipeline, StepView};
use bakeoff_api::purchases::{ApprovePurchase, RefusePurchase};
use bakeoff_process::clock::real_sleep;
use bakeoff_process::ids;

const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct PipelinesOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List pipelines, the newest first.
    List(ListOptions),
    /// Show a pipeline's steps.
    #[command(after_help = "Example: bakeoff pipelines show pip_0190…")]
    Show(OneOptions),
    /// Follow a pipeline until it is over.
    #[command(
        after_help = "Example: bakeoff pipelines follow pip_0190…\n\nExits with 1 if it did not complete."
    )]
    Follow(OneOptions),
    /// Start nothing more of a pipeline, and stop what runs.
    #[command(after_help = "Example: bakeoff pipelines cancel pip_0190…")]
    Cancel(OneOptions),
    /// Take up a pipeline that failed or was cancelled, at the steps that have not completed.
    Resume(ResumeOptions),
    /// Choose what a step buys that waits for a person.
    Approve(ApproveOptions),
    /// Let a step buy nothing that waits for a person: it fails.
    Refuse(RefuseOptions),
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff pipelines list --output csv")]
struct ListOptions {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
struct OneOptions {
    /// Id of the pipeline (pip_…).
    id: PipelineId,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff pipelines resume pip_0190… --step-budget-usd train=1700")]
struct ResumeOptions {
    /// A larger budget over all steps, USD, what is spent by now included.
    #[arg(long)]
    budget_usd: Option<Decimal>,
    /// Another budget of a comparison or full run that has not begun, `step=USD`; repeat for several.
    #[arg(long = "step-budget-usd", value_parser = super::pair)]
    step_budgets_usd: Vec<(String, String)>,
    #[command(flatten)]
    one: OneOptions,
}

#[derive(Debug, Args)]
struct StepOptions {
    /// Id of the pipeline (pip_…).
    id: PipelineId,
    /// Name of the step.
    step: String,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff pipelines approve pip_0190… train --candidate p5e")]
struct ApproveOptions {
    #[command(flatten)]
    step: StepOptions,
    /// A ranked candidate of the answer that the step waits for.
    #[arg(long)]
    candidate: String,
    /// `on_demand` or `spot`, where the candidate is ranked under both.
    #[arg(long, value_parser = super::buy::purchase_option)]
    purchase_option: Option<PurchaseOption>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: bakeoff pipelines refuse pip_0190… train --reason 'too dear this month'"
)]
struct RefuseOptions {
    #[command(flatten)]
    step: StepOptions,
    /// Why.
    #[arg(long)]
    reason: Option<String>,
}

pub(super) async fn run(options: PipelinesOptions) -> anyhow::Result<ExitCode> {
    match options.command {
        Command::List(options) => list(options).await,
        Command::Show(options) => {
            let client = Client::new(&options.target)?;
            show(&read(&client, options.id).await?, options.json)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Follow(options) => {
            let client = Client::new(&options.target)?;
            follow(&client, options.id, options.json).await
        }
        Command::Cancel(options) => command(options, "cancel", b"").await,
        Command::Resume(ResumeOptions {
            budget_usd,
            step_budgets_usd,
            one,
        }) => {
            let budgets = step_budgets_usd.into_iter();
            let asked = ResumePipeline {
                budget_usd: budget_usd.map(Usd),
                step_budgets_usd: budgets
                    .map(|(step, usd)| Ok((step, Usd(usd.parse()?))))
                    .collect::<anyhow::Result<_>>()?,
            };
            command(one, "resume", &serde_json::to_vec(&asked)?).await
        }
        Command::Approve(options) => {
            let asked = ApprovePurchase {
                candidate: options.candidate,
                purchase_option: options.purchase_option,
            };
            decide(options.step, "approve", &serde_json::to_vec(&asked)?).await
        }
        Command::Refuse(options) => {
            let asked = RefusePurchase {
                reason: options.reason,
            };
            decide(options.step, "refuse", &serde_json::to_vec(&asked)?).await
        }
    }
}

async fn decide(options: StepOptions, verb: &str, body: &[u8]) -> anyhow::Result<ExitCode> {
    let client = Client::new(&options.target)?;
    let path = format!("/v1/pipelines/{}/steps/{}/{verb}", options.id, options.step);
    show(&client.post(&path, body).await?, options.json)?;
    Ok(ExitCode::SUCCESS)
}

async fn command(options: OneOptions, verb: &str, body: &[u8]) -> anyhow::Result<ExitCode> {
    let client = Client::new(&options.target)?;
    // Safe to repeat: it says how things are to be.
    let path = format!("/v1/pipelines/{}/{verb}", options.id);
    show(&client.post_again(&path, body).await?, options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a document is a pipeline, and no experiment.
pub(super) fn is_pipeline(document: &Value) -> bool {
    document.get("steps").is_some_and(Value::is_array)
}

/// Starts a pipeline; follows it if that is wanted.
pub(super) async fn submit(
    client: &Client,
    file: &Path,
    body: &[u8],
    follows: bool,
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    let key = ids::fresh().to_string();
    let created: CreatedPipeline = client
        .post_once("/v1/pipelines", body, &key)
        .await
        .with_context(|| file.display().to_string())?;
    if !is_json {
        let steps = created
            .steps
            .iter()
            .map(|step| match step.needs.as_slice() {
                [] => step.name.clone(),
                needs => format!("{} (after {})", step.name, needs.join(", ")),
            });
        let steps: Vec<String> = steps.collect();
        println!("{} ({}): {}", created.name, created.id, steps.join(", "));
    }
    if follows {
        return follow(client, created.id, is_json).await;
    }
    if is_json {
        println!("{}", serde_json::to_string_pretty(&created)?);
    } else {
        println!("to follow it: bakeoff pipelines follow {}", created.id);
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(client: &Client, id: PipelineId) -> anyhow::Result<PipelineView> {
    client.get(&format!("/v1/pipelines/{id}")).await
}

/// One line per step until the pipeline is over, then its table.
pub(super) async fn follow(
    client: &Client,
    id: PipelineId,
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    let bars = MultiProgress::new();
    if is_json {
        bars.set_draw_target(ProgressDrawTarget::hidden());
    }
    let line = || {
        let style = ProgressStyle::with_template("{msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        bars.add(ProgressBar::new(1).with_style(style))
    };
    let (head, mut lines) = (line(), Vec::new());
    let ended = loop {
        let now = read(client, id).await?;
        head.set_message(format!(
            "{} — {} spent, {} reserved, budget {}",
            now.name, now.settled_usd, now.reserved_usd, now.budget_usd
        ));
        lines.resize_with(now.steps.len(), line);
        for (line, step) in lines.iter().zip(&now.steps) {
            line.set_message(format!(
                "  {} {:<24} {}",
                mark(step),
                step.name,
                doing(step)
            ));
        }
        if now.state.is_over() {
            break now;
        }
        real_sleep(LOOK_EVERY).await;
    };
    head.finish_and_clear();
    lines.iter().for_each(ProgressBar::finish_and_clear);
    show(&ended, is_json)?;
    Ok(if ended.state == PipelineState::Completed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn mark(step: &StepView) -> &'static str {
    match step.state {
        StepState::Waiting => "·",
        StepState::Running => "▶",
        StepState::Completed => "✔",
        StepState::Failed => "✘",
        StepState::Skipped | StepState::Cancelled => "–",
    }
}

/// What is known of a step in a few words.
fn doing(step: &StepView) -> String {
    let state = if step.reused_from.is_some() {
        "reused"
    } else {
        step.state.as_str()
    };
    let on = step.jobs.first().map(|job| {
        let (count, kind) = (job.instance_count, &job.instance_type);
        format!(", {count} × {kind}, {}", job.state.as_str())
    });
    let waits = step.jobs.first().and_then(|job| job.reason.clone());
    let why = step
        .reason
        .clone()
        .or(waits.filter(|_| step.state == StepState::Running));
    let why = why.map(|why| format!(": {why}"));
    let cost = format!(", {}", step.settled_usd);
    format!(
        "{state}{}{cost}{}",
        on.unwrap_or_default(),
        why.unwrap_or_default()
    )
}

pub(super) fn show(pipeline: &PipelineView, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        println!("{}", serde_json::to_string_pretty(pipeline)?);
        return Ok(());
    }
    println!(
        "{} {} is {}: {} spent of {}",
        pipeline.name,
        pipeline.id,
        pipeline.state.as_str(),
        pipeline.settled_usd,
        pipeline.budget_usd
    );
    let mut table = tables::table(&["step", "kind", "state", "cost", "what came of it"]);
    for step in &pipeline.steps {
        let state = if step.reused_from.is_some() {
            "completed (reused)"
        } else {
            step.state.as_str()
        };
        table.add_row([
            step.name.clone(),
            step.kind.as_str().to_owned(),
            state.to_owned(),
            step.settled_usd.to_string(),
            outcome(step),
        ]);
    }
    tables::print(table);
    if matches!(
        pipeline.state,
        PipelineState::Failed | PipelineState::Cancelled
    ) {
        let id = pipeline.id;
        println!("once the cause is gone, go on with: bakeoff pipelines resume {id}");
        println!(
            "or correct the file and run it again: unchanged processing steps are not run twice"
        );
    }
    Ok(())
}

/// What a person wants to see of a step's end.
fn outcome(step: &StepView) -> String {
    if let Some(reason) = &step.reason {
        return reason.clone();
    }
    if let Some(from) = step.reused_from {
        return format!("the outputs of {from}");
    }
    let outputs = step.outputs.as_ref();
    let text = |pointer: &str| {
        let value = outputs?.pointer(pointer)?;
        Some(
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned),
        )
    };
    let said = step.jobs.first().and_then(|job| job.exit_message.clone());
    let package = || Some(format!("{} {}", text("/group")?, text("/version")?));
    let tuned = || {
        let objective = outputs?.pointer("/best/objective")?.as_f64()?;
        let chosen = outputs?.pointer("/best/hyperparameters")?.as_object()?;
        let chosen = chosen.iter().map(|(name, value)| {
            let value = value.as_str().unwrap_or_default();
            format!("{name} {value}")
        });
        Some(format!(
            "{} {objective:.6} on {} with {}",
            text("/metric")?,
            text("/best/instance_type")?,
            chosen.collect::<Vec<_>>().join(", ")
        ))
    };
    let served = || {
        let (id, end) = (text("/endpoint_id")?, text("/expires_at")?);
        Some(format!("{id} serves until {end}"))
    };
    text("/headline")
        .or(said)
        .or_else(package)
        .or_else(tuned)
        .or_else(served)
        .or_else(|| text("/output_s3_uri"))
        .unwrap_or_default()
}

async fn list(options: ListOptions) -> anyhow::Result<ExitCode> {
    let client = Client::new(&options.target)?;
    let found: Vec<PipelineView> = client.all("/v1/pipelines?").await?;
    options.output.print(&found, || listed(&found))?;
    Ok(ExitCode::SUCCESS)
}

/// A table of pipelines.
pub(super) fn listed(found: &[PipelineView]) -> Table {
    let mut table = tables::table(&["pipeline", "state", "steps", "spent", "budget", "id"]);
    for one in found {
        let done = one
            .steps
            .iter()
            .filter(|step| step.state == StepState::Completed);
        table.add_row([
            one.name.clone(),
            one.state.as_str().to_owned(),
            format!("{} of {}", done.count(), one.steps.len()),
            one.settled_usd.to_string(),
            one.budget_usd.to_string(),
            one.id.to_string(),
        ]);
    }
    table
}

//! `bakeoff models`: puts a trial's model into SageMaker's Model Registry, lists what is there, approves.

use std::time::Duration;

use anyhow::{Context, bail};
use bakeoff_domain::ids::{ExperimentId, ModelPackageId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::model_package::{Approval, RegistryState};
use clap::{Args, Subcommand};
use comfy_table::Table;

use super::client::{Client, Target};
use super::output::Output;
use super::tables;
use bakeoff_api::model_packages::{ApproveModel, ModelPackageView, RegisterModel};
use bakeoff_api::page::Page;
use bakeoff_api::trials::TrialView;
use bakeoff_process::clock::{Stopwatch, real_sleep};

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a command waits for SageMaker.
const WAIT_MAX: Duration = Duration::from_mins(2);

#[derive(Debug, Args)]
pub(super) struct ModelsOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Register the model of a trial, and wait until it has a version.
    Register(Box<RegisterOptions>),
    /// List what was registered, the newest first.
    List(ListOptions),
    /// Approve a registered model, by its id.
    #[command(
        after_help = "Example: bakeoff models approve mpk_0190… --note 'evaluated on 3 June'"
    )]
    Approve(ApproveOptions),
    /// Reject a registered model, by its id.
    #[command(after_help = "Example: bakeoff models reject mpk_0190… --note 'drops names'")]
    Reject(ApproveOptions),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: bakeoff models register exp_0190… --group legal-de --image 111122223333.dkr.ecr.us-east-1.amazonaws.com/serve:1"
)]
struct RegisterOptions {
    /// Id of a trial, or of an experiment of which one trial has completed, such as a full run.
    trial: String,
    /// The model package group; it is created if there is none.
    #[arg(long)]
    group: String,
    /// The image that serves the model (ECR URI).
    #[arg(long)]
    image: String,
    /// One line about it; says where it comes from when absent.
    #[arg(long)]
    description: Option<String>,
    /// GiB of the weights as they are served, if the container quantises them.
    #[arg(long)]
    weights_gib: Option<f64>,
    /// A type that an endpoint of it may run on; repeat it for several.
    #[arg(long = "realtime", value_name = "INSTANCE_TYPE")]
    realtime: Vec<String>,
    /// A type that a batch transform of it may run on; repeat it for several.
    #[arg(long = "transform", value_name = "INSTANCE_TYPE")]
    transform: Vec<String>,
    /// A variable of the container's environment.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = super::pair)]
    environment: Vec<(String, String)>,
    /// An entry of its metadata, beside where it comes from.
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::pair)]
    metadata: Vec<(String, String)>,
    /// Approve it at once.
    #[arg(long)]
    approve: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff models list --group legal-de")]
struct ListOptions {
    /// Only versions of this group.
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
struct ApproveOptions {
    /// Id of the model package, as `bakeoff models list` shows it.
    id: ModelPackageId,
    /// Why, one line.
    #[arg(long)]
    note: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(options: ModelsOptions) -> anyhow::Result<()> {
    match options.command {
        Command::Register(options) => register(*options).await,
        Command::List(options) => list(options).await,
        Command::Approve(options) => approve(options, Approval::Approved).await,
        Command::Reject(options) => approve(options, Approval::Rejected).await,
    }
}

async fn register(options: RegisterOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let asked = RegisterModel {
        trial_id: trial(&client, &options.trial).await?,
        group: options.group,
        image: options.image,
        description: options.description,
        environment: options.environment.into_iter().collect(),
        content_types: vec!["application/json".to_owned()],
        response_types: vec!["application/json".to_owned()],
        weights_gib: options.weights_gib,
        realtime_instance_types: options.realtime,
        transform_instance_types: options.transform,
        metadata: options.metadata.into_iter().collect(),
        approval: if options.approve {
            Approval::Approved
        } else {
            Approval::Pending
        },
    };
    let body = serde_json::to_vec(&asked)?;
    // Safe to repeat: the same body finds the same package.
    let package: ModelPackageView = client.post_again("/v1/model-packages", &body).await?;
    let package = settled(&client, package).await?;
    come(&package, options.json)
}

/// The trial that is meant: an experiment stands for the only one that has completed.
async fn trial(client: &Client, text: &str) -> anyhow::Result<TrialId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let id: ExperimentId = text
        .parse()
        .ok()
        .context("name a trial (trl_…) or an experiment (exp_…)")?;
    let trials: Page<TrialView> = client.get(&format!("/v1/experiments/{id}/trials")).await?;
    let completed: Vec<&TrialView> = trials
        .items
        .iter()
        .filter(|trial| trial.state == TrialState::Completed)
        .collect();
    match completed.as_slice() {
        [one] => Ok(one.id),
        [] => bail!("no trial of {id} has completed"),
        several => {
            let named = several.iter().map(|trial| {
                let plan = trial.plan.as_ref();
                let what = plan.map_or("", |plan| plan.candidate.as_str());
                format!("  {} {what}", trial.id)
            });
            let named: Vec<String> = named.collect();
            bail!(
                "several trials of {id} have completed; name one:\n{}",
                named.join("\n")
            )
        }
    }
}

/// Waits until SageMaker has what was asked for, or refuses it.
async fn settled(
    client: &Client,
    mut package: ModelPackageView,
) -> anyhow::Result<ModelPackageView> {
    let path = format!("/v1/model-packages/{}", package.id);
    let (mut said, since) = (String::new(), Stopwatch::start());
    loop {
        let is_open = match package.state {
            RegistryState::Registering => true,
            RegistryState::Registered => {
                package.approval != package.wanted_approval && package.next_try_at.is_some()
            }
            RegistryState::Failed => false,
        };
        if !is_open {
            return Ok(package);
        }
        if let Some(reason) = package.reason.as_ref().filter(|reason| **reason != said) {
            eprintln!("waiting: {reason}");
            said.clone_from(reason);
        }
        if since.elapsed() > WAIT_MAX {
            bail!(
                "{} is not finished yet, and is still being tried: {said}. `bakeoff models list` shows it",
                package.id
            );
        }
        real_sleep(LOOK_EVERY).await;
        package = client.get(&path).await?;
    }
}

/// Prints what was asked for; an error where it did not come to be.
fn come(package: &ModelPackageView, is_json: bool) -> anyhow::Result<()> {
    let reason = package.reason.as_deref().unwrap_or_default();
    if package.state == RegistryState::Failed {
        bail!("{} was not registered: {reason}", package.id);
    }
    if package.approval != package.wanted_approval {
        bail!(
            "{} is still {}: {reason}",
            package.id,
            package.approval.as_str()
        );
    }
    show(package, is_json)
}

pub(super) fn show(package: &ModelPackageView, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        println!("{}", serde_json::to_string_pretty(package)?);
        return Ok(());
    }
    let version = package
        .version
        .map_or_else(String::new, |version| version.to_string());
    println!(
        "{} {version} is {}, {}",
        package.group,
        package.state.as_str(),
        approval(package)
    );
    if let Some(reason) = &package.reason {
        println!("  {}", tables::plain(reason));
    }
    println!("  {}", package.arn.as_deref().unwrap_or_default());
    println!("  {} from {}", package.id, package.trial_id);
    if package.approval == Approval::Pending {
        println!("to approve it: bakeoff models approve {}", package.id);
    }
    Ok(())
}

async fn list(options: ListOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let query: Vec<(&str, &String)> = options.group.iter().map(|group| ("group", group)).collect();
    let query = serde_html_form::to_string(query)?;
    let found: Vec<ModelPackageView> = client.all(&format!("/v1/model-packages?{query}&")).await?;
    options.output.print(&found, || listed(&found))
}

/// A table of registered models.
pub(super) fn listed(found: &[ModelPackageView]) -> Table {
    let mut table = tables::table(&["group", "version", "state", "approval", "trial", "id"]);
    for one in found {
        let version = one
            .version
            .map_or_else(String::new, |version| version.to_string());
        table.add_row([
            one.group.clone(),
            version,
            one.state.as_str().to_owned(),
            approval(one),
            one.trial_id.to_string(),
            one.id.to_string(),
        ]);
    }
    table
}

fn approval(one: &ModelPackageView) -> String {
    if one.approval == one.wanted_approval {
        return one.approval.as_str().to_owned();
    }
    let (has, wanted) = (one.approval.as_str(), one.wanted_approval.as_str());
    format!("{has} ({wanted} is wanted)")
}

async fn approve(options: ApproveOptions, approval: Approval) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let body = serde_json::to_vec(&ApproveModel {
        approval,
        note: options.note,
    })?;
    let path = format!("/v1/model-packages/{}", options.id);
    let package: ModelPackageView = client.patch(&path, &body).await?;
    let package = settled(&client, package).await?;
    come(&package, options.json)
}

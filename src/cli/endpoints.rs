//! `bakeoff endpoints`: puts a registered model into service, lists what serves and what it costs, extends,
//! updates and deletes.

use std::time::Duration;

use anyhow::bail;
use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::ids::{EndpointId, ModelPackageId};
use bakeoff_domain::money::Usd;
use clap::{Args, Subcommand};
use comfy_table::Table;
use serde_json::{Value, json};

use super::caps::cap;
use super::client::{Client, Target};
use super::output::Output;
use super::tables;
use bakeoff_api::endpoints::{CreatedEndpoint, EndpointView};
use bakeoff_process::clock::real_sleep;
use bakeoff_process::ids;

const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct EndpointsOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put a registered model into service, and wait until it serves.
    Deploy(Box<DeployOptions>),
    /// List endpoints, the newest first.
    List(ListOptions),
    /// Show an endpoint with its revisions.
    #[command(after_help = "Example: bakeoff endpoints show end_0190…")]
    Show(OneOptions),
    /// Let an endpoint serve longer.
    Extend(ExtendOptions),
    /// Have an endpoint serve another registered model, and wait until it does.
    Update(UpdateOptions),
    /// Have an endpoint serve an earlier revision again, and wait until it does.
    RollBack(RollBackOptions),
    /// Have an endpoint go on that waits for a person: after a permission was given, or a quota was raised.
    #[command(after_help = "Example: bakeoff endpoints resume end_0190…")]
    Resume(OneOptions),
    /// Delete an endpoint, and wait until it is gone.
    #[command(after_help = "Example: bakeoff endpoints delete end_0190…")]
    Delete(OneOptions),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: bakeoff endpoints deploy mpk_0190… --name legal --type ml.g5.xlarge --role arn:aws:iam::111122223333:role/serving --hours 4"
)]
struct DeployOptions {
    /// Id of the approved model package, as `bakeoff models list` shows it.
    model: ModelPackageId,
    /// What it is called.
    #[arg(long)]
    name: String,
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// Such as ml.g5.xlarge.
    #[arg(long = "type", value_name = "INSTANCE_TYPE")]
    instance_type: String,
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// Execution role of the model.
    #[arg(long)]
    role: String,
    /// How long it serves before it is deleted.
    #[arg(long, default_value_t = 4)]
    hours: u32,
    /// A JSON request that is sent once it serves.
    #[arg(long)]
    smoke_test: Option<String>,
    /// What the answer to it must contain.
    #[arg(long, requires = "smoke_test")]
    expect: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff endpoints list --json")]
struct ListOptions {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
struct OneOptions {
    /// Id of the endpoint (end_…).
    id: EndpointId,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff endpoints extend end_0190… --hours 4")]
struct ExtendOptions {
    /// Hours more.
    #[arg(long)]
    hours: u32,
    /// What it may cost in all from now on; needed where a budget was stated that does not suffice.
    #[arg(long, value_name = "USD", value_parser = cap)]
    budget_usd: Option<Usd>,
    #[command(flatten)]
    of: OneOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff endpoints update end_0190… --model mpk_0191…")]
struct UpdateOptions {
    /// Id of the approved model package.
    #[arg(long)]
    model: ModelPackageId,
    #[command(flatten)]
    of: OneOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff endpoints roll-back end_0190… --revision 1")]
struct RollBackOptions {
    /// The revision, as `bakeoff endpoints show` shows them.
    #[arg(long)]
    revision: u32,
    #[command(flatten)]
    of: OneOptions,
}

pub(super) async fn run(options: EndpointsOptions) -> anyhow::Result<()> {
    match options.command {
        Command::Deploy(options) => deploy(*options).await,
        Command::List(options) => list(options).await,
        Command::Show(options) => {
            let client = Client::new(&options.target)?;
            let path = format!("/v1/endpoints/{}", options.id);
            show(&client.get(&path).await?, options.json)
        }
        Command::Extend(options) => extend(options).await,
        Command::Update(options) => {
            let model = json!({"model_package_id": options.model});
            change(options.of, json!({ "model": model })).await
        }
        Command::RollBack(options) => {
            change(options.of, json!({"revision": options.revision})).await
        }
        Command::Resume(options) => {
            let client = Client::new(&options.target)?;
            let path = format!("/v1/endpoints/{}/resume", options.id);
            let endpoint: EndpointView = client.post_again(&path, b"{}").await?;
            show(&endpoint, options.json)
        }
        Command::Delete(options) => {
            let client = Client::new(&options.target)?;
            let path = format!("/v1/endpoints/{}", options.id);
            let endpoint: EndpointView = client.delete(&path).await?;
            // Gone is what was asked for, also of one that has never served.
            show(&settled(&client, endpoint).await?, options.json)
        }
    }
}

async fn deploy(options: DeployOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let test = options
        .smoke_test
        .map(|body| json!({"body": body, "expect": options.expect}));
    let endpoint = json!({
        "model": {"model_package_id": options.model}, "instance_type": options.instance_type,
        "instance_count": options.count, "role_arn": options.role, "time_to_live_hours": options.hours,
        "smoke_test": test,
    });
    let body = json!({"name": options.name, "region": options.region, "endpoint": endpoint});
    let (body, key) = (serde_json::to_vec(&body)?, ids::fresh().to_string());
    let created: CreatedEndpoint = client.post_once("/v1/endpoints", &body, &key).await?;
    let endpoint = client.get(&format!("/v1/endpoints/{}", created.id)).await?;
    come(&settled(&client, endpoint).await?, options.json)
}

async fn extend(options: ExtendOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.of.target)?;
    let path = format!("/v1/endpoints/{}", options.of.id);
    let endpoint: EndpointView = client.get(&path).await?;
    // In all, so that a repeated request does not extend it twice.
    let hours = endpoint.time_to_live_hours + f64::from(options.hours);
    let body = match options.budget_usd {
        Some(budget) => json!({"time_to_live_hours": whole(hours), "budget_usd": budget}),
        None => json!({"time_to_live_hours": whole(hours)}),
    };
    change(options.of, body).await
}

async fn change(of: OneOptions, body: Value) -> anyhow::Result<()> {
    let client = Client::new(&of.target)?;
    let path = format!("/v1/endpoints/{}", of.id);
    let changed: EndpointView = client.patch(&path, &serde_json::to_vec(&body)?).await?;
    let wanted = changed.wanted_revision;
    let endpoint = settled(&client, changed).await?;
    come(&endpoint, of.json)?;
    if endpoint.state == EndpointState::InService && endpoint.revision != wanted {
        let reason = endpoint.reason.as_deref().unwrap_or_default();
        bail!(
            "{} still serves revision {}: {reason}",
            endpoint.id,
            endpoint.revision
        );
    }
    Ok(())
}

/// Waits until it serves what it should, or is gone. It is created and deleted whether or not anybody waits.
async fn settled(client: &Client, mut endpoint: EndpointView) -> anyhow::Result<EndpointView> {
    let path = format!("/v1/endpoints/{}", endpoint.id);
    let mut said = String::new();
    while !endpoint.state.is_over() && endpoint.state != EndpointState::InService {
        let why = endpoint.reason.as_deref().unwrap_or_default();
        let status = endpoint.status.as_deref().unwrap_or("not created yet");
        let news = format!("{} ({status}) {why}", endpoint.state.as_str());
        if news != said {
            eprintln!("{news}");
            said = news;
        }
        real_sleep(LOOK_EVERY).await;
        endpoint = client.get(&path).await?;
    }
    Ok(endpoint)
}

/// Shows an endpoint that was waited for; an error where it has failed.
fn come(endpoint: &EndpointView, is_json: bool) -> anyhow::Result<()> {
    show(endpoint, is_json)?;
    let reason = endpoint.reason.as_deref().unwrap_or_default();
    if endpoint.state == EndpointState::Failed {
        bail!("{} has failed: {reason}", endpoint.id);
    }
    Ok(())
}

pub(super) fn show(endpoint: &EndpointView, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        println!("{}", serde_json::to_string_pretty(endpoint)?);
        return Ok(());
    }
    let reason = endpoint.reason.as_deref().unwrap_or_default();
    println!(
        "{} is {}",
        endpoint.name,
        endpoint.state.as_str().replace('_', " ")
    );
    if !reason.is_empty() {
        println!("  {}", tables::plain(reason));
    }
    println!(
        "  {} on {} × {}, revision {}",
        endpoint
            .endpoint_name
            .as_deref()
            .unwrap_or("not created yet"),
        endpoint.instance_count,
        endpoint.instance_type,
        endpoint.revision
    );
    println!(
        "  {} so far, at most {}",
        endpoint.cost_usd, endpoint.budget_usd
    );
    if let Some(end) = &endpoint.end_at_aws {
        println!("  if the service is away: {end}");
    }
    for one in &endpoint.revisions {
        let outcome = one.outcome.as_deref().unwrap_or("not tried yet");
        let model = one
            .model_package_id
            .map_or_else(String::new, |id| id.to_string());
        println!("  revision {} {model}: {outcome}", one.revision);
    }
    if let Some(end) = endpoint.expires_at.filter(|_| !endpoint.state.is_over()) {
        println!(
            "it is deleted at {}; to keep it: bakeoff endpoints extend {} --hours 4",
            end.to_rfc3339(),
            endpoint.id
        );
    }
    Ok(())
}

async fn list(options: ListOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let found: Vec<EndpointView> = client.all("/v1/endpoints?").await?;
    options.output.print(&found, || listed(&found))
}

/// A table of endpoints.
pub(super) fn listed(found: &[EndpointView]) -> Table {
    let mut table = tables::table(&["name", "state", "type", "cost", "until", "owner", "id"]);
    for one in found {
        let until = one
            .expires_at
            .map_or_else(String::new, |at| at.format("%F %H:%M").to_string());
        table.add_row([
            one.name.clone(),
            one.state.as_str().replace('_', " "),
            format!("{} × {}", one.instance_count, one.instance_type),
            one.cost_usd.to_string(),
            until,
            one.owner.clone(),
            one.id.to_string(),
        ]);
    }
    table
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped"
)]
fn whole(hours: f64) -> u32 {
    hours.round().clamp(0.0, 1e6) as u32
}

//! `bakeoff keys`: keys are created, listed and revoked on the host, by anyone with access to the
//! database.

use anyhow::bail;
use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use bakeoff_domain::money::Usd;
use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Subcommand};

use super::caps::cap;
use super::{database, sheet};
use bakeoff_process::clock::real_now;
use bakeoff_process::ids;
use bakeoff_service::auth::keys::{Role, format_key, hash};
use bakeoff_service::auth::secrets::{self, events_key};
use bakeoff_store::Store;
use bakeoff_store::keys::NewKey;

#[derive(Debug, Args)]
pub(super) struct KeysOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a key and print it, once. Creates the project if it does not exist.
    Create(Create),
    /// List all keys, without their secrets.
    List(List),
    /// Revoke a key: within a second, no replica accepts it any more.
    Revoke(Revoke),
    /// Print the key that lets EventBridge push events (header `Authorization`).
    Events(Events),
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff keys events --secret-key $KEY")]
struct Events {
    #[command(flatten)]
    secret: super::secret::SecretOptions,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: bakeoff keys create --project research --role editor --name 'notebook of Ada' --budget-usd 500"
)]
struct Create {
    #[command(flatten)]
    database: database::DatabaseOptions,
    /// Project the key belongs to.
    #[arg(long)]
    project: String,
    #[arg(long, value_enum, default_value = "viewer")]
    role: Role,
    /// Dollars that the project may spend in all, if it does not exist yet. When absent, the installation's default
    /// (`serve --default-project-budget-usd`), which is 0: nothing starts.
    #[arg(long, env = "BAKEOFF_DEFAULT_PROJECT_BUDGET_USD", value_name = "USD", value_parser = cap)]
    budget_usd: Option<Usd>,
    /// What the key is for.
    #[arg(long, default_value = "cli")]
    name: String,
    /// Days until the key expires; it never expires when absent.
    #[arg(long)]
    expires_in_days: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff keys list")]
struct List {
    #[command(flatten)]
    database: database::DatabaseOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff keys revoke key_0190…")]
struct Revoke {
    #[command(flatten)]
    database: database::DatabaseOptions,
    /// Id of the key, as `keys list` shows it.
    id: ApiKeyId,
}

pub(super) async fn run(options: KeysOptions) -> anyhow::Result<()> {
    match options.command {
        Command::Create(options) => create(options).await,
        Command::List(options) => list(&options.database.open().await?).await,
        Command::Revoke(options) => revoke(&options.database.open().await?, options.id).await,
        Command::Events(events) => {
            println!("Bearer {}", events_key(&events.secret.read()?));
            Ok(())
        }
    }
}

async fn list(store: &Store) -> anyhow::Result<()> {
    let keys = store.keys(None).await?;
    if keys.is_empty() {
        println!("There are no keys yet: `bakeoff keys create --project NAME` makes one.");
        return Ok(());
    }
    let now = real_now();
    let headers = ["id", "project", "role", "name", "created", "state"];
    let mut table = sheet::table(&headers);
    for key in keys {
        let state = match (key.revoked_at, key.expires_at) {
            (Some(at), _) => format!("revoked {}", day(at)),
            (None, Some(at)) if at <= now => format!("expired {}", day(at)),
            (None, Some(at)) => format!("valid until {}", day(at)),
            (None, None) => "valid".to_owned(),
        };
        table.add_row([
            key.id.to_string(),
            key.project,
            key.role,
            key.name,
            day(key.created_at),
            state,
        ]);
    }
    sheet::print(table);
    Ok(())
}

fn day(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d").to_string()
}

async fn revoke(store: &Store, id: ApiKeyId) -> anyhow::Result<()> {
    let Some(at) = store.revoke_key(id, real_now()).await? else {
        bail!("there is no key {id}: `bakeoff keys list` shows them all");
    };
    println!(
        "{id} is revoked since {}",
        at.to_rfc3339_opts(SecondsFormat::Secs, true)
    );
    Ok(())
}

/// What a new project may spend, and how that is changed.
fn said_of(name: &str, budget: Usd) -> String {
    let how =
        "an admin's key changes it: PUT /v1/projects/current/budget with {\"budget_usd\": 500}";
    if budget == Usd::ZERO {
        return format!(
            "project {name} is new and may spend nothing yet; {how} (or create projects with --budget-usd 500)"
        );
    }
    format!("project {name} is new and may spend {budget} in all; {how}")
}

async fn create(create: Create) -> anyhow::Result<()> {
    let store = create.database.open().await?;
    let now = real_now();
    let budget = match create.budget_usd {
        Some(budget) => budget,
        None => store.default_project_budget().await?,
    };
    let fresh = ProjectId(ids::fresh());
    let project = store
        .ensure_project(fresh, &create.project, Some(budget), now)
        .await?;
    if project == fresh {
        eprintln!("{}", said_of(&create.project, budget));
    } else if create.budget_usd.is_some() {
        eprintln!(
            "project {} exists: --budget-usd changes nothing; an admin's key does: PUT /v1/projects/current/budget",
            create.project
        );
    }
    let (id, secret) = (ApiKeyId(ids::fresh()), secrets::secret());
    let key = NewKey {
        id,
        name: &create.name,
        role: create.role.as_str(),
        secret_sha256: &hash(&secret),
        expires_at: create
            .expires_in_days
            .map(|days| now + chrono::TimeDelta::days(days.into())),
    };
    store.insert_key(project, &key, now).await?;
    eprintln!(
        "{} key {id} for project {} ({project}); shown only once:",
        create.role.as_str(),
        create.project
    );
    println!("{}", format_key(id, &secret));
    Ok(())
}

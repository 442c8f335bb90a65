//! `bakeoff keys`: who has access. On the service's host, where its database is at hand, for every project; elsewhere over
//! the API, with an admin's key, for that key's project.

use anyhow::{anyhow, bail};
use bakeoff_api::keys::{CreatedKey, KeyRole, KeyView, NewKey, RotateKey};
use bakeoff_api::page::Page;
use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use bakeoff_domain::money::Usd;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use clap::{Args, Subcommand};
use comfy_table::Table;
use serde::Serialize;

use super::caps::cap;
use super::client::{Client, Target};
use super::output::Output;
use super::{database, tables};
use bakeoff_process::clock::real_now;
use bakeoff_process::ids;
use bakeoff_service::auth::keys::{FreshKey, Role};
use bakeoff_service::auth::secrets::events_key;
use bakeoff_store::Store;

#[derive(Debug, Args)]
pub(super) struct KeysOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a key and print it, once. On the host, creates the project if it does not exist.
    Create(Create),
    /// List keys, without their secrets: on the host those of all projects, elsewhere those of your own.
    List(List),
    /// Replace a key by one of the same name and role, and print that, once. Over the API.
    Rotate(Rotate),
    /// Revoke a key: within a second, no replica accepts it any more.
    Revoke(Revoke),
    /// Print the key that lets EventBridge push events (header `Authorization`).
    Events(Events),
}

/// Where keys are kept: the database of this host, or the service.
#[derive(Debug, Args)]
struct BackendOptions {
    #[command(flatten)]
    database: database::DatabaseOptions,
    #[command(flatten)]
    target: Target,
}

enum Backend {
    Database(Store),
    Api(Client),
}

impl BackendOptions {
    /// The database where there is one, unless a service is named.
    async fn open(&self) -> anyhow::Result<Backend> {
        let Target {
            url,
            api_key,
            profile,
        } = &self.target;
        let names_service = url.is_some() || api_key.is_some() || profile.is_some();
        if !names_service && self.database.is_there() {
            return Ok(Backend::Database(self.database.open().await?));
        }
        Ok(Backend::Api(Client::new(&self.target)?))
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example: BAKEOFF_SECRET_KEY=… bakeoff keys events")]
struct Events {
    #[command(flatten)]
    secret: super::secret::SecretOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff keys create --project research --role admin --budget-usd 500     # on the service's host
  bakeoff keys create --role editor --name 'notebook of Ada'               # elsewhere, with an admin's key")]
struct Create {
    #[command(flatten)]
    backend: BackendOptions,
    /// Project the key belongs to: needed on the host; over the API it is your key's own.
    #[arg(long)]
    project: Option<String>,
    #[arg(long, value_enum, default_value = "viewer")]
    role: Role,
    /// Dollars that the project may spend in all, if it does not exist yet; on the host only. When absent, the installation's default
    /// (`serve --default-project-budget-usd`), which is 0: nothing starts.
    #[arg(long, env = "BAKEOFF_DEFAULT_PROJECT_BUDGET_USD", value_name = "USD", value_parser = cap)]
    budget_usd: Option<Usd>,
    /// What the key is for.
    #[arg(long, default_value = "cli")]
    name: String,
    /// Days until the key expires; it never expires when absent.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3650))]
    expires_in_days: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff keys list --output csv")]
struct List {
    #[command(flatten)]
    backend: BackendOptions,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff keys rotate key_0190… --overlap-hours 24 > key.txt")]
struct Rotate {
    #[command(flatten)]
    target: Target,
    /// Id of the key, as `keys list` shows it.
    id: ApiKeyId,
    /// How long the old key stays valid beside the new one, 0 to 720 hours.
    #[arg(long, default_value_t = 0)]
    overlap_hours: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff keys revoke key_0190…")]
struct Revoke {
    #[command(flatten)]
    backend: BackendOptions,
    /// Id of the key, as `keys list` shows it.
    id: ApiKeyId,
}

pub(super) async fn run(options: KeysOptions) -> anyhow::Result<()> {
    match options.command {
        Command::Create(options) => match options.backend.open().await? {
            Backend::Database(store) => create_on_host(&store, &options).await,
            Backend::Api(client) => create_over_api(&client, &options).await,
        },
        Command::List(options) => list(&options).await,
        Command::Rotate(options) => rotate(&options).await,
        Command::Revoke(options) => revoke(&options).await,
        Command::Events(events) => {
            println!("Bearer {}", events_key(&events.secret.read()?));
            Ok(())
        }
    }
}

/// A key as it is listed; on the host with its project.
#[derive(Serialize)]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<String>,
    #[serde(flatten)]
    key: KeyView,
}

async fn list(options: &List) -> anyhow::Result<()> {
    let rows: Vec<Row> = match options.backend.open().await? {
        Backend::Database(store) => {
            let keys = store.keys(None).await?.into_iter();
            keys.map(|key| Row {
                project: Some(key.project.clone()),
                key: key.into(),
            })
            .collect()
        }
        Backend::Api(client) => {
            let page: Page<KeyView> = client.get("/v1/keys").await?;
            let own = |key| Row { project: None, key };
            page.items.into_iter().map(own).collect()
        }
    };
    if rows.is_empty() && options.output.is_table() {
        println!("There are no keys yet: `bakeoff keys create --project NAME` makes one.");
        return Ok(());
    }
    options.output.print(&rows, || table(&rows))
}

fn table(rows: &[Row]) -> Table {
    let now = real_now();
    let is_host = rows.iter().any(|row| row.project.is_some());
    let mut headers = vec!["id", "project", "role", "name", "created", "state"];
    headers.retain(|header| is_host || *header != "project");
    let mut table = tables::table(&headers);
    for Row { project, key } in rows {
        let own = [
            key.role.clone(),
            key.name.clone(),
            day(key.created_at),
            state(key, now),
        ];
        let cells = [key.id.to_string()].into_iter().chain(project.clone());
        table.add_row(cells.chain(own));
    }
    table
}

fn state(key: &KeyView, now: DateTime<Utc>) -> String {
    match (key.revoked_at, key.expires_at) {
        (Some(at), _) => format!("revoked {}", day(at)),
        (None, Some(at)) if at <= now => format!("expired {}", day(at)),
        (None, Some(at)) => format!("valid until {}", day(at)),
        (None, None) => "valid".to_owned(),
    }
}

fn day(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d").to_string()
}

async fn revoke(options: &Revoke) -> anyhow::Result<()> {
    let id = options.id;
    let revoked_at = match options.backend.open().await? {
        Backend::Database(store) => store.revoke_key(id, real_now()).await?,
        Backend::Api(client) => {
            let key: KeyView = client.delete(&format!("/v1/keys/{id}")).await?;
            key.revoked_at
        }
    };
    let Some(at) = revoked_at else {
        bail!("there is no key {id}: `bakeoff keys list` shows them all");
    };
    println!(
        "{id} was revoked at {}",
        at.to_rfc3339_opts(SecondsFormat::Secs, true)
    );
    Ok(())
}

async fn rotate(options: &Rotate) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let how = serde_json::to_vec(&RotateKey {
        overlap_hours: options.overlap_hours,
    })?;
    let path = format!("/v1/keys/{}/rotate", options.id);
    let made: CreatedKey = client.post(&path, &how).await?;
    let old = match options.overlap_hours {
        0 => "is revoked".to_owned(),
        hours => format!("is valid for at most {hours} h more"),
    };
    eprintln!(
        "{} key {} replaces {}, which {old}; shown only once:",
        made.key.role, made.key.id, options.id
    );
    println!("{}", made.api_key);
    Ok(())
}

async fn create_over_api(client: &Client, create: &Create) -> anyhow::Result<()> {
    if create.project.is_some() {
        bail!(
            "--project is for the service's host (with DATABASE_URL or --data-dir, and without --url, --api-key and \
             --profile): over the API, a key belongs to the project of your own key"
        );
    }
    if create.budget_usd.is_some() {
        eprintln!(
            "--budget-usd is not used: it is for new projects, which are created on the service's host"
        );
    }
    let new = serde_json::to_vec(&NewKey {
        name: create.name.clone(),
        role: match create.role {
            Role::Viewer => KeyRole::Viewer,
            Role::Editor => KeyRole::Editor,
            Role::Admin => KeyRole::Admin,
        },
        expires_in_days: create.expires_in_days,
    })?;
    let made: CreatedKey = client.post("/v1/keys", &new).await?;
    eprintln!(
        "{} key {} ({}); shown only once:",
        made.key.role, made.key.id, made.key.name
    );
    println!("{}", made.api_key);
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

async fn create_on_host(store: &Store, create: &Create) -> anyhow::Result<()> {
    let name = create
        .project
        .as_deref()
        .ok_or_else(|| anyhow!("name the key's project: --project research"))?;
    let now = real_now();
    let budget = match create.budget_usd {
        Some(budget) => budget,
        None => store.default_project_budget().await?,
    };
    let fresh = ProjectId(ids::fresh());
    let project = store.ensure_project(fresh, name, Some(budget), now).await?;
    if project == fresh {
        eprintln!("{}", said_of(name, budget));
    } else if create.budget_usd.is_some() {
        eprintln!(
            "project {name} exists: --budget-usd changes nothing; an admin's key does: PUT /v1/projects/current/budget"
        );
    }
    let days = create.expires_in_days;
    let expires_at = days.map(|days| now + TimeDelta::days(days.into()));
    let key = FreshKey::new(&create.name, create.role, expires_at);
    store.insert_key(project, &key.stored(), now).await?;
    eprintln!(
        "{} key {} for project {name} ({project}); shown only once:",
        create.role.as_str(),
        key.id,
    );
    println!("{}", key.text());
    Ok(())
}

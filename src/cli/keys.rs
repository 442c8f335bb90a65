//! `bakeoff keys`: the first key is created on the host, by anyone with access to the database.

use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use clap::{Args, Subcommand};

use super::database;
use crate::auth::keys::{Role, format_key, hash};
use crate::auth::secrets::{self, events_key};
use crate::clock::real_now;
use crate::ids;
use crate::store::keys::NewKey;

#[derive(Debug, Args)]
pub(super) struct KeysOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a key and print it, once. Creates the project if it does not exist.
    Create(Create),
    /// Print the key that lets EventBridge push events (header `Authorization`).
    Events(Events),
}

#[derive(Debug, Args)]
struct Events {
    #[command(flatten)]
    secret: super::secret::SecretOptions,
}

#[derive(Debug, Args)]
struct Create {
    #[command(flatten)]
    database: database::DatabaseOptions,
    /// Project the key belongs to.
    #[arg(long)]
    project: String,
    #[arg(long, value_enum, default_value = "viewer")]
    role: Role,
    /// What the key is for.
    #[arg(long, default_value = "cli")]
    name: String,
    /// Days until the key expires; it never expires when absent.
    #[arg(long)]
    expires_in_days: Option<u32>,
}

pub(super) async fn run(options: KeysOptions) -> anyhow::Result<()> {
    let create = match options.command {
        Command::Create(create) => create,
        Command::Events(events) => {
            println!("Bearer {}", events_key(&events.secret.read()?));
            return Ok(());
        }
    };
    let store = create.database.open()?;
    let now = real_now();
    let project = store
        .ensure_project(ProjectId(ids::fresh()), &create.project, now)
        .await?;
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

//! Which database a command works on: `DATABASE_URL`, or the private cluster in a data directory.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use bakeoff_postgres::{Cluster, Config};
use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::clock::real_sleep;
use crate::store::{CONNECTIONS_MAX, Store};

/// How often the private cluster is looked after.
const SUPERVISE_EVERY: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Args)]
pub(super) struct DatabaseOptions {
    /// Postgres 15 or newer.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub(super) database_url: Option<String>,
    /// Where the private cluster of `serve --embedded` lives.
    #[arg(long, default_value = ".bakeoff")]
    pub(super) data_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(super) struct MigrateOptions {
    #[command(flatten)]
    database: DatabaseOptions,
    /// Make the database first, when there is none of that name.
    #[arg(long)]
    create: bool,
    /// Turn a copy of another installation's database into a new installation: it gets its own
    /// name, and everything running in it is closed. Jobs in AWS are left to the original.
    #[arg(long)]
    pub(super) new_installation: bool,
    /// Say that no other database of this installation lives: the next `serve --fence` may name
    /// another object, or take over the one that there is. Stop all replicas first.
    #[arg(long, conflicts_with = "new_installation")]
    pub(super) forget_fence: bool,
}

impl MigrateOptions {
    pub(super) async fn open(&self) -> anyhow::Result<Store> {
        if let Some(url) = self.database.database_url.as_ref().filter(|_| self.create) {
            Store::ensure_database(url).await?;
        }
        self.database.open()
    }
}

impl DatabaseOptions {
    /// The database of a running installation: the URL given, or that of the cluster that runs in
    /// the data directory.
    pub(super) fn open(&self) -> anyhow::Result<Store> {
        let saved = || bakeoff_postgres::saved_url(&self.data_dir);
        let Some(url) = self.database_url.clone().or_else(saved) else {
            bail!(
                "no database: set DATABASE_URL, or start `bakeoff serve --embedded --data-dir {}` first",
                self.data_dir.display()
            );
        };
        Ok(Store::connect_lazy(&url, CONNECTIONS_MAX, None)?)
    }
}

/// A private cluster that runs as long as the service does.
pub(super) struct Embedded {
    stop: CancellationToken,
    supervisor: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Embedded {
    /// Starts (or adopts) the cluster; returns its URL. Blocking work stays off the runtime.
    pub(super) async fn start(data_dir: PathBuf) -> anyhow::Result<(Self, String)> {
        let cluster = tokio::task::spawn_blocking(move || {
            Cluster::start(&Config {
                data_dir,
                durable: true,
            })
        })
        .await??;
        let url = cluster.service_url();
        tracing::info!(
            source = cluster.source(),
            pid = cluster.pid(),
            "the embedded PostgreSQL is up"
        );
        let stop = CancellationToken::new();
        let supervisor = tokio::spawn(supervise(cluster, stop.clone()));
        Ok((Self { stop, supervisor }, url))
    }

    /// Stops the cluster cleanly.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.supervisor
            .await
            .context("the supervisor of the embedded PostgreSQL")?
    }
}

/// Starts the server again, on the same port, when it has died.
async fn supervise(mut cluster: Cluster, stop: CancellationToken) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = real_sleep(SUPERVISE_EVERY) => {}
        }
        if cluster.is_alive() {
            continue;
        }
        tracing::warn!("the embedded PostgreSQL died; starting it again");
        let (back, outcome) = tokio::task::spawn_blocking(move || {
            let outcome = cluster.restart();
            (cluster, outcome)
        })
        .await?;
        cluster = back;
        match outcome {
            Ok(()) => tracing::info!(pid = cluster.pid(), "the embedded PostgreSQL is up again"),
            Err(error) => {
                tracing::error!(%error, "the embedded PostgreSQL could not be started again; trying on");
            }
        }
    }
    tokio::task::spawn_blocking(move || cluster.stop()).await??;
    Ok(())
}

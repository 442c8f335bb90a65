//! Selects the database a command works on: `DATABASE_URL`, or the private cluster in a data
//! directory.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use bakeoff_postgres::{Cluster, Config};
use clap::Args;
use tokio_util::sync::CancellationToken;

use bakeoff_process::clock::real_sleep;
use bakeoff_store::{CONNECTIONS_MAX, Store};

/// Where the private cluster is, unless another folder is named.
pub(super) const DATA_DIR: &str = ".bakeoff";
/// How often to check that the private cluster is alive.
const SUPERVISE_EVERY: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Args)]
pub(super) struct DatabaseOptions {
    /// URL of a PostgreSQL database, version 15 or newer.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub(super) database_url: Option<String>,
    /// Data directory of the private cluster of `serve --embedded`.
    #[arg(long, default_value = DATA_DIR)]
    pub(super) data_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(super) struct MigrateOptions {
    #[command(flatten)]
    database: DatabaseOptions,
    /// Create the database first if it does not exist.
    #[arg(long)]
    create: bool,
    /// Turn a copy of another installation's database into a new installation: it gets its own
    /// name, and everything running in it is closed. Jobs in AWS are left to the original.
    #[arg(long)]
    pub(super) new_installation: bool,
    /// Confirm that no other live database belongs to this installation: the next `serve --fence`
    /// may name another object, or take over the existing one. Stop all replicas first.
    #[arg(long, conflicts_with = "new_installation")]
    pub(super) forget_fence: bool,
}

impl MigrateOptions {
    pub(super) async fn open(&self) -> anyhow::Result<Store> {
        if let Some(url) = self.database.database_url.as_ref().filter(|_| self.create) {
            Store::ensure_database(url).await?;
        }
        self.database.open().await
    }
}

impl DatabaseOptions {
    /// Whether a database is named, or a private cluster has been made in the data directory.
    pub(super) fn is_there(&self) -> bool {
        self.database_url.is_some() || bakeoff_postgres::saved_url(&self.data_dir).is_some()
    }

    /// Opens the database of a running installation: the given URL, or that of the cluster running
    /// in the data directory.
    pub(super) async fn open(&self) -> anyhow::Result<Store> {
        let saved = || bakeoff_postgres::saved_url(&self.data_dir);
        let Some(url) = self.database_url.clone().or_else(saved) else {
            bail!(
                "no database: set DATABASE_URL, or start `bakeoff serve --embedded --data-dir {}` first",
                self.data_dir.display()
            );
        };
        Store::reach(&url).await?;
        Ok(Store::connect_lazy(&url, CONNECTIONS_MAX, None)?)
    }
}

/// What came of a first use of the database, which has waited for a server that starts. If it failed, what keeps it out
/// is the better word.
pub(super) async fn explained(outcome: anyhow::Result<()>, url: &str) -> anyhow::Result<()> {
    if outcome.is_err() {
        Store::reach(url).await?;
    }
    outcome
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
            "embedded PostgreSQL started"
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
            .context("the supervisor of the embedded PostgreSQL failed")?
    }
}

/// Restarts the server on the same port whenever it dies.
async fn supervise(mut cluster: Cluster, stop: CancellationToken) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = real_sleep(SUPERVISE_EVERY) => {}
        }
        if cluster.is_alive() {
            continue;
        }
        tracing::warn!("embedded PostgreSQL died; restarting");
        let (back, outcome) = tokio::task::spawn_blocking(move || {
            let outcome = cluster.restart();
            (cluster, outcome)
        })
        .await?;
        cluster = back;
        match outcome {
            Ok(()) => tracing::info!(pid = cluster.pid(), "embedded PostgreSQL restarted"),
            Err(error) => {
                tracing::error!(%error, "restarting embedded PostgreSQL failed; retrying");
            }
        }
    }
    tokio::task::spawn_blocking(move || cluster.stop()).await??;
    Ok(())
}

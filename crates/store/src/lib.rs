//! The store: all SQL of the product. Functions load rows and write decisions, but make none.
//!
//! Changes that belong together are one transaction. Functions here make no network calls except to
//! Postgres.

pub mod account;
pub mod calls;
pub mod ci;
pub mod due;
pub mod endpoints;
pub mod error;
pub mod events;
pub mod experiments;
pub mod installation;
pub mod jobs;
pub mod keys;
pub mod leases;
pub mod model_packages;
pub mod money;
mod pipeline_wake;
pub mod pipelines;
pub mod requests;
mod schema;
pub mod series;
mod session;
pub mod sessions;
mod stored;
pub mod webhook_endpoints;

pub use error::StoreError;
pub(crate) use error::retried;
pub use error::to_json;
pub use schema::MIGRATOR;
pub use session::{Unfinished, given_up};

use std::time::Duration;

use bakeoff_domain::money::budget::InstallationCaps;
use chrono::{DateTime, Utc};
use sqlx::migrate::MigrateDatabase;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgPool};

/// Default maximum of database connections per process.
pub const CONNECTIONS_MAX: u32 = 24;

/// A handle on the database; cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) pool: PgPool,
    memory: series::Remembered,
    keys: keys::KnownKeys,
    /// What the operator allows the installation to reserve.
    caps: InstallationCaps,
}

/// The database server.
#[derive(Debug, Clone)]
pub struct Server {
    /// With the distribution's remark, if it makes one.
    pub version: String,
    pub now: DateTime<Utc>,
}

/// How long a first connection may take.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);

impl Store {
    pub fn new(pool: PgPool) -> Self {
        Self {
            pool,
            memory: series::Remembered::default(),
            keys: keys::KnownKeys::default(),
            caps: InstallationCaps::default(),
        }
    }

    /// The same store, which reserves no more than an operator allows.
    #[must_use]
    pub fn capped(self, caps: InstallationCaps) -> Self {
        Self { caps, ..self }
    }

    /// Opens a pool that connects on demand. With a lease (the service), the session time-outs are
    /// derived from it. Without one (migrations, and commands that a person waits for), a statement
    /// may take as long as it needs.
    ///
    /// # Errors When the URL is malformed.
    pub fn connect_lazy(
        url: &str,
        connections_max: u32,
        lease: Option<Duration>,
    ) -> Result<Self, StoreError> {
        let options: PgConnectOptions = url.parse()?;
        Ok(Self::new(session::pool(options, connections_max, lease)))
    }

    /// Connects once, to say at once why that is impossible: a pool tries for a while, and then says only that it has.
    ///
    /// # Errors When the URL is not one of PostgreSQL, or the server does not let us in.
    pub async fn reach(url: &str) -> Result<(), StoreError> {
        let unreachable = |why: String| Err(StoreError::Unreachable(why));
        if !["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| url.starts_with(scheme))
        {
            // The rest may hold a password.
            return unreachable("the database's URL has to begin with postgres://".to_owned());
        }
        let options: PgConnectOptions = url.parse()?;
        let place = format!("{}:{}", options.get_host(), options.get_port());
        let connecting = tokio::time::timeout(REACH_TIMEOUT, options.connect());
        let why = match connecting.await {
            Ok(Ok(connection)) => return Ok(connection.close().await?),
            Ok(Err(sqlx::Error::Io(error))) => error.to_string(),
            Ok(Err(sqlx::Error::Database(error))) => error.message().to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", REACH_TIMEOUT.as_secs()),
        };
        unreachable(format!("cannot connect to PostgreSQL at {place}: {why}"))
    }

    /// The same store with a separate pool, so that exhausting one pool does not affect the other.
    #[must_use]
    pub fn apart(&self, connections_max: u32, lease: Duration) -> Self {
        let options = self.pool.connect_options().as_ref().clone();
        Self {
            pool: session::pool(options, connections_max, Some(lease)),
            ..self.clone()
        }
    }

    /// Creates the database named in the URL if it does not exist.
    ///
    /// # Errors When the server cannot be reached, or does not allow it.
    pub async fn ensure_database(url: &str) -> Result<(), StoreError> {
        if !sqlx::Postgres::database_exists(url).await? {
            sqlx::Postgres::create_database(url).await?;
        }
        Ok(())
    }

    /// The pool, for listeners and tests.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The database server's version, such as `18.4`, and its clock.
    pub async fn server(&self) -> Result<Server, StoreError> {
        Ok(sqlx::query_as!(
            Server,
            r#"SELECT current_setting('server_version') AS "version!", clock_timestamp() AS "now!""#
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// One round trip, for `/readyz`.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query_scalar!(r#"SELECT 1 AS "one!""#)
            .fetch_one(&self.pool)
            .await?;
        Ok(())
    }
}

//! The schema: applies the compiled-in migrations, and says which version is applied.
//!
//! A migration that alters a table takes `SHARE UPDATE EXCLUSIVE` on it first. An autovacuum of that
//! table is cancelled only after `deadlock_timeout` (1 s); whoever waits for it with this lock
//! blocks neither reads nor writes, whereas everything would queue behind a waiting `ALTER TABLE`.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::migrate::Migrator;

use crate::{Store, StoreError};
use bakeoff_process::clock::real_sleep;

/// The compiled-in migrations. Applying them is a separate step (`bakeoff migrate`).
pub static MIGRATOR: Migrator = sqlx::migrate!("../../migrations");

/// Only one process migrates a database at a time.
const MIGRATION_LOCK: i64 = 0x6261_6b65_0002;
/// The indexes that migrations build while others read and write.
const BUILT_CONCURRENTLY: [&str; 14] = [
    "events_by_project",
    "alarms_by_project",
    "ledger_once_by_resource",
    "trials_stops_due",
    "jobs_in_doubt",
    "warm_pools_due",
    "warm_pools_of_nothing",
    "experiments_race_due",
    "experiments_full_run_alive",
    "experiments_full_runs_of",
    "experiments_labels",
    "experiments_to_purge",
    "trials_retried",
    "webhook_deliveries_over",
];
/// How often a process looks whether another one has finished migrating.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

impl Store {
    /// Applies pending migrations.
    ///
    /// # Errors When one fails, or the schema is newer than this program. Those before it stay
    /// applied, and the next call goes on from there.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let mut connection = self.pool.acquire().await?;
        wait_for_migration_lock(&mut connection).await?;
        let migrated = apply_pending(&mut connection).await;
        sqlx::query!(
            r#"SELECT pg_advisory_unlock($1) AS "was_ours!""#,
            MIGRATION_LOCK
        )
        .fetch_one(&mut *connection)
        .await?;
        migrated
    }

    /// Schema versions: the one applied here, and the newest known to this program.
    pub async fn schema_versions(&self) -> Result<(i64, i64), StoreError> {
        let known = MIGRATOR.iter().map(|migration| migration.version).max();
        let mut connection = self.pool.acquire().await?;
        let applied = applied_version(&mut connection).await?;
        Ok((applied, known.unwrap_or_default()))
    }
}

/// Takes the lock by asking again and again: an index that is built concurrently waits for every
/// statement under way, and would wait forever for one that waits for this lock.
async fn wait_for_migration_lock(connection: &mut PgConnection) -> Result<(), StoreError> {
    let mut has_told = false;
    loop {
        let is_ours = sqlx::query_scalar!(
            r#"SELECT pg_try_advisory_lock($1) AS "ours!""#,
            MIGRATION_LOCK
        );
        if is_ours.fetch_one(&mut *connection).await? {
            return Ok(());
        }
        if !has_told {
            // A session goes on with its statement when its client is gone.
            tracing::info!("waiting: another session is migrating this database");
            has_told = true;
        }
        real_sleep(LOOK_AGAIN).await;
    }
}

async fn apply_pending(connection: &mut PgConnection) -> Result<(), StoreError> {
    drop_unfinished_indexes(connection).await?;
    let applied = applied_version(connection).await?;
    // Of a new database, nobody wants to know the steps.
    for step in MIGRATOR
        .iter()
        .filter(|step| step.version > applied && applied > 0)
    {
        tracing::info!(
            version = step.version,
            step = &*step.description,
            "applying a migration"
        );
        MIGRATOR.run_to(step.version, &mut *connection).await?;
    }
    // Also when nothing is left: a migration that was changed, or is missing here, is an error.
    Ok(MIGRATOR.run(connection).await?)
}

/// Drops the indexes that an interrupted migration has left unfinished, so that it can be repeated;
/// those that were finished are found by `IF NOT EXISTS`.
async fn drop_unfinished_indexes(connection: &mut PgConnection) -> Result<(), StoreError> {
    let unfinished = sqlx::query_scalar!(
        r#"SELECT format('%I.%I', n.nspname, c.relname) AS "name!"
           FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
           WHERE NOT i.indisvalid AND n.nspname = current_schema() AND c.relname = ANY($1)"#,
        &BUILT_CONCURRENTLY.map(str::to_owned),
    )
    .fetch_all(&mut *connection)
    .await?;
    for name in unfinished {
        // Quoted above.
        sqlx::query(sqlx::AssertSqlSafe(format!("DROP INDEX {name}")))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

async fn applied_version(connection: &mut PgConnection) -> Result<i64, StoreError> {
    let exists =
        sqlx::query_scalar!(r#"SELECT to_regclass('_sqlx_migrations') IS NOT NULL AS "exists!""#)
            .fetch_one(&mut *connection)
            .await?;
    if !exists {
        return Ok(0);
    }
    // Not `query!`: the table belongs to sqlx and does not exist when queries are checked.
    let applied = "SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success";
    Ok(sqlx::query_scalar(applied).fetch_one(connection).await?)
}

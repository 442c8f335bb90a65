//! What `bakeoff serve` asks of the schema it serves: the right version when it starts, and no newer
//! one while it runs. Applying migrations is the store's part.

use std::time::Duration;

use anyhow::{anyhow, ensure};

use bakeoff_process::clock::real_sleep;
use bakeoff_service::replica::pulse::Pulse;
use bakeoff_store::{Store, StoreError};

/// Timeout for reading the schema version from the database.
const PATIENCE: Duration = Duration::from_secs(10);

/// Migrates an embedded database; a shared one must have the version this program needs.
pub(super) async fn prepare(store: &Store, embedded: bool) -> anyhow::Result<()> {
    if embedded {
        return Ok(store.migrate().await?);
    }
    let Some(versions) = versions(store).await else {
        return Err(unanswered());
    };
    let (applied, known) = versions?;
    ensure!(
        applied >= known,
        "the schema is at version {applied}, but this program needs {known}: run `bakeoff migrate`"
    );
    ensure!(
        applied <= known,
        "the schema is at version {applied}, newer than this program's {known}: upgrade the program"
    );
    Ok(())
}

/// Completes when the schema is newer than this program: the database was migrated while it ran,
/// and its further writes might mean something else there.
pub(super) async fn upgraded(store: Store, look_every: Duration) -> anyhow::Error {
    loop {
        real_sleep(look_every).await;
        // An unreachable or unresponsive database says nothing about its schema.
        let Some(Ok((applied, known))) = versions(&store).await else {
            continue;
        };
        if applied > known {
            return anyhow!(
                "the schema is now at version {applied}, newer than this program's {known}: the database was migrated \
                 while it ran, so it stops. Start the program that migrated it"
            );
        }
    }
}

/// What a start says of a database that takes statements and never answers them.
pub(super) fn unanswered() -> anyhow::Error {
    anyhow!(
        "the database does not answer: check that it is up and that nothing between drops its connections, then start \
         again"
    )
}

async fn versions(store: &Store) -> Option<Result<(i64, i64), StoreError>> {
    let asked = store.schema_versions();
    Pulse::default().patiently(PATIENCE, asked).await
}

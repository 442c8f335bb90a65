//! A seed's database as its administrator sees it, through `psql`: statements, and transactions that
//! their replicas left open.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time between two looks at the sessions of all seeds.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Seconds that a transaction may be left open. The replicas' sessions end after two, and a busy
/// server takes a moment more; without that bound, the rows of a frozen replica stay locked.
const LEFT_OPEN_MAX: u32 = 10;

/// How to reach a database.
pub(super) struct Database {
    pub(super) url: String,
    /// The port of the cluster, without the proxy.
    pub(super) port: u16,
    pub(super) psql: Option<PathBuf>,
}

impl Database {
    /// Another database in the same cluster.
    pub(super) fn beside(&self, name: &str) -> Self {
        let url = self
            .url
            .rsplit_once('/')
            .map_or_else(String::new, |(head, _)| format!("{head}/{name}"));
        Self {
            url,
            port: self.port,
            psql: self.psql.clone(),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.url.rsplit('/').next().unwrap_or_default()
    }

    pub(super) fn execute(&self, sql: &str) -> Result<(), String> {
        self.ask(sql).map(drop)
    }

    /// Executes a statement; returns its rows as lines, with their columns separated by `|`.
    fn ask(&self, sql: &str) -> Result<String, String> {
        let psql = self.psql.as_ref().ok_or("there is no psql")?;
        let done = Command::new(psql)
            .args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-c", sql, &self.url])
            .output();
        let done = done.map_err(|error| error.to_string())?;
        if done.status.success() {
            Ok(String::from_utf8_lossy(&done.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&done.stderr).into_owned())
        }
    }
}

/// A transaction that was left open for too long, and kept its rows locked.
pub(super) struct LeftOpen {
    pub(super) database: String,
    seconds: String,
    /// Its last statement.
    statement: String,
}

impl fmt::Display for LeftOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a transaction was still open {} s after its last statement: {}",
            self.seconds, self.statement
        )
    }
}

/// Looks at the sessions of all databases until it is over; returns how many looks succeeded. `admin`
/// is a database of the cluster that no seed uses. Without `psql`, there are none.
pub(super) fn watch(admin: &Database, is_over: &AtomicBool, found: &Mutex<Vec<LeftOpen>>) -> u64 {
    let open = format!(
        "SELECT datname, pid, xact_start, extract(epoch FROM clock_timestamp() - state_change)::int,
                left(regexp_replace(query, '\\s+', ' ', 'g'), 120)
           FROM pg_stat_activity
          WHERE state LIKE 'idle in transaction%' AND clock_timestamp() - state_change > interval '{LEFT_OPEN_MAX} s'"
    );
    let (mut seen, mut looks_made) = (BTreeMap::new(), 0);
    while admin.psql.is_some() && !is_over.load(Ordering::SeqCst) {
        std::thread::sleep(LOOK_EVERY);
        // Postgres is killed now and then.
        let Ok(rows) = admin.ask(&open) else {
            continue;
        };
        looks_made += 1;
        let mut still = BTreeMap::new();
        for row in rows.lines() {
            let columns: Vec<&str> = row.splitn(5, '|').collect();
            let [database, pid, begun, seconds, statement] = columns[..] else {
                continue;
            };
            // A session seen once may be about to end, if it got no processor.
            let session = format!("{database}/{pid}/{begun}");
            let looks = seen.get(&session).copied().unwrap_or(0) + 1;
            if looks == 2 {
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.push(LeftOpen {
                    database: database.to_owned(),
                    seconds: seconds.to_owned(),
                    statement: statement.to_owned(),
                });
            }
            still.insert(session, looks);
        }
        seen = still;
    }
    looks_made
}

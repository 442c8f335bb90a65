//! Bounds on database sessions: what a session may hold, and for how long, when its client sleeps,
//! is cut off, or waits for an answer that never comes. Leases expire by themselves; row locks and
//! advisory locks are only freed by these bounds.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::postgres::types::PgInterval;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, PgConnection};

/// How long a caller waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that was abandoned in the middle of a statement has to answer before it is
/// closed.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long after abandoned work connections are checked when they return to the pool.
const SUSPICION: Duration = Duration::from_mins(2);

/// Session timeouts as fractions of the lease, so that rows are free when a lease passes on. The
/// minimums are for leases too short for a busy machine.
fn bounds(lease: Duration) -> [(&'static str, String); 8] {
    let at_least =
        |part: Duration, least: u64| part.max(Duration::from_secs(least)).as_millis().to_string();
    let seconds = |part: Duration| part.as_secs().max(1).to_string();
    [
        ("statement_timeout", at_least(lease, 10)),
        ("lock_timeout", at_least(lease / 6, 1)),
        (
            "idle_in_transaction_session_timeout",
            at_least(lease / 2, 2),
        ),
        // The server's side of a connection whose client is cut off.
        ("tcp_user_timeout", at_least(lease, 10)),
        ("tcp_keepalives_idle", seconds(lease / 2)),
        ("tcp_keepalives_interval", seconds(lease / 6)),
        ("tcp_keepalives_count", "3".to_owned()),
        ("client_connection_check_interval", at_least(lease / 3, 1)),
    ]
}

/// A pool whose sessions are bounded by a lease, or unbounded.
pub(super) fn pool(
    options: PgConnectOptions,
    connections_max: u32,
    lease: Option<Duration>,
) -> PgPool {
    let pool = PgPoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_TIMEOUT);
    match lease {
        None => pool.connect_lazy_with(options),
        Some(lease) => pool
            .after_release(|connection, _| Box::pin(is_alive(connection)))
            .connect_lazy_with(options.options(bounds(lease))),
    }
}

static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
/// When work was last abandoned, in milliseconds since the first use of this clock; 0 for never.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

fn millis() -> u64 {
    u64::try_from(STARTED.elapsed().as_millis())
        .unwrap_or(u64::MAX)
        .saturating_add(1)
}

/// Announces that database work is about to be abandoned halfway. Otherwise sqlx would ping the
/// connection and wait for the answer for ever, and the pool would lose one connection each time.
pub fn given_up() {
    GIVEN_UP.store(millis(), Ordering::Relaxed);
}

/// Calls `given_up` when dropped before it is finished: for futures that other code may drop.
#[derive(Debug, Default)]
pub struct Unfinished(());

impl Unfinished {
    pub fn finished(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        given_up();
    }
}

/// Whether a released connection still answers. An error closes it.
async fn is_alive(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let last = GIVEN_UP.load(Ordering::Relaxed);
    let suspicion = u64::try_from(SUSPICION.as_millis()).unwrap_or(u64::MAX);
    if last == 0 || millis().saturating_sub(last) > suspicion {
        return Ok(true);
    }
    let answered = tokio::time::timeout(PING_TIMEOUT, connection.ping()).await;
    answered
        .map_err(|_| sqlx::Error::PoolTimedOut)?
        .map(|()| true)
}

/// Converts a duration to a Postgres interval.
pub(crate) fn interval(duration: Duration) -> PgInterval {
    PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX),
    }
}

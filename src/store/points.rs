//! Points of a series, fetched and read. Live ones come by COPY in its binary format, as fast as
//! Postgres gives them: rows would take twice as long, arrays half as long again. Reading what was
//! fetched is a step of its own: a million points take longer than a request's turn on a worker.

use bakeoff_domain::measure::rollup::Columns;
use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};

use crate::store::compaction::{self, Chunk};
use crate::store::series::Series;
use crate::store::{Store, StoreError};

/// Signature, flags and extension length.
const HEADER: usize = 19;
/// Three fields, each after its length: a timestamp, an integer, a double.
const ROW: usize = 2 + (4 + 8) + (4 + 4) + (4 + 8);
/// The end: a row of -1 fields.
const TRAILER: usize = 2;
/// Bytes that are read before others have their turn on the worker.
const TURN: usize = 64 * 1024;
/// Postgres counts microseconds from 2000-01-01; this is that day, from 1970.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Every point of a series, as the database sent them.
#[derive(Debug)]
pub struct Fetched {
    series: i32,
    points: Points,
}

#[derive(Debug)]
enum Points {
    /// By COPY.
    Live(Vec<u8>),
    Compacted(Vec<Chunk>),
}

impl Fetched {
    /// The points, in order. Its time grows with their number.
    pub fn columns(self) -> Result<Columns, StoreError> {
        match self.points {
            Points::Live(sent) => columns(rows(&sent))
                .ok_or_else(|| StoreError::corrupt("samples", self.series, "value")),
            Points::Compacted(chunks) => Ok(compaction::columns(chunks)),
        }
    }
}

impl Store {
    /// Every point of a series.
    pub async fn points(&self, series: &Series) -> Result<Fetched, StoreError> {
        let live = if series.is_compacted {
            Vec::new()
        } else {
            copy(&self.pool, series).await?
        };
        // No live ones: it has been compacted since it was looked up.
        let points = if rows(&live).is_empty() {
            Points::Compacted(compaction::chunks(&self.pool, series.id).await?)
        } else {
            Points::Live(live)
        };
        Ok(Fetched {
            series: series.id,
            points,
        })
    }
}

/// What Postgres sends of a series: a header, rows, a trailer.
async fn copy(pool: &PgPool, series: &Series) -> Result<Vec<u8>, StoreError> {
    // COPY takes no parameters; what is put in is a number and two times, written by us.
    let time = |at: Option<DateTime<Utc>>| {
        at.unwrap_or_default()
            .format("%Y-%m-%d %H:%M:%S%.6f+00")
            .to_string()
    };
    let statement = format!(
        "COPY (SELECT sampled_at, step, value FROM samples WHERE series_id = {} AND sampled_at BETWEEN '{}' AND '{}')
         TO STDOUT (FORMAT BINARY)",
        series.id,
        time(series.first_at),
        time(series.last_at),
    );
    let mut reading = Reading {
        connection: pool.acquire().await?,
        is_whole: false,
    };
    let mut stream = reading.connection.copy_out_raw(&statement).await?;
    let points = usize::try_from(series.points).unwrap_or_default();
    let mut sent = Vec::with_capacity(HEADER + points * ROW + TRAILER);
    let mut turn_ends = TURN;
    while let Some(chunk) = stream.try_next().await? {
        sent.extend_from_slice(&chunk);
        // Rows that are there already come without a wait, a quarter of a million at once.
        if sent.len() >= turn_ends {
            tokio::task::yield_now().await;
            turn_ends = sent.len() + TURN;
        }
    }
    drop(stream);
    reading.is_whole = true;
    Ok(sent)
}

/// The rows of what was sent.
fn rows(sent: &[u8]) -> &[u8] {
    sent.get(HEADER..sent.len().saturating_sub(TRAILER))
        .unwrap_or_default()
}

/// The points of such rows, in order; `None` when a row is not as Postgres describes it.
fn columns(rows: &[u8]) -> Option<Columns> {
    let (rows, rest) = rows.as_chunks::<ROW>();
    let mut points = rows
        .iter()
        .map(|row| fields(row))
        .collect::<Option<Vec<_>>>()
        .filter(|_| rest.is_empty())?;
    // They come nearly in order, and sorting them here takes a millisecond. Asked for in order,
    // Postgres sorts them on disk as long as it has no statistics on a new month.
    points.sort_by_key(|(at, step, _)| (*at, *step));
    Some(Columns {
        at: points.iter().map(|(at, _, _)| moment(*at)).collect(),
        step: points.iter().map(|(_, step, _)| *step).collect(),
        value: points.iter().map(|(_, _, value)| *value).collect(),
    })
}

/// A connection in the middle of a COPY. Whoever stops reading, because the client has hung up or a
/// row is odd, leaves answers on it that the next statement would take for its own: then it is
/// closed instead of going back to the pool.
struct Reading {
    connection: PoolConnection<Postgres>,
    is_whole: bool,
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.is_whole {
            self.connection.close_on_drop();
        }
    }
}

fn moment(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros.saturating_add(EPOCH_MICROS)).unwrap_or_default()
}

/// One row of three fixed fields, none of them null.
fn fields(row: &[u8]) -> Option<(i64, i32, f64)> {
    let (count, row) = row.split_first_chunk::<2>()?;
    let (at_length, row) = row.split_first_chunk::<4>()?;
    let (at, row) = row.split_first_chunk::<8>()?;
    let (step_length, row) = row.split_first_chunk::<4>()?;
    let (step, row) = row.split_first_chunk::<4>()?;
    let (value_length, row) = row.split_first_chunk::<4>()?;
    let (value, _) = row.split_first_chunk::<8>()?;
    let lengths = [at_length, step_length, value_length].map(|length| u32::from_be_bytes(*length));
    let is_sound = *count == [0, 3] && lengths == [8, 4, 8];
    is_sound.then(|| {
        (
            i64::from_be_bytes(*at),
            i32::from_be_bytes(*step),
            f64::from_be_bytes(*value),
        )
    })
}

//! Fetching and decoding the points of a series. Live points come by binary COPY, as fast as
//! Postgres sends them: rows would take twice as long, arrays half as long again. Decoding is a
//! separate step: for a million points it takes longer than a request's turn on a worker.

use bakeoff_domain::measure::rollup::Columns;
use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};

use crate::series::Series;
use crate::series::compaction::{self, Chunk};
use crate::{Store, StoreError, error};

/// Signature, flags and extension length.
const HEADER: usize = 19;
/// Three fields, each preceded by its length: a timestamp, an integer, a double.
const ROW: usize = 2 + (4 + 8) + (4 + 4) + (4 + 8);
/// The end marker: a row of -1 fields.
const TRAILER: usize = 2;
/// Bytes to read before yielding to other tasks on the worker.
const TURN: usize = 64 * 1024;
/// Postgres counts microseconds from 2000-01-01; this is that day in Unix time.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// All points of a series, as received from the database.
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
    /// Decodes the points, in order. Takes time proportional to their number.
    pub fn columns(self) -> Result<Columns, StoreError> {
        match self.points {
            Points::Live(sent) => columns(rows(&sent))
                .ok_or_else(|| StoreError::corrupt("samples", self.series, "value")),
            Points::Compacted(chunks) => Ok(compaction::columns(chunks)),
        }
    }
}

impl Store {
    /// Fetches all points of a series.
    pub async fn points(&self, series: &Series) -> Result<Fetched, StoreError> {
        let live = if series.is_compacted {
            Vec::new()
        } else {
            copy(&self.pool, series).await?
        };
        // No live points: the series has been compacted since it was looked up.
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

/// Copies a series' points from Postgres: a header, rows, a trailer.
async fn copy(pool: &PgPool, series: &Series) -> Result<Vec<u8>, StoreError> {
    // COPY takes no parameters. The inserted values are a number and two times that we format.
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
    let mut reading = OpenCopy {
        connection: pool.acquire().await?,
        is_whole: false,
    };
    let mut stream = reading.connection.copy_out_raw(&statement).await?;
    let points: usize = error::count(series.points, "series", series.id, "points")?;
    let mut sent = Vec::with_capacity(HEADER + points * ROW + TRAILER);
    let mut turn_ends = TURN;
    while let Some(chunk) = stream.try_next().await? {
        sent.extend_from_slice(&chunk);
        // Buffered rows arrive without a wait, up to a quarter of a million at once.
        if sent.len() >= turn_ends {
            tokio::task::yield_now().await;
            turn_ends = sent.len() + TURN;
        }
    }
    drop(stream);
    reading.is_whole = true;
    Ok(sent)
}

/// The rows between header and trailer.
fn rows(sent: &[u8]) -> &[u8] {
    let body = sent.len().saturating_sub(HEADER + TRAILER);
    sent.get(HEADER..HEADER + body).unwrap_or(&[])
}

/// Decodes rows into points, in order; `None` when a row does not match Postgres's format, or its
/// time lies beyond all dates.
fn columns(rows: &[u8]) -> Option<Columns> {
    let (rows, rest) = rows.as_chunks::<ROW>();
    let mut points = rows
        .iter()
        .map(|row| fields(row))
        .collect::<Option<Vec<_>>>()
        .filter(|_| rest.is_empty())?;
    // The points arrive nearly sorted, and sorting them here takes a millisecond. With ORDER BY,
    // Postgres would sort on disk as long as it has no statistics on a new month.
    points.sort_by_key(|(at, step, _)| (*at, *step));
    Some(Columns {
        at: points
            .iter()
            .map(|(at, _, _)| moment(*at))
            .collect::<Option<_>>()?,
        step: points.iter().map(|(_, step, _)| *step).collect(),
        value: points.iter().map(|(_, _, value)| *value).collect(),
    })
}

/// A connection in the middle of a COPY. If reading stops early, because the client hung up or a
/// row is malformed, unread answers remain, which the next statement would treat as its own. Such a
/// connection is closed instead of returned to the pool.
struct OpenCopy {
    connection: PoolConnection<Postgres>,
    is_whole: bool,
}

impl Drop for OpenCopy {
    fn drop(&mut self) {
        if !self.is_whole {
            self.connection.close_on_drop();
        }
    }
}

fn moment(micros: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(micros.checked_add(EPOCH_MICROS)?)
}

/// Decodes one row of three fixed-size fields, none of them null.
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

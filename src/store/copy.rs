//! Points of a live series, as fast as Postgres gives them: COPY in its binary format, read while it is still being sent. Rows
//! would take twice as long, arrays half as long again.

use bakeoff_domain::rollup::Columns;
use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};

use super::StoreError;
use super::series::Series;

/// Signature, flags and extension length.
const HEADER: usize = 19;
/// Three fields, each after its length: a timestamp, an integer, a double.
const ROW: usize = 2 + (4 + 8) + (4 + 4) + (4 + 8);
/// Postgres counts microseconds from 2000-01-01; this is that day, from 1970.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

pub(super) async fn points(pool: &PgPool, series: &Series) -> Result<Columns, StoreError> {
    // COPY takes no parameters; what is put in is a number and two times, written by us.
    let time = |at: Option<DateTime<Utc>>| at.unwrap_or_default().format("%Y-%m-%d %H:%M:%S%.6f+00").to_string();
    let statement = format!(
        "COPY (SELECT sampled_at, step, value FROM samples WHERE series_id = {} AND sampled_at BETWEEN '{}' AND '{}')
         TO STDOUT (FORMAT BINARY)",
        series.id,
        time(series.first_at),
        time(series.last_at),
    );
    let mut reading = Reading { connection: pool.acquire().await?, is_whole: false };
    let mut stream = reading.connection.copy_out_raw(&statement).await?;
    let mut points = Vec::with_capacity(usize::try_from(series.points).unwrap_or_default());
    let mut rest = Vec::new();
    let mut is_begun = false;
    while let Some(chunk) = stream.try_next().await? {
        rest.extend_from_slice(&chunk);
        let mut from = if is_begun { 0 } else { HEADER };
        if rest.len() < from {
            continue;
        }
        is_begun = true;
        while let Some(row) = rest.get(from..from + ROW) {
            points.push(fields(row).ok_or_else(|| StoreError::corrupt("samples", series.id, "value"))?);
            from += ROW;
        }
        // What is left is a part of a row, or the trailer.
        rest.drain(..from);
    }
    drop(stream);
    reading.is_whole = true;
    // They come nearly in order, and sorting them here takes a millisecond. Asked for in order, Postgres sorts them on disk as
    // long as it has no statistics on a new month.
    points.sort_by_key(|(at, step, _)| (*at, *step));
    Ok(Columns {
        at: points.iter().map(|(at, _, _)| moment(*at)).collect(),
        step: points.iter().map(|(_, step, _)| *step).collect(),
        value: points.iter().map(|(_, _, value)| *value).collect(),
    })
}

/// A connection in the middle of a COPY. Whoever stops reading, because the client has hung up or a row is odd, leaves answers on it
/// that the next statement would take for its own: then it is closed instead of going back to the pool.
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
    is_sound.then(|| (i64::from_be_bytes(*at), i32::from_be_bytes(*step), f64::from_be_bytes(*value)))
}

//! Tables in four formats, with the same columns in all: JSON, CSV, NDJSON, Parquet. The content of
//! a table is decided elsewhere.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, SecondsFormat, Utc};
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::plumbing::extract::text_of;
use crate::plumbing::heavy::aside;
use crate::plumbing::problem::Problem;

/// Number of values passed to an encoder at once.
const WRITE_BATCH: usize = 16_384;

/// The format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    Json,
    Csv,
    Ndjson,
    Parquet,
}

impl Format {
    /// The format requested with `?format=`, or else with the Accept header; JSON by default.
    pub(crate) fn chosen(asked: Option<Self>, headers: &HeaderMap) -> Self {
        let accepted = text_of(headers, &header::ACCEPT);
        let kinds = [Self::Csv, Self::Ndjson, Self::Parquet];
        let by_header = || {
            kinds
                .into_iter()
                .find(|kind| accepted.contains(kind.content_type()))
        };
        asked.or_else(by_header).unwrap_or(Self::Json)
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Csv => "text/csv",
            Self::Ndjson => "application/x-ndjson",
            Self::Parquet => "application/vnd.apache.parquet",
        }
    }
}

/// One column; `None` is an empty cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Column {
    Text(Vec<Option<String>>),
    Whole(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Flag(Vec<Option<bool>>),
    Time(Vec<Option<DateTime<Utc>>>),
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Whole,
    Real,
    Flag,
    Time,
}

impl Column {
    fn len(&self) -> usize {
        match self {
            Self::Text(cells) => cells.len(),
            Self::Whole(cells) => cells.len(),
            Self::Real(cells) => cells.len(),
            Self::Flag(cells) => cells.len(),
            Self::Time(cells) => cells.len(),
        }
    }

    /// Converts JSON values.
    pub(crate) fn of(kind: Kind, values: impl Iterator<Item = Value>) -> Self {
        match kind {
            Kind::Text => Self::Text(
                values
                    .map(|value| value.as_str().map(str::to_owned))
                    .collect(),
            ),
            Kind::Whole => Self::Whole(values.map(|value| value.as_i64()).collect()),
            Kind::Real => Self::Real(values.map(|value| value.as_f64()).collect()),
            Kind::Flag => Self::Flag(values.map(|value| value.as_bool()).collect()),
            Kind::Time => Self::Time(values.map(|value| value.as_str()?.parse().ok()).collect()),
        }
    }

    /// A cell as text: empty for an empty cell, `NaN` and `inf` as every CSV reader knows them.
    fn text(&self, row: usize) -> String {
        match self {
            Self::Text(cells) => cells.get(row).cloned().flatten().unwrap_or_default(),
            Self::Whole(cells) => cells
                .get(row)
                .copied()
                .flatten()
                .map_or_else(String::new, |cell| cell.to_string()),
            Self::Real(cells) => cells
                .get(row)
                .copied()
                .flatten()
                .map_or_else(String::new, |cell| cell.to_string()),
            Self::Flag(cells) => cells
                .get(row)
                .copied()
                .flatten()
                .map_or_else(String::new, |cell| cell.to_string()),
            Self::Time(cells) => cells
                .get(row)
                .copied()
                .flatten()
                .map_or_else(String::new, rfc3339),
        }
    }

    fn value(&self, row: usize) -> Value {
        match self {
            Self::Text(cells) => cells
                .get(row)
                .cloned()
                .flatten()
                .map_or(Value::Null, Value::from),
            Self::Whole(cells) => cells
                .get(row)
                .copied()
                .flatten()
                .map_or(Value::Null, Value::from),
            Self::Real(cells) => cells
                .get(row)
                .copied()
                .flatten()
                .map_or(Value::Null, Value::from),
            Self::Flag(cells) => cells
                .get(row)
                .copied()
                .flatten()
                .map_or(Value::Null, Value::from),
            Self::Time(cells) => cells
                .get(row)
                .copied()
                .flatten()
                .map_or(Value::Null, |at| rfc3339(at).into()),
        }
    }

    fn parquet_type(&self) -> &'static str {
        match self {
            Self::Text(_) => "BYTE_ARRAY {} (UTF8)",
            Self::Whole(_) => "INT64 {}",
            Self::Real(_) => "DOUBLE {}",
            Self::Flag(_) => "BOOLEAN {}",
            Self::Time(_) => "INT64 {} (TIMESTAMP(MICROS,true))",
        }
    }
}

fn rfc3339(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// A table: named columns.
pub(crate) type Table = Vec<(&'static str, Column)>;

/// Renders rows of one type as a table; `kinds` names its columns in the order of its fields.
pub(crate) async fn rows<T: Serialize + Send + 'static>(
    format: Format,
    kinds: &'static [(&'static str, Kind)],
    rows: Vec<T>,
) -> Result<Response, Problem> {
    respond(format, move || {
        let values: Vec<Value> = rows.iter().map(|row| json!(row)).collect();
        let cell = |row: &Value, name: &str| row.get(name).cloned().unwrap_or(Value::Null);
        let column = |(name, kind): &(&'static str, Kind)| {
            (
                *name,
                Column::of(*kind, values.iter().map(|row| cell(row, name))),
            )
        };
        kinds.iter().map(column).collect()
    })
    .await
}

/// Renders a table as a response; it is built and written off the async workers.
pub(crate) async fn respond(
    format: Format,
    table: impl FnOnce() -> Table + Send + 'static,
) -> Result<Response, Problem> {
    let body = aside(move || encode(format, &table()))
        .await?
        .map_err(|what| {
            tracing::error!(what, "writing a table failed");
            Problem::internal()
        })?;
    let kind = match format {
        Format::Csv => "text/csv; charset=utf-8",
        other => other.content_type(),
    };
    Ok((
        [(header::CONTENT_TYPE, kind), (header::VARY, "Accept")],
        body,
    )
        .into_response())
}

fn encode(format: Format, table: &Table) -> Result<Vec<u8>, String> {
    match format {
        Format::Json | Format::Ndjson => Ok(ndjson(table)),
        Format::Csv => csv(table).map_err(|error| error.to_string()),
        Format::Parquet => parquet(table).map_err(|error| error.to_string()),
    }
}

/// Names of a row's fields, in order.
#[cfg(test)]
pub(crate) fn fields<T: Serialize>(row: &T) -> Vec<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.serialize(row).unwrap_or_default();
    let text = String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default();
    text.lines()
        .next()
        .unwrap_or_default()
        .split(',')
        .map(str::to_owned)
        .collect()
}

fn count(table: &[(&str, Column)]) -> usize {
    table.first().map_or(0, |(_, column)| column.len())
}

fn ndjson(table: &[(&str, Column)]) -> Vec<u8> {
    let mut out = Vec::new();
    for row in 0..count(table) {
        for (place, (name, column)) in table.iter().enumerate() {
            out.extend_from_slice(if place == 0 { b"{" } else { b"," });
            out.extend_from_slice(Value::from(*name).to_string().as_bytes());
            out.push(b':');
            out.extend_from_slice(column.value(row).to_string().as_bytes());
        }
        out.extend_from_slice(b"}\n");
    }
    out
}

fn csv(table: &[(&str, Column)]) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(table.iter().map(|(name, _)| *name))?;
    for row in 0..count(table) {
        writer.write_record(table.iter().map(|(_, column)| column.text(row)))?;
    }
    writer
        .into_inner()
        .map_err(|error| csv::Error::from(error.into_error()))
}

/// One row group, every column optional, Snappy. Integers and times are delta-encoded, and only
/// text uses a dictionary: values of a measured series rarely repeat.
fn parquet(table: &[(&str, Column)]) -> Result<Vec<u8>, ParquetError> {
    let fields: Vec<String> = table
        .iter()
        .map(|(name, column)| format!("OPTIONAL {};", column.parquet_type().replace("{}", name)))
        .collect();
    let schema = Arc::new(parse_message_type(&format!(
        "message table {{ {} }}",
        fields.join(" ")
    ))?);
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_write_batch_size(WRITE_BATCH)
        .set_created_by(concat!("bakeoff ", env!("CARGO_PKG_VERSION")).to_owned());
    for (name, column) in table {
        let path = ColumnPath::from(*name);
        properties = match column {
            Column::Text(_) => properties.set_column_dictionary_enabled(path, true),
            Column::Whole(_) | Column::Time(_) => {
                properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED)
            }
            Column::Real(_) | Column::Flag(_) => properties,
        };
    }
    let properties = properties.build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for (_, column) in table {
        match column {
            Column::Text(cells) => {
                put::<ByteArrayType, _>(&mut group, cells, |cell| ByteArray::from(cell.as_str()))?;
            }
            Column::Whole(cells) => put::<Int64Type, _>(&mut group, cells, |cell| *cell)?,
            Column::Real(cells) => put::<DoubleType, _>(&mut group, cells, |cell| *cell)?,
            Column::Flag(cells) => put::<BoolType, _>(&mut group, cells, |cell| *cell)?,
            Column::Time(cells) => {
                put::<Int64Type, _>(&mut group, cells, DateTime::timestamp_micros)?;
            }
        }
    }
    group.close()?;
    writer.into_inner()
}

fn put<T: parquet::data_type::DataType, C>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    cells: &[Option<C>],
    value: impl Fn(&C) -> T::T,
) -> Result<(), ParquetError> {
    let Some(mut writer) = group.next_column()? else {
        return Err(ParquetError::General(
            "more columns than the schema has".to_owned(),
        ));
    };
    let values: Vec<T::T> = cells.iter().flatten().map(value).collect();
    let present: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
    writer
        .typed::<T>()
        .write_batch(&values, Some(&present), None)?;
    writer.close()
}

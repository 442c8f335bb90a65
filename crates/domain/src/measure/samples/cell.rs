//! One record of what was sent, a JSON object or a row of a table: its cells in order, whatever they are called.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use regex::Regex;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::embedded;

/// Maximum entries read from a nested list: devices of a host, 72 in the largest.
const DEVICES_MAX: usize = 1024;
/// No path is built from a longer part: it would be copied for each value below it, and no name of that length is read.
const PATH_PART_MAX: usize = 256;
/// Maximum values of one record, for the same reason.
const VALUES_MAX: usize = 100_000;

/// One field's value, as far as it is usable.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell<'a> {
    Number(f64),
    /// What is no number: a time, a name, or something that cannot be read.
    Text(Cow<'a, str>),
    /// Paths and values of a nested object or list.
    Nested(Vec<(String, Cell<'static>)>),
    /// Empty, null, or said to be unknown.
    Nothing,
}

/// Units that nvidia-smi and others write after a number, and that the column's name says already.
const UNITS: [&str; 6] = ["%", "MiB", "MHz", "W", "C", "it/s"];
/// Values that say that there is none.
const ABSENT: [&str; 9] = [
    "",
    "N/A",
    "n/a",
    "[N/A]",
    "[Not Supported]",
    "None",
    "null",
    "-",
    "--",
];

/// `1,790` and `65,536.5`.
static THOUSANDS: LazyLock<Regex> =
    LazyLock::new(|| embedded::pattern(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?"));

/// `2,5`, as it is written where a semicolon separates.
static DECIMAL_COMMA: LazyLock<Regex> =
    LazyLock::new(|| embedded::pattern(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?"));

pub(super) fn is_decimal_comma(text: &str) -> bool {
    DECIMAL_COMMA.is_match(text)
}

/// A number in any of the ways in which frameworks write one: `2.5E+00`, `1,790`, `80 %`, `nan.0`,
/// `tensor(2.5, device='cuda:0')`.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let text = text.strip_prefix("tensor(").map_or(text, |inner| {
        inner.split([',', ')']).next().unwrap_or(inner).trim()
    });
    match text.to_ascii_lowercase().as_str() {
        "nan" | "-nan" | "+nan" | "nan.0" => return Some(f64::NAN),
        "inf" | "+inf" | "infinity" | "+infinity" | "inf.0" => return Some(f64::INFINITY),
        "-inf" | "-infinity" | "-inf.0" => return Some(f64::NEG_INFINITY),
        _ => {}
    }
    let bare = UNITS
        .iter()
        .find_map(|unit| text.strip_suffix(unit))
        .map_or(text, str::trim_end);
    if THOUSANDS.is_match(bare) {
        return bare.replace(',', "").parse().ok();
    }
    bare.parse().ok()
}

impl<'a> Cell<'a> {
    /// Numbers are often written as text.
    pub(super) fn of_text(text: Cow<'a, str>) -> Self {
        if ABSENT.contains(&text.trim()) {
            return Self::Nothing;
        }
        number(&text).map_or(Self::Text(text), Self::Number)
    }

    fn into_owned(self) -> Cell<'static> {
        match self {
            Self::Number(value) => Cell::Number(value),
            Self::Text(text) => Cell::Text(Cow::Owned(text.into_owned())),
            Self::Nested(inner) => Cell::Nested(inner),
            Self::Nothing => Cell::Nothing,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Cell<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

struct CellVisitor;

impl<'de> Visitor<'de> for CellVisitor {
    type Value = Cell<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Cell::Number(value))
    }

    #[expect(clippy::cast_precision_loss, reason = "a measured value is a double")]
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Cell::Number(value as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "a measured value is a double")]
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Cell::Number(value as f64))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Cell::Text(Cow::Borrowed(if value {
            "true"
        } else {
            "false"
        })))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Cell::Nothing)
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cell::of_text(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cell::of_text(Cow::Owned(text.to_owned())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut cells = Vec::new();
        while let Some((key, cell)) = map.next_entry::<Cow<'de, str>, Cell<'de>>()? {
            flatten(&key, cell, &mut cells);
            check_count(cells.len())?;
        }
        Ok(Cell::Nested(cells))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut cells, mut index) = (Vec::new(), 0);
        while let Some(cell) = list.next_element::<Cell<'de>>()? {
            if index < DEVICES_MAX {
                flatten(&index.to_string(), cell, &mut cells);
                check_count(cells.len())?;
            }
            index += 1;
        }
        Ok(Cell::Nested(cells))
    }
}

fn flatten(key: &str, cell: Cell<'_>, into: &mut Vec<(String, Cell<'static>)>) {
    match cell {
        Cell::Nested(inner) => into.extend(
            inner
                .into_iter()
                .map(|(path, value)| (joined(key, path), value)),
        ),
        Cell::Nothing => {}
        cell => into.push((key.to_owned(), cell.into_owned())),
    }
}

fn check_count<E: de::Error>(values: usize) -> Result<(), E> {
    if values > VALUES_MAX {
        return Err(E::custom(format!(
            "one record has more than {VALUES_MAX} values"
        )));
    }
    Ok(())
}

/// The path of a value below a name; where one of the two is too long, it alone, which is refused for that.
fn joined(key: &str, path: String) -> String {
    if path.len() >= PATH_PART_MAX {
        return path;
    }
    if key.len() >= PATH_PART_MAX {
        return key.chars().take(PATH_PART_MAX).collect();
    }
    format!("{key}.{path}")
}

/// One record; nested objects are flattened, with their paths as names.
#[derive(Debug, Default)]
pub(super) struct Record<'a> {
    pub(super) cells: Vec<(Cow<'a, str>, Cell<'a>)>,
}

impl<'a> Record<'a> {
    pub(super) fn put(&mut self, key: Cow<'a, str>, cell: Cell<'a>) {
        match cell {
            Cell::Nothing => {}
            Cell::Nested(inner) => self.cells.extend(
                inner
                    .into_iter()
                    .map(|(path, value)| (Cow::Owned(joined(&key, path)), value)),
            ),
            cell => self.cells.push((key, cell)),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Record<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RecordVisitor;

        impl<'de> Visitor<'de> for RecordVisitor {
            type Value = Record<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object: {\"timestamp\": …, \"step\": …, \"loss\": …}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut record = Record::default();
                while let Some(key) = map.next_key_seed(Key)? {
                    let cell = map.next_value()?;
                    record.put(key, cell);
                }
                Ok(record)
            }
        }

        deserializer.deserialize_map(RecordVisitor)
    }
}

/// A key, borrowed when it has no escapes (`Cow` alone always copies).
struct Key;

impl<'de> de::DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        struct KeyVisitor;

        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }

        deserializer.deserialize_str(KeyVisitor)
    }
}

impl Record<'_> {
    pub(super) fn into_owned(self) -> Record<'static> {
        let cells = self.cells.into_iter();
        Record {
            cells: cells
                .map(|(name, cell)| (Cow::Owned(name.into_owned()), cell.into_owned()))
                .collect(),
        }
    }
}

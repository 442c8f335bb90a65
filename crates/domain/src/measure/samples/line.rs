//! One line of points: a JSON object or a table row, whatever its members are called.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::DEVICES_MAX;

/// One field's value, as far as it is usable.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell<'a> {
    Number(f64),
    Text(Cow<'a, str>),
    /// Paths and numbers of a nested object or list.
    Nested(Vec<(String, f64)>),
    Nothing,
}

impl<'a> Cell<'a> {
    /// Parses numbers that JSON lacks; in a table, all numbers are text.
    pub(super) fn of_text(text: Cow<'a, str>, is_table: bool) -> Self {
        match text.as_ref() {
            "NaN" | "nan" => Self::Number(f64::NAN),
            "Infinity" | "inf" => Self::Number(f64::INFINITY),
            "-Infinity" | "-inf" => Self::Number(f64::NEG_INFINITY),
            other if is_table => other
                .parse()
                .map_or_else(|_| Self::Text(Cow::Owned(other.to_owned())), Self::Number),
            _ => Self::Text(text),
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

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Cell::Nothing)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Cell::Nothing)
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cell::of_text(Cow::Borrowed(text), false))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cell::of_text(Cow::Owned(text.to_owned()), false))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut numbers = Vec::new();
        while let Some((key, cell)) = map.next_entry::<Cow<'de, str>, Cell<'de>>()? {
            flatten(&key, cell, &mut numbers);
        }
        Ok(Cell::Nested(numbers))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut numbers, mut index) = (Vec::new(), 0);
        while let Some(cell) = list.next_element::<Cell<'de>>()? {
            if index < DEVICES_MAX {
                flatten(&index.to_string(), cell, &mut numbers);
            }
            index += 1;
        }
        Ok(Cell::Nested(numbers))
    }
}

fn flatten(key: &str, cell: Cell<'_>, into: &mut Vec<(String, f64)>) {
    match cell {
        Cell::Number(value) => into.push((key.to_owned(), value)),
        Cell::Nested(inner) => into.extend(
            inner
                .into_iter()
                .map(|(path, value)| (format!("{key}.{path}"), value)),
        ),
        Cell::Text(_) | Cell::Nothing => {}
    }
}

/// One line: a time and the values measured at it.
#[derive(Debug, Default)]
pub(super) struct Line<'a> {
    pub(super) time: Option<Cell<'a>>,
    pub(super) step: Option<f64>,
    /// The line belongs to one of several devices.
    pub(super) is_of_device: bool,
    /// `{"metric": …, "value": …}`.
    pub(super) metric: Option<Cow<'a, str>>,
    pub(super) numbers: Vec<(Cow<'a, str>, f64)>,
}

impl<'a> Line<'a> {
    pub(super) fn put(&mut self, key: Cow<'a, str>, cell: Cell<'a>) {
        match (key.as_ref(), cell) {
            (
                "timestamp" | "_timestamp" | "time" | "at",
                cell @ (Cell::Number(_) | Cell::Text(_)),
            ) => {
                self.time.get_or_insert(cell);
            }
            ("step" | "Step" | "_step" | "global_step" | "iteration", Cell::Number(step)) => {
                self.step.get_or_insert(step);
            }
            ("gpu_id" | "gpu_index" | "device_id" | "rank" | "local_rank" | "node_rank", _) => {
                self.is_of_device = true;
            }
            ("metric", Cell::Text(name)) => self.metric = Some(name),
            (_, Cell::Number(value)) => self.numbers.push((key, value)),
            (_, Cell::Nested(inner)) => {
                let outer = key.into_owned();
                let named = inner
                    .into_iter()
                    .map(|(path, value)| (Cow::Owned(format!("{outer}.{path}")), value));
                self.numbers.extend(named);
            }
            (_, Cell::Text(_) | Cell::Nothing) => {}
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Line<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        pub(super) struct LineVisitor;

        impl<'de> Visitor<'de> for LineVisitor {
            type Value = Line<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object: {\"timestamp\": …, \"step\": …, \"loss\": …}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut line = Line::default();
                while let Some(key) = map.next_key_seed(Key)? {
                    let cell = map.next_value()?;
                    line.put(key, cell);
                }
                Ok(line)
            }
        }

        deserializer.deserialize_map(LineVisitor)
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

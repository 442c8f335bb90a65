//! The body of a step, with what its references stand for, as its type.

use std::collections::{BTreeMap, BTreeSet};

use bakeoff_domain::finding::Finding;
use bakeoff_domain::pipeline::reference;
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::ToSchema;

use super::not_ready::NotReady;
use crate::document;

/// A step's body with what its references stand for.
pub(super) struct Body {
    pub(super) value: Value,
    /// Where nothing but a reference stood.
    pub(super) references: BTreeSet<String>,
}

impl Body {
    pub(super) fn of(body: &Value, outputs: &BTreeMap<String, Value>) -> Result<Self, NotReady> {
        let (references, _) = reference::find(body);
        Ok(Self {
            value: reference::resolve(body, outputs)?,
            references: references.into_iter().map(|one| one.pointer).collect(),
        })
    }

    /// The body as its type. A number that a reference stands for is a text where a text belongs, such as among
    /// the words of a command.
    pub(super) fn parsed<T: DeserializeOwned + ToSchema>(mut self) -> Result<T, NotReady> {
        for _ in 0..self.references.len() {
            let (Err(finding), _) = document::read::<T>(&self.value) else {
                break;
            };
            let is_reference = self.references.contains(&finding.pointer);
            let there = self.value.pointer_mut(&finding.pointer);
            let number =
                there.filter(|there| is_reference && (there.is_number() || there.is_boolean()));
            let Some(there) = number else { break };
            *there = Value::String(there.to_string());
        }
        parsed(&self.value)
    }
}

/// A body of which every member is known by now.
pub(super) fn parsed<T: DeserializeOwned + ToSchema>(body: &Value) -> Result<T, NotReady> {
    let (value, other) = document::read::<T>(body);
    let told = |finding: &Finding| format!("{} {}", finding.pointer, finding.message);
    if let Some(finding) = other.first() {
        return Err(NotReady::Never(told(finding)));
    }
    value.map_err(|finding| NotReady::Never(told(&finding)))
}

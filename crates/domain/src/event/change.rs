//! Changes of an experiment, by a person or after a failure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::TrialId;
use crate::money::Usd;
use crate::spec::labels::{self, Labels};

/// A change of an experiment, by a person or after a failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_usd: Option<Usd>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// From its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_hours: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    /// Left out of lists, or in them again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    /// Deleted, or restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<bool>,
    /// A candidate that was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
    /// A trial that is done once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<TrialId>,
    /// Why Bakeoff has changed it by itself; empty if a person did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl Change {
    /// Whether a person wants a trial once more, whatever the race says of it.
    pub fn asks_for_a_retry(&self) -> bool {
        self.retry_of.is_some() && self.cause.is_none()
    }

    /// Whether an experiment that is over allows it: what people call it, and what may be spent on what they add.
    pub fn is_of_what_is_over(&self) -> bool {
        let rest = Self {
            labels: None,
            budget_usd: None,
            ..self.clone()
        };
        *self != Self::default() && rest == Self::default()
    }

    /// Whether only what people call it is changed, which an experiment that is over allows too.
    pub fn is_of_labels_only(&self) -> bool {
        let rest = Self {
            labels: None,
            ..self.clone()
        };
        self.labels.is_some() && rest == Self::default()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.budget_usd.map(|budget| format!("budget {budget}")),
            self.priority.map(|priority| format!("priority {priority}")),
            self.deadline_hours
                .map(|hours| format!("waits {hours} h for capacity")),
            self.labels
                .as_ref()
                .map(|labels| format!("labels {}", labels::pairs(labels).join(", "))),
            self.archived
                .map(|is| if is { "archived" } else { "unarchived" }.to_owned()),
            self.deleted
                .map(|is| if is { "deleted" } else { "restored" }.to_owned()),
            self.candidate
                .as_ref()
                .map(|candidate| format!("candidate {candidate} added")),
            self.retry_of
                .map(|trial| format!("{trial} is done once more")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let parts = parts.join(", ");
        match &self.cause {
            None => write!(f, "changed by hand: {parts}"),
            Some(cause) => write!(f, "{parts}: {cause}"),
        }
    }
}

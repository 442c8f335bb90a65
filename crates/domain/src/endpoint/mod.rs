//! Endpoints and batch transforms: what is wrong with one, what is requested, and what is done about an endpoint
//! next. Pure; the queue, the bill and the deletion of an endpoint are those of every job
//! ([`crate::lifecycle`]).

pub mod check;
pub mod decide;
pub mod scheduled_end;

use std::fmt;

use serde::{Deserialize, Serialize};

named! {
    /// Where an endpoint is
    EndpointState {
        /// It waits for its instances, starts, or is being tested.
        Creating = "creating",
        InService = "in_service",
        /// Another version is being put into it; the old one serves meanwhile.
        Updating = "updating",
        /// The update did not work, and the old version is being put back.
        RollingBack = "rolling_back",
        /// It is being deleted.
        Deleting = "deleting",
        Deleted = "deleted",
        /// It never served, or was deleted because it could not; the reason says why.
        Failed = "failed",
    }
}

impl EndpointState {
    pub fn is_over(self) -> bool {
        matches!(self, Self::Deleted | Self::Failed)
    }

    /// Whether it answers requests.
    pub fn serves(self) -> bool {
        matches!(self, Self::InService | Self::Updating | Self::RollingBack)
    }
}

/// EndpointStatus. A value AWS adds later says nothing about whether it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointStatus {
    /// It serves, if only a mix of an update that was rolled back in part.
    InService,
    /// Creating, Updating, RollingBack or SystemUpdating: nothing can be changed meanwhile.
    UnderWay,
    Deleting,
    /// It can only be deleted.
    Failed,
    Unknown,
}

impl EndpointStatus {
    pub fn parse(text: &str) -> Self {
        match text {
            "InService" | "UpdateRollbackFailed" => Self::InService,
            "Creating" | "Updating" | "RollingBack" | "SystemUpdating" => Self::UnderWay,
            "Deleting" => Self::Deleting,
            "Failed" => Self::Failed,
            _ => Self::Unknown,
        }
    }
}

/// An endpoint, and what is new about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointNews {
    pub name: String,
    pub job_name: String,
    pub state: EndpointState,
    /// Why; of one that runs out, when it is deleted.
    pub reason: String,
}

impl EndpointNews {
    /// Says when it is deleted.
    pub(crate) fn expires(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, reason, .. } = self;
        write!(f, "endpoint {name} runs out: it is deleted at {reason}")
    }
}

impl fmt::Display for EndpointNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            state,
            reason,
            ..
        } = self;
        write!(f, "endpoint {name} is {}", state.as_str().replace('_', " "))?;
        if reason.is_empty() {
            Ok(())
        } else {
            write!(f, ": {reason}")
        }
    }
}

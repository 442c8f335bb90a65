//! Deliveries of commits that are not measured, and what is shown of that beside the commit: a check that is required
//! there must end.

use chrono::TimeDelta;

use super::commit_status::CiState;
use super::{Event, Trigger};
use crate::spec::ci::TemplateSettings;

/// How long the pull request of a push is waited for.
const PULL_REQUEST_COMES_WITHIN: TimeDelta = TimeDelta::minutes(10);

named! {
    /// Why a commit is not measured.
    Unmeasured {
        /// Its template does not take it: a success, or nothing could be merged.
        Ignored = "ignored",
        /// Something has to be mended before it can be measured: an error.
        Refused = "refused",
    }
}

impl Unmeasured {
    pub fn state(self) -> CiState {
        match self {
            Self::Ignored => CiState::Success,
            Self::Refused => CiState::Error,
        }
    }
}

impl TemplateSettings {
    /// After how long a commit that the template does not take is shown as a success. That of a push waits where pull
    /// requests are measured: its own may be about to start a run, and must not be merged before.
    pub fn ignored_shown_after(&self, event: Event, trigger: &Trigger) -> TimeDelta {
        match event {
            Event::Push if self.pull_requests && trigger.branch.is_some() => {
                PULL_REQUEST_COMES_WITHIN
            }
            Event::Push | Event::PullRequest | Event::Trigger => TimeDelta::zero(),
        }
    }
}

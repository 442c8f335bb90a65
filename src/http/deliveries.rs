//! What a delivery of a webhook, or of `bakeoff gate`, says of a commit.

use bakeoff_domain::ci::{Event, Sender, Trigger};

/// What a delivery says, once it is known whose it is.
pub(super) struct Told {
    /// Counts once for a template.
    pub(super) id: String,
    pub(super) sender: Sender,
    pub(super) event: Event,
    pub(super) trigger: Trigger,
    /// The commit is to be measured again although it has a run.
    pub(super) is_repeat: bool,
}

//! What a delivery of a webhook, or of `bakeoff gate`, says of a commit.

use bakeoff_domain::ci::{Event, Sender, Trigger};

/// What a delivery says, once it is known whose it is.
pub(crate) struct SignedDelivery {
    /// Counts once for a template.
    pub(crate) id: String,
    pub(crate) sender: Sender,
    pub(crate) event: Event,
    pub(crate) trigger: Trigger,
    /// The commit is to be measured again although it has a run.
    pub(crate) is_repeat: bool,
}

//! An outgoing webhook that is sent nothing more, in an event.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::WebhookEndpointId;

/// An outgoing webhook that was disabled, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisabledWebhook {
    pub endpoint_id: WebhookEndpointId,
    pub reason: String,
}

impl DisabledWebhook {
    pub(super) fn way_out(&self) -> String {
        let id = self.endpoint_id;
        format!(
            "Once its receiver is back, enable it: `PATCH /v1/webhook-endpoints/{id}` with \"enabled\": true; what was given up \
             can be sent again (`GET /v1/webhook-endpoints/{id}/deliveries`)."
        )
    }
}

impl fmt::Display for DisabledWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "webhook {} is sent nothing more, alarms included: {}",
            self.endpoint_id, self.reason
        )
    }
}

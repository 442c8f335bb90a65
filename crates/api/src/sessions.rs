//! API views of sessions: a person logged in with a browser.

use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use bakeoff_store::sessions::LiveSession;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A link that logs a person in, once.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginLink {
    /// A path of the dashboard: put this service's address in front. Its token is behind a `#`, which browsers do not send
    /// to servers, so that it is in no log.
    #[schema(example = "/#login=…")]
    pub path: String,
    /// Ten minutes after it was made.
    pub ends_at: DateTime<Utc>,
}

/// A session that has not ended.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionView {
    /// The name of the project.
    pub project: String,
    pub project_id: ProjectId,
    /// The key that it was begun with; it ends when the key is revoked.
    pub key_id: ApiKeyId,
    /// The name of the key.
    pub name: String,
    /// `viewer`, `editor` or `admin`.
    pub role: String,
    /// When it ends, at the latest. Without a request it ends after 12 hours.
    pub ends_at: DateTime<Utc>,
}

impl From<LiveSession> for SessionView {
    fn from(session: LiveSession) -> Self {
        Self {
            project: session.project_name,
            project_id: session.project,
            key_id: session.key,
            name: session.key_name,
            role: session.role,
            ends_at: session.ends_at,
        }
    }
}

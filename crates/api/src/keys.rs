//! API views of API keys. A key's secret is shown only once, when the key is created.

use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use bakeoff_store::keys::ListedKey;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a key may do; each role may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyRole {
    /// Read.
    Viewer,
    /// Start and cancel experiments, write workloads, profiles and metrics.
    Editor,
    /// Create templates and grant access; set prices, budgets and limits.
    Admin,
}

/// A key to be made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NewKey {
    /// What it is for, or whose: 1 to 100 characters.
    #[schema(example = "notebook of Ada")]
    pub name: String,
    pub role: KeyRole,
    /// 1 to 3650; for ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_days: Option<u32>,
}

/// How a key is replaced.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct RotateKey {
    /// How long the old key stays valid beside the new one, 0 to 720 hours; 0 when absent.
    #[serde(default)]
    pub overlap_hours: u32,
}

/// An API key, without its secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ApiKey)]
pub struct KeyView {
    pub id: ApiKeyId,
    pub name: String,
    /// `viewer`, `editor` or `admin`.
    pub role: String,
    pub created_at: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
    pub revoked_at: Option<DateTime<Utc>>,
    /// The key that was made in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<ApiKeyId>,
}

impl From<ListedKey> for KeyView {
    fn from(key: ListedKey) -> Self {
        let ListedKey {
            id,
            project: _,
            name,
            role,
            created_at,
            expires_at,
            revoked_at,
            replaced_by,
        } = key;
        Self {
            id,
            name,
            role,
            created_at,
            expires_at,
            revoked_at,
            replaced_by,
        }
    }
}

/// A key that was just made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    #[serde(flatten)]
    pub key: KeyView,
    /// The key itself, `bk_…`: it is shown only now.
    pub api_key: String,
}

/// Who a request comes from.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Whoami {
    pub project_id: ProjectId,
    /// The name of the project.
    pub project: String,
    /// The key that was sent, or that the session was begun with.
    pub key: KeyView,
}

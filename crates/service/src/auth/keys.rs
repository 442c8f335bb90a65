//! API keys, `bk_<key id>_<secret>`. Only a hash of the secret is stored; it is compared in constant
//! time. A key belongs to a project and has a role.

use bakeoff_domain::ids::ApiKeyId;
use bakeoff_process::ids;
use bakeoff_store::keys::NewKey;
use chrono::{DateTime, Utc};
use clap::ValueEnum;
use sha2::{Digest, Sha256};

use super::secrets;

/// The role of a key; each role includes the permissions of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// Read.
    Viewer,
    /// Start and cancel experiments, write workloads, profiles and metrics.
    Editor,
    /// Create templates and grant access; set prices, budgets and limits.
    Admin,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Editor => "editor",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Viewer, Self::Editor, Self::Admin]
            .into_iter()
            .find(|role| role.as_str() == text)
    }
}

/// A key that was just made, with its secret: it is shown once, and stored as a hash.
pub struct FreshKey<'a> {
    pub id: ApiKeyId,
    /// What it is for.
    pub name: &'a str,
    pub role: Role,
    pub expires_at: Option<DateTime<Utc>>,
    secret: [u8; 32],
    secret_sha256: [u8; 32],
}

impl<'a> FreshKey<'a> {
    pub fn new(name: &'a str, role: Role, expires_at: Option<DateTime<Utc>>) -> Self {
        let secret = secrets::secret();
        Self {
            id: ApiKeyId(ids::fresh()),
            name,
            role,
            expires_at,
            secret_sha256: hash(&secret),
            secret,
        }
    }

    /// The part that is stored: the hash instead of the secret.
    pub fn stored(&self) -> NewKey<'_> {
        NewKey {
            id: self.id,
            name: self.name,
            role: self.role.as_str(),
            secret_sha256: &self.secret_sha256,
            expires_at: self.expires_at,
        }
    }

    /// The key itself, for its owner.
    pub fn text(&self) -> String {
        format_key(self.id, &self.secret)
    }
}

/// Formats a key as it is shown to its owner, once.
pub fn format_key(id: ApiKeyId, secret: &[u8; 32]) -> String {
    format!("bk_{}_{}", id.0.as_simple(), hex::encode(secret))
}

/// The hash of a secret that is stored.
pub fn hash(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Parses a key's id and secret; `None` if it is malformed.
pub fn parse_key(text: &str) -> Option<(ApiKeyId, Vec<u8>)> {
    let (id, secret) = text.strip_prefix("bk_")?.split_once('_')?;
    let secret = hex::decode(secret).ok().filter(|bytes| bytes.len() == 32)?;
    Some((ApiKeyId(uuid::Uuid::try_parse(id).ok()?), secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_and_a_broken_one_does_not() {
        let id = ApiKeyId(uuid::Uuid::from_u128(9));
        let text = format_key(id, &[7; 32]);
        assert_eq!(parse_key(&text), Some((id, vec![7; 32])));
        assert_eq!(parse_key("bk_1_2"), None);
        assert_eq!(parse_key(&text.replace("bk_", "ak_")), None);
    }

    #[test]
    fn roles_are_ordered() {
        assert!(Role::Viewer < Role::Editor && Role::Editor < Role::Admin);
    }
}

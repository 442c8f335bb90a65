//! API keys, `bk_<key id>_<secret>`. Only a hash of the secret is stored; it is compared in constant
//! time. A key belongs to a project and has a role.

use bakeoff_domain::ids::ApiKeyId;
use clap::ValueEnum;
use sha2::{Digest, Sha256};

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

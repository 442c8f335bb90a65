//! The installation's secret key, 64 hexadecimal digits: given, or generated and kept in the data
//! directory with `--embedded`.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use bakeoff_service::auth::secrets;

#[derive(Debug, Clone, Args)]
pub(super) struct SecretOptions {
    /// Secret key, 64 hexadecimal digits; CI webhook secrets and the key for AWS events are derived
    /// from it.
    #[arg(long, env = "BAKEOFF_SECRET_KEY", hide_env_values = true)]
    secret_key: Option<String>,
    /// Data directory of `serve --embedded`, where the key is kept.
    #[arg(long = "data-dir", alias = "secret-dir", default_value = super::database::DATA_DIR)]
    dir: PathBuf,
}

impl SecretOptions {
    /// Reads the given key, or the one kept in the data directory.
    pub(super) fn read(&self) -> anyhow::Result<[u8; 32]> {
        let path = kept(&self.dir);
        match (&self.secret_key, path.exists()) {
            (Some(text), _) => parse(text),
            (None, true) => parse(&std::fs::read_to_string(path)?),
            (None, false) => {
                bail!(
                    "set BAKEOFF_SECRET_KEY to the service's key, or name its data directory (--data-dir)"
                )
            }
        }
    }
}

fn kept(data_dir: &Path) -> PathBuf {
    data_dir.join("secret-key")
}

/// The service's key: given, or kept in the data directory of its private database.
pub(super) fn of_service(
    given: Option<&String>,
    data_dir: Option<&Path>,
) -> anyhow::Result<[u8; 32]> {
    match (given, data_dir.map(kept)) {
        (Some(text), _) => parse(text),
        (None, Some(path)) if path.exists() => parse(&std::fs::read_to_string(path)?),
        (None, Some(path)) => {
            let fresh = hex::encode(secrets::secret());
            super::serve::write_whole(&path, &fresh)?;
            parse(&fresh)
        }
        // Without a persistent key, webhooks created now would stop verifying after a restart, so
        // refuse to start.
        (None, None) => {
            bail!("set BAKEOFF_SECRET_KEY to 64 hexadecimal digits (openssl rand -hex 32)")
        }
    }
}

fn parse(text: &str) -> anyhow::Result<[u8; 32]> {
    let bytes = hex::decode(text.trim())
        .ok()
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    bytes.context("the secret key must be 64 hexadecimal digits")
}

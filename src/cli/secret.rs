//! The installation's secret key: 64 hexadecimal digits, given, or made and kept in the data
//! directory with `--embedded`.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use crate::auth::secrets;

#[derive(Debug, Clone, Args)]
pub(super) struct SecretOptions {
    /// 64 hexadecimal digits; secrets of CI webhooks and the key of AWS events are derived from it.
    #[arg(long, env = "BAKEOFF_SECRET_KEY", hide_env_values = true)]
    secret_key: Option<String>,
    /// The data directory of `serve --embedded`, which keeps one.
    #[arg(long = "secret-dir", default_value = ".bakeoff")]
    dir: PathBuf,
}

impl SecretOptions {
    /// The key as given, or as a service keeps it.
    pub(super) fn read(&self) -> anyhow::Result<[u8; 32]> {
        let path = kept(&self.dir);
        match (&self.secret_key, path.exists()) {
            (Some(text), _) => parse(text),
            (None, true) => parse(&std::fs::read_to_string(path)?),
            (None, false) => {
                bail!(
                    "set BAKEOFF_SECRET_KEY as the service has it, or name its data directory (--secret-dir)"
                )
            }
        }
    }
}

fn kept(data_dir: &Path) -> PathBuf {
    data_dir.join("secret-key")
}

/// The key of a service: given, or kept in its data directory when it has a private database there.
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
        // Webhooks made now would not verify after a restart: nobody can rely on them, so nobody
        // may.
        (None, None) => {
            bail!("set BAKEOFF_SECRET_KEY to 64 hexadecimal digits (openssl rand -hex 32)")
        }
    }
}

fn parse(text: &str) -> anyhow::Result<[u8; 32]> {
    let bytes = hex::decode(text.trim())
        .ok()
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    bytes.context("the secret key is not 64 hexadecimal digits")
}

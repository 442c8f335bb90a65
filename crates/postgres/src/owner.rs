//! Which user runs the server, and where that user can read and write. Postgres refuses to run as
//! root, so root switches to `postgres` or `nobody`; neither can enter a 0700 home, so places
//! outside it are used.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user the server runs as: `None` if we are not root and keep our own user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(Option<(u32, u32)>);

impl Owner {
    /// Root becomes `postgres` if that user exists, otherwise `nobody`: `initdb` needs a uid with a
    /// passwd entry.
    pub(crate) fn current() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let found = ["postgres", "nobody"]
            .iter()
            .find_map(|name| passwd_ids(&passwd, name));
        Self(Some(found.unwrap_or((65534, 65534))))
    }

    /// Whether the server runs as a user other than ours.
    pub(crate) fn is_another(self) -> bool {
        self.0.is_some()
    }

    /// Sets uid and gid, and a working directory that everybody may enter.
    pub(crate) fn apply(self, command: &mut Command) {
        command.current_dir("/");
        if let Self(Some((uid, gid))) = self {
            command.uid(uid).gid(gid);
        }
    }

    pub(crate) fn own(self, path: &Path) -> std::io::Result<()> {
        match self.0 {
            Some((uid, gid)) => chown(path, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Returns `wanted`, unless the server's user could not get there: then a folder named after it
    /// below `/var/lib/bakeoff`.
    pub(crate) fn reachable(self, wanted: &Path) -> PathBuf {
        if self.0.is_none() || wanted.ancestors().skip(1).all(everybody_may_enter) {
            return wanted.to_owned();
        }
        PathBuf::from("/var/lib/bakeoff").join(format!(
            "{:016x}",
            fnv1a(wanted.as_os_str().as_encoded_bytes())
        ))
    }

    /// Where downloaded server binaries are kept between runs. Never where others can write too:
    /// what is stored there is executed.
    pub(crate) fn cache_dir(self) -> Result<PathBuf, String> {
        let given = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        self.cache_below(given("XDG_CACHE_HOME"), given("HOME"))
    }

    fn cache_below(self, cache: Option<PathBuf>, home: Option<PathBuf>) -> Result<PathBuf, String> {
        if self.0.is_some() {
            return Ok(PathBuf::from("/var/cache/bakeoff"));
        }
        let below = cache.or_else(|| home.map(|home| home.join(".cache")));
        below.map(|cache| cache.join("bakeoff")).ok_or_else(|| {
            "no private folder to keep a download in: set HOME or XDG_CACHE_HOME to an absolute path".to_owned()
        })
    }
}

fn everybody_may_enter(dir: &Path) -> bool {
    std::fs::metadata(dir).map_or(true, |meta| meta.mode() & 0o001 != 0)
}

fn passwd_ids(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let line = passwd
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// FNV-1a, 64 bit: a stable name for a path (the standard library's hasher may change between
/// releases).
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Owner, fnv1a, passwd_ids};

    #[test]
    fn without_a_home_nothing_is_kept_where_others_write() {
        let refused = Owner(None).cache_below(None, None);
        assert!(refused.is_err_and(|why| why.contains("HOME") && why.contains("XDG_CACHE_HOME")));
        let home = || Some(PathBuf::from("/home/me"));
        assert_eq!(
            Owner(None).cache_below(None, home()),
            Ok("/home/me/.cache/bakeoff".into())
        );
        assert_eq!(
            Owner(None).cache_below(Some("/cache".into()), home()),
            Ok("/cache/bakeoff".into())
        );
    }

    #[test]
    fn passwd_fields_are_read_by_name_and_not_by_prefix() {
        let passwd = "nobody2:x:1:2::/:/bin/sh\nnobody:x:65534:65533:n:/:/usr/sbin/nologin\n";
        assert_eq!(passwd_ids(passwd, "nobody"), Some((65534, 65533)));
        assert_eq!(passwd_ids(passwd, "postgres"), None);
    }

    #[test]
    fn fnv1a_agrees_with_its_published_vector() {
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}

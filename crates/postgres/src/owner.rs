//! Which user runs the server, and where that user can read and write. Postgres refuses to run as root, so
//! root hands over to `postgres` or `nobody`; those cannot enter a 0700 home, so places outside it are used.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user the server runs as: `None` when we are not root and simply stay who we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(Option<(u32, u32)>);

impl Owner {
    /// Root becomes `postgres` where that user exists, else `nobody`: `initdb` wants a uid with a passwd entry.
    pub(crate) fn current() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let found = ["postgres", "nobody"].iter().find_map(|name| passwd_ids(&passwd, name));
        Self(Some(found.unwrap_or((65534, 65534))))
    }

    /// Sets uid and gid, and a working directory everybody may enter.
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

    /// `wanted`, unless the server's user could not get there: then a folder named after it below `/var/lib/bakeoff`.
    pub(crate) fn reachable(self, wanted: &Path) -> PathBuf {
        if self.0.is_none() || wanted.ancestors().skip(1).all(everybody_may_enter) {
            return wanted.to_owned();
        }
        PathBuf::from("/var/lib/bakeoff").join(format!("{:016x}", fnv1a(wanted.as_os_str().as_encoded_bytes())))
    }

    /// Where downloaded server binaries are kept between runs.
    pub(crate) fn cache_dir(self) -> PathBuf {
        if self.0.is_some() {
            return PathBuf::from("/var/cache/bakeoff");
        }
        let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
        std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from).join("bakeoff")
    }
}

fn everybody_may_enter(dir: &Path) -> bool {
    std::fs::metadata(dir).map_or(true, |meta| meta.mode() & 0o001 != 0)
}

fn passwd_ids(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// FNV-1a, 64 bit: a stable name for a path (the standard library's hasher may change between releases).
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::{fnv1a, passwd_ids};

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

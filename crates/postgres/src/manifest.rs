//! Downloaded programs are run again only if they are still what was installed: their hashes are
//! stored beside them, and only we (or root) can have written there.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sha2::{Digest, Sha256};

const PROGRAMS: [&str; 2] = ["initdb", "postgres"];
const FILE: &str = "bakeoff-manifest";

/// Creates a folder that only we can write to. Everybody may read: the server may run as another
/// user.
pub(crate) fn make_private(folder: &Path) -> Result<(), String> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
    made.map_err(|error| format!("{}: {error}", folder.display()))?;
    nobody_else_writes(folder)
}

/// Stores the hashes of the programs in `home/bin` for [`check`], and removes write access of
/// others: a package manager leaves permissions to the umask.
pub(crate) fn write(home: &Path, bin: &str) -> Result<(), String> {
    let path = home.join(FILE);
    for installed in below(home).map_err(|error| format!("{}: {error}", home.display()))? {
        keep_private(&installed).map_err(|error| format!("{}: {error}", installed.display()))?;
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    let written = file.and_then(|mut file| file.write_all(hashes(&home.join(bin))?.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns an error if the programs in `home/bin` must not be run.
pub(crate) fn check(home: &Path, bin: &str) -> Result<(), String> {
    let bin = home.join(bin);
    let manifest = home.join(FILE);
    for path in on_the_way(home, &bin)
        .iter()
        .map(PathBuf::as_path)
        .chain([manifest.as_path()])
        .chain(home.parent())
    {
        nobody_else_writes(path)?;
    }
    // The programs also load libraries and read scripts.
    for path in below(home).map_err(|error| format!("{}: {error}", home.display()))? {
        nobody_else_writes(&path)?;
    }
    let noted = fs::read_to_string(&manifest)
        .map_err(|error| format!("{}: {error}", manifest.display()))?;
    let found = hashes(&bin).map_err(|error| format!("{}: {error}", bin.display()))?;
    if noted == found {
        Ok(())
    } else {
        Err("the programs are not those that were installed".to_owned())
    }
}

/// The programs and every folder above them: anyone who can write to a folder can replace what is
/// below it.
fn on_the_way(home: &Path, bin: &Path) -> Vec<PathBuf> {
    let folders = bin
        .ancestors()
        .take_while(|folder| folder.starts_with(home))
        .map(Path::to_owned);
    folders
        .chain(PROGRAMS.iter().map(|name| bin.join(name)))
        .collect()
}

/// All folders and files except links: only those who can write to a folder can create a link
/// there.
fn below(home: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut all, mut folders) = (Vec::new(), vec![home.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                all.push(entry.path());
            }
        }
        all.push(folder);
    }
    Ok(all)
}

fn keep_private(path: &Path) -> std::io::Result<()> {
    let mode = fs::metadata(path)?.mode();
    fs::set_permissions(path, Permissions::from_mode(mode & !0o022))
}

fn hashes(bin: &Path) -> std::io::Result<String> {
    let line = |name: &&str| {
        Ok(format!(
            "{}  {name}\n",
            hex::encode(Sha256::digest(fs::read(bin.join(name))?))
        ))
    };
    PROGRAMS.iter().map(line).collect()
}

/// Checks the path itself, without following links: it must be ours (or root's), not writable by
/// others, and not a link.
fn nobody_else_writes(path: &Path) -> Result<(), String> {
    let meta =
        fs::symlink_metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let is_ours = [0, geteuid().as_raw()].contains(&meta.uid());
    if !is_ours || meta.mode() & 0o022 != 0 || meta.is_symlink() {
        return Err(format!(
            "{} can be changed by others, or is a link",
            path.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An installation in the target folder of this checkout, removed after the test.
    struct Home(PathBuf);

    impl Home {
        fn installed(name: &str) -> Self {
            let home = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(format!("../../target/tmp/{name}-{}", std::process::id()));
            drop(fs::remove_dir_all(&home));
            make_private(&home.join("bin")).unwrap();
            for program in PROGRAMS {
                fs::write(home.join("bin").join(program), program).unwrap();
            }
            fs::create_dir(home.join("lib")).unwrap();
            fs::write(home.join("lib/libpq.so.5"), "").unwrap();
            std::os::unix::fs::symlink("libpq.so.5", home.join("lib/libpq.so")).unwrap();
            write(&home, "bin").unwrap();
            Self(home)
        }

        fn refusal(&self) -> Option<String> {
            check(&self.0, "bin").err()
        }
    }

    impl Drop for Home {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn what_was_installed_is_run() {
        assert_eq!(Home::installed("untouched").refusal(), None);
    }

    #[test]
    fn a_program_that_was_exchanged_is_not_run() {
        let home = Home::installed("exchanged");
        fs::write(home.0.join("bin/initdb"), "planted").unwrap();
        assert!(
            home.refusal()
                .is_some_and(|why| why.contains("not those that were installed"))
        );
    }

    #[test]
    fn programs_without_a_manifest_are_not_run() {
        let home = Home::installed("planted");
        fs::remove_file(home.0.join(FILE)).unwrap();
        assert!(home.refusal().is_some_and(|why| why.contains(FILE)));
    }

    #[test]
    fn programs_that_others_can_write_are_not_run() {
        for (number, path) in ["", "bin", "bin/postgres", "lib", "lib/libpq.so.5", FILE]
            .into_iter()
            .enumerate()
        {
            let home = Home::installed(&format!("writable-{number}"));
            fs::set_permissions(home.0.join(path), fs::Permissions::from_mode(0o777)).unwrap();
            assert!(
                home.refusal().is_some_and(|why| why.contains("by others")),
                "{path}"
            );
        }
    }
}

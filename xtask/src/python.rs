//! Python packages from the registry into a folder of our own: no virtual environment, no sudo,
//! nothing left on the machine.

use std::path::PathBuf;
use std::process::Command;

use crate::process::root;

/// Installs pinned packages once into `target/python/<name>`; returns the folder, for PYTHONPATH.
pub(crate) fn packages(requirements: &[&str], name: &str) -> Result<PathBuf, String> {
    let target = root().join("target/python").join(name);
    let stamp = target.join("requirements.txt");
    let wanted = requirements.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(target);
    }
    eprintln!("Fetching {} …", requirements.join(", "));
    let fresh = target.with_extension(std::process::id().to_string());
    drop(std::fs::remove_dir_all(&fresh));
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
        ])
        .arg("--target")
        .arg(&fresh)
        .args(requirements)
        .output()
        .map_err(|error| {
            format!("python3 could not be run ({error}); install Python 3.11 with pip")
        })?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!(
            "{} could not be installed:\n{stderr}",
            requirements.join(", ")
        ));
    }
    // Replaced as a whole: another run may be reading the old folder, or may have been faster.
    std::fs::write(fresh.join("requirements.txt"), wanted).map_err(|error| error.to_string())?;
    let old = target.with_extension(format!("{}.old", std::process::id()));
    drop(std::fs::rename(&target, &old));
    let moved = std::fs::rename(&fresh, &target);
    drop(std::fs::remove_dir_all(&old));
    drop(std::fs::remove_dir_all(&fresh));
    if moved.is_err() && !stamp.is_file() {
        return Err(format!("{} could not be put in place", target.display()));
    }
    Ok(target)
}

//! Objects in S3 as files below a folder.

use std::path::Path;

/// Whether any file below `root` has a relative path that begins with `prefix`.
pub(crate) fn any_file(root: &Path, dir: &Path, prefix: &str) -> bool {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            let path = entry.path();
            let relative = path
                .strip_prefix(root)
                .map(|path| path.to_string_lossy().into_owned())
                .unwrap_or_default();
            if path.is_dir() {
                let leads_there = relative.starts_with(prefix) || prefix.starts_with(&relative);
                return leads_there && any_file(root, &path, prefix);
            }
            relative.starts_with(prefix)
        })
}

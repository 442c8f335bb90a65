//! What the documents say of the sources: the files that they name exist, and the newest version is the one that is built.

use std::path::{Path, PathBuf};

use super::style::root;

const DOCUMENTS: [&str; 6] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/architecture/data-flow.md",
    "docs/architecture/map.md",
    "docs/architecture/crash.md",
    "docs/architecture/invariants.md",
];

/// Crates that the map calls by their name alone.
const SHORT: [&str; 5] = ["domain", "planner", "store", "service", "http"];

/// Every file and folder of the project that is not built.
fn all() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            let is_built = ["target", ".git", "node_modules"]
                .iter()
                .any(|name| path.ends_with(name));
            if !is_built {
                found.push(path.strip_prefix(root()).unwrap().to_path_buf());
                if path.is_dir() {
                    folders.push(path);
                }
            }
        }
    }
    found
}

/// Whether a file or folder ends with these parts, in the crate that its first one may stand for.
fn exists(all: &[PathBuf], named: &str) -> bool {
    let named = named.trim_end_matches('/');
    let whole = match named.split_once('/') {
        Some((first, rest)) if SHORT.contains(&first) => format!("crates/{first}/src/{rest}"),
        _ => named.to_owned(),
    };
    all.iter().any(|path| path.ends_with(Path::new(&whole)))
}

/// What stands between backticks and looks like a file or a folder.
fn names(text: &str) -> Vec<&str> {
    let is_path = |word: &&str| {
        let plain = |one: char| one.is_ascii_alphanumeric() || "_-./".contains(one);
        let is_file = [".rs", ".md", ".csv", ".sql", ".json"]
            .iter()
            .any(|ending| word.len() > ending.len() && word.ends_with(ending));
        let is_folder = word.len() > 1 && word.ends_with('/');
        (is_file || is_folder) && word.chars().all(plain) && !word.starts_with('/')
    };
    text.split('`').skip(1).step_by(2).filter(is_path).collect()
}

/// Folders that commands make.
const MADE: [&str; 4] = ["target/", "scratch/", "mutants/", "python/"];

#[test]
fn the_documents_name_files_that_exist() {
    let all = all();
    let mut missing = Vec::new();
    let mut count = 0;
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        for name in names(&text) {
            count += 1;
            if !exists(&all, name) && !MADE.contains(&name) {
                missing.push(format!("{document}: {name}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
    assert!(count > 100, "{count} names were found");
    assert!(!exists(&all, "store/nowhere.rs") && exists(&all, "store/jobs/queue.rs"));
}

#[test]
fn the_newest_version_in_the_changelog_is_the_one_that_is_built() {
    let text = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let newest = text
        .lines()
        .find_map(|line| line.strip_prefix("## "))
        .and_then(|heading| heading.split_once(' '));
    assert_eq!(newest.unwrap().0, env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_client_and_the_dashboard_have_the_version_that_is_built() {
    let stated = [
        ("clients/python/pyproject.toml", "version = "),
        ("clients/python/src/bakeoff/__init__.py", "__version__ = "),
        ("dashboard/package.json", "\"version\": "),
        ("dashboard/chromium/package.json", "\"version\": "),
    ];
    for (path, before) in stated {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let mut lines = text.lines().map(str::trim);
        let line = lines.find_map(|line| line.strip_prefix(before));
        let version = line.map(|rest| rest.trim_matches(['"', ',']));
        assert_eq!(version, Some(env!("CARGO_PKG_VERSION")), "{path}");
    }
}

//! What the program may be built of: licences that allow it, one registry, one TLS library, and few crates in two versions.

use std::collections::BTreeMap;
use std::process::Command;

use serde::Deserialize;

use super::style::root;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    /// An SPDX expression; older crates write `/` for `OR`.
    license: Option<String>,
    /// Absent for the workspace's own.
    source: Option<String>,
}

/// Permissive licences: a notice is all that they ask for.
const LICENCES: [&str; 15] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "BlueOak-1.0.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// A second TLS or crypto library would double what must be kept up to date, and the size.
const BANNED: [&str; 5] = [
    "openssl",
    "openssl-sys",
    "native-tls",
    "aws-lc-rs",
    "aws-lc-sys",
];

/// Crates that are there in more than one version; lower it when one goes.
const DOUBLED_MAX: usize = 23;

/// Whether one of the alternatives asks for nothing but allowed licences.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace(['(', ')'], "").replace('/', " OR ");
    let mut alternatives = expression.split(" OR ");
    alternatives.any(|all| all.split(" AND ").all(|one| LICENCES.contains(&one.trim())))
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let metadata: Metadata = serde_json::from_slice(&output.stdout).unwrap();
    metadata.packages
}

#[test]
fn every_dependency_may_be_used_and_comes_from_one_registry() {
    assert!(is_allowed("GPL-3.0 OR MIT") && !is_allowed("MIT AND GPL-3.0"));
    let packages = packages();
    assert!(packages.len() > 300, "{} packages", packages.len());
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for package in &packages {
        let Package { name, version, .. } = package;
        *versions.entry(name).or_default() += 1;
        let licence = package.license.as_deref().unwrap_or_default();
        if !is_allowed(licence) {
            wrong.push(format!("{name} {version}: licence {licence:?}"));
        }
        let source = package.source.as_deref();
        if source.is_some_and(|source| !source.ends_with("rust-lang/crates.io-index")) {
            wrong.push(format!("{name} {version}: from {source:?}"));
        }
        if BANNED.contains(&name.as_str()) {
            wrong.push(format!("{name} {version}: rustls and ring are enough"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    let doubled: Vec<&str> = versions
        .into_iter()
        .filter_map(|(name, count)| (count > 1).then_some(name))
        .collect();
    assert!(
        doubled.len() <= DOUBLED_MAX,
        "{} crates in several versions: {doubled:?}",
        doubled.len()
    );
}

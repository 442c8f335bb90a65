//! No circles: neither of files nor of rooms.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use syn::visit::{self, Visit};

use crate::house::style::{EVERYTHING, root, sources};

/// A file that imports what imports it again cannot be read, moved or tested by itself. Two may
/// belong together that closely: a file and what was taken out of it.
#[test]
fn imports_go_in_no_circles() {
    let mut circles = Vec::new();
    for folder in EVERYTHING {
        let modules = modules(folder);
        let edges = imports(&modules);
        for module in modules.keys() {
            let reached = reachable(&edges, module);
            let circle: BTreeSet<&Module> = reached
                .iter()
                .filter(|other| reachable(&edges, other).contains(module))
                .copied()
                .collect();
            if circle.len() > 2 {
                circles.push(format!("{folder}: {circle:?}"));
            }
        }
    }
    circles.dedup();
    assert_eq!(circles, Vec::<String>::new());
}

/// Crates whose rooms stand on each other and not in a circle: what is in a lower one can be read, moved and tested
/// without those above it. A room is a folder, or a file of its own.
const STAIRS: [&str; 6] = [
    "crates/domain/src",
    "crates/planner/src",
    "crates/store/src",
    "crates/service/src",
    "crates/http/src",
    "crates/sim/src",
];

#[test]
fn rooms_go_in_no_circles() {
    let mut circles = Vec::new();
    for folder in STAIRS {
        let room = |module: &Module| Some(vec![module.first()?.clone()]);
        let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, others) in &imports(&modules(folder)) {
            let Some(from) = room(from) else { continue };
            let others = others
                .iter()
                .filter_map(&room)
                .filter(|other| *other != from);
            edges.entry(from.clone()).or_default().extend(others);
        }
        for from in edges.keys() {
            let reached = reachable(&edges, from);
            let circle: BTreeSet<&Module> = reached
                .iter()
                .filter(|other| **other != from && reachable(&edges, other).contains(from))
                .copied()
                .collect();
            if !circle.is_empty() {
                circles.push(format!("{folder}: {from:?} {circle:?}"));
            }
        }
        assert!(edges.len() > 5, "{folder}: too little to prove anything");
    }
    assert_eq!(circles, Vec::<String>::new());
}

/// A module by its path in its crate: `["lint", "rules"]`.
type Module = Vec<String>;

/// The modules of a crate with what they import, without their tests.
fn modules(folder: &str) -> BTreeMap<Module, Vec<Module>> {
    let base = root().join(folder);
    let of = |(path, text): (PathBuf, String)| {
        let relative = path.strip_prefix(&base).unwrap().with_extension("");
        let mut module: Module = relative
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if module
            .last()
            .is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str()))
        {
            module.pop();
        }
        let is_test = module
            .last()
            .is_some_and(|last| ["tests", "properties"].contains(&last.as_str()));
        let paths = if is_test { Vec::new() } else { paths(&text) };
        (module, paths)
    };
    let mut all: BTreeMap<Module, Vec<Module>> = BTreeMap::new();
    for (module, paths) in sources(&[folder]).into_iter().map(of) {
        all.entry(module).or_default().extend(paths);
    }
    all
}

/// Modules of its own crate that a file imports, by `use` or by a path from `crate` or `super`.
fn paths(text: &str) -> Vec<Module> {
    #[derive(Default)]
    struct Found(Vec<Module>);
    impl Found {
        fn tree(&mut self, before: &Module, tree: &syn::UseTree) {
            let with = |ident: &syn::Ident| {
                let mut path = before.clone();
                path.push(ident.to_string());
                path
            };
            match tree {
                syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
                syn::UseTree::Name(name) => self.0.push(with(&name.ident)),
                syn::UseTree::Rename(rename) => self.0.push(with(&rename.ident)),
                syn::UseTree::Glob(_) => self.0.push(before.clone()),
                syn::UseTree::Group(group) => {
                    group.items.iter().for_each(|tree| self.tree(before, tree));
                }
            }
        }
    }
    impl<'a> Visit<'a> for Found {
        fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
            if module.ident != "tests" {
                visit::visit_item_mod(self, module);
            }
        }
        // Who may see it is no import.
        fn visit_visibility(&mut self, _: &'a syn::Visibility) {}
        fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
            self.tree(&Module::new(), &item.tree);
        }
        fn visit_path(&mut self, path: &'a syn::Path) {
            let first = path.segments.first().map(|first| first.ident.to_string());
            if first.is_some_and(|first| first == "crate" || first == "super") {
                let names = path.segments.iter();
                self.0
                    .push(names.map(|segment| segment.ident.to_string()).collect());
            }
            visit::visit_path(self, path);
        }
    }
    let mut found = Found::default();
    found.visit_file(&syn::parse_file(text).unwrap());
    found.0
}

fn imports(modules: &BTreeMap<Module, Vec<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    let resolve = |from: &Module, path: &Module| -> Option<Module> {
        let mut place = from.clone();
        let mut rest = path.as_slice();
        match rest.first()?.as_str() {
            "crate" => (place, rest) = (Module::new(), &rest[1..]),
            "self" | "super" => {
                while let Some(up) = rest.first().filter(|up| *up == "self" || *up == "super") {
                    if up == "super" {
                        place.pop();
                    }
                    rest = &rest[1..];
                }
            }
            // A child, or something of another crate.
            child => {
                let child = [from.as_slice(), &[child.to_owned()]].concat();
                modules.contains_key(&child).then_some(())?;
            }
        }
        place.extend_from_slice(rest);
        while !modules.contains_key(&place) {
            place.pop()?;
        }
        Some(place)
    };
    let of = |(from, paths): (&Module, &Vec<Module>)| {
        let to = paths.iter().filter_map(|path| resolve(from, path));
        (from.clone(), to.filter(|to| to != from).collect())
    };
    modules.iter().map(of).collect()
}

fn reachable<'a>(
    edges: &'a BTreeMap<Module, BTreeSet<Module>>,
    from: &Module,
) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&Module> = edges.get(from).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(edges.get(module).into_iter().flatten());
        }
    }
    found
}

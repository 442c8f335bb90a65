//! Style is a test: layers, sizes, no debts without a reason. It reads the sources as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::{self, Visit};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_TOKENS_MAX: usize = 600;
/// Nineteen of twenty functions have at most so many.
const FUNCTION_TOKENS_USUAL: usize = 360;

pub(super) fn root() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(super) fn sources(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        if folder.is_file() {
            found.push((folder.clone(), fs::read_to_string(&folder).unwrap()));
            continue;
        }
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(
        found.len() > 3,
        "the walk found too little to prove anything"
    );
    found
}

const EVERYTHING: [&str; 8] = [
    "src",
    "crates/domain/src",
    "crates/planner/src",
    "crates/aws/src",
    "crates/sim/src",
    "crates/postgres/src",
    "crates/eval/src",
    "xtask/src",
];

/// Lines that break a rule, as `file:line: text`.
fn offenders(folders: &[&str], breaks: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources(folders) {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| breaks(line)) {
            found.push(format!(
                "{}:{}: {}",
                path.display(),
                number + 1,
                line.trim()
            ));
        }
    }
    found
}

fn mentions(line: &str, names: &[&str]) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    names.iter().any(|name| code.contains(name))
}

#[test]
fn the_domain_is_pure() {
    let impure = [
        "tokio::", "sqlx::", "aws_", "axum::", "Utc::now", "std::fs", "std::net", "std::env",
        "rand::", "now_v7",
    ];
    let pure = ["crates/domain/src", "crates/planner/src"];
    assert_eq!(
        offenders(&pure, |line| mentions(line, &impure)),
        Vec::<String>::new()
    );
}

/// What a job costs and what a listing means must not depend on how a spec is linted; and the region
/// that judges requests must not share the planner's idea of them.
#[test]
fn neither_the_domain_nor_aws_nor_the_region_know_the_planner() {
    for manifest in ["domain", "aws", "sim", "postgres"] {
        let text =
            fs::read_to_string(root().join(format!("crates/{manifest}/Cargo.toml"))).unwrap();
        assert!(!text.contains("bakeoff-planner"), "{manifest}");
    }
}

#[test]
fn only_the_aws_crate_names_an_sdk_type() {
    let folders = ["src", "crates/domain/src", "crates/sim/src", "xtask/src"];
    assert_eq!(
        offenders(&folders, |line| mentions(
            line,
            &["aws_sdk_", "aws_config", "aws_smithy"]
        )),
        Vec::<String>::new()
    );
}

#[test]
fn only_the_composition_root_connects_to_aws() {
    let found = offenders(&["src"], |line| mentions(line, &["bakeoff_aws::"]));
    assert!(
        found.iter().all(|line| line.contains("src/cli/aws.rs")) && !found.is_empty(),
        "{found:#?}"
    );
}

#[test]
fn all_sql_is_in_the_store() {
    let sql = |line: &str| {
        mentions(
            line,
            &[
                "sqlx::query",
                "SELECT ",
                "INSERT ",
                "UPDATE ",
                "DELETE FROM ",
            ],
        )
    };
    let (store, elsewhere): (Vec<String>, Vec<String>) = offenders(&["src"], sql)
        .into_iter()
        .partition(|line| line.contains("/src/store/"));
    assert_eq!(elsewhere, Vec::<String>::new());
    assert!(!store.is_empty());
}

/// Nobody checks a path into a document, and a field that was renamed is read as nothing: what SQL
/// reads is a column.
#[test]
fn no_sql_reads_within_a_document() {
    let digs = |line: &str| {
        let operators = [
            "->'",
            "->>",
            "#>",
            "#-",
            "@>",
            "jsonb_array_elements",
            "jsonb_path",
        ];
        // An array, not a document.
        let line = line.replace("labels @> $8", "");
        operators.iter().any(|operator| line.contains(operator))
            && !line.trim_start().starts_with("//")
    };
    assert!(digs("SELECT t.plan->>'candidate'") && digs("(plan #>> '{request}')::bigint"));
    assert_eq!(offenders(&["src/store"], digs), Vec::<String>::new());
}

/// Events of a project are committed in the order of their ids: whoever writes one holds the
/// feed's lock.
#[test]
fn events_are_written_in_one_file() {
    let found = offenders(&["src"], |line| mentions(line, &["INTO events"]));
    assert!(
        found
            .iter()
            .all(|line| line.contains("/src/store/events.rs"))
            && !found.is_empty(),
        "{found:#?}"
    );
}

#[test]
fn tasks_do_not_know_http_and_handlers_do_not_call_aws() {
    assert_eq!(
        offenders(&["src/tasks"], |line| mentions(line, &["crate::http"])),
        Vec::<String>::new()
    );
    // What the limiter allows and whose jobs are ours is asked of no one; the refresh of prices is
    // the one call, and has a file of its own. It also runs once a day.
    let calls = offenders(&["src/http", "src/read", "src/intake.rs"], |line| {
        (mentions(line, &[".aws."]) || line.trim() == ".aws")
            && !mentions(line, &[".aws.rates()", ".aws.may_own("])
    });
    assert_eq!(calls, Vec::<String>::new());
    let refreshes = offenders(&["src"], |line| mentions(line, &["refresh::"]));
    assert!(
        refreshes
            .iter()
            .all(|line| line.contains("/src/http/catalog.rs")
                || line.contains("/src/tasks/price_refresher.rs"))
            && !refreshes.is_empty(),
        "{refreshes:#?}"
    );
}

#[test]
fn error_statuses_are_named_in_one_file() {
    let fine = ["OK", "CREATED", "ACCEPTED", "NO_CONTENT", "NOT_MODIFIED"];
    let is_error = |rest: &str| !fine.iter().any(|name| rest.starts_with(name));
    let found = offenders(&["src/http"], |line| {
        line.split("StatusCode::").skip(1).any(is_error)
    });
    assert!(
        found
            .iter()
            .all(|line| line.contains("src/http/problem.rs"))
            && !found.is_empty(),
        "{found:#?}"
    );
}

/// What a lease has left is counted by a clock that goes on while the machine is suspended:
/// `clock::Stopwatch`.
#[test]
fn no_monotonic_clock_where_leases_are_counted() {
    let names = ["Instant::now", "time::Instant"];
    let folders = ["src/tasks", "src/http", "src/store"];
    let mut found = offenders(&folders, |line| mentions(line, &names));
    for file in [
        "src/leader.rs",
        "src/pulse.rs",
        "src/fence.rs",
        "src/aws/mod.rs",
    ] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        found.extend(
            text.lines()
                .filter(|line| mentions(line, &names))
                .map(|line| format!("{file}: {line}")),
        );
    }
    // When a connection was given up is no lease: a machine that sleeps uses none meanwhile.
    found.retain(|line| !line.contains("src/store/session.rs"));
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn the_simulator_is_never_a_dependency_of_the_product() {
    for manifest in [
        "Cargo.toml",
        "crates/domain/Cargo.toml",
        "crates/aws/Cargo.toml",
        "crates/postgres/Cargo.toml",
    ] {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        assert!(!text.contains("bakeoff-sim"), "{manifest}");
    }
}

#[test]
fn files_and_functions_stay_small() {
    let mut too_long = Vec::new();
    let mut sizes = Vec::new();
    for (path, text) in sources(&EVERYTHING) {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            too_long.push(format!("{}: {lines} lines", path.display()));
        }
        for Function { name, tokens, .. } in functions(&text) {
            if tokens > FUNCTION_TOKENS_MAX {
                too_long.push(format!("{}: {name} has {tokens} tokens", path.display()));
            }
            sizes.push(tokens);
        }
    }
    for (path, text) in sources(&["tests/it"]) {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            too_long.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert_eq!(too_long, Vec::<String>::new());
    sizes.sort_unstable();
    assert!(sizes.len() > 1000, "{} functions were found", sizes.len());
    let at = |percent: usize| sizes[(sizes.len() - 1) * percent / 100];
    println!(
        "{} functions: median {}, 95 % {}, 99 % {}",
        sizes.len(),
        at(50),
        at(95),
        at(99)
    );
    assert!(
        at(95) <= FUNCTION_TOKENS_USUAL,
        "one function in twenty has {} tokens and more",
        at(95)
    );
}

/// Two values of one type in a tuple may be swapped, and nobody is told: a struct names them.
#[test]
fn no_parameter_is_a_tuple() {
    let mut found = Vec::new();
    for (path, text) in sources(&EVERYTHING) {
        for function in functions(&text).iter().filter(|one| one.takes_tuple) {
            found.push(format!("{}: {}", path.display(), function.name));
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

struct Function {
    name: String,
    /// How lines are broken does not count, nor do attributes and comments.
    tokens: usize,
    /// One of its parameters is a tuple, or may be one, or refers to one.
    takes_tuple: bool,
}

/// Every function of a file that is not a test's.
fn functions(text: &str) -> Vec<Function> {
    #[derive(Default)]
    struct Found(Vec<Function>);
    impl<'a> Visit<'a> for Found {
        fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
            if module.ident != "tests" {
                visit::visit_item_mod(self, module);
            }
        }
        fn visit_item_fn(&mut self, one: &'a syn::ItemFn) {
            self.add(&one.sig, &one.block);
            visit::visit_item_fn(self, one);
        }
        fn visit_impl_item_fn(&mut self, one: &'a syn::ImplItemFn) {
            self.add(&one.sig, &one.block);
            visit::visit_impl_item_fn(self, one);
        }
    }
    impl Found {
        fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
            let tokens = count(signature.to_token_stream()) + count(block.to_token_stream());
            let mut types = signature.inputs.iter().filter_map(|input| match input {
                syn::FnArg::Typed(typed) => Some(&*typed.ty),
                syn::FnArg::Receiver(_) => None,
            });
            self.0.push(Function {
                name: signature.ident.to_string(),
                tokens,
                takes_tuple: types.any(is_tuple),
            });
        }
    }
    fn is_tuple(of: &syn::Type) -> bool {
        match of {
            syn::Type::Tuple(tuple) => !tuple.elems.is_empty(),
            syn::Type::Reference(reference) => is_tuple(&reference.elem),
            syn::Type::Path(path) => path.path.segments.last().is_some_and(|last| {
                let syn::PathArguments::AngleBracketed(inner) = &last.arguments else {
                    return false;
                };
                last.ident == "Option"
                    && inner.args.iter().any(
                        |one| matches!(one, syn::GenericArgument::Type(inner) if is_tuple(inner)),
                    )
            }),
            _ => false,
        }
    }
    fn count(tokens: TokenStream) -> usize {
        let one = |tree| match tree {
            TokenTree::Group(group) => 2 + count(group.stream()),
            _ => 1,
        };
        tokens.into_iter().map(one).sum()
    }
    let mut found = Found::default();
    found.visit_file(&syn::parse_file(text).unwrap());
    found.0
}

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

/// Folders whose rooms stand on each other and not in a circle: what is in a lower one can be read, moved and tested
/// without those above it. A room is a folder, or a file of its own.
const STAIRS: [&str; 4] = [
    "crates/domain/src",
    "crates/planner/src",
    "src",
    "src/store",
];

#[test]
fn rooms_go_in_no_circles() {
    let mut circles = Vec::new();
    for folder in STAIRS {
        // Modules are named from their crate's root, which `src/store` is not.
        let (krate, before): (&str, &[&str]) = match folder {
            "src/store" => ("src", &["store"]),
            whole => (whole, &[]),
        };
        let room = |module: &Module| {
            let is_inside = module.iter().zip(before).all(|(own, part)| own == part);
            let inner = module.get(before.len()).filter(|_| is_inside)?;
            Some(vec![inner.clone()])
        };
        let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, others) in &imports(&modules(krate)) {
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

/// What a file imports of its own crate: by `use`, or by a path from `crate` or `super`.
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

#[test]
fn every_file_says_what_it_is() {
    let silent: Vec<String> = sources(&EVERYTHING)
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert_eq!(silent, Vec::<String>::new());
}

//! Style is a test: layers, sizes, no debts without a reason. It reads the sources as text.

use std::fs;
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::{self, Visit};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_TOKENS_MAX: usize = 600;
/// Nineteen of twenty functions have at most so many.
const FUNCTION_TOKENS_USUAL: usize = 360;

pub(crate) fn root() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn sources(folders: &[&str]) -> Vec<(PathBuf, String)> {
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

/// The service and its program.
const SERVICE: [&str; 6] = [
    "src",
    "crates/process/src",
    "crates/store/src",
    "crates/api/src",
    "crates/service/src",
    "crates/http/src",
];

pub(crate) const EVERYTHING: [&str; 13] = [
    "src",
    "crates/process/src",
    "crates/store/src",
    "crates/api/src",
    "crates/service/src",
    "crates/http/src",
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
    let others: Vec<&str> = EVERYTHING
        .into_iter()
        .filter(|folder| *folder != "crates/aws/src")
        .collect();
    assert_eq!(
        offenders(&others, |line| mentions(
            line,
            &["aws_sdk_", "aws_config", "aws_smithy"]
        )),
        Vec::<String>::new()
    );
}

#[test]
fn only_the_composition_root_connects_to_aws() {
    let found = offenders(&SERVICE, |line| mentions(line, &["bakeoff_aws::"]));
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
    let (store, elsewhere): (Vec<String>, Vec<String>) = offenders(&SERVICE, sql)
        .into_iter()
        .partition(|line| line.contains("/crates/store/src/"));
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
    assert_eq!(offenders(&["crates/store/src"], digs), Vec::<String>::new());
}

/// Events of a project are committed in the order of their ids: whoever writes one holds the
/// feed's lock.
#[test]
fn events_are_written_in_one_file() {
    let found = offenders(&SERVICE, |line| mentions(line, &["INTO events"]));
    assert!(
        found
            .iter()
            .all(|line| line.contains("/crates/store/src/events.rs"))
            && !found.is_empty(),
        "{found:#?}"
    );
}

#[test]
fn handlers_do_not_call_aws() {
    // What the limiter allows and whose jobs are ours is asked of no one; the refresh of prices is
    // the one call, and has a file of its own. It also runs once a day.
    let calls = offenders(
        &[
            "crates/http/src",
            "crates/service/src/read",
            "crates/service/src/use_cases/intake.rs",
        ],
        |line| {
            (mentions(line, &[".aws."]) || line.trim() == ".aws")
                && !mentions(line, &[".aws.rates()", ".aws.may_own("])
        },
    );
    assert_eq!(calls, Vec::<String>::new());
    let refreshes = offenders(&SERVICE, |line| mentions(line, &["refresh::"]));
    assert!(
        refreshes
            .iter()
            .all(|line| line.contains("/crates/http/src/catalog.rs")
                || line.contains("/src/tasks/price_refresher.rs"))
            && !refreshes.is_empty(),
        "{refreshes:#?}"
    );
}

#[test]
fn error_statuses_are_named_in_one_file() {
    let fine = ["OK", "CREATED", "ACCEPTED", "NO_CONTENT", "NOT_MODIFIED"];
    let is_error = |rest: &str| !fine.iter().any(|name| rest.starts_with(name));
    let found = offenders(&["crates/http/src"], |line| {
        line.split("StatusCode::").skip(1).any(is_error)
    });
    assert!(
        found
            .iter()
            .all(|line| line.contains("crates/http/src/plumbing/problem.rs"))
            && !found.is_empty(),
        "{found:#?}"
    );
}

/// What a lease has left is counted by a clock that goes on while the machine is suspended:
/// `clock::Stopwatch`.
#[test]
fn no_monotonic_clock_where_leases_are_counted() {
    let names = ["Instant::now", "time::Instant"];
    let folders = [
        "crates/service/src/tasks",
        "crates/http/src",
        "crates/store/src",
    ];
    let mut found = offenders(&folders, |line| mentions(line, &names));
    for file in [
        "crates/service/src/replica/leader.rs",
        "crates/service/src/replica/pulse.rs",
        "crates/service/src/replica/fence.rs",
        "crates/service/src/aws/mod.rs",
    ] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        found.extend(
            text.lines()
                .filter(|line| mentions(line, &names))
                .map(|line| format!("{file}: {line}")),
        );
    }
    // When a connection was given up is no lease: a machine that sleeps uses none meanwhile.
    found.retain(|line| !line.contains("crates/store/src/session.rs"));
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

#[test]
fn every_file_says_what_it_is() {
    let silent: Vec<String> = sources(&EVERYTHING)
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert_eq!(silent, Vec::<String>::new());
}

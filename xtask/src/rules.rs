//! `cargo xtask rules [--check]`: writes docs/lint-rules.md, the page of lint rules, from the
//! register.

use std::fmt::Write;
use std::fs;

use serde_json::Value;

const REGISTER: &str = "crates/planner/data/lint_rules.json";
const PAGE: &str = "docs/lint-rules.md";

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let made = page()?;
    if !flags.contains(&"--check") {
        return fs::write(PAGE, made).map_err(|error| format!("{PAGE}: {error}"));
    }
    if fs::read_to_string(PAGE).unwrap_or_default() == made {
        return Ok(());
    }
    Err(format!(
        "{PAGE} is not what {REGISTER} says; `cargo xtask rules` writes it"
    ))
}

fn page() -> Result<String, String> {
    let text = fs::read_to_string(REGISTER).map_err(|error| format!("{REGISTER}: {error}"))?;
    let register: Value =
        serde_json::from_str(&text).map_err(|error| format!("{REGISTER}: {error}"))?;
    let rules: Vec<&Value> = register["rules"].as_array().into_iter().flatten().collect();
    let mut page = format!(
        "# Lint rules\n\nMade by `cargo xtask rules` from `{REGISTER}`: {} rules. `bakeoff lint FILE` and `POST /v1/lint` check them, \
         `GET /v1/lint/rules` lists them with an example that breaks each and one that keeps it.\n\nAn **error** stops the request, a \
         **refusal** one candidate (of a single job: the job); **warnings** and **notes** go with the plan.\n",
        rules.len()
    );
    let severities = [
        ("error", "Errors"),
        ("refused", "Refusals"),
        ("warning", "Warnings"),
        ("info", "Notes"),
    ];
    for (severity, title) in severities {
        let head = "| rule | checks | fix | in | source |\n|---|---|---|---|---|";
        writeln!(page, "\n## {title}\n\n{head}").map_err(|error| error.to_string())?;
        for rule in rules.iter().filter(|rule| rule["severity"] == severity) {
            let cell = |key: &str| rule[key].as_str().unwrap_or_default().replace('|', "\\|");
            let kinds: Vec<String> = rule["documents"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|kind| kind.as_str().map(|kind| kind.replace('_', " ")))
                .collect();
            let line = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} |",
                cell("id"),
                cell("checks"),
                cell("fix"),
                kinds.join(", "),
                cell("source")
            );
            line.map_err(|error| error.to_string())?;
        }
    }
    Ok(page)
}

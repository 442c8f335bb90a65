//! `cargo xtask`: the project's own commands. It starts in seconds, before the long build, so it
//! depends on little and never on the service: what it needs of the service it runs as a program.

#![expect(
    clippy::indexing_slicing,
    reason = "only serde_json values are indexed, and those yield null"
)]

mod bench;
mod browser;
mod client;
mod dashboard;
mod database;
mod decisions;
mod demo;
mod deploy;
mod docs;
mod durability;
mod eval;
mod mutants;
mod openapi;
mod pictures;
mod process;
mod python;
mod queries;
mod road;
mod shapes;
mod storm;
mod test;
mod wheel;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  demo                the main comparison on an embedded Postgres and a simulated AWS region, to a recommendation
       --once         stop everything when it is done
       --json         print the result for machines (with --once)
       --kills N      kill -9 the service and Postgres in turn, N times, spread over the demo
  storm               faults of every kind over service, Postgres and region; the verdict is the region's record
       --seeds N      so many seeds, side by side (20); FROM..TO for a part of a longer run
       --seed N       one seed again
       --jobs N       seeds at a time (8)
       --json         print the result for machines
  decisions           are the answers right? random workloads × six instance types in a region where codes, machines and moments
                      differ; the region says what each full run would really have taken; under 10 minutes
       --workloads N  so many workloads (200)
       --seed N       other workloads, another region (1)
       --json         print the result for machines
  road [--json]       the pipelines among the examples, from raw data to a model that serves; the ledger against the region's bill
       --kills N      kill -9 the service and Postgres in turn, N times, on the way
  durability          a million points while service and Postgres are killed: each acknowledged one is stored once
       --points N     so many points (1000000)
       --kills N      so many kills, in turn (100)
       --json         print the result for machines
  bench               what watching jobs and keeping metrics costs, in CPU, time, room and calls to AWS; about 50 minutes
       --only NAME    scheduler_1k, scheduler_10k, aws, plans, data, or a part of data: storage, ingest, history_100k, get_trial,
                      comparison_100_of_10k
       --json         print the result for machines
  eval                how good the predictions are on reference tables; `--data DIR` (../shared/data)
       --data DIR     where they lie
       --json         print the result for machines
  signals             what other people's files and logs are read as, against what is true; `--data DIR` (../shared/data/public_inputs)
       --data DIR     where they lie: metrics/ with what is wanted in its index.json; tests/inputs has more of them
       --json         print the result for machines
  fit [--data DIR]    fit the coefficients that the product ships, crates/planner/data/coefficients.json
  mutants [NAME…]     put classic mistakes into a copy of the sources: each must be caught by the test named for it; --storm: by the storm
       --check        only look whether they still apply
  check               formatting, clippy and unit tests: under a minute once everything is built
  test                every test, linter and drift check (CI adds clippy)
  dashboard [--check] build the dashboard that the service embeds (or type-check and test it, too)
  browser             the dashboard in a real browser: journeys, accessibility, screenshots in target/dashboard
  client              the Python client: linted, typed, tested on a real service; the example notebook from top to bottom
  wheel [--try]       the Python client and the programs in one wheel (or install it into an empty environment, too)
  sqlx [--check]      write (or check) the compile-time checked queries in .sqlx
  openapi [--check]   write (or check) openapi/bakeoff.json
  docs [--check]      write (or check) the pages of docs/reference that are made from the sources, and the pictures of diagrams
  shapes [--check]    write (or check) the shapes of AWS's requests that the linter reads, from the pinned botocore
  postgres            a PostgreSQL for `cargo test` by hand, until Ctrl-C
  deploy-lint         check docker/ and deploy/ with their linters
";

fn main() -> ExitCode {
    bakeoff_postgres::reaper::stand_by();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    if (arguments.iter()).any(|argument| matches!(argument.as_str(), "help" | "--help" | "-h")) {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let outcome = match arguments.first().map(String::as_str) {
        Some("demo") => demo::run(&flags),
        Some("decisions") => decisions::run(&flags),
        Some("bench") => bench::run(&flags),
        Some("road") => road::run(&flags),
        Some("durability") => durability::run(&flags),
        Some("eval") => eval::eval(&flags),
        Some("signals") => eval::signals(&flags),
        Some("fit") => eval::fit(&flags),
        Some("docs") => docs::run(&flags),
        Some("shapes") => shapes::run(&flags),
        Some("mutants") => mutants::run(&flags),
        Some("storm") => storm::run(&flags),
        Some("check") => test::check(),
        Some("test") => test::run(),
        Some("browser") => browser::run(&flags),
        Some("client") => client::run(&flags),
        Some("wheel") => wheel::run(&flags),
        Some("dashboard") => dashboard::run(&flags),
        Some("sqlx") => queries::run(&flags),
        Some("openapi") => openapi::run(&flags),
        Some("postgres") => test::postgres(),
        Some("deploy-lint") => deploy::run(),
        _ => {
            print!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nerror: {message}");
            ExitCode::FAILURE
        }
    }
}

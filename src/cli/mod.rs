//! The command line: one program for the service, its administration and its users.

mod aws;
mod buy;
mod calibration;
mod caps;
mod client;
mod database;
mod doctor;
mod endpoints;
mod gate;
mod init;
mod keys;
mod lint;
mod logs;
mod models;
mod pipelines;
mod plan;
mod report;
mod run;
mod schema;
mod secret;
mod serve;
mod sheet;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use bakeoff_process::clock::real_now;
use bakeoff_process::ids;

/// Runs one training workload on several SageMaker instance types side by side and says which one
/// to buy.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service.
    Serve(Box<serve::ServeOptions>),
    /// Apply database migrations.
    Migrate(database::MigrateOptions),
    /// Print the OpenAPI document.
    Openapi,
    /// Check what a first job needs, and say what is missing.
    Doctor(doctor::DoctorOptions),
    /// Manage API keys, on the host.
    Keys(keys::KeysOptions),
    /// Make an experiment from an estimator's arguments, a job, a model's name, offline.
    Init(init::InitOptions),
    /// Check documents before starting anything, offline.
    Lint(lint::LintOptions),
    /// Show what experiments would do and cost, offline.
    Plan(plan::PlanOptions),
    /// Submit experiments or a pipeline over HTTP and follow them.
    Run(run::RunOptions),
    /// Show the full run of an experiment's answer, and start it.
    Buy(buy::BuyOptions),
    /// Measure a commit in CI, and exit with the verdict.
    #[command(
        after_help = "Exits with 0 if the commit passed, 1 if it regressed, 2 if that is inconclusive, 3 without a result, 64 for wrong usage."
    )]
    Gate(gate::GateOptions),
    /// Show the log of a trial, and follow it.
    Logs(logs::LogsOptions),
    /// Register models in SageMaker's Model Registry, and approve them.
    Models(models::ModelsOptions),
    /// Put registered models into service, and look after them.
    Endpoints(endpoints::EndpointsOptions),
    /// List, show, follow, cancel and resume pipelines.
    Pipelines(pipelines::PipelinesOptions),
    /// Show how good the predictions of earlier experiments were.
    Calibration(calibration::CalibrationOptions),
    /// Exit with 0 if the service is ready.
    Healthcheck(client::Target),
}

/// A `key=value` of the command line.
fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or("use key=value")?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

impl Cli {
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        init_logging(&self.command);
        if !matches!(self.command, Command::Serve(_)) {
            end_quietly_with_the_reader();
        }
        match self.command {
            Command::Serve(options) => serve::run(*options).await?,
            Command::Migrate(options) => migrate(&options).await?,
            Command::Openapi => println!("{}", bakeoff_http::openapi().to_pretty_json()?),
            Command::Doctor(options) => return doctor::run(options).await,
            Command::Keys(options) => keys::run(options).await?,
            Command::Init(options) => return init::run(&options),
            Command::Lint(options) => return lint::run(&options),
            Command::Plan(options) => return plan::run(&options),
            Command::Run(options) => return run::run(options).await,
            Command::Buy(options) => return buy::run(options).await,
            Command::Gate(options) => return Ok(gate::run(options).await),
            Command::Logs(options) => logs::run(options).await?,
            Command::Models(options) => models::run(options).await?,
            Command::Endpoints(options) => endpoints::run(options).await?,
            Command::Pipelines(options) => return pipelines::run(options).await,
            Command::Calibration(options) => calibration::run(options).await?,
            Command::Healthcheck(target) => client::Client::new(&target)?.ready().await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn migrate(options: &database::MigrateOptions) -> anyhow::Result<()> {
    let store = options.open().await?;
    store.migrate().await?;
    if options.new_installation {
        let id: String = ids::fresh()
            .as_simple()
            .to_string()
            .chars()
            .rev()
            .take(8)
            .collect();
        store.make_new_installation(&id, real_now()).await?;
        println!(
            "this database is now installation {id}; everything that was running in it is closed here"
        );
    }
    if options.forget_fence {
        store.forget_fence().await?;
        println!(
            "the fence is forgotten; the next `bakeoff serve --fence …` creates one or takes one over"
        );
    }
    let (applied, _) = store.schema_versions().await?;
    println!("the schema is at version {applied}");
    Ok(())
}

/// Lets `bakeoff plan … | head` end when `head` does, instead of printing a backtrace.
fn end_quietly_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic
            .payload()
            .downcast_ref::<String>()
            .map_or("", String::as_str);
        if message.contains("Broken pipe") {
            std::process::exit(0);
        }
        usual(panic);
    }));
}

/// Sends logs to stderr, as JSON from the service unless stderr is a terminal; `BAKEOFF_LOG` sets
/// the level.
fn init_logging(command: &Command) {
    use std::io::IsTerminal;
    let is_service = matches!(command, Command::Serve(_));
    let level = match command {
        Command::Serve(_) => "info",
        // Each step of a large database takes a while.
        Command::Migrate(_) => "warn,bakeoff=info",
        _ => "warn",
    };
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("BAKEOFF_LOG").unwrap_or_else(|_| level.into());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if is_service && !std::io::stderr().is_terminal() {
        builder.json().init();
    } else {
        builder.init();
    }
}

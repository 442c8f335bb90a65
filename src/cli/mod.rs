//! The command line: one program for the service, its administration and its users.

mod any_id;
mod aws;
mod buy;
mod calibration;
mod caps;
mod change;
mod client;
mod database;
mod demo;
mod doctor;
mod endpoints;
mod gate;
mod init;
mod input;
mod keys;
mod lint;
mod logs;
mod look;
mod models;
mod output;
mod pipelines;
mod plan;
mod profiles;
mod reference;
mod report;
mod run;
mod schema;
mod secret;
mod serve;
mod tables;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use bakeoff_process::clock::real_now;
use bakeoff_process::ids;

/// Runs one training workload on several SageMaker instance types side by side and says which one
/// to buy.
#[derive(Debug, Parser)]
#[command(
    version,
    about,
    after_help = "Where to begin:
  bakeoff demo                        everything on a simulated AWS region
  bakeoff init Qwen/Qwen2.5-7B        an experiment from what you have, offline
  bakeoff plan experiment.json        what it would do and cost, offline
  bakeoff serve --embedded            the service, with a database of its own
  bakeoff login                       keeps the service's address and your key
  bakeoff run experiment.json --watch
  bakeoff buy exp_…                   shows the full run of its answer

Exit codes: 0 done, 1 not done, 64 wrong usage; `bakeoff gate --help` has its own."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Local(Local),
    #[command(flatten)]
    ServiceCommand(ServiceCommand),
    #[command(flatten)]
    Host(Host),
    #[command(flatten)]
    About(About),
}

/// Commands that need no service.
#[derive(Debug, Subcommand)]
enum Local {
    /// See everything work on a simulated AWS region.
    Demo(demo::DemoOptions),
    /// Make an experiment from an estimator's arguments, a job or a model's name, without a service.
    Init(init::InitOptions),
    /// Check documents before starting anything, offline.
    Lint(lint::LintOptions),
    /// Show what experiments would do and cost, offline.
    Plan(plan::PlanOptions),
    /// Keep a service's address and your key as a profile.
    Login(profiles::LoginOptions),
}

/// Commands that call a service.
#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// Submit experiments or a pipeline over HTTP and follow them.
    Run(run::RunOptions),
    /// List experiments, pipelines, endpoints, models, external runs or CI runs.
    Ls(look::ListOptions),
    /// Show one thing by its id: an answer, a trial, a run.
    Show(look::ShowOptions),
    /// Follow experiments or a pipeline until they end.
    Watch(look::WatchOptions),
    /// Put experiments, trials and external runs side by side.
    Compare(look::CompareOptions),
    /// Show the log of a trial, and follow it.
    Logs(logs::LogsOptions),
    /// Open the dashboard, logged in.
    Open(look::OpenOptions),
    /// Cancel an experiment or a pipeline.
    Cancel(change::CancelOptions),
    /// Stop one trial; the others go on.
    Stop(change::StopOptions),
    /// Run a failed or stopped trial again.
    Retry(change::RetryOptions),
    /// Show the full run of an experiment's answer, and start it.
    Buy(buy::BuyOptions),
    /// Show prices with their sources.
    Prices(look::PricesOptions),
    /// Show what the project has spent.
    Spend(look::SpendOptions),
    /// Show how good the predictions of earlier experiments were.
    Calibration(calibration::CalibrationOptions),
    /// Measure a commit in CI, and exit with the verdict.
    #[command(
        after_help = "Example: bakeoff gate --template tpl_0190… --commit $(git rev-parse HEAD) --branch main

Exits with 0 if the commit passed, 1 if it regressed, 2 if that is inconclusive, 3 without a result, 64 for wrong usage."
    )]
    Gate(gate::GateOptions),
    /// Register models in SageMaker's Model Registry, and approve them.
    Models(models::ModelsOptions),
    /// Put registered models into service, and look after them.
    Endpoints(endpoints::EndpointsOptions),
    /// List, show, follow, cancel and resume pipelines.
    Pipelines(pipelines::PipelinesOptions),
}

/// Commands for the service's host.
#[derive(Debug, Subcommand)]
enum Host {
    /// Run the service.
    #[command(after_help = "Examples:
  bakeoff serve --embedded                  # a private PostgreSQL in .bakeoff/
  DATABASE_URL=postgres://bakeoff@db/bakeoff BAKEOFF_SECRET_KEY=… bakeoff serve --listen 0.0.0.0:8080")]
    Serve(Box<serve::ServeOptions>),
    /// Apply database migrations.
    #[command(after_help = "Example: DATABASE_URL=postgres://bakeoff@db/bakeoff bakeoff migrate")]
    Migrate(database::MigrateOptions),
    /// Check what a first job needs, and say what is missing.
    Doctor(doctor::DoctorOptions),
    /// Create, list, rotate and revoke API keys.
    Keys(keys::KeysOptions),
    /// Exit with 0 if the service is ready.
    #[command(after_help = "Example: bakeoff healthcheck --url http://127.0.0.1:8080")]
    Healthcheck(HealthOptions),
}

/// Profiles are not read: they may belong to other hosts.
#[derive(Debug, clap::Args)]
struct HealthOptions {
    /// Where the service listens.
    #[arg(long, env = "BAKEOFF_URL", default_value = profiles::LOCAL)]
    url: String,
}

/// Commands about the program itself.
#[derive(Debug, Subcommand)]
enum About {
    /// Print the OpenAPI document.
    #[command(after_help = "Example: bakeoff openapi > openapi.json")]
    Openapi,
    /// Print completions for a shell.
    Completions(reference::CompletionsOptions),
    /// Write manual pages.
    Man(reference::ManOptions),
    /// Print the page of the reference.
    #[command(hide = true)]
    Reference,
}

/// A `key=value` of the command line.
fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or("use key=value")?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

impl Cli {
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        init_logging(&self.command);
        if !matches!(self.command, Command::Host(Host::Serve(_))) {
            end_quietly_with_the_reader();
        }
        match self.command {
            Command::Local(local) => local.run().await,
            Command::ServiceCommand(asked) => asked.run().await,
            Command::Host(host) => host.run().await,
            Command::About(about) => about.run().map(|()| ExitCode::SUCCESS),
        }
    }
}

impl Local {
    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(options) => demo::run(&options)?,
            Self::Init(options) => return init::run(&options).await,
            Self::Lint(options) => return lint::run(&options),
            Self::Plan(options) => return plan::run(&options),
            Self::Login(options) => profiles::login(options).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ServiceCommand {
    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Run(options) => return run::run(options).await,
            Self::Ls(options) => look::list(options).await?,
            Self::Show(options) => look::show(options).await?,
            Self::Watch(options) => return look::watch(options).await,
            Self::Compare(options) => look::compare(options).await?,
            Self::Logs(options) => logs::run(options).await?,
            Self::Open(options) => look::open(options).await?,
            Self::Cancel(options) => change::cancel(options).await?,
            Self::Stop(options) => change::stop(options).await?,
            Self::Retry(options) => change::retry(options).await?,
            Self::Buy(options) => return buy::run(options).await,
            Self::Prices(options) => look::prices(options).await?,
            Self::Spend(options) => look::spend(options).await?,
            Self::Calibration(options) => calibration::run(options).await?,
            Self::Gate(options) => return Ok(gate::run(options).await),
            Self::Models(options) => models::run(options).await?,
            Self::Endpoints(options) => endpoints::run(options).await?,
            Self::Pipelines(options) => return pipelines::run(options).await,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Host {
    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Serve(options) => Box::pin(serve::run(*options)).await?,
            Self::Migrate(options) => migrate(&options).await?,
            Self::Doctor(options) => return doctor::run(options).await,
            Self::Keys(options) => keys::run(options).await?,
            Self::Healthcheck(options) => client::ready(&options.url).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl About {
    fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Openapi => println!("{}", bakeoff_http::openapi().to_pretty_json()?),
            Self::Completions(options) => reference::completions(options),
            Self::Man(options) => reference::man(options)?,
            Self::Reference => print!("{}", reference::page()),
        }
        Ok(())
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

/// Its number on Linux.
const SIGPIPE: i32 = 13;

/// Lets `bakeoff plan … | head` end when `head` does, instead of printing a backtrace.
fn end_quietly_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic
            .payload()
            .downcast_ref::<String>()
            .map_or("", String::as_str);
        if message.contains("Broken pipe") {
            // As a program that SIGPIPE ends: whatever it was to answer has not been read.
            std::process::exit(128 + SIGPIPE);
        }
        usual(panic);
    }));
}

/// Sends logs to stderr, as JSON from the service unless stderr is a terminal; `BAKEOFF_LOG` sets
/// the level.
fn init_logging(command: &Command) {
    use std::io::IsTerminal;
    let is_service = matches!(command, Command::Host(Host::Serve(_)));
    let level = match command {
        Command::Host(Host::Serve(_)) => "info",
        // Each step of a large database takes a while.
        Command::Host(Host::Migrate(_)) => "warn,bakeoff=info",
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

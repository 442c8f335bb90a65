//! `bakeoff-sim`: a simulated AWS region on loopback, speaking AWS's wire protocols.
//!
//! A pure world (same seed and virtual clock, same history) behind thin wire layers: SageMaker
//! (awsJson1_1), CloudWatch (rpc-v2-cbor and awsJson1_0) and S3. The product never depends on it,
//! and reaches it as it reaches AWS. It is not AWS: the tests state what it promises, and whatever
//! it leaves out answers with an error.

#![expect(
    clippy::indexing_slicing,
    reason = "only serde_json values are indexed, and those yield null"
)]

mod account;
mod jobs;
mod machines;
mod output;
mod wire;
mod world;

use std::net::SocketAddr;
use std::path::PathBuf;

use bakeoff_domain::clock::Timescale;
use chrono::{DateTime, Utc};
use clap::Parser;
use tokio::net::TcpListener;

use crate::account::faults::Faults;
use crate::account::quotas::InstanceQuotas;
use crate::account::setup::Setup;
use crate::machines::failures::{self, ScriptFailure};
use crate::machines::speeds::Speeds;
use crate::output::checkpoints;
use crate::wire::events::{self, Destination, Transport};
use crate::world::World;
use crate::world::region::Region;

/// A simulated AWS region (SageMaker training, CloudWatch, S3) on loopback.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Address for SageMaker and CloudWatch.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Address for S3.
    #[arg(long, default_value = "127.0.0.1:0")]
    s3_listen: SocketAddr,
    /// Its name, in ARNs and events. Prices are those of us-east-1 in any.
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// Folder that holds the buckets.
    #[arg(long)]
    s3_root: PathBuf,
    /// Seed; the same seed gives the same world.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// `<virtual origin>,<real origin>,<factor>`; the service must be given the same value.
    #[arg(long)]
    clock: Option<Timescale>,
    /// Where to write the two addresses once both listen: `{"api": "http://…", "s3": "http://…"}`.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// For tests: time stands still at this moment; `POST /_sim/advance?seconds=N` moves it.
    #[arg(long, conflicts_with = "clock")]
    manual_clock: Option<DateTime<Utc>>,
    #[command(flatten)]
    faults: Faults,
    #[command(flatten)]
    setup: Setup,
    #[command(flatten)]
    speeds: Speeds,
    /// Training instances of one type that the account may use at once.
    #[arg(long, default_value_t = 20)]
    quota: u32,
    /// The same limit for a single type: `ml.p5.48xlarge=2`. May be repeated.
    #[arg(long, value_parser = quota_of)]
    quota_of: Vec<(String, u32)>,
    /// Instances of one type that warm pools may hold; 0 allows none, as in a new account.
    #[arg(long, default_value_t = 20)]
    pool_quota: u32,
    /// Seconds that the launch takes, and again the download; drawn for each job when absent.
    #[arg(long)]
    launch_seconds: Option<f64>,
    /// CreateTrainingJob calls allowed per virtual second; more are throttled.
    #[arg(long)]
    create_per_second: Option<f64>,
    /// Codes, types, machines and moments differ as they do outside: each code is up to twice as fast
    /// or slow as the law, evaluates, saves and stalls, and no two allocations are equally fast.
    #[arg(long)]
    lively: bool,
    /// Scripts go on from the newest checkpoint in their folder, and name theirs by their steps.
    #[arg(long)]
    resumes: bool,
    /// A type on which every script fails, and how: `ml.p4d.24xlarge=cuda-out-of-memory` (see
    /// `data/script_failures.json`). May be repeated.
    #[arg(long, value_parser = failure_of)]
    fails: Vec<(String, &'static ScriptFailure)>,
    /// URL to push state changes to, as EventBridge does.
    #[arg(long)]
    events_to: Option<String>,
    /// Push through this SNS topic, which signs the messages, instead of an API destination.
    #[arg(long, conflicts_with = "events_authorization")]
    events_topic: Option<String>,
    /// Value of the `Authorization` header sent with the events.
    #[arg(long, hide_env_values = true, env = "BAKEOFF_SIM_EVENTS_AUTHORIZATION")]
    events_authorization: Option<String>,
}

fn quota_of(text: &str) -> Result<(String, u32), String> {
    let pair = text
        .split_once('=')
        .and_then(|(kind, most)| Some((kind.to_owned(), most.parse().ok()?)));
    pair.ok_or_else(|| format!("`{text}` is not <instance type>=<number>"))
}

fn failure_of(text: &str) -> Result<(String, &'static ScriptFailure), String> {
    let pair = text
        .split_once('=')
        .and_then(|(kind, name)| Some((kind.to_owned(), failures::named(name)?)));
    pair.ok_or_else(|| format!("`{text}` is not <instance type>=<way to fail>"))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("BAKEOFF_LOG")
                .unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    bakeoff_domain::read_embedded();
    let options = Options::parse();
    anyhow::ensure!(
        options.listen.ip().is_loopback() && options.s3_listen.ip().is_loopback(),
        "the simulated region listens on loopback only"
    );
    std::fs::create_dir_all(&options.s3_root)?;
    let region = region(&options);
    let api = TcpListener::bind(options.listen).await?;
    let s3 = TcpListener::bind(options.s3_listen).await?;
    let addresses = serde_json::json!({
        "api": format!("http://{}", api.local_addr()?),
        "s3": format!("http://{}", s3.local_addr()?),
    });
    if let Some(path) = &options.ready_file {
        let scratch = path.with_extension("new");
        std::fs::write(&scratch, addresses.to_string())?;
        std::fs::rename(&scratch, path)?;
    }
    println!("{addresses}");
    if region.runs() {
        let own = region.clone();
        std::thread::spawn(move || checkpoints::write(&own));
    }
    if let Some(destination) = destination(&options, &format!("http://{}", api.local_addr()?)) {
        let own = region.clone();
        std::thread::spawn(move || events::push(&own, &destination));
    }
    tokio::select! {
        served = axum::serve(api, wire::router(region.clone())) => served?,
        served = wire::s3::serve(s3, region) => served?,
        () = stop_asked() => {}
    }
    Ok(())
}

fn region(options: &Options) -> Region {
    let quotas = InstanceQuotas {
        usual: options.quota,
        pool: options.pool_quota,
        by_type: options.quota_of.iter().cloned().collect(),
    };
    let mut world = World::new(
        options.seed,
        options.faults.clone(),
        quotas,
        options.create_per_second,
    );
    world.setup = options.setup.clone();
    world.speeds = options.speeds.clone();
    world.resumes = options.resumes;
    Region::new(
        world
            .launching_within(options.launch_seconds)
            .living(options.lively)
            .failing_on(options.fails.iter().cloned().collect())
            .named(&options.region),
        options.clock.unwrap_or(Timescale::REAL),
        options.manual_clock,
        options.s3_root.clone(),
    )
}

/// Where state changes are pushed. `origin` is where this process serves SNS's certificate.
fn destination(options: &Options, origin: &str) -> Option<Destination> {
    let transport = match &options.events_topic {
        Some(topic) => Transport::Sns {
            topic: topic.clone(),
            origin: origin.to_owned(),
        },
        None => Transport::EventBridge {
            authorization: options.events_authorization.clone().unwrap_or_default(),
        },
    };
    Some(Destination {
        url: options.events_to.clone()?,
        transport,
    })
}

async fn stop_asked() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

//! `bakeoff-sim`: a simulated AWS region on loopback, speaking AWS's wire protocols.
//!
//! A pure world (seed and virtual clock in, same history out) behind thin wire layers: SageMaker
//! (awsJson1_1), CloudWatch (rpc-v2-cbor and awsJson1_0) and S3. It is never a dependency of the
//! product, which reaches it as it reaches AWS. It is not AWS: what it promises is in the tests,
//! what it leaves out answers with an error.

#![expect(
    clippy::indexing_slicing,
    reason = "only serde_json values are indexed, and those yield null"
)]

mod billing;
mod checkpoints;
mod constraints;
mod events;
mod faults;
mod metrics;
mod objects;
mod physics;
mod pools;
mod price_list;
mod quotas;
mod refusal;
mod region;
mod request;
mod rules;
mod sns;
mod timeline;
mod wire;
mod world;

use std::net::SocketAddr;
use std::path::PathBuf;

use bakeoff_domain::clock::Timescale;
use chrono::{DateTime, Utc};
use clap::Parser;
use tokio::net::TcpListener;

use crate::events::{Destination, Way};
use crate::faults::Faults;
use crate::quotas::InstanceQuotas;
use crate::region::Region;
use crate::world::World;

/// A simulated AWS region (SageMaker training, CloudWatch, S3) on loopback.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// SageMaker and CloudWatch.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// S3.
    #[arg(long, default_value = "127.0.0.1:0")]
    s3_listen: SocketAddr,
    /// Folder that holds the buckets.
    #[arg(long)]
    s3_root: PathBuf,
    /// Same seed, same world.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// `<virtual origin>,<real origin>,<factor>`; the service must be given the same.
    #[arg(long)]
    clock: Option<Timescale>,
    /// Where to write the two addresses once both listen: `{"api": "http://…", "s3": "http://…"}`.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// For tests: time stands still at this moment, and moves by `POST /_sim/advance?seconds=N`.
    #[arg(long, conflicts_with = "clock")]
    manual_clock: Option<DateTime<Utc>>,
    #[command(flatten)]
    faults: Faults,
    /// Instances of one type that the account may use at once, for training.
    #[arg(long, default_value_t = 20)]
    quota: u32,
    /// The same for one type: `ml.p5.48xlarge=2`. May be repeated.
    #[arg(long, value_parser = quota_of)]
    quota_of: Vec<(String, u32)>,
    /// Instances of one type that warm pools may keep; 0 keeps none, as in a new account.
    #[arg(long, default_value_t = 20)]
    pool_quota: u32,
    /// Seconds from a create to the instances, and again to the data; drawn for each job when
    /// absent.
    #[arg(long)]
    launch_seconds: Option<f64>,
    /// CreateTrainingJob calls per virtual second; more are throttled.
    #[arg(long)]
    create_per_second: Option<f64>,
    /// Where state changes are pushed to, as EventBridge does.
    #[arg(long)]
    events_to: Option<String>,
    /// They go through this SNS topic, which signs them, and not through an API destination.
    #[arg(long, conflicts_with = "events_authorization")]
    events_topic: Option<String>,
    /// The value of the `Authorization` header that goes with them.
    #[arg(long, hide_env_values = true, env = "BAKEOFF_SIM_EVENTS_AUTHORIZATION")]
    events_authorization: Option<String>,
}

fn quota_of(text: &str) -> Result<(String, u32), String> {
    let pair = text
        .split_once('=')
        .and_then(|(kind, most)| Some((kind.to_owned(), most.parse().ok()?)));
    pair.ok_or_else(|| format!("`{text}` is not <instance type>=<number>"))
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
        served = axum::serve(api, wire::router(region)) => served?,
        served = wire::s3::serve(s3, &options.s3_root) => served?,
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
    let world = World::new(
        options.seed,
        options.faults.clone(),
        quotas,
        options.create_per_second,
    );
    Region::new(
        world.launching_within(options.launch_seconds),
        options.clock.unwrap_or(Timescale::REAL),
        options.manual_clock,
        options.s3_root.clone(),
    )
}

/// Where state changes are pushed to. `origin`: where SNS's certificate is, in this process.
fn destination(options: &Options, origin: &str) -> Option<Destination> {
    let way = match &options.events_topic {
        Some(topic) => Way::Sns {
            topic: topic.clone(),
            origin: origin.to_owned(),
        },
        None => Way::EventBridge {
            authorization: options.events_authorization.clone().unwrap_or_default(),
        },
    };
    Some(Destination {
        url: options.events_to.clone()?,
        way,
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

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
mod physics;
mod pools;
mod price_list;
mod quotas;
mod rules;
mod sns;
mod timeline;
mod wire;
mod world;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bakeoff_domain::clock::Timescale;
use chrono::{DateTime, TimeDelta, Utc};
use clap::Parser;
use tokio::net::TcpListener;

use crate::events::{Destination, Way};
use crate::faults::Faults;
use crate::quotas::InstanceQuotas;
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

/// The region as the wire layers see it: the world behind a lock, and the time.
#[derive(Clone)]
pub(crate) struct Region {
    world: Arc<Mutex<World>>,
    scale: Timescale,
    /// Set when time is stepped by hand.
    manual: Option<Arc<Mutex<DateTime<Utc>>>>,
    s3_root: Arc<PathBuf>,
}

impl Region {
    /// The virtual moment.
    #[expect(
        clippy::disallowed_methods,
        reason = "the region's one look at real time"
    )]
    pub(crate) fn now(&self) -> DateTime<Utc> {
        match &self.manual {
            Some(moment) => *moment.lock().unwrap_or_else(PoisonError::into_inner),
            None => self.scale.at(Utc::now()),
        }
    }

    /// Steps a manual clock; false when time runs by itself.
    pub(crate) fn advance(&self, by: TimeDelta) -> bool {
        self.manual
            .as_ref()
            .map(|moment| *moment.lock().unwrap_or_else(PoisonError::into_inner) += by)
            .is_some()
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut world)
    }

    /// The file that an S3 object is.
    pub(crate) fn object_path(&self, uri: &str) -> Option<PathBuf> {
        let rest = uri
            .strip_prefix("s3://")
            .filter(|rest| !rest.contains(".."))?;
        Some(self.s3_root.join(rest))
    }

    /// Whether an object exists under an S3 prefix; SageMaker refuses a job whose input does not.
    pub(crate) fn has_object(&self, uri: &str) -> bool {
        let Some((bucket, prefix)) = uri
            .strip_prefix("s3://")
            .map(|rest| rest.split_once('/').unwrap_or((rest, "")))
        else {
            return false;
        };
        let root = self.s3_root.join(bucket);
        let is_safe = !bucket.is_empty() && !uri.contains("..");
        is_safe && wire::s3::any_file(&root, &root, prefix)
    }
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
    let options = Options::parse();
    anyhow::ensure!(
        options.listen.ip().is_loopback() && options.s3_listen.ip().is_loopback(),
        "the simulated region listens on loopback only"
    );
    std::fs::create_dir_all(&options.s3_root)?;
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
    )
    .launching_within(options.launch_seconds);
    let region = Region {
        world: Arc::new(Mutex::new(world)),
        scale: options.clock.unwrap_or(Timescale::REAL),
        manual: options
            .manual_clock
            .map(|moment| Arc::new(Mutex::new(moment))),
        s3_root: Arc::new(options.s3_root.clone()),
    };
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
    if region.manual.is_none() {
        let own = region.clone();
        std::thread::spawn(move || checkpoints::write(&own));
    }
    if let Some(url) = options.events_to {
        let own = region.clone();
        let way = match options.events_topic {
            Some(topic) => Way::Sns {
                topic,
                origin: format!("http://{}", api.local_addr()?),
            },
            None => Way::EventBridge {
                authorization: options.events_authorization.unwrap_or_default(),
            },
        };
        std::thread::spawn(move || events::push(&own, &Destination { url, way }));
    }
    tokio::select! {
        served = axum::serve(api, wire::router(region)) => served?,
        served = wire::s3::serve(s3, &options.s3_root) => served?,
        () = stop_asked() => {}
    }
    Ok(())
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

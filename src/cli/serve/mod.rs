//! `bakeoff serve`: the composition root. The only place that puts store, clock, AWS and tasks
//! together.

mod options;

pub(super) use options::ServeOptions;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bakeoff_domain::clock::Timescale;
use bakeoff_domain::lifecycle::policy::Policy;
use bakeoff_domain::money::price;
use chrono::TimeDelta;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::database::{self, DATA_DIR, Embedded};
use super::profiles::LOCAL;
use super::{aws, schema, secret};
use bakeoff_process::clock::{Clock, real_sleep};
use bakeoff_process::crash;
use bakeoff_process::ids;
use bakeoff_service::app::{App, Place, Settings};
use bakeoff_service::aws::Aws;
use bakeoff_service::aws::sns::Sns;
use bakeoff_service::live::copies::Copies;
use bakeoff_service::outgoing::{Outgoing, System};
use bakeoff_service::replica::event_board::EventBoard;
use bakeoff_service::replica::fence::Fence;
use bakeoff_service::replica::leader::Leader;
use bakeoff_service::replica::pulse::Pulse;
use bakeoff_service::tasks;
use bakeoff_store::Store;

/// What a start may take besides its calls to AWS. A process that exits is started again; one that
/// waits for a connection that died silently is not.
const START_PATIENCE: Duration = Duration::from_secs(15);
/// How long open connections and running ticks may take to finish.
const DRAIN: Duration = Duration::from_secs(8);
/// Starting rate for learning AWS's request quotas.
const CALLS_PER_SECOND: f64 = 1.0;
/// Longest interval between listings of all jobs; with push, listings only catch lost events.
const LISTING_LONGEST: TimeDelta = TimeDelta::minutes(5);
const LISTING_WITH_PUSH: TimeDelta = TimeDelta::minutes(10);

pub(super) async fn run(mut options: ServeOptions) -> anyhow::Result<()> {
    // Listen for signals first: if asked to stop during start-up, the process must still clean up
    // what it has started.
    let asked = stop_asked()?;
    let clock = options.clock.unwrap_or(Timescale::REAL);
    aws::refuse_to_simulate(clock)?;
    if let Some(fault) = options.fault.take() {
        ensure!(
            options.clock.is_some(),
            "--fault is for simulation only: it requires BAKEOFF_CLOCK"
        );
        crash::arm(fault);
    }
    let mut opening = std::pin::pin!(open_database(&options));
    let opened = tokio::select! {
        opened = &mut opening => opened,
        () = asked.cancelled() => tokio::select! {
            opened = &mut opening => opened,
            // Perhaps a download is still running; anything started for it ends with this process.
            () = real_sleep(DRAIN) => std::process::exit(0),
        },
    };
    let (embedded, url) = match opened {
        Err(error) if asked.is_cancelled() => {
            tracing::info!(%error, "stopped before the database was up");
            return Ok(());
        }
        opened => opened?,
    };
    let under_way = CancellationToken::new();
    let served = tokio::select! {
        served = serve(&options, clock, &url, &asked, &under_way) => served,
        () = asked_before(&asked, &under_way) => Ok(()),
    };
    if let Some(embedded) = embedded {
        embedded.stop().await?;
    }
    served
}

async fn open_database(options: &ServeOptions) -> anyhow::Result<(Option<Embedded>, String)> {
    match (options.embedded, &options.database.database_url) {
        (true, _) => {
            let (embedded, url) = Embedded::start(options.database.data_dir.clone()).await?;
            Ok((Some(embedded), url))
        }
        (false, Some(url)) => Ok((None, url.clone())),
        (false, None) => bail!(
            "no database: set DATABASE_URL=postgres://… (and run `bakeoff migrate` once), or run `bakeoff serve \
             --embedded` for a private PostgreSQL in the data directory"
        ),
    }
}

async fn serve(
    options: &ServeOptions,
    clock: Timescale,
    url: &str,
    asked: &CancellationToken,
    under_way: &CancellationToken,
) -> anyhow::Result<()> {
    // A separate connection: a migration may take longer than any statement of the service.
    let prepared = schema::prepare(&Store::connect_lazy(url, 1, None)?, options.embedded).await;
    database::explained(prepared, url).await?;
    let lease = options.lease();
    let (tasks_share, http_share) = connections(options.database_connections);
    let store = Store::connect_lazy(url, http_share, Some(lease))?.capped((&options.caps).into());
    let patience = START_PATIENCE + 4 * options.aws_timeout();
    let starting = Box::pin(compose(options, clock, store));
    let app = Pulse::default()
        .patiently(patience, starting)
        .await
        .ok_or_else(schema::unanswered)??;
    under_way.cancel();
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    // Separate pools: long reads or a flood of points that exhaust one leave the other alone.
    let beside = App {
        store: app.store.apart(tasks_share, lease),
        ..app.clone()
    };
    let migrated = schema::upgraded(app.store.clone(), lease);
    tasks::spawn(&beside, &tracker, &stop);
    let listener = listen(options).await?;
    greet(options, &app.store, &listener).await;
    let limits = bakeoff_http::Limits::of_process();
    let serving = bakeoff_http::serve(listener, bakeoff_http::router(app), limits, stop.clone());
    let server = tokio::spawn(serving);
    let outcome = tokio::select! {
        () = asked.cancelled() => Ok(()),
        error = migrated => Err(error),
    };
    drain(server, &tracker, &stop).await;
    outcome
}

async fn drain(server: JoinHandle<()>, tracker: &TaskTracker, stop: &CancellationToken) {
    tracing::info!("stopping");
    stop.cancel();
    tracker.close();
    // An open stream must not keep the process alive.
    tokio::select! {
        _ = async { (server.await, tracker.wait().await) } => {}
        () = real_sleep(DRAIN) => tracing::info!("drain timed out; open connections closed"),
    }
}

/// Wires up AWS and the database; starts nothing yet.
async fn compose(options: &ServeOptions, clock: Timescale, store: Store) -> anyhow::Result<App> {
    let elsewhere = store.living_elsewhere(&options.regions()?).await?;
    ensure!(
        elsewhere == 0,
        "{elsewhere} experiments, orphaned jobs or warm pools are still running outside {}: their jobs would appear to \
         have vanished. Start with their region (--region), or end them there first",
        options.regions.join(", ")
    );
    store
        .set_default_project_budget(options.default_project_budget_usd)
        .await?;
    let clock = Clock::Running(clock);
    let added = store
        .put_prices(price::catalog(), ids::fresh, clock.now())
        .await?
        .len();
    tracing::info!(added, "catalog prices stored");
    let settings = Arc::new(settings(options, store.installation().await?)?);
    let mut places = BTreeMap::new();
    for region in &settings.regions {
        let ports = aws::connect(region, options.aws_timeout()).await;
        let aws = Aws::new(ports, clock.clone(), CALLS_PER_SECOND);
        let place = Place::new(region, aws, &settings.owner, settings.lease);
        places.insert(region.clone(), place);
    }
    let home = places.get(settings.home()).cloned();
    let place = home.context("--region names no region")?;
    pin_account(&store, &place.aws, &places).await?;
    let fence = open_fence(&store, options).await?;
    Ok(App {
        place,
        places: Arc::new(places),
        fence: Arc::new(fence),
        renewer: Arc::new(Leader::new("fence", "", &settings.owner, settings.lease)),
        pulse: Pulse::default(),
        sns: sns(options)?.map(Arc::new),
        metrics: Some(record_metrics()?),
        outgoing: Outgoing::new(&options.outgoing_allow, &(Arc::new(System) as _))?,
        settings,
        store,
        clock,
        copies: Copies::default(),
        events: EventBoard::default(),
    })
}

async fn listen(options: &ServeOptions) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("{}", options.listen))?;
    let address = format!("http://{}", listener.local_addr()?);
    if let Some(path) = &options.ready_file {
        write_whole(path, &address)?;
    }
    tracing::info!(
        address,
        regions = options.regions.join(", "),
        "listening; API documentation is at /docs"
    );
    Ok(listener)
}

/// Says to a newcomer at a terminal how to go on, as long as nobody has a key.
async fn greet(options: &ServeOptions, store: &Store, listener: &TcpListener) {
    if !options.embedded || !std::io::stdout().is_terminal() {
        return;
    }
    // A greeting that fails stops nothing.
    if let (Ok(keys), Ok(address)) = (store.keys(None).await, listener.local_addr())
        && keys.is_empty()
    {
        println!("{}", first_steps(address, &options.database.data_dir));
    }
}

fn first_steps(address: SocketAddr, data_dir: &Path) -> String {
    let (port, version) = (address.port(), env!("CARGO_PKG_VERSION"));
    // Where commands look by themselves is not said.
    let named = |option: &str, value: String, usual: &str| {
        let is_usual = value == usual;
        (!is_usual).then(|| format!(" {option} {value}"))
    };
    let host = if address.ip().is_unspecified() {
        "127.0.0.1".to_owned()
    } else {
        address.ip().to_string()
    };
    let at = format!("http://{host}:{port}");
    let url = named("--url", at.clone(), LOCAL).unwrap_or_default();
    let folder = named("--data-dir", data_dir.display().to_string(), DATA_DIR).unwrap_or_default();
    format!(
        "
Bakeoff {version} listens at {at}, and nobody has a key yet. To get a first answer, in a second terminal in the same folder:
  1. bakeoff keys create --project research --role admin --budget-usd 500{folder} > key.txt && bakeoff login{url} < key.txt
  2. bakeoff init my-job.json              # an estimator's arguments, a job, or a model's name; nothing runs yet
  3. bakeoff run experiment.json --watch   # or `bakeoff open`: the same in the dashboard
"
    )
}

fn sns(options: &ServeOptions) -> anyhow::Result<Option<Sns>> {
    let Some(topic) = &options.sns_topic else {
        return Ok(None);
    };
    let genuine = Sns::of_topic(topic)
        .with_context(|| format!("--sns-topic: `{topic}` is not the ARN of an SNS topic"))?;
    // A simulated region, which is on loopback, signs messages itself.
    let simulated = options
        .clock
        .and_then(|_| std::env::var("AWS_ENDPOINT_URL").ok());
    let sns = simulated.map_or(genuine, |url| {
        Sns::at(topic, format!("{}/", url.trim_end_matches('/')))
    });
    let Some(file) = &options.sns_issuers else {
        return Ok(Some(sns));
    };
    let said = || format!("--sns-issuers {}", file.display());
    let issuers: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file)
        .with_context(said)?
        .collect();
    let issuers = issuers.with_context(said)?;
    ensure!(
        !issuers.is_empty(),
        "{}: the file contains no certificate",
        said()
    );
    Ok(Some(sns.trusting(&issuers).with_context(said)?))
}

/// Opens the fence this installation already has, or the one it is given.
async fn open_fence(store: &Store, options: &ServeOptions) -> anyhow::Result<Fence> {
    let fence = store.fence_uri(options.fence.as_deref()).await?;
    ensure!(
        options.fence.is_none() || options.fence == fence,
        "this installation's fence is {}; with another one, any copy of its database could act as its owner. To move \
         it, stop all replicas and run `bakeoff migrate --forget-fence`; for a copy, run `bakeoff migrate \
         --new-installation`",
        fence.unwrap_or_default()
    );
    let fence = Fence::new(fence, options.stop_unknown_jobs);
    if fence.uri.is_none() {
        tracing::warn!(
            "no --fence: a copy of this database would act as this installation; see docs/how-to/operate.md"
        );
    }
    Ok(fence)
}

/// Pins the account that owns the jobs: the first one seen is kept, and credentials of another
/// account are refused at start. If STS does not answer, the service starts anyway, and asks again
/// before it treats a job as missing or creates one.
async fn pin_account(
    store: &Store,
    aws: &Aws,
    places: &BTreeMap<String, Place>,
) -> anyhow::Result<()> {
    let seen = match aws.caller_account().await {
        Ok(account) => Some(account),
        Err(error) => {
            tracing::warn!(%error, "the credentials' account could not be read; retrying before anything depends on it");
            None
        }
    };
    let expected = store.pin_account(seen.as_deref()).await?;
    if let Some((expected, seen)) = expected.as_ref().zip(seen) {
        ensure!(
            *expected == seen,
            "these credentials belong to account {seen}, but this installation's jobs are in {expected} and would \
             appear to have vanished. Start with credentials for {expected}"
        );
    }
    if let Some(expected) = expected {
        for place in places.values() {
            place.aws.expect_account(&expected);
        }
    }
    Ok(())
}

/// Splits the connections evenly between tasks and HTTP. One of the tasks' connections always
/// listens.
fn connections(all: u32) -> (u32, u32) {
    let tasks = (all / 2).max(4);
    (tasks, all.saturating_sub(tasks).max(4))
}

/// Histogram buckets for request and tick durations, in seconds; fixed buckets can be summed over
/// replicas.
const DURATION_BUCKETS: [f64; 12] = [
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];
/// How often recorded samples are moved into buckets, even when nothing scrapes them.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

fn record_metrics() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets(&DURATION_BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .context("metrics")?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            real_sleep(METRICS_UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

fn settings(options: &ServeOptions, installation: String) -> anyhow::Result<Settings> {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let lease = options.lease();
    let poll = TimeDelta::seconds(options.poll_seconds.max(1).into());
    let policy = Policy {
        poll,
        // A create can be under way while its lease is trusted plus the duration of a call: real
        // time, converted to the domain clock.
        quarantine: options
            .clock
            .unwrap_or(Timescale::REAL)
            .virtual_duration(lease + options.aws_timeout() * 2),
        ..Policy::default()
    };
    Ok(Settings {
        regions: options.regions()?,
        // Unique even if hosts share a name or a restarted process gets the same pid.
        owner: format!(
            "{}/{}/{}",
            host.trim(),
            std::process::id(),
            ids::fresh().as_simple()
        ),
        installation,
        policy,
        lease,
        listing: if options.aws_push {
            (LISTING_WITH_PUSH, LISTING_WITH_PUSH)
        } else {
            (poll, LISTING_LONGEST)
        },
        sagemaker_metrics: options.sagemaker_metrics,
        metrics_interval: (options.metrics_interval_seconds > 0)
            .then(|| TimeDelta::seconds(options.metrics_interval_seconds.max(60).into())),
        price_refresh: (options.price_refresh_hours > 0)
            .then(|| TimeDelta::hours(options.price_refresh_hours.into())),
        public_url: options.public_url.clone(),
        web_origins: options.web_origins.clone(),
        scheduler_role_arn: options.scheduler_role_arn.clone(),
        require_scheduled_end: options.require_scheduled_end,
        points_kept: options
            .keep_points_days
            .map(|days| TimeDelta::days(days.into())),
        secret_key: secret::of_service(
            options.secret_key.as_ref(),
            options
                .embedded
                .then_some(options.database.data_dir.as_path()),
        )?,
    })
}

/// Writes a file that is private to its owner and never visible half-written.
pub(super) fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let scratch = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&scratch)?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    Ok(std::fs::rename(&scratch, path)?)
}

/// Returns a token that is cancelled at the first SIGTERM or Ctrl-C from now on.
fn stop_asked() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let asked = CancellationToken::new();
    let token = asked.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        token.cancel();
    });
    Ok(asked)
}

/// Completes when a stop is requested before anything has started that needs a clean shutdown.
async fn asked_before(asked: &CancellationToken, under_way: &CancellationToken) {
    asked.cancelled().await;
    if under_way.is_cancelled() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_is_told_only_what_is_not_usual() {
        let usual = first_steps(
            SocketAddr::from(([127, 0, 0, 1], 8080)),
            Path::new(DATA_DIR),
        );
        assert!(usual.contains("bakeoff login < key.txt"), "{usual}");
        assert!(usual.contains("--budget-usd 500 > key.txt"), "{usual}");
        let other = first_steps(SocketAddr::from(([0, 0, 0, 0], 9000)), Path::new("/srv/b"));
        assert!(
            other.contains("login --url http://127.0.0.1:9000 < key.txt"),
            "{other}"
        );
        assert!(other.contains("--data-dir /srv/b > key.txt"), "{other}");
    }
}

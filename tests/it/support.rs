//! The test app: a region of its own (the program `bakeoff-sim`), a fresh database, the service on
//! a port of its own, and a clock that stands still until it is stepped.

pub(crate) mod fault_proxy;
mod ports;
pub(crate) mod reads;
mod specs;

pub(crate) use ports::{create_job, ports_of, request_of};
pub(crate) use reads::problem;
pub(crate) use specs::{on_p5, spec, spot_spec};

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bakeoff_api::experiments::CreatedExperiment;
use bakeoff_domain::ids::{ApiKeyId, ProjectId};
use bakeoff_domain::lifecycle::policy::Policy;
use bakeoff_domain::lifecycle::queue::{self, Waiting};
use bakeoff_domain::money::price;
use bakeoff_process::clock::Clock;
use bakeoff_process::ids;
use bakeoff_service::app::{App, Place, Settings};
use bakeoff_service::auth::keys::{Role, format_key, hash};
use bakeoff_service::auth::secrets;
use bakeoff_service::aws::sns::Sns;
use bakeoff_service::aws::{Aws, Ports};
use bakeoff_service::live::copies::Copies;
use bakeoff_service::outgoing::{Outgoing, System};
use bakeoff_service::replica::event_board::EventBoard;
use bakeoff_service::replica::fence::Fence;
use bakeoff_service::replica::leader::Leader;
use bakeoff_service::replica::pulse::Pulse;
use bakeoff_service::tasks;
use bakeoff_store::Store;
use bakeoff_store::experiments::trials::Claimed;
use bakeoff_store::keys::NewKey;
use bakeoff_store::leases::Holder;
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::{ConnectOptions, PgPool};

/// A store as the service opens it, with its sessions' settings. To be closed before the test ends.
pub(crate) fn production_store(pool: &PgPool) -> Store {
    Store::connect_lazy(
        pool.connect_options().to_url_lossy().as_str(),
        8,
        Some(Duration::from_secs(6)),
    )
    .expect("a store")
}

/// A holder of leases on trials and pools, in the usual region.
pub(crate) fn holder(owner: &str, lease: Duration) -> Holder<'_> {
    Holder {
        region: REGION,
        owner,
        lease,
    }
}

/// A region that ends with the test.
pub(crate) struct Region {
    child: Child,
    pub(crate) url: String,
    pub(crate) s3_url: String,
    folder: PathBuf,
}

impl Drop for Region {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn sim() -> PathBuf {
    // target/debug/deps/it-… → target/debug/bakeoff-sim
    let own = std::env::current_exe().expect("our own path");
    own.ancestors()
        .nth(2)
        .expect("target/debug")
        .join("bakeoff-sim")
}

/// A new folder of this checkout's, not of the machine's: two checkouts may be tested at once.
pub(crate) fn scratch(purpose: &str) -> PathBuf {
    let name = format!("{purpose}-{}", ids::fresh().as_simple());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

impl Region {
    /// Virtual time stands almost still at first: a factor of 1 from a virtual origin, stepped
    /// through `/_sim/advance`.
    pub(crate) fn start(faults: &[&str], origin: DateTime<Utc>) -> Self {
        let folder = scratch("region");
        for input in ["train", "validation"] {
            let path = folder.join("tests").join(input);
            std::fs::create_dir_all(&path).expect("a folder");
            std::fs::write(path.join("part-0"), "x").expect("an object");
        }
        let mut child = Command::new(sim())
            .arg("--s3-root")
            .arg(&folder)
            .args(["--manual-clock", &origin.to_rfc3339()])
            .args(faults)
            .stdout(Stdio::piped())
            .spawn()
            .expect("bakeoff-sim; `cargo build --workspace` makes it");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output"))
            .read_line(&mut line)
            .expect("its addresses");
        let addresses: Value = serde_json::from_str(&line).expect("its addresses as JSON");
        let text = |key: &str| addresses[key].as_str().expect("an address").to_owned();
        Self {
            child,
            url: text("api"),
            s3_url: text("s3"),
            folder,
        }
    }

    /// An object in a bucket of the region.
    /// Deletes what lies at an `s3://bucket/prefix`.
    pub(crate) fn delete_folder(&self, uri: &str) {
        let path = uri.trim_start_matches("s3://");
        std::fs::remove_dir_all(self.folder.join(path)).expect("a folder");
    }

    pub(crate) fn put_object(&self, bucket: &str, key: &str) {
        self.write_object(bucket, key, "x");
    }

    /// The same with a content.
    pub(crate) fn write_object(&self, bucket: &str, key: &str, content: &str) {
        let path = self.folder.join(bucket).join(key);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, content).expect("an object");
    }
}

/// When a test begins.
pub(crate) fn usual() -> DateTime<Utc> {
    "2026-11-20T00:00:00Z".parse().expect("a date")
}

/// The topic that the service under test listens to.
pub(crate) const SNS_TOPIC: &str = "arn:aws:sns:us-east-1:111122223333:bakeoff";

/// The region that a test's experiments run in.
pub(crate) const REGION: &str = "us-east-1";

/// The account that a region's jobs are in.
pub(crate) const ACCOUNT: &str = "111122223333";
/// The role under which the region's schedules act.
pub(crate) const SCHEDULER_ROLE: &str = "arn:aws:iam::111122223333:role/bakeoff-scheduler";

/// The service's URL.
pub(crate) async fn listening(app: &App) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    tokio::spawn(axum::serve(listener, bakeoff_http::router(app.clone())).into_future());
    url
}

/// The whole of it.
pub(crate) struct TestApp {
    pub(crate) app: App,
    pub(crate) region: Region,
    pub(crate) url: String,
    pub(crate) admin: String,
    pub(crate) project: ProjectId,
    /// AWS without pace or count.
    pub(crate) ports: Ports,
    pub(crate) client: reqwest::Client,
}

impl TestApp {
    pub(crate) async fn new(pool: PgPool) -> Self {
        Self::with_faults(pool, &[]).await
    }

    pub(crate) async fn with_faults(pool: PgPool, faults: &[&str]) -> Self {
        Self::set(pool, faults, usual()).await
    }

    /// At another time than usual.
    pub(crate) async fn starting(pool: PgPool, origin: DateTime<Utc>) -> Self {
        Self::set(pool, &[], origin).await
    }

    async fn set(pool: PgPool, faults: &[&str], origin: DateTime<Utc>) -> Self {
        let region = Region::start(faults, origin);
        let store = Store::new(pool);
        store.migrate().await.expect("migrations");
        let clock = Clock::manual(origin);
        store
            .put_prices(price::catalog(), ids::fresh, clock.now())
            .await
            .expect("prices");
        let ports = ports_of(&region.url, &region.s3_url).await;
        let settings = Settings {
            regions: vec![REGION.into()],
            owner: "test".into(),
            installation: store.installation().await.expect("installation"),
            policy: Policy {
                poll: TimeDelta::seconds(60),
                ..Policy::default()
            },
            // So long that no machine is too slow for it: what a lease is, tests say where they try
            // it.
            lease: Duration::from_mins(10),
            listing: (TimeDelta::seconds(60), TimeDelta::minutes(5)),
            metrics_interval: Some(TimeDelta::minutes(5)),
            sagemaker_metrics: false,
            points_kept: None,
            price_refresh: None,
            public_url: None,
            scheduler_role_arn: Some(SCHEDULER_ROLE.into()),
            web_origins: Vec::new(),
            require_scheduled_end: false,
            secret_key: [7; 32],
        };
        // Time stands still in a test: what waits for a call of AWS's would wait for ever.
        let aws = Aws::new(ports.clone(), clock.clone(), 100_000.0);
        let place = Place::new(REGION, aws, &settings.owner, settings.lease);
        let app = App {
            places: Arc::new([(REGION.to_owned(), place.clone())].into()),
            place,
            fence: Arc::new(Fence::new(None, false)),
            renewer: Arc::new(Leader::new("fence", "", "test", Duration::from_mins(10))),
            pulse: Pulse::default(),
            sns: Some(Arc::new(Sns::at(SNS_TOPIC, format!("{}/", region.url)))),
            metrics: None,
            outgoing: Outgoing::new(&["127.0.0.1/32".parse().unwrap()], &(Arc::new(System) as _))
                .unwrap(),
            store,
            clock,
            settings: Arc::new(settings),
            copies: Copies::default(),
            events: EventBoard::default(),
        };
        app.store
            .pin_account(Some(ACCOUNT))
            .await
            .expect("an installation");
        app.place.aws.expect_account(ACCOUNT);
        let url = listening(&app).await;
        let project = ProjectId(ids::fresh());
        app.store
            .ensure_project(project, "first", None, app.clock.now())
            .await
            .expect("a project");
        let client = bakeoff_process::tls::http_client().build().unwrap();
        let mut test = Self {
            app,
            region,
            url,
            admin: String::new(),
            project,
            ports,
            client,
        };
        test.admin = test.key(project, Role::Admin).await;
        test
    }

    pub(crate) async fn key(&self, project: ProjectId, role: Role) -> String {
        let (id, secret) = (ApiKeyId(ids::fresh()), secrets::secret());
        let key = NewKey {
            id,
            name: "test",
            role: role.as_str(),
            secret_sha256: &hash(&secret),
            expires_at: None,
        };
        self.app
            .store
            .insert_key(project, &key, self.app.clock.now())
            .await
            .expect("a key");
        format_key(id, &secret)
    }

    pub(crate) async fn other_project(&self) -> ProjectId {
        let id = ProjectId(ids::fresh());
        self.app
            .store
            .ensure_project(id, "second", None, self.app.clock.now())
            .await
            .expect("a project")
    }

    pub(crate) fn request(&self, method: Method, path: &str, key: &str) -> RequestBuilder {
        self.client
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(key)
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self
            .send(self.request(Method::GET, path, &self.admin))
            .await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    /// The same in its own type: that a field is absent, or null, says nothing of a name that is
    /// not there.
    pub(crate) async fn read<T: DeserializeOwned>(&self, path: &str) -> T {
        serde_json::from_value(self.get(path).await).expect("the type of the API")
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> (StatusCode, Value) {
        let answer = request.send().await.expect("an answer");
        let status = answer.status();
        let text = answer.text().await.expect("a body");
        (
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        )
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.send(self.request(Method::POST, path, &self.admin).json(body))
            .await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let request = self.request(Method::PUT, path, &self.admin).json(body);
        self.send(request).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let request = self.request(Method::PATCH, path, &self.admin).json(body);
        self.send(request).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (StatusCode, Value) {
        self.send(self.request(Method::DELETE, path, &self.admin))
            .await
    }

    /// Starts an experiment that must be accepted.
    pub(crate) async fn start(&self, spec: &Value) -> String {
        let (status, body) = self.post("/v1/experiments", spec).await;
        assert_eq!(status, StatusCode::CREATED, "{body}");
        let created: CreatedExperiment = serde_json::from_value(body).expect("an experiment");
        created.id.to_string()
    }

    /// Tells the region something.
    pub(crate) async fn region_post(&self, path: &str, body: &Value) {
        let answer = self
            .client
            .post(format!("{}{path}", self.region.url))
            .json(body)
            .send()
            .await
            .expect("the region");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
    }

    /// Steps both clocks.
    pub(crate) async fn advance(&self, by: TimeDelta) {
        self.app.clock.advance(by);
        self.advance_region(by).await;
    }

    /// Steps the region's clock alone.
    pub(crate) async fn advance_region(&self, by: TimeDelta) {
        let url = format!(
            "{}/_sim/advance?seconds={}",
            self.region.url,
            by.as_seconds_f64()
        );
        assert!(
            self.client
                .post(url)
                .send()
                .await
                .expect("the region")
                .status()
                .is_success()
        );
    }

    /// Runs every loop's tick until nothing is due at this moment.
    pub(crate) async fn tick(&self) {
        while tasks::post_mortem::tick(&self.app)
            .await
            .expect("post-mortems")
            > 0
        {}
        self.tick_without_post_mortems().await;
    }

    pub(crate) async fn tick_without_post_mortems(&self) {
        self.watch().await;
        while tasks::scheduler::tick(&self.app).await.expect("scheduler") > 0 {}
        while tasks::warm_pools::tick(&self.app).await.expect("pools") > 0 {}
        while tasks::checkpoints::tick(&self.app)
            .await
            .expect("checkpoints")
            > 0
        {}
        while tasks::ingester::tick(&self.app).await.expect("ingester") > 0 {}
        while tasks::readings::tick(&self.app).await.expect("readings") > 0 {}
        tasks::racer::tick(&self.app).await.expect("racer");
        while tasks::scheduler::tick(&self.app).await.expect("scheduler") > 0 {}
        tasks::repricer::tick(&self.app).await.expect("repricer");
        tasks::finalizer::tick(&self.app).await.expect("finalizer");
        tasks::ci_waits::tick(&self.app).await.expect("waits");
        tasks::gate::tick(&self.app).await.expect("gate");
        tasks::courier::tick(&self.app).await.expect("courier");
        tasks::commit_statuses::tick(&self.app)
            .await
            .expect("statuses");
    }

    /// Another replica of the service, on the same database and region.
    pub(crate) fn replica(&self, owner: &str) -> App {
        let mut app = self.app.clone();
        app.settings = Arc::new(Settings {
            owner: owner.to_owned(),
            ..(*self.app.settings).clone()
        });
        app
    }

    /// Admits everything that waits, for a scheduler of that name.
    pub(crate) async fn admit(&self, owner: &str, lease: Duration) -> Vec<Claimed> {
        let now = self.app.clock.now();
        let think = |waiting: &[Waiting], capacity| queue::admit(waiting, capacity, now);
        self.app
            .store
            .admit(holder(owner, lease), 100, now, think)
            .await
            .expect("an admission")
    }

    /// A listing of all jobs, as a new watcher makes it.
    pub(crate) async fn watch(&self) {
        tasks::watcher::tick(&self.app, &mut tasks::watcher::Memory::default())
            .await
            .expect("watcher");
    }

    /// Watches for so long as production does: one memory over all ticks, each when the one before
    /// says.
    pub(crate) async fn watch_as_production(
        &self,
        memory: &mut tasks::watcher::Memory,
        how_long: TimeDelta,
    ) {
        let until = self.app.clock.now() + how_long;
        loop {
            let next = tasks::watcher::tick(&self.app, memory)
                .await
                .expect("watcher");
            let left = until - self.app.clock.now();
            if left <= TimeDelta::zero() {
                return;
            }
            self.advance(next.max(TimeDelta::seconds(1)).min(left))
                .await;
        }
    }

    /// From now on AWS is at another address: a proxy, or a region of somebody else's.
    pub(crate) async fn call_aws_at(&mut self, api: &str, s3: &str) {
        let ports = ports_of(api, s3).await;
        let aws = Aws::new(ports, self.app.clock.clone(), 100_000.0);
        let expected = self
            .app
            .store
            .pin_account(None)
            .await
            .expect("an installation");
        aws.expect_account(&expected.expect("an account"));
        self.app.place.aws = Arc::new(aws);
    }

    /// Dollars that the region has billed for all jobs by now.
    pub(crate) async fn billed_usd(&self) -> f64 {
        let jobs = self.jobs().await;
        jobs.iter().map(reads::RegionJob::usd).sum()
    }

    /// In steps of five minutes until the experiment has ended, or `hours` have passed; then
    /// nothing may leak.
    pub(crate) async fn run_to_end(&self, experiment: &str, hours: i64) -> Value {
        let ended = self.run_until_ended(experiment, hours).await;
        self.assert_nothing_leaks(&[]).await;
        ended
    }

    /// The same, with a job in the region that is not ours although it has one of our names.
    pub(crate) async fn run_to_end_with_foreign_job(
        &self,
        experiment: &str,
        hours: i64,
        foreign: &str,
    ) -> Value {
        let ended = self.run_until_ended(experiment, hours).await;
        self.assert_nothing_leaks(&[foreign]).await;
        ended
    }

    pub(crate) async fn run_until_ended(&self, experiment: &str, hours: i64) -> Value {
        for _ in 0..hours * 12 {
            self.tick().await;
            if self.experiment(experiment).await.ended_at.is_some() {
                return self.get(&format!("/v1/experiments/{experiment}")).await;
            }
            self.advance(TimeDelta::minutes(5)).await;
        }
        panic!("the experiment has not ended after {hours} hours");
    }

    pub(crate) async fn record(&self) -> Value {
        let url = format!("{}/_sim/record", self.region.url);
        self.client
            .get(url)
            .send()
            .await
            .expect("the region")
            .json()
            .await
            .expect("its record")
    }

    /// After an end: no lease is held, no money is reserved, every job has its row and every
    /// attempt at most one job.
    pub(crate) async fn assert_nothing_leaks(&self, foreign: &[&str]) {
        let pool = self.app.store.pool();
        let held: i64 =
            sqlx::query_scalar("SELECT count(*) FROM trials WHERE lease_owner IS NOT NULL")
                .fetch_one(pool)
                .await
                .expect("leases");
        assert_eq!(held, 0, "leases are still held");
        let reserved: rust_decimal::Decimal =
            sqlx::query_scalar("SELECT coalesce(sum(reserved_usd), 0) FROM projects")
                .fetch_one(pool)
                .await
                .expect("money");
        assert!(reserved.is_zero(), "{reserved} is still reserved");
        let names: Vec<String> = sqlx::query_scalar("SELECT job_name FROM jobs")
            .fetch_all(pool)
            .await
            .expect("rows");
        let mut jobs: Vec<String> = jobs(&self.record().await)
            .iter()
            .map(|job| job["name"].as_str().expect("a name").to_owned())
            .filter(|name| !foreign.contains(&name.as_str()))
            .collect();
        let count = jobs.len();
        jobs.sort();
        jobs.dedup();
        assert_eq!(jobs.len(), count, "a job exists twice");
        assert!(
            jobs.iter().all(|job| names.contains(job)),
            "a job has no row"
        );
    }
}

/// Jobs in a record of the region.
pub(crate) fn jobs(record: &Value) -> Vec<Value> {
    record["jobs"].as_array().cloned().expect("jobs")
}

/// What a query counts.
pub(crate) async fn number(pool: &PgPool, query: &'static str) -> i64 {
    sqlx::query_scalar(query)
        .fetch_one(pool)
        .await
        .expect(query)
}

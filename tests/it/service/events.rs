//! The feed: what events say, that a reader misses none whoever writes at the same time, and how a
//! stream begins and ends.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bakeoff_api::events::{EventData, EventView};
use bakeoff_api::page::Page;
use bakeoff_domain::event::{Event, EventSeverity, TrialName};
use bakeoff_domain::ids::ExperimentId;
use bakeoff_process::clock::real_sleep;
use bakeoff_store::experiments::lifecycle::ExperimentCommand;
use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};

use crate::house::style::root;
use crate::jobs::fleet::repeats;
use crate::support::{TestApp, number, scratch, spec};

/// One event of each kind, as it is stored.
fn samples() -> Vec<Event> {
    let text = fs::read_to_string(root().join("tests/stored/events.v1.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn every_event_says_what_happened_and_every_alarm_what_to_do() {
    let trial = TrialName {
        candidate: "p5",
        purchase_option: "spot",
    };
    let mut lines = Vec::new();
    for event in samples() {
        let trial = event.kind().starts_with("trial.").then_some(trial);
        let severity = event.severity();
        let is_alarm = severity == EventSeverity::Alarm;
        assert_eq!(is_alarm, event.way_out().is_some(), "{event:?}");
        lines.push(format!(
            "{} {}: {}",
            severity.as_str(),
            event.kind(),
            event.message(trial)
        ));
        lines.extend(event.way_out().map(|way_out| format!("    {way_out}")));
    }
    insta::assert_snapshot!(lines.join("\n"));
}

/// Whoever generates a client from the document gets a type for each kind, and no more.
#[test]
fn the_api_documents_every_kind() {
    let text = fs::read_to_string(root().join("openapi/bakeoff.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut documented = BTreeSet::new();
    kinds(
        &document["components"]["schemas"]["EventData"],
        &mut documented,
    );
    let known: BTreeSet<String> = samples().iter().map(|e| e.kind().to_owned()).collect();
    assert_eq!(documented, known);
}

/// The values that `kind` has anywhere below a schema.
fn kinds(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            if let Some(values) = members.get("kind").and_then(|kind| kind["enum"].as_array()) {
                found.extend(values.iter().filter_map(Value::as_str).map(str::to_owned));
            }
            members.values().for_each(|member| kinds(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| kinds(item, found)),
        _ => {}
    }
}

/// Events of each writer: `BAKEOFF_FEED_EVENTS=10000` for a long run.
fn events_of_each() -> usize {
    let wanted = std::env::var("BAKEOFF_FEED_EVENTS");
    wanted.map_or(60, |text| text.parse().expect("a number"))
}

/// A program that follows the feed and keeps what it saw; it is killed and started again.
struct Follower {
    how: &'static str,
    url: String,
    key: String,
    file: PathBuf,
    child: Child,
}

impl Follower {
    fn start(how: &'static str, test: &TestApp, folder: &Path) -> Self {
        let file = folder.join(how);
        let (url, key) = (test.url.clone(), test.admin.clone());
        let child = Self::spawn(how, &url, &key, &file);
        Self {
            how,
            url,
            key,
            file,
            child,
        }
    }

    fn spawn(how: &str, url: &str, key: &str, file: &Path) -> Child {
        Command::new("python3")
            .arg(root().join("tests/clients/feed.py"))
            .args([how, url, key])
            .arg(file)
            .spawn()
            .expect("python3")
    }

    /// `kill -9`, at whatever it was doing.
    fn kill_and_go_on(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(self.how, &self.url, &self.key, &self.file);
    }

    /// The ids that it saw, in its order.
    fn seen(&self) -> Vec<i64> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| line.parse().unwrap()).collect()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// How often each follower is killed, and how often at least while events are being written.
const KILLS: usize = 12;
const KILLS_LEAST: usize = 4;
/// A follower that sees nothing new for so many looks, of 100 ms, has missed something.
const LOOKS_ALIKE_MAX: u32 = 300;

/// Kills the followers again and again, each time after they have seen more, until they have seen
/// this many, or see nothing more. Counts how often the less unlucky was killed.
async fn follow_and_kill(followers: &mut [Follower; 2], wanted: &AtomicUsize, kills: &AtomicUsize) {
    let mut before = [0; 2];
    let mut killed = [0; 2];
    let (mut last, mut looks_alike) = ([0; 2], 0);
    while looks_alike < LOOKS_ALIKE_MAX {
        let wanted = wanted.load(Ordering::SeqCst);
        let mut are_done = true;
        for ((follower, before), killed) in followers.iter_mut().zip(&mut before).zip(&mut killed) {
            let seen = follower.seen().len();
            are_done &= seen >= wanted;
            if seen > *before && *killed < KILLS {
                follower.kill_and_go_on();
                (*before, *killed) = (seen, *killed + 1);
            }
        }
        kills.store(killed[0].min(killed[1]), Ordering::SeqCst);
        if are_done {
            return;
        }
        let now = [&followers[0], &followers[1]].map(|follower| follower.seen().len());
        looks_alike = if now == last { looks_alike + 1 } else { 0 };
        last = now;
        real_sleep(Duration::from_millis(100)).await;
    }
}

#[sqlx::test(migrations = false)]
async fn readers_that_are_killed_miss_none_and_see_none_twice_while_eight_write(pool: PgPool) {
    const WRITERS: usize = 8;
    let test = TestApp::new(pool.clone()).await;
    let mut experiments: Vec<ExperimentId> = Vec::new();
    // Two writers share an experiment.
    for _ in 0..WRITERS - 1 {
        experiments.push(test.start(&repeats(1)).await.parse().unwrap());
    }
    experiments.push(experiments[0]);
    let now = test.app.clock.now();
    let (wanted, kills) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
    let write = async |experiment: ExperimentId| {
        // Until each follower was killed while events were being written.
        for number in 0.. {
            let is_enough = kills.load(Ordering::SeqCst) >= KILLS_LEAST;
            if number >= events_of_each() && is_enough {
                return;
            }
            let command = if number % 2 == 0 {
                ExperimentCommand::Pause
            } else {
                ExperimentCommand::Resume
            };
            let store = &test.app.store;
            let is_done = store.command(test.project, experiment, command, now).await;
            assert!(is_done.unwrap());
        }
    };
    let folder = scratch("feed");
    let mut followers = ["pages", "stream"].map(|how| Follower::start(how, &test, &folder));
    let writing = async {
        futures::future::join_all(experiments.iter().map(|id| write(*id))).await;
        let count = number(&pool, "SELECT count(*) FROM events").await;
        wanted.store(usize::try_from(count).unwrap(), Ordering::SeqCst);
    };
    let following = follow_and_kill(&mut followers, &wanted, &kills);
    futures::join!(writing, following);
    let all: Vec<i64> = sqlx::query_scalar("SELECT id FROM events ORDER BY id")
        .fetch_all(&pool)
        .await
        .unwrap();
    assert!(all.len() >= WRITERS * events_of_each());
    for follower in &followers {
        let seen = follower.seen();
        assert_eq!(
            seen.len(),
            all.len(),
            "{}: missed or seen twice",
            follower.how
        );
        assert!(seen == all, "{}: out of order", follower.how);
    }
    drop(fs::remove_dir_all(folder));
}

/// Makes the events of an experiment commit only while nobody else holds advisory lock 42.
async fn commit_late(pool: &PgPool, experiment: ExperimentId) {
    let made = format!(
        "CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW WHEN (NEW.experiment_id = '{}') EXECUTE FUNCTION wait_for_the_test()",
        experiment.0
    );
    sqlx::raw_sql(AssertSqlSafe(made))
        .execute(pool)
        .await
        .unwrap();
}

/// Otherwise a reader would pass the id of an event that is not there yet.
#[sqlx::test(migrations = false)]
async fn an_event_waits_for_those_before_it_in_the_feed(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (early, late): (ExperimentId, ExperimentId) = (
        test.start(&repeats(1)).await.parse().unwrap(),
        test.start(&repeats(1)).await.parse().unwrap(),
    );
    commit_late(&pool, early).await;
    let mut held = pool.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(42)")
        .execute(&mut *held)
        .await
        .unwrap();
    let pause = |id: ExperimentId| {
        let (store, project, now) = (test.app.store.clone(), test.project, test.app.clock.now());
        tokio::spawn(async move {
            store
                .command(project, id, ExperimentCommand::Pause, now)
                .await
        })
    };
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let first = pause(early);
    while number(&pool, waiting).await < 1 {
        assert!(!first.is_finished(), "its commit waits for the test");
        real_sleep(Duration::from_millis(10)).await;
    }
    let second = pause(late);
    while number(&pool, waiting).await < 2 {
        assert!(!second.is_finished(), "it passed the first");
        real_sleep(Duration::from_millis(10)).await;
    }
    held.rollback().await.unwrap();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    let told: Vec<EventView> = test.page("/v1/events?page_size=500").await;
    let paused = told
        .iter()
        .rev()
        .take(2)
        .rev()
        .map(|event| event.experiment_id);
    assert_eq!(paused.collect::<Vec<_>>(), [Some(early), Some(late)]);
}

async fn stream(test: &TestApp, path: &str, after: i64) -> reqwest::Response {
    let request = test.request(Method::GET, path, &test.admin);
    request
        .header("accept", "text/event-stream")
        .header("last-event-id", after.to_string())
        .send()
        .await
        .unwrap()
}

#[sqlx::test(migrations = false)]
async fn a_stream_needs_no_names_and_ends_with_its_experiment(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let path = format!("/v1/experiments/{id}/events");
    // It ends by itself: the whole body can be read.
    let body = stream(&test, &path, 0).await.text().await.unwrap();
    assert!(body.starts_with("retry: "), "{body}");
    assert!(
        !body.contains("\nevent:"),
        "browsers hand named events to nobody: {body}"
    );
    let sent: Vec<EventView> = body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let all = test.events(&id).await;
    assert_eq!(sent.len(), all.len());
    let last = all.last().unwrap();
    assert!(
        matches!(last.data, Some(EventData::ExperimentConcluded(_))),
        "{last:?}"
    );
    let again = stream(&test, &path, last.id).await;
    assert_eq!(
        again.status(),
        StatusCode::NO_CONTENT,
        "a browser would reconnect for ever"
    );

    // Everything else in the project is in its feed, which has no end.
    let other = test.start(&repeats(1)).await;
    let feed: Vec<EventView> = test.page("/v1/events?page_size=500").await;
    let about = |id: &str| {
        let id: ExperimentId = id.parse().unwrap();
        feed.iter().filter(|e| e.experiment_id == Some(id)).count()
    };
    assert_eq!((about(&id), about(&other)), (all.len(), 1));
    let alarms: Vec<EventView> = test.page("/v1/events?alarms_only=true").await;
    assert!(
        alarms
            .iter()
            .all(|event| event.severity == EventSeverity::Alarm)
    );
    let mut live = stream(&test, "/v1/events", feed.last().unwrap().id)
        .await
        .bytes_stream();
    let (status, _) = test
        .post(
            &format!("/v1/experiments/{other}/pause"),
            &serde_json::json!({}),
        )
        .await;
    assert!(status.is_success());
    let mut text = String::new();
    while !text.contains("\"experiment.paused\"") {
        text.push_str(std::str::from_utf8(&live.next().await.unwrap().unwrap()).unwrap());
    }
}

#[sqlx::test(migrations = false)]
async fn the_newest_events_come_first_where_that_is_asked_for(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    for path in [
        "/v1/events".to_owned(),
        format!("/v1/experiments/{id}/events"),
    ] {
        let all: Page<EventView> = test.read(&format!("{path}?page_size=500")).await;
        let mut ids: Vec<i64> = all.items.iter().map(|event| event.id).collect();
        ids.reverse();
        let mut seen = Vec::new();
        let mut before = String::new();
        loop {
            let page: Page<EventView> = test
                .read(&format!("{path}?newest=true&page_size=2{before}"))
                .await;
            seen.extend(page.items.iter().map(|event| event.id));
            let Some(token) = page.next_page_token else {
                break;
            };
            before = format!("&page_token={token}");
        }
        assert!(seen.len() > 4, "{seen:?}");
        assert_eq!(seen, ids);
    }
}

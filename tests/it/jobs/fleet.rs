//! Many trials and several replicas: leases, the queue, quotas, warm pools, pushes, strange
//! regions.

use std::time::Duration;

use bakeoff_api::experiments::ExperimentView;
use bakeoff_api::money::LedgerEntryView;
use bakeoff_api::projects::ProjectView;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::lifecycle::state::{AttemptState, ExperimentState, TrialState};
use bakeoff_domain::lifecycle::watch::Change;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::{EntryComponent, EntryKind};
use bakeoff_service::replica::leader::Leader;
use bakeoff_service::tasks::scheduler;
use bakeoff_store::experiments::race::{Judged, Verdict};
use chrono::TimeDelta;
use reqwest::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{REGION, TestApp, spec};

/// One candidate, so many repeats.
pub(crate) fn repeats(count: u32) -> Value {
    let mut spec = spec();
    spec["candidates"].as_array_mut().unwrap().truncate(1);
    spec["candidates"][0]["repeats"] = json!(count);
    spec["budget_usd"] = json!(100_000);
    spec
}

pub(crate) async fn events(test: &TestApp, experiment: &str, kind: &str) -> Vec<String> {
    let events = test.events(experiment).await;
    let of_kind = events.into_iter().filter(|event| event.kind == kind);
    of_kind.map(|event| event.message).collect()
}

async fn expire_leases(pool: &PgPool) {
    sqlx::query("UPDATE leases SET expires_at = clock_timestamp() - interval '1 second'")
        .execute(pool)
        .await
        .unwrap();
}

#[sqlx::test(migrations = false)]
async fn a_lease_is_renewed_only_by_its_owner_in_its_term(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (store, ttl) = (&test.app.store, Duration::from_mins(1));
    let first = store
        .acquire_lease("work", REGION, "a", ttl)
        .await
        .unwrap()
        .unwrap();
    assert!(
        store
            .acquire_lease("work", REGION, "b", ttl)
            .await
            .unwrap()
            .is_none(),
        "it is held"
    );
    assert!(store.renew_lease(&first, ttl).await.unwrap());
    expire_leases(&pool).await;
    assert!(
        !store.renew_lease(&first, ttl).await.unwrap(),
        "a lease that has run out is lost, not prolonged"
    );
    let second = store
        .acquire_lease("work", REGION, "b", ttl)
        .await
        .unwrap()
        .unwrap();
    assert!(second.term > first.term);
    assert!(
        !store.renew_lease(&first, ttl).await.unwrap(),
        "the old holder steps down"
    );
    // The same owner in a later term is another holder: a process that came back under its old
    // name.
    expire_leases(&pool).await;
    let third = store
        .acquire_lease("work", REGION, "a", ttl)
        .await
        .unwrap()
        .unwrap();
    assert!(
        !store.renew_lease(&first, ttl).await.unwrap()
            && store.renew_lease(&third, ttl).await.unwrap()
    );
}

/// Three replicas: one is frozen in the middle of a listing, one is killed, the third ends the
/// work. What the frozen one brings when it wakes belongs to an old term and changes nothing.
#[sqlx::test(migrations = false)]
async fn a_listing_of_an_old_term_has_no_effect(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    let leader = |owner: &str| Leader::new("watcher", REGION, owner, Duration::from_mins(1));
    let (frozen, killed) = (leader("frozen"), leader("killed"));
    expire_leases(&pool).await;
    let old = frozen.term(&test.app.store).await.unwrap().unwrap();
    let known = test.app.store.running_attempts(REGION, None).await.unwrap();
    expire_leases(&pool).await;
    killed.term(&test.app.store).await.unwrap().unwrap();
    expire_leases(&pool).await;
    let before = watched(&pool).await;
    // The frozen one wakes with what it has seen.
    let change = |known: &bakeoff_domain::lifecycle::watch::StoredAttempt| Change {
        attempt: known.attempt,
        trial: known.trial,
        status: bakeoff_domain::sagemaker::observed::JobStatus::Stopped,
        secondary_status: "Stopped".into(),
        modified_at: Some(test.app.clock.now()),
    };
    let changes: Vec<Change> = known.iter().map(change).collect();
    let looks: Vec<_> = known.iter().map(|known| known.trial).collect();
    assert!(
        !test
            .app
            .store
            .notice(&old, &changes, &looks, test.app.clock.now())
            .await
            .unwrap()
    );
    assert_eq!(watched(&pool).await, before);
    // The third takes over, and the work is done.
    test.watch().await;
    assert_ne!(watched(&pool).await, before);
    assert!(
        !test
            .app
            .store
            .notice(&old, &changes, &looks, test.app.clock.now())
            .await
            .unwrap()
    );
    assert!(
        frozen.term(&test.app.store).await.unwrap().is_none(),
        "it steps down"
    );
    test.run_to_end(&id, 12).await;
}

pub(crate) async fn watched(pool: &PgPool) -> Vec<(String, Option<String>)> {
    let query = "SELECT job_name, secondary_status FROM jobs ORDER BY job_name";
    sqlx::query_as(query).fetch_all(pool).await.unwrap()
}

/// $200, 40 eager trials, three replicas: at no point of the ledger is more reserved and spent.
#[sqlx::test(migrations = false)]
async fn a_budget_holds_at_every_point_of_the_ledger(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut eager = repeats(20);
    let mut twin = eager["candidates"][0].clone();
    twin["name"] = json!("twin");
    eager["candidates"].as_array_mut().unwrap().push(twin);
    eager["budget_usd"] = json!(200);
    eager["max_runtime_seconds"] = json!(5400);
    eager["workload"]["trial_tokens"] = json!(20_000_000);
    let id = test.start(&eager).await;
    let replicas: Vec<_> = ["one", "two", "three"]
        .map(|owner| test.replica(owner))
        .into();
    for _ in 0..400 {
        futures::future::try_join_all(replicas.iter().map(scheduler::tick))
            .await
            .unwrap();
        test.tick().await;
        if test.experiment(&id).await.ended_at.is_some() {
            break;
        }
        test.advance(TimeDelta::minutes(10)).await;
    }
    let most: Decimal = sqlx::query_scalar(
        "SELECT max(total) FROM (
             SELECT sum(CASE kind WHEN 'released' THEN -usd ELSE usd END) OVER (ORDER BY id) AS total FROM ledger) t",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert!(
        most <= Decimal::from(200) && most > Decimal::from(150),
        "{most}"
    );
    let ended = test.experiment(&id).await;
    assert!(
        ended.settled_usd <= Usd(Decimal::from(200)) && ended.ended_at.is_some(),
        "{ended:?}"
    );
    let rows = test.comparison(&id).await.rows;
    let [completed, refused] = [TrialState::Completed, TrialState::Refused]
        .map(|state| rows.iter().filter(|row| row.state == state).count());
    assert!(
        completed > 3 && completed + refused == 40,
        "{completed} completed, {refused} refused"
    );
}

#[sqlx::test(migrations = false)]
async fn trials_wait_under_the_accounts_quota_instead_of_being_refused(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota", "2"]).await;
    let id = test.start(&repeats(5)).await;
    test.tick().await;
    assert_eq!(test.in_progress().await, 2);
    test.run_to_end(&id, 24).await;
    assert_eq!(
        (
            test.jobs().await.len(),
            test.calls("CreateTrainingJob").await
        ),
        (5, 5),
        "none was refused"
    );
}

#[sqlx::test(migrations = false)]
async fn what_the_whole_quota_cannot_hold_is_parked_until_a_person_resumes(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--quota-of", "ml.p4de.24xlarge=0"]).await;
    test.tick().await;
    // It is known before the start.
    let plan = test.plan(&spec()).await;
    let said: Vec<&Finding> = plan
        .findings
        .iter()
        .filter(|one| one.rule == "quota-too-low")
        .collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].pointer, "/candidates/0/instance_type");
    assert!(plan.would_start, "a quota may be raised meanwhile");
    let id = test.start(&spec()).await;
    test.tick().await;
    let trials = test.trials(&id).await;
    assert_eq!(
        [trials[0].state, trials[1].state],
        [TrialState::Parked, TrialState::Running]
    );
    let reason = trials[0].reason.as_ref().unwrap();
    assert!(reason.contains("request a quota increase"), "{reason}");
    assert_eq!(events(&test, &id, "trial.parked").await.len(), 1);
    assert_eq!(test.experiment(&id).await.ended_at, None);
    let (status, _) = test
        .post(&format!("/v1/experiments/{id}/resume"), &json!({}))
        .await;
    assert_eq!(status, 200);
    let doubted = "SELECT coalesce(string_agg(instance_type || '/' || usage, ' '), '') FROM quotas WHERE is_doubted";
    let doubted = async || {
        sqlx::query_scalar::<_, String>(doubted)
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    assert_eq!(
        doubted().await,
        "ml.p4de.24xlarge/on_demand",
        "and no other quota pool"
    );
    // The quota is still what it was: AWS says so itself this time, and the trial waits without
    // holding money.
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let trial = &test.trials(&id).await[0];
    assert_eq!(trial.state, TrialState::Queued, "{trial:?}");
    assert_eq!(trial.attempts[0].state, AttemptState::NeverCreated);
    test.watch().await;
    assert_eq!(doubted().await, "", "it has been read again");
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 3).await;
    assert_eq!(test.experiment(&id).await.state, ExperimentState::Cancelled);
}

#[sqlx::test(migrations = false)]
async fn a_projects_limit_and_a_pause_hold_trials_back(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let put = |body: Value| {
        test.send(
            test.request(Method::PUT, "/v1/projects/current/limits", &test.admin)
                .json(&body),
        )
    };
    assert_eq!(put(json!({"concurrent_trials_max": 0})).await.0, 422);
    let (_, limited) = put(json!({"concurrent_trials_max": 2})).await;
    let limited: ProjectView = serde_json::from_value(limited).unwrap();
    assert_eq!(limited.concurrent_trials_max, Some(2));
    let id = test.start(&repeats(4)).await;
    test.tick().await;
    assert_eq!(test.in_progress().await, 2);
    put(json!({"concurrent_trials_max": null})).await;
    let (status, paused) = test
        .post(&format!("/v1/experiments/{id}/pause"), &json!({}))
        .await;
    assert_eq!(status, 200, "{paused}");
    let paused: ExperimentView = serde_json::from_value(paused).unwrap();
    assert_eq!(paused.paused_reason.as_deref(), Some("paused by hand"));
    test.tick().await;
    assert_eq!(
        test.in_progress().await,
        2,
        "what runs goes on, nothing new is started"
    );
    test.post(&format!("/v1/experiments/{id}/resume"), &json!({}))
        .await;
    test.tick().await;
    assert_eq!(test.in_progress().await, 4);
    test.run_to_end(&id, 12).await;
}

/// The second trial takes over the first one's instances; the last pool is let go at once; and it
/// is all in the ledger.
#[sqlx::test(migrations = false)]
async fn a_warm_pool_is_reused_and_then_let_go(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota", "1"]).await;
    let mut warm = repeats(2);
    warm["keep_alive_seconds"] = json!(3600);
    let id = test.start(&warm).await;
    test.run_to_end(&id, 12).await;
    let jobs = test.jobs().await;
    assert_eq!(
        [&jobs[0].pool_reused_by, &jobs[1].pool_reused_by],
        [&Some(jobs[1].name.clone()), &None],
        "{jobs:#?}"
    );
    assert!(
        jobs[1].retained_seconds.unwrap() < 600,
        "it was let go at once: {:?}",
        jobs[1]
    );
    let entries = test.ledger(&id).await;
    for job in &jobs {
        let own = |entry: &&LedgerEntryView| {
            Some(entry.job_id.to_string()) == job.attempt
                && entry.component == EntryComponent::WarmPool
                && entry.kind == EntryKind::Settled
        };
        let booked = entries.iter().find(own).unwrap().usd.as_f64();
        let billed = Usd(Decimal::new(job.pool_micro_usd, 6)).as_f64();
        assert!(
            (booked - billed).abs() < 0.005,
            "billed {billed}, booked {booked}"
        );
    }
    assert!(test.comparison(&id).await.rows[0].other_cost_usd > Usd::ZERO);
}

/// A retry after a defect gets other instances than those that the failed job left behind.
#[sqlx::test(migrations = false)]
async fn a_defective_machine_is_not_used_again(pool: PgPool) {
    let fails = "ml.p4de.24xlarge=accelerator-hardware";
    let test = TestApp::with_faults(pool, &["--quota", "1", "--fails", fails]).await;
    let mut warm = repeats(2);
    warm["keep_alive_seconds"] = json!(3600);
    let id = test.start(&warm).await;
    test.run_to_end(&id, 12).await;
    let jobs = test.jobs().await;
    // Two trials, and another attempt of each.
    assert_eq!(jobs.len(), 4, "{jobs:#?}");
    for job in &jobs {
        assert_eq!(job.pool_reused_by, None, "{job:#?}");
        assert!(
            job.retained_seconds.is_some_and(|seconds| seconds < 600),
            "{job:#?}"
        );
    }
}

/// Where only the log names the defect, the trial is done once more by itself: once, and on other instances.
#[sqlx::test(migrations = false)]
async fn a_defect_that_only_the_log_names_gets_one_more_machine(pool: PgPool) {
    let fails = "ml.p4de.24xlarge=accelerator-lost";
    let test = TestApp::with_faults(pool, &["--quota", "1", "--fails", fails]).await;
    let mut warm = repeats(1);
    warm["keep_alive_seconds"] = json!(3600);
    let id = test.start(&warm).await;
    test.run_to_end(&id, 12).await;
    let jobs = test.jobs().await;
    assert_eq!(jobs.len(), 2, "one more machine has to do: {jobs:#?}");
    for job in &jobs {
        assert_eq!(job.pool_reused_by, None, "{job:#?}");
    }
    let trials = test.trials(&id).await;
    let retry = trials.iter().find(|trial| trial.retry_of.is_some());
    assert_eq!(retry.and_then(|retry| retry.retry_of), Some(trials[0].id));
    let told = events(&test, &id, "experiment.changed").await;
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(
        told[0].ends_with(
            "is done once more: the log of its job names a defective machine, so that another one is tried"
        ),
        "{told:#?}"
    );
    // A person may still ask for a third.
    let last = retry.unwrap().id;
    let (status, answer) = test
        .post(&format!("/v1/trials/{last}/retry"), &json!({}))
        .await;
    assert_eq!(status, 201, "{answer:#}");
}

/// Nobody has asked for such a retry: a race stops it as it would stop any other trial.
#[sqlx::test(migrations = false)]
async fn a_race_stops_an_automatic_retry(pool: PgPool) {
    let fails = "ml.p4de.24xlarge=accelerator-lost";
    let test = TestApp::with_faults(pool, &["--fails", fails]).await;
    let id = test.start(&repeats(1)).await;
    let retry = loop {
        test.advance(TimeDelta::minutes(2)).await;
        test.tick().await;
        let trials = test.trials(&id).await;
        if let Some(retry) = trials.iter().find(|trial| trial.retry_of.is_some()) {
            break retry.id;
        }
    };
    let lost = Verdict {
        stops: vec![Judged {
            trial: retry,
            reason: "it cannot win".to_owned(),
        }],
        ..Verdict::default()
    };
    let experiment = test.experiment(&id).await.id;
    let now = test.app.clock.now();
    let stopped = test
        .app
        .store
        .apply_verdict(test.project, experiment, &lost, now);
    assert_eq!(stopped.await.unwrap(), 1);
}

#[sqlx::test(migrations = false)]
async fn a_cancelled_experiments_pool_is_let_go(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota", "1"]).await;
    let mut warm = repeats(2);
    warm["keep_alive_seconds"] = json!(7200);
    let id = test.start(&warm).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(30)).await;
    test.tick().await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 3).await;
    let jobs = test.jobs().await;
    assert!(
        jobs.len() == 1 && !jobs[0].idle_pool && !jobs[0].pool_ran_out,
        "{jobs:#?}"
    );
}

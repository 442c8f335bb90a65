//! What people add to an experiment, call it, and put away: a trial once more, another candidate, labels; archived,
//! deleted, purged.

use bakeoff_api::experiments::{AddedTrials, ExperimentSummary, ExperimentView};
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_service::auth::keys::Role;
use bakeoff_service::tasks::{compactor, finalizer};
use bakeoff_store::experiments::race::{Judged, Verdict};
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::ci::triggers::{REPOSITORY, created, led_to, trigger};
use crate::support::{ACCOUNT, TestApp, number, on_p5, problem, spec};

fn added((status, answer): (StatusCode, Value)) -> AddedTrials {
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    serde_json::from_value(answer).unwrap()
}

async fn retried(test: &TestApp, trial: &str) -> (StatusCode, Value) {
    test.post(&format!("/v1/trials/{trial}/retry"), &json!({}))
        .await
}

fn refused((status, answer): (StatusCode, Value), code: &str) {
    assert_eq!(status, StatusCode::CONFLICT, "{answer:#}");
    let told = problem(answer);
    assert_eq!(told.code, code, "{told:#?}");
}

/// A trial that was stopped by mistake runs once more beside the others, and counts.
#[sqlx::test(migrations = false)]
async fn a_stopped_trial_is_done_once_more(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    let first = test.trials(&id).await[0].id.to_string();
    refused(retried(&test, &first).await, "trial_not_retryable");
    let path = format!("/v1/trials/{first}/stop");
    assert_eq!(test.post(&path, &json!({})).await.0, StatusCode::ACCEPTED);
    for _ in 0..3 {
        test.tick().await;
        test.advance(TimeDelta::minutes(2)).await;
    }
    let retry = added(retried(&test, &first).await);
    assert_eq!((retry.trials.len(), retry.revision), (1, 2));
    // The same trial twice is a mistake, and costs nothing.
    refused(retried(&test, &first).await, "retried_before");
    test.run_to_end(&id, 24).await;
    let trials = test.trials(&id).await;
    assert_eq!(trials.len(), 3);
    let last = &trials[2];
    assert_eq!(
        (last.state, last.retry_of.map(|id| id.to_string())),
        (TrialState::Completed, Some(first))
    );
    let found = test.recommendation(&id).await.recommendation;
    assert_eq!(found.ranked.len(), 2, "{found:#?}");
    assert!(
        (test.billed_usd().await - test.experiment(&id).await.settled_usd.as_f64()).abs() < 0.5
    );
    test.assert_nothing_leaks(&[]).await;
}

/// An experiment that has failed goes on, and is decided again.
#[sqlx::test(migrations = false)]
async fn an_experiment_that_is_over_goes_on(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--fails", "ml.p5.48xlarge=cuda-out-of-memory"]).await;
    let id = test.start(&on_p5(1)).await;
    test.run_to_end(&id, 12).await;
    assert_eq!(test.experiment(&id).await.state, ExperimentState::Failed);
    let archive = format!("/v1/experiments/{id}/archive");
    assert_eq!(test.post(&archive, &json!({})).await.0, StatusCode::OK);
    let failed = test.trials(&id).await[0].id.to_string();
    added(retried(&test, &failed).await);
    let view = test.experiment(&id).await;
    assert_eq!(
        (view.state, view.ended_at, view.archived_at),
        (ExperimentState::Running, None, None)
    );
    // Another type, which does not fail.
    let path = format!("/v1/experiments/{id}/candidates");
    let mut other = spec()["candidates"][0].clone();
    let more = added(test.post(&path, &other).await);
    assert_eq!(more.trials.len(), 1);
    // Its name is taken now, and so nothing is added twice.
    let (status, answer) = test.post(&path, &other).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    other["name"] = json!("none");
    other["instance_type"] = json!("ml.z9.huge");
    let (status, answer) = test.post(&path, &other).await;
    assert_eq!(
        (status, problem(answer).errors[0].pointer.as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "/instance_type")
    );
    test.run_to_end(&id, 24).await;
    let view = test.experiment(&id).await;
    assert_eq!(
        (view.state, view.spec.candidates.len(), view.revision),
        (ExperimentState::Completed, 2, 3)
    );
    let states: Vec<TrialState> = test.trials(&id).await.iter().map(|one| one.state).collect();
    assert_eq!(
        states,
        [
            TrialState::Failed,
            TrialState::Failed,
            TrialState::Completed
        ]
    );
    let found = test.recommendation(&id).await.recommendation;
    assert_eq!(found.ranked[0].candidate, "p4de", "{found:#?}");
}

/// What a person adds between the finalizer's look and its answer is not concluded away.
#[sqlx::test(migrations = false)]
async fn nothing_is_concluded_over_a_retry(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--fails", "ml.p5.48xlarge=cuda-out-of-memory"]).await;
    let id = test.start(&on_p5(1)).await;
    test.run_to_end(&id, 12).await;
    let failed = test.trials(&id).await[0].id.to_string();
    added(retried(&test, &failed).await);
    // As ready as it was before the retry.
    let now = test.app.clock.now();
    let store = &test.app.store;
    let ready = bakeoff_store::experiments::Concludable {
        project: test.project,
        id: test.experiment(&id).await.id,
        is_step: false,
        revision: 1,
    };
    let experiment = store.experiment(ready.project, ready.id).await.unwrap();
    let answer = bakeoff_service::read::recommendation(store, &experiment.unwrap(), now)
        .await
        .unwrap();
    assert!(!store.conclude(ready, &answer, now).await.unwrap());
    finalizer::tick(&test.app).await.unwrap();
    assert_eq!(test.experiment(&id).await.state, ExperimentState::Running);
}

/// What others rest on is not changed under them.
#[sqlx::test(migrations = false)]
async fn a_gate_compares_what_its_template_says(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut of_ci = on_p5(1);
    of_ci["workload"]["image"] = json!(format!("{REPOSITORY}:${{ci.commit}}"));
    let body = json!({"name": "nightly", "spec": of_ci, "settings": {"branches": ["main"]}});
    let own = created(&test, &body).await;
    let commit = "4f2a9c1d7e55d3b0a8c6f4e2019b7d5c3a1f8e60";
    let body = json!({"delivery_id": "1", "commit": commit, "branch": "main"});
    let (_, answer) = trigger(&test, &own, &body).await;
    let id = led_to(&answer).experiment_id.unwrap().to_string();
    let view = test.experiment(&id).await;
    assert_eq!(view.created_by, Some(own.id.to_string()));
    let path = format!("/v1/experiments/{id}/candidates");
    let candidate = spec()["candidates"][0].clone();
    refused(test.post(&path, &candidate).await, "of_a_ci_run");
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 12).await;
    let trial = test.trials(&id).await[0].id.to_string();
    refused(retried(&test, &trial).await, "of_a_ci_run");
    let path = format!("/v1/experiments/{id}");
    refused(test.delete(&path).await, "part_of_more");
    let cancelled = test.start(&spec()).await;
    test.post(&format!("/v1/experiments/{cancelled}/cancel"), &json!({}))
        .await;
    let path = format!("/v1/experiments/{cancelled}/candidates");
    let mut other = candidate;
    other["name"] = json!("other");
    refused(test.post(&path, &other).await, "not_running");
}

async fn found(test: &TestApp, filter: &str) -> Vec<String> {
    let path = format!("/v1/experiments?{filter}");
    let items: Vec<ExperimentSummary> = test.page(&path).await;
    items.into_iter().map(|one| one.name).collect()
}

/// Labels are searched for, changed at any time, and on what AWS bills.
#[sqlx::test(migrations = false)]
async fn labels_are_found_changed_and_billed(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut legal = spec();
    legal["name"] = json!("legal");
    legal["labels"] = json!({"team": "legal", "cost-center": "4711"});
    let mut other = on_p5(1);
    other["name"] = json!("other");
    other["labels"] = json!({"team": "search"});
    other["workload"]["name"] = json!("another");
    let id = test.start(&legal).await;
    let other = test.start(&other).await;
    test.tick().await;
    let legals: Vec<String> = test
        .trials(&id)
        .await
        .iter()
        .map(|one| one.id.to_string())
        .collect();
    let jobs = test.jobs().await;
    assert_eq!(jobs.len(), 3);
    for job in jobs {
        let arn = format!(
            "arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/{}",
            job.name
        );
        let tags = test.app.place.aws.tags(&arn).await.unwrap();
        let is_legal = legals.contains(job.trial.as_ref().unwrap());
        let team = if is_legal { "legal" } else { "search" };
        assert_eq!(tags.contains_key("cost-center"), is_legal, "{tags:?}");
        assert_eq!(tags.get("team").map(String::as_str), Some(team), "{tags:?}");
        assert!(tags.contains_key("bakeoff:trial"), "{tags:?}");
    }
    let view = test.experiment(&id).await;
    let by = view.created_by.unwrap();
    assert!(by.starts_with("key_"), "{by}");
    for (filter, expected) in [
        ("label=team=legal", &["legal"][..]),
        ("label=team=legal&label=cost-center=4711", &["legal"]),
        ("label=team=legal&label=cost-center=1", &[]),
        ("workload=another", &["other"]),
        ("instance_type=ml.p4de.24xlarge", &["legal"]),
        (
            "instance_type=ml.p5.48xlarge&sort=created_at",
            &["legal", "other"],
        ),
        (&*format!("created_by={by}"), &["other", "legal"]),
        ("created_by=me", &["other", "legal"]),
        ("created_by=key_x", &[]),
        ("settled_usd_min=1", &[]),
        ("settled_usd_max=1&state=running", &["other", "legal"]),
    ] {
        assert_eq!(found(&test, filter).await, expected, "{filter}");
    }
    let asked = test.request(Method::GET, "/v1/experiments?label=team", &test.admin);
    assert_eq!(test.send(asked).await.0, StatusCode::BAD_REQUEST);
    test.run_to_end(&id, 12).await;
    test.run_to_end(&other, 12).await;
    assert_eq!(found(&test, "settled_usd_min=1").await, ["other", "legal"]);
    // Over, and still called anything; nothing else of it is changed.
    let path = format!("/v1/experiments/{id}");
    let (status, answer) = test
        .patch(&path, &json!({"labels": {"team": "research"}}))
        .await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    assert_eq!(found(&test, "label=team=research").await, ["legal"]);
    assert_eq!(found(&test, "label=cost-center=4711").await.len(), 0);
    let view = test.experiment(&id).await;
    assert_eq!(view.labels, view.spec.labels);
    let both = json!({"labels": {}, "priority": 3});
    assert_eq!(test.patch(&path, &both).await.0, StatusCode::CONFLICT);
    let (status, answer) = test.patch(&path, &json!({"labels": {"aws:x": "1"}})).await;
    assert_eq!(
        (status, problem(answer).errors[0].pointer.as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "/labels/aws:x")
    );
}

/// Put away, taken back, deleted for a while and for good: what was spent stays.
#[sqlx::test(migrations = false)]
async fn an_experiment_is_archived_deleted_and_purged(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    let path = format!("/v1/experiments/{id}");
    let (archive, unarchive) = (
        format!("/v1/experiments/{id}/archive"),
        format!("/v1/experiments/{id}/unarchive"),
    );
    let restore = format!("/v1/experiments/{id}/restore");
    refused(test.post(&archive, &json!({})).await, "not_over");
    refused(test.delete(&path).await, "not_over");
    test.run_to_end(&id, 12).await;
    for _ in 0..2 {
        assert_eq!(test.post(&archive, &json!({})).await.0, StatusCode::OK);
    }
    assert_eq!(found(&test, "").await.len(), 0);
    assert_eq!(found(&test, "archived=true").await.len(), 1);
    let view: ExperimentView = test.read(&path).await;
    assert!(view.archived_at.is_some());
    assert_eq!(test.post(&unarchive, &json!({})).await.0, StatusCode::OK);
    assert_eq!(found(&test, "").await.len(), 1);
    // Deleted: gone for everybody, and back within 30 days.
    let editor = test.key(test.project, Role::Editor).await;
    let asked = test.request(Method::DELETE, &path, &editor);
    assert_eq!(test.send(asked).await.0, StatusCode::FORBIDDEN);
    let trial = test.trials(&id).await[0].id;
    let spent = test
        .get("/v1/spending?from=2026-11-01T00:00:00Z&until=2026-12-01T00:00:00Z")
        .await;
    assert_eq!(test.delete(&path).await.0, StatusCode::NO_CONTENT);
    let gone = [
        path.clone(),
        format!("/v1/experiments/{id}/recommendation"),
        format!("/v1/experiments/{id}/trials"),
        format!("/v1/experiments/{id}/ledger"),
        format!("/v1/trials/{trial}"),
        format!("/v1/trials/{trial}/metrics?metric=tokens_per_second"),
        format!("/v1/trials/{trial}/diagnosis"),
        format!("/v1/comparison?trial_id={trial}"),
    ];
    for path in &gone {
        let asked = test.request(Method::GET, path, &test.admin);
        assert_eq!(test.send(asked).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(found(&test, "").await.len(), 0);
    assert_eq!(
        test.get("/v1/spending?from=2026-11-01T00:00:00Z&until=2026-12-01T00:00:00Z")
            .await,
        spent
    );
    assert_eq!(test.post(&restore, &json!({})).await.0, StatusCode::OK);
    assert_eq!(found(&test, "").await.len(), 1);
    assert_eq!(test.delete(&path).await.0, StatusCode::NO_CONTENT);
    let series = "SELECT count(*) FROM series";
    test.app.clock.advance(TimeDelta::days(29));
    compactor::tick(&test.app).await.unwrap();
    assert!(number(&pool, series).await > 0);
    test.app.clock.advance(TimeDelta::days(2));
    compactor::tick(&test.app).await.unwrap();
    for query in [
        series,
        "SELECT count(*) FROM samples",
        "SELECT count(*) FROM sample_chunks",
        "SELECT count(*) FROM rollups",
    ] {
        assert_eq!(number(&pool, query).await, 0, "{query}");
    }
    assert!(number(&pool, "SELECT count(*) FROM ledger").await > 0);
    assert_eq!(
        test.get("/v1/spending?from=2026-11-01T00:00:00Z&until=2026-12-01T00:00:00Z")
            .await,
        spent
    );
    assert_eq!(
        test.post(&restore, &json!({})).await.0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(found(&test, "deleted=true").await.len(), 0);
    let told = "SELECT count(*) FROM events WHERE kind = 'experiment.changed'";
    assert_eq!(number(&pool, told).await, 5);
}

/// What is left of the budget bounds what is added; once it is raised, what was refused runs.
#[sqlx::test(migrations = false)]
async fn a_retry_is_paid_from_what_is_left(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--fails", "ml.p5.48xlarge=cuda-out-of-memory"]).await;
    let mut small = on_p5(1);
    small["budget_usd"] = json!(300);
    let id = test.start(&small).await;
    let trial = test.trials(&id).await[0].clone();
    let worst = trial.plan.unwrap().worst_case.unwrap().total_usd.as_f64();
    // Room for one trial that fails, and not for another one beside it.
    let path = format!("/v1/experiments/{id}");
    let budget = json!({"budget_usd": worst + 1.0, "priority": 7});
    assert_eq!(test.patch(&path, &budget).await.0, StatusCode::OK);
    test.run_to_end(&id, 12).await;
    assert!(test.experiment(&id).await.settled_usd.as_f64() > 1.0);
    let failed = trial.id.to_string();
    let (status, answer) = retried(&test, &failed).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let refused = problem(answer);
    let fix = &refused.errors[0].fix;
    assert!(fix.contains("PATCH /v1/experiments/"), "{refused:#?}");
    // Over, and its budget is raised for what is added.
    let (status, answer) = test.patch(&path, &json!({"budget_usd": 3.0 * worst})).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let retry = added(retried(&test, &failed).await);
    let view = test.experiment(&id).await;
    assert_eq!(view.spec.priority, 7);
    assert_eq!(
        (view.state, retry.revision),
        (ExperimentState::Running, view.revision)
    );
    test.run_to_end(&id, 12).await;
    test.assert_nothing_leaks(&[]).await;
}

/// A person who has a trial done once more means it: a race stops others.
#[sqlx::test(migrations = false)]
async fn a_race_does_not_stop_a_retry(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    test.tick().await;
    let trial = test.trials(&id).await[0].id.to_string();
    let path = format!("/v1/trials/{trial}/stop");
    test.post(&path, &json!({})).await;
    for _ in 0..3 {
        test.tick().await;
        test.advance(TimeDelta::minutes(2)).await;
    }
    let retry = added(retried(&test, &trial).await).trials[0].id;
    test.tick().await;
    let lost = |by_hand| Verdict {
        stops: vec![Judged {
            trial: retry,
            reason: "it cannot win".to_owned(),
        }],
        starts: Vec::new(),
        by_hand,
    };
    let (store, now) = (&test.app.store, test.app.clock.now());
    let experiment = test.experiment(&id).await.id;
    for (by_hand, expected) in [(false, 0), (true, 1)] {
        let lost = lost(by_hand);
        let stopped = store.apply_verdict(test.project, experiment, &lost, now);
        assert_eq!(stopped.await.unwrap(), expected, "{by_hand}");
    }
}

/// Deliveries that are over are forgotten with their attempts; those that are on their way stay.
#[sqlx::test(migrations = false)]
async fn old_deliveries_are_forgotten(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let body = json!({"url": "http://127.0.0.1:9/nobody", "kinds": ["experiment.created"]});
    let (status, answer) = test.post("/v1/webhook-endpoints", &body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    test.start(&on_p5(1)).await;
    test.tick().await;
    let rows = [
        "SELECT count(*) FROM webhook_deliveries",
        "SELECT count(*) FROM webhook_attempts",
    ];
    let kept = async |days| {
        test.app.clock.advance(TimeDelta::days(days));
        compactor::tick(&test.app).await.unwrap();
        number(&pool, rows[0]).await
    };
    assert_eq!(kept(31).await, 1, "it is on its way");
    let over = "UPDATE webhook_deliveries SET state = 'failed', due_at = NULL, ended_at = $1";
    let ended = test.app.clock.now();
    sqlx::query(over).bind(ended).execute(&pool).await.unwrap();
    assert_eq!(kept(29).await, 1);
    assert!(number(&pool, rows[1]).await > 0);
    assert_eq!(kept(2).await, 0);
    assert_eq!(number(&pool, rows[1]).await, 0);
}

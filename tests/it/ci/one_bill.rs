//! One commit, one bill: every delivery of a commit joins its run, a repeat is asked for, and another repository starts
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use bakeoff_api::ci::{CiNotMeasured, CiSecret};
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_api::page::Page;
use bakeoff_domain::ci::gate::Verdict;
use bakeoff_domain::ci::unmeasured::Unmeasured;
use bakeoff_domain::money::Usd;
use chrono::TimeDelta;
use futures::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::ci::triggers::{REPOSITORY, created, from_github, led_to, run_of, send, trigger};
use crate::money::budgets::used;
use crate::support::{TestApp, number, on_p5, problem};

pub(crate) const FIRST: &str = "4f2a9c1d7e55d3b0a8c6f4e2019b7d5c3a1f8e60";
pub(crate) const SECOND: &str = "b00b1e5d7e55d3b0a8c6f4e2019b7d5c3a1f8e61";
pub(crate) const THIRD: &str = "c0ffee5d7e55d3b0a8c6f4e2019b7d5c3a1f8e62";
pub(crate) const EXPERIMENTS: &str = "SELECT count(*) FROM experiments";

/// With a gate on main, whose commits are all measured.
pub(crate) fn template() -> Value {
    let mut spec = on_p5(1);
    spec["workload"]["image"] = json!(format!("{REPOSITORY}:${{ci.commit}}"));
    json!({"name": "nightly", "spec": spec, "settings": {"pull_requests": true, "gate": {
        "limits": [{"measure": "usd_per_million_tokens"}], "baseline_branch": "main"}}})
}

/// A push as GitHub tells it: what the branch was before, and where.
pub(crate) fn push(branch: &str, before: &str, commit: &str) -> Value {
    json!({"ref": format!("refs/heads/{branch}"), "before": before, "after": commit, "deleted": false,
        "repository": {"id": 7, "full_name": "acme/legal"}, "head_commit": {"id": commit}})
}

pub(crate) async fn pushed(test: &TestApp, own: &CiSecret, body: &Value) -> (StatusCode, Value) {
    from_github(test, own, "push", &body.to_string()).await
}

/// The run that an answer names.
pub(crate) fn run_in((status, answer): &(StatusCode, Value)) -> String {
    assert_eq!(*status, StatusCode::ACCEPTED, "{answer:#}");
    run_of(answer)
}

/// As `bakeoff gate` starts it.
pub(crate) async fn gated(test: &TestApp, own: &CiSecret, body: &Value) -> (StatusCode, Value) {
    test.post(&format!("/v1/ci-templates/{}/runs", own.id), body)
        .await
}

pub(crate) async fn read(test: &TestApp, id: &str) -> CiRunView {
    test.read(&format!("/v1/ci-runs/{id}")).await
}

pub(crate) async fn unmeasured(test: &TestApp, own: &CiSecret) -> Vec<CiNotMeasured> {
    let page: Page<CiNotMeasured> = test
        .read(&format!("/v1/ci-templates/{}/unmeasured", own.id))
        .await;
    page.items
}

/// In steps of ten minutes until there is a verdict.
pub(crate) async fn judged(test: &TestApp, id: &str) -> CiRunView {
    for _ in 0..200 {
        test.tick().await;
        let run = read(test, id).await;
        if run.verdict.is_some() {
            return run;
        }
        test.advance(TimeDelta::minutes(10)).await;
    }
    panic!("no verdict: {:#?}", read(test, id).await);
}

#[sqlx::test(migrations = false)]
async fn whoever_tells_of_a_commit_joins_its_run(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = created(&test, &template()).await;
    let first = run_in(&pushed(&test, &own, &push("main", SECOND, FIRST)).await);
    // The gate of the CI job, with and without the branch; the job once more; our signed form; GitLab; the pull request.
    let of_gate = [
        json!({"delivery_id": "1", "commit": FIRST, "branch": "main", "ref": "refs/heads/main"}),
        json!({"delivery_id": "2", "commit": FIRST}),
    ];
    let mut joined = Vec::new();
    for body in &of_gate {
        joined.push(gated(&test, &own, body).await);
    }
    let signed = json!({"delivery_id": "3", "commit": FIRST, "branch": "main"});
    joined.push(trigger(&test, &own, &signed).await);
    let of_gitlab = json!({"object_kind": "push", "ref": "refs/heads/main", "before": SECOND, "checkout_sha": FIRST,
        "project": {"id": 9, "path_with_namespace": "acme/legal"}});
    let headers = [("x-gitlab-token", own.secret.as_str())];
    joined.push(send(&test, &own.gitlab_path, &headers, &of_gitlab.to_string()).await);
    let repository = json!({"id": 7, "full_name": "acme/legal"});
    let request = json!({"action": "opened", "number": 12, "repository": repository, "pull_request": {
        "head": {"ref": "main", "sha": FIRST, "repo": {"id": 7}}, "base": {"repo": {"id": 7}}}});
    joined.push(from_github(&test, &own, "pull_request", &request.to_string()).await);
    for answer in &joined {
        assert_eq!(run_in(answer), first, "{answer:#?}");
        assert!(led_to(&answer.1).duplicate, "{answer:#?}");
    }
    assert_eq!(number(&pool, EXPERIMENTS).await, 1);
    // The verdict is the same one, also afterwards.
    let run = judged(&test, &first).await;
    let after = gated(&test, &own, &json!({"delivery_id": "4", "commit": FIRST})).await;
    assert_eq!(run_in(&after), run.id.to_string());
    // A delivery id that has joined counts once, too.
    let reused = gated(&test, &own, &json!({"delivery_id": "4", "commit": SECOND})).await;
    assert_eq!(reused.0, StatusCode::CONFLICT, "{:#}", reused.1);
    assert_eq!(number(&pool, EXPERIMENTS).await, 1);
}

#[sqlx::test(migrations = false)]
async fn a_repeat_says_so_and_is_shown_in_place_of_the_first(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = created(&test, &template()).await;
    let first = run_in(&pushed(&test, &own, &push("main", SECOND, FIRST)).await);
    let again = json!({"delivery_id": "1", "commit": FIRST, "branch": "main", "repeat": true});
    let second = run_in(&gated(&test, &own, &again).await);
    assert_ne!(first, second);
    // Told once more, it is the same repeat, and whoever tells of the commit now joins it.
    assert_eq!(run_in(&gated(&test, &own, &again).await), second);
    let third = gated(&test, &own, &json!({"delivery_id": "2", "commit": FIRST})).await;
    assert_eq!(run_in(&third), second);
    let earlier = read(&test, &first).await;
    assert_eq!(earlier.repeated_by.unwrap().to_string(), second);
    assert_eq!(number(&pool, EXPERIMENTS).await, 2);
    // Two at once are one.
    let bodies = ["3", "4"]
        .map(|id| json!({"delivery_id": id, "commit": FIRST, "branch": "main", "repeat": true}));
    let both = join_all(bodies.iter().map(|body| gated(&test, &own, body))).await;
    let runs: BTreeSet<String> = both.iter().map(run_in).collect();
    let started = number(&pool, EXPERIMENTS).await;
    assert_eq!(i64::try_from(runs.len()).unwrap() + 2, started);
    // What runs is another thing with other inputs, or after the template has changed.
    let mut changed = template();
    changed["spec"]["workload"]["hyperparameters"] = json!({"rate": "${ci.hyperparameters.rate}"});
    changed["settings"]["hyperparameters"] = json!({"rate": "1"});
    let path = format!("/v1/ci-templates/{}", own.id);
    let (status, answer) = test.put(&path, &changed).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let usual = gated(&test, &own, &json!({"delivery_id": "5", "commit": FIRST})).await;
    let same = json!({"delivery_id": "6", "commit": FIRST, "hyperparameters": {"rate": "1"}});
    let other = json!({"delivery_id": "7", "commit": FIRST, "hyperparameters": {"rate": "2"}});
    assert_eq!(
        run_in(&usual),
        run_in(&gated(&test, &own, &same).await),
        "said or by default"
    );
    assert_ne!(run_in(&usual), run_in(&gated(&test, &own, &other).await));
}

/// Fifty deliveries of ten commits, a third of them repeats, a tenth forged, by push, gate and signed form at once.
#[sqlx::test(migrations = false)]
async fn a_day_of_deliveries_is_one_experiment_a_commit(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = created(&test, &template()).await;
    let mut forger = own.clone();
    forger.secret = "0".repeat(64);
    let deliveries = (0..50_usize).map(|index| {
        let (test, own, forger) = (&test, &own, &forger);
        let commit = format!("{:040x}", 0xabc_0000 + index % 10);
        async move {
            let body = push("main", FIRST, &commit);
            let answer = match index / 10 {
                // Ten pushes, and each redelivered, byte by byte.
                0 | 1 => pushed(test, own, &body).await,
                2 => {
                    let body = json!({"delivery_id": format!("g{index}"), "commit": commit, "branch": "main"});
                    gated(test, own, &body).await
                }
                3 => {
                    let body = json!({"delivery_id": format!("s{}", index % 5), "commit": commit});
                    trigger(test, own, &body).await
                }
                _ if index % 2 == 0 => pushed(test, forger, &body).await,
                _ => {
                    let body = json!({"delivery_id": format!("r{index}"), "commit": commit, "ref": "refs/heads/main"});
                    gated(test, own, &body).await
                }
            };
            (commit, answer)
        }
    });
    let answers = join_all(deliveries).await;
    let mut runs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut counts: BTreeMap<StatusCode, usize> = BTreeMap::new();
    for (commit, (status, answer)) in &answers {
        *counts.entry(*status).or_default() += 1;
        if *status == StatusCode::ACCEPTED {
            let run = run_of(answer);
            runs.entry(commit.clone()).or_default().insert(run);
        }
    }
    assert_eq!(
        counts.get(&StatusCode::UNAUTHORIZED),
        Some(&5),
        "{counts:?}"
    );
    // A delivery id that comes with two commits is refused for the second, unless both joined runs at the same moment.
    let of = |status| counts.get(&status).copied().unwrap_or_default();
    let (refused, accepted) = (of(StatusCode::CONFLICT), of(StatusCode::ACCEPTED));
    assert!(refused <= 5 && refused + accepted == 45, "{counts:?}");
    assert_eq!(runs.len(), 10);
    assert!(runs.values().all(|ids| ids.len() == 1), "{runs:#?}");
    assert_eq!(number(&pool, EXPERIMENTS).await, 10);
    let each = "SELECT count(*) FROM (SELECT DISTINCT commit_sha FROM ci_runs) c";
    assert_eq!(number(&pool, each).await, 10);
    assert_eq!(number(&pool, "SELECT count(*) FROM ci_runs").await, 10);
}

/// Deliveries of a day: ten for each three commits. `BAKEOFF_CI_DAY=1000` tries a thousand.
fn deliveries_of_a_day() -> usize {
    let asked = std::env::var("BAKEOFF_CI_DAY").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(100)
}

/// Sends the delivery of that number; a forged one starts nothing and is not answered with a run.
async fn deliver_one(test: &TestApp, own: &CiSecret, forger: &CiSecret, number: usize) {
    let (ten, place) = (number / 10, number % 10);
    let commit = |nth: usize| format!("{:040x}", 0xabc_0000 + 3 * ten + nth);
    let told = |nth: usize| push("main", FIRST, &commit(nth));
    let asked = |nth: usize| json!({"delivery_id": format!("g{number}"), "commit": commit(nth), "branch": "main"});
    let (status, answer) = match place {
        // A push and the same once more, byte by byte, and `bakeoff gate`.
        0 | 1 => pushed(test, own, &told(0)).await,
        2 => gated(test, own, &asked(0)).await,
        // A push, `bakeoff gate`, and the same job of CI run again.
        3 => pushed(test, own, &told(1)).await,
        4 | 5 => gated(test, own, &asked(1)).await,
        6 | 7 => pushed(test, own, &told(2)).await,
        8 => trigger(test, own, &asked(2)).await,
        _ => pushed(test, forger, &push("main", FIRST, &commit(99))).await,
    };
    let expected = if place == 9 {
        StatusCode::UNAUTHORIZED
    } else {
        StatusCode::ACCEPTED
    };
    assert_eq!(status, expected, "{number}: {answer:#}");
}

/// A third of them repeats, a tenth forged, by push, gate and signed form at once: one run, one experiment and one bill a
/// commit, and what the template may spend in a day holds to the cent at every look.
#[sqlx::test(migrations = false)]
async fn a_ci_day_is_one_bill_a_commit_within_the_templates_budget(pool: PgPool) {
    const AT_ONCE: usize = 50;
    let cap = Usd(600.into());
    let test = TestApp::new(pool.clone()).await;
    let mut template = template();
    template["settings"] = json!({"supersede": false, "usd_per_day": cap});
    let own = created(&test, &template).await;
    let forger = CiSecret {
        secret: "0".repeat(64),
        ..own.clone()
    };
    let all = deliveries_of_a_day();
    for first in (0..all).step_by(AT_ONCE) {
        let wave = (first..all.min(first + AT_ONCE))
            .map(|number| deliver_one(&test, &own, &forger, number));
        join_all(wave).await;
        test.tick().await;
        let used = used(&test).await;
        assert!(used <= cap, "{used} after {first} deliveries");
        test.advance(TimeDelta::minutes(10)).await;
    }
    let commits = all / 10 * 3;
    let open = "SELECT count(*) FROM ci_runs WHERE verdict IS NULL";
    for _ in 0..60 {
        test.tick().await;
        let used = used(&test).await;
        assert!(used <= cap, "{used}");
        if number(&pool, open).await == 0 {
            break;
        }
        test.advance(TimeDelta::minutes(10)).await;
    }
    assert_eq!(number(&pool, open).await, 0, "a run has no verdict");
    let commits = i64::try_from(commits).unwrap();
    for counted in [
        "SELECT count(*) FROM ci_runs",
        "SELECT count(DISTINCT commit_sha) FROM ci_runs",
        EXPERIMENTS,
    ] {
        assert_eq!(number(&pool, counted).await, commits, "{counted}");
    }
    let (used, billed) = (used(&test).await.as_f64(), test.billed_usd().await);
    println!(
        "{all} deliveries of {commits} commits: ${billed:.2} billed, ${used:.2} booked, {cap} allowed"
    );
    assert!(
        billed > 0.0 && (billed - used).abs() < 0.01,
        "{billed} billed, {used} booked"
    );
}

/// A commit that comes to the baseline's branch after it was measured elsewhere is measured once, and counts there.
#[sqlx::test(migrations = false)]
async fn a_commit_of_two_branches_is_measured_once_and_counts_for_both(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = created(&test, &template()).await;
    let first = run_in(&pushed(&test, &own, &push("feature/x", SECOND, FIRST)).await);
    let run = judged(&test, &first).await;
    assert_eq!(run.verdict, Some(Verdict::Inconclusive), "{run:#?}");
    assert_eq!(run.accepted_at, None, "its branch is not the baseline's");
    let merged = pushed(&test, &own, &push("main", SECOND, FIRST)).await;
    assert_eq!(run_in(&merged), first);
    let run = read(&test, &first).await;
    assert_eq!(run.other_branches, ["main"]);
    assert_eq!(run.accepted_by.as_deref(), Some("rule"));
    assert_eq!(number(&pool, EXPERIMENTS).await, 1);
    // The next one is compared with it.
    let second = run_in(&pushed(&test, &own, &push("main", FIRST, SECOND)).await);
    let second = judged(&test, &second).await;
    assert_eq!(second.limits[0].baseline_trials, Some(1), "{second:#?}");
}

/// A run of another branch that a person has accepted is no baseline of main.
#[sqlx::test(migrations = false)]
async fn another_branch_is_no_baseline(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    let other = run_in(&pushed(&test, &own, &push("feature/x", SECOND, FIRST)).await);
    judged(&test, &other).await;
    let path = format!("/v1/ci-runs/{other}/acceptance");
    let (status, answer) = test.put(&path, &json!({"accepted": true})).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let main = run_in(&pushed(&test, &own, &push("main", THIRD, SECOND)).await);
    let main = judged(&test, &main).await;
    assert_eq!(main.limits[0].baseline_trials, Some(0), "{main:#?}");
    assert!(
        main.summary.contains("nothing to compare it with"),
        "{}",
        main.summary
    );
}

/// A template belongs to the repository of its first push, or to the one that it names.
#[sqlx::test(migrations = false)]
async fn another_repository_starts_nothing(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = created(&test, &template()).await;
    run_in(&pushed(&test, &own, &push("main", SECOND, FIRST)).await);
    let mut foreign = push("main", FIRST, SECOND);
    foreign["repository"] = json!({"id": 99, "full_name": "evil/legal"});
    let (status, answer) = pushed(&test, &own, &foreign).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let error = problem(answer).errors.remove(0);
    assert_eq!(error.pointer, "/repository");
    assert!(error.fix.contains("settings.repository"), "{error:#?}");
    let kept = unmeasured(&test, &own).await;
    assert_eq!(
        (kept[0].outcome, kept[0].commit.as_str()),
        (Unmeasured::Refused, SECOND)
    );
    // Renamed, it is the same; named by an admin, another one is.
    let mut renamed = push("main", FIRST, THIRD);
    renamed["repository"]["full_name"] = json!("acme/law");
    run_in(&pushed(&test, &own, &renamed).await);
    let mut stated = template();
    stated["settings"]["repository"] = json!("evil/legal");
    let path = format!("/v1/ci-templates/{}", own.id);
    assert_eq!(test.put(&path, &stated).await.0, StatusCode::OK);
    run_in(&pushed(&test, &own, &foreign).await);
    let (status, _) = pushed(&test, &own, &push("main", THIRD, &FIRST.replace('4', "6"))).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(number(&pool, EXPERIMENTS).await, 3);
}

/// Two repositories at once: one is bound.
#[sqlx::test(migrations = false)]
async fn of_two_repositories_at_once_one_is_bound(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = created(&test, &template()).await;
    let mut bodies = [push("main", THIRD, FIRST), push("main", THIRD, SECOND)];
    bodies[1]["repository"] = json!({"id": 99, "full_name": "evil/legal"});
    let both = join_all(bodies.iter().map(|body| pushed(&test, &own, body))).await;
    let taken = both.iter().filter(|one| one.0 == StatusCode::ACCEPTED);
    assert_eq!(taken.count(), 1, "{both:#?}");
    assert_eq!(number(&pool, EXPERIMENTS).await, 1);
}

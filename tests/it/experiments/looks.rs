//! How an answer grew: the looks that are kept while a race runs, the answers that it has had, and what lists say of it.

use bakeoff_api::decisions::DecisionView;
use bakeoff_api::experiments::{ExperimentFacets, ExperimentSummary, TrialCounts};
use bakeoff_api::looks::{AnswerVersion, RaceView};
use bakeoff_api::page::Page;
use bakeoff_api::trials::AttemptOfTrial;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::ranking::recommendation::Conclusion;
use bakeoff_service::auth::keys::Role;
use reqwest::{Method, StatusCode};
use serde_json::json;
use sqlx::PgPool;

use crate::experiments::race::raced;
use crate::support::{TestApp, number, spec};

async fn race(test: &TestApp, id: &str) -> RaceView {
    test.read(&format!("/v1/experiments/{id}/race")).await
}

async fn answers(test: &TestApp, id: &str) -> Vec<AnswerVersion> {
    test.page(&format!("/v1/experiments/{id}/recommendations"))
        .await
}

async fn row(test: &TestApp, id: &str) -> ExperimentSummary {
    let rows: Vec<ExperimentSummary> = test.page("/v1/experiments").await;
    let mut rows = rows.into_iter().filter(|row| row.id.to_string() == id);
    rows.next().unwrap()
}

#[sqlx::test(migrations = false)]
async fn a_race_is_told_look_by_look_and_ends_with_the_answer(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&raced("race")).await;
    test.tick().await;
    let begun = row(&test, &id).await;
    assert_eq!(
        begun.answer.map(|answer| (answer.conclusion, answer.first)),
        Some((Conclusion::NotEnoughEvidence, None))
    );
    test.run_to_end(&id, 24).await;
    let answer: DecisionView = test
        .read(&format!("/v1/experiments/{id}/recommendation"))
        .await;
    let race = race(&test, &id).await;
    let spent: Vec<Usd> = race.looks.iter().map(|look| look.spent_usd).collect();
    assert!(spent.len() > 5, "{spent:?}");
    assert!(spent.is_sorted(), "{spent:?}");
    let last = race.looks.last().unwrap();
    let of_looks: Vec<_> = last.arms.iter().map(|arm| arm.trial_id).collect();
    let of_answer: Vec<_> = answer.ranked.iter().map(|row| row.trial_id).collect();
    assert_eq!(of_looks, of_answer);
    let arm = &last.arms[0];
    let odds = answer.ranked[0].odds.as_ref().unwrap();
    assert_eq!(arm.projected_cost_usd, answer.ranked[0].projected_cost_usd);
    assert_eq!(
        (arm.cost_usd_90, arm.p_best),
        (
            Some([odds.cost_usd_low, odds.cost_usd_high]),
            Some(odds.p_best)
        )
    );
    for racer in &race.trials {
        assert_eq!(racer.state, TrialState::Stopped, "{racer:?}");
        assert!(
            racer.reason.is_some() && racer.ended_at.is_some(),
            "{racer:?}"
        );
    }
    let all: Usd = race.trials.iter().map(|racer| racer.usd).sum();
    assert_eq!(all, last.spent_usd);
}

#[sqlx::test(migrations = false)]
async fn each_answer_says_what_changed_and_the_last_is_the_one_that_stands(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&raced("race")).await;
    test.run_to_end(&id, 24).await;
    let answers = answers(&test, &id).await;
    let answer: DecisionView = test
        .read(&format!("/v1/experiments/{id}/recommendation"))
        .await;
    assert!(answers.len() >= 3, "{}", answers.len());
    assert!(answers[0].changes.is_empty());
    for later in &answers[1..] {
        assert!(!later.changes.is_empty(), "{later:?}");
    }
    let said = answers.iter().flat_map(|one| &one.changes);
    let said: Vec<&String> = said.collect();
    assert!(
        said.iter().any(|text| text.contains(" is measured: $")),
        "{said:?}"
    );
    assert!(
        answers
            .last()
            .unwrap()
            .changes
            .iter()
            .any(|text| text.contains("final")),
        "{said:?}"
    );
    assert_eq!(answers.last().unwrap().recommendation, answer);
}

#[sqlx::test(migrations = false)]
async fn an_experiment_that_runs_in_full_is_looked_at_too(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&raced("full")).await;
    test.run_to_end(&id, 24).await;
    assert!(race(&test, &id).await.looks.len() > 5);
    let states = test.comparison(&id).await.rows;
    assert!(
        states.iter().all(|row| row.state == TrialState::Completed),
        "nothing is stopped: {states:?}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_list_says_how_far_each_is_what_it_cost_and_what_it_says(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    let fresh = row(&test, &id).await;
    let whole = test.experiment(&id).await;
    assert_eq!(
        fresh.trials,
        TrialCounts {
            waiting: 2,
            ..TrialCounts::default()
        }
    );
    assert!(
        fresh.answer.is_none() && fresh.workload.ends_with(" v1"),
        "{fresh:?}"
    );
    assert_eq!(fresh.creator.as_deref(), Some("test"));
    test.run_to_end(&id, 24).await;
    let done = row(&test, &id).await;
    assert_eq!(done.state, ExperimentState::Completed);
    assert_eq!(done.trials.completed, 2);
    assert_eq!(done.settled_usd, test.experiment(&id).await.settled_usd);
    assert_eq!(done.created_by, whole.created_by);
    let answer: DecisionView = test
        .read(&format!("/v1/experiments/{id}/recommendation"))
        .await;
    let brief = done.answer.unwrap();
    assert_eq!(
        (brief.conclusion, &brief.headline),
        (answer.conclusion, &answer.headline)
    );
    let candidates = [brief.first, brief.runner_up].map(|one| one.unwrap().candidate);
    assert_eq!(
        candidates.each_ref(),
        [&answer.ranked[0].candidate, &answer.ranked[1].candidate]
    );
    // One that was concluded before answers were kept in brief says the same.
    sqlx::query("UPDATE experiments SET answer_brief = NULL")
        .execute(&pool)
        .await
        .unwrap();
    let old = row(&test, &id).await.answer.unwrap();
    assert_eq!(old.headline, answer.headline);
}

#[sqlx::test(migrations = false)]
async fn facets_count_what_the_filters_find(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let editor = test.key(test.project, Role::Editor).await;
    test.start(&spec()).await;
    let id = test.start(&spec()).await;
    let by_editor = test.request(Method::POST, "/v1/experiments", &editor);
    let mut other = spec();
    other["workload"]["name"] = json!("another");
    let (status, _) = test.send(by_editor.json(&other)).await;
    assert_eq!(status, StatusCode::CREATED);
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_until_ended(&id, 2).await;
    let facets: ExperimentFacets = test.read("/v1/experiments/facets").await;
    let states: Vec<_> = facets
        .states
        .iter()
        .map(|one| (one.state, one.count))
        .collect();
    assert_eq!(
        states.iter().map(|(_, count)| count).sum::<i64>(),
        3,
        "{states:?}"
    );
    let mut creators: Vec<i64> = facets.creators.iter().map(|one| one.count).collect();
    creators.sort_unstable();
    assert_eq!(creators, [1, 2]);
    for facet in facets.creators {
        let path = format!("/v1/experiments?created_by={}", facet.value);
        let found: Page<ExperimentSummary> = test.read(&path).await;
        assert_eq!(i64::try_from(found.items.len()), Ok(facet.count));
    }
    for facet in facets.workloads {
        let path = format!("/v1/experiments?workload={}", facet.value);
        let found: Page<ExperimentSummary> = test.read(&path).await;
        assert_eq!(i64::try_from(found.items.len()), Ok(facet.count), "{path}");
    }
}

#[sqlx::test(migrations = false)]
async fn the_attempts_of_an_experiment_come_in_one_answer(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 24).await;
    let attempts: Vec<AttemptOfTrial> = test.page(&format!("/v1/experiments/{id}/attempts")).await;
    let trials = test.trials(&id).await;
    let one_by_one: Vec<String> = trials
        .iter()
        .flat_map(|trial| {
            trial
                .attempts
                .iter()
                .map(|attempt| attempt.job_name.clone())
        })
        .collect();
    let at_once: Vec<String> = attempts
        .iter()
        .map(|one| one.attempt.job_name.clone())
        .collect();
    assert_eq!(at_once, one_by_one);
    assert!(
        attempts
            .iter()
            .all(|one| !one.attempt.transitions.is_empty())
    );
}

#[sqlx::test(migrations = false)]
async fn what_was_deleted_keeps_no_looks_after_its_purge(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 24).await;
    let looks = "SELECT count(*) FROM race_looks";
    assert!(number(&pool, looks).await > 0);
    test.delete(&format!("/v1/experiments/{id}")).await;
    let experiment = id.parse().unwrap();
    assert!(
        test.app
            .store
            .purge(experiment, test.app.clock.now())
            .await
            .unwrap()
    );
    assert_eq!(number(&pool, looks).await, 0);
}

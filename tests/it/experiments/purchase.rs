//! What is bought of an answer without a person, and what waits for one: pipelines' full runs, their budgets, and a
//! target loss that a trial has reached.

use std::process::Command;

use bakeoff_api::decisions::RecommendationView;
use bakeoff_api::events::EventView;
use bakeoff_api::experiments::CreatedExperiment;
use bakeoff_api::full_runs::FullRunPreview;
use bakeoff_api::page::Page;
use bakeoff_api::pipelines::PipelineView;
use bakeoff_domain::event::EventSeverity;
use bakeoff_domain::ids::TrialId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::pipeline::{PipelineState, StepState};
use bakeoff_domain::ranking::recommendation::Conclusion;
use bakeoff_service::auth::keys::Role;
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::pipelines::steps::{assert_billed, pipeline, run, run_until, started, step, turn};
use crate::support::{TestApp, jobs, problem, spec};

/// p4de and p5, of which p5 is far cheaper; with a place for checkpoints.
fn compared() -> Value {
    let mut spec = spec();
    spec["checkpoint"] = json!({"s3_uri": "s3://tests/checkpoints", "interval_seconds": 1800});
    spec["workload"]["trial_tokens"] = json!(300_000_000);
    spec["workload"]["total_tokens"] = json!(1_200_000_000);
    spec
}

/// A comparison, and the full run of its winner as it is written in the examples.
#[expect(
    clippy::needless_pass_by_value,
    reason = "it becomes a part of the pipeline"
)]
fn compare_and_train(compare: Value) -> Value {
    let train = json!({"experiment_id": "${compare.experiment_id}", "candidate": "${compare.winner.candidate}",
        "purchase_option": "${compare.winner.purchase_option}", "budget_usd": 3000});
    pipeline(
        &json!([{"name": "compare", "experiment": compare}, {"name": "train", "full_run": train}]),
    )
}

async fn read(test: &TestApp, id: &str) -> PipelineView {
    test.read(&format!("/v1/pipelines/{id}")).await
}

async fn asked(test: &TestApp) -> Vec<EventView> {
    let events: Page<EventView> = test.read("/v1/events?page_size=500").await;
    let waiting = events.items.into_iter();
    waiting
        .filter(|event| event.kind == "purchase.waiting")
        .collect()
}

/// p5 has no quota, so that the comparison ends with p4de alone, of which its own answer says that it is hardly the best.
async fn waiting(test: &TestApp) -> String {
    let id = started(test, &compare_and_train(compared())).await;
    run_until(test, &id, "compare", StepState::Completed).await;
    for _ in 0..5 {
        test.advance(TimeDelta::minutes(5)).await;
        turn(test).await;
    }
    id
}

#[sqlx::test(migrations = false)]
async fn a_pipeline_buys_nothing_of_a_provisional_answer(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota-of", "ml.p5.48xlarge=0"]).await;
    let id = waiting(&test).await;
    let view = read(&test, &id).await;
    let compare = step(&view, "compare").experiment_id.unwrap();
    let answer: RecommendationView = test
        .read(&format!("/v1/experiments/{compare}/recommendation"))
        .await;
    let answer = answer.recommendation;
    let p_best = answer.ranked[0].odds.as_ref().unwrap().p_best;
    assert!(answer.provisional && p_best < 0.1, "{p_best}");
    let train = step(&view, "train");
    let reason = train.reason.clone().unwrap();
    assert_eq!(
        (train.state, train.settled_usd + train.reserved_usd),
        (StepState::Waiting, Usd::ZERO),
        "{train:#?}"
    );
    assert_eq!(train.needs, ["compare"]);
    let question = train.question.as_ref().unwrap();
    assert_eq!(
        Some(question.experiment_id),
        step(&view, "compare").experiment_id
    );
    assert!(step(&view, "compare").question.is_none());
    assert!(
        reason.contains("waits for a person") && reason.contains("provisional"),
        "{reason}"
    );
    println!(
        "spent {} of {}: P(best) = {p_best:.2}",
        view.settled_usd, view.budget_usd
    );
    // It is told once, as an alarm with a way out.
    let told = asked(&test).await;
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(told[0].severity, EventSeverity::Alarm);
    assert!(
        told[0]
            .way_out
            .as_ref()
            .unwrap()
            .contains("pipelines approve"),
        "{told:#?}"
    );
    // The other door says the same.
    let place = format!("/v1/experiments/{compare}/full-run");
    let (status, answer) = test.post(&place, &json!({"budget_usd": 3000})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    assert_eq!(problem(answer).errors[0].pointer, "/candidate");

    // A person decides, and only one who may.
    let approve = format!("/v1/pipelines/{id}/steps/train/approve");
    let viewer = test.key(test.project, Role::Viewer).await;
    let foreign = test.key(test.other_project().await, Role::Admin).await;
    let wanted = json!({"candidate": "p4de"});
    for (key, expected) in [
        (viewer, StatusCode::FORBIDDEN),
        (foreign, StatusCode::NOT_FOUND),
    ] {
        let request = test.request(Method::POST, &approve, &key).json(&wanted);
        assert_eq!(test.send(request).await.0, expected);
    }
    let (status, answer) = test.post(&approve, &json!({"candidate": "p5"})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let (status, answer) = test
        .post(
            &format!("/v1/pipelines/{id}/steps/compare/approve"),
            &wanted,
        )
        .await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "no_purchase_waits")
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_bakeoff"));
    command
        .args(["pipelines", "approve", &id, "train", "--candidate", "p4de"])
        .args(["--url", &test.url, "--api-key", &test.admin]);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let decided = read(&test, &id).await;
    assert!(step(&decided, "train").question.is_none());
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    assert!(step(&view, "train").settled_usd > Usd::ZERO);
    assert_eq!(asked(&test).await.len(), 1);
    assert_billed(&test).await;
}

/// A refusal ends the step; a resumed pipeline asks again, and does not wait for ever.
#[sqlx::test(migrations = false)]
async fn a_refused_purchase_ends_its_step_and_is_asked_again_when_resumed(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota-of", "ml.p5.48xlarge=0"]).await;
    let id = waiting(&test).await;
    let refuse = format!("/v1/pipelines/{id}/steps/train/refuse");
    let (status, view) = test.post(&refuse, &json!({"reason": "too dear"})).await;
    assert_eq!(status, StatusCode::OK, "{view:#}");
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Failed);
    let reason = step(&view, "train").reason.clone().unwrap();
    assert!(reason.contains("too dear"), "{reason}");
    let (status, _) = test
        .post(&format!("/v1/pipelines/{id}/resume"), &json!({}))
        .await;
    assert_eq!(status, StatusCode::OK);
    turn(&test).await;
    assert_eq!(asked(&test).await.len(), 2);
    test.advance(TimeDelta::days(7)).await;
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Failed);
    let reason = step(&view, "train").reason.clone().unwrap();
    assert!(reason.contains("within 7 days"), "{reason}");
    assert_eq!(step(&view, "train").settled_usd, Usd::ZERO);
    assert_billed(&test).await;
}

/// The same comparison with every quota: clear, so that it is bought at once; one candidate alone only leads, and is
/// bought where the spec says so.
#[sqlx::test(migrations = false)]
async fn a_clear_answer_is_bought_and_a_leading_one_where_the_spec_says_so(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let view = run(&test, &started(&test, &compare_and_train(compared())).await).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    assert_eq!(asked(&test).await.len(), 0);

    let mut alone = compared();
    alone["candidates"].as_array_mut().unwrap().remove(0);
    let mut body = compare_and_train(alone);
    let id = started(&test, &body).await;
    run_until(&test, &id, "compare", StepState::Completed).await;
    turn(&test).await;
    let view = read(&test, &id).await;
    let train = step(&view, "train");
    assert_eq!(train.state, StepState::Waiting);
    assert!(train.question.is_some(), "{train:#?}");
    test.post(&format!("/v1/pipelines/{id}/cancel"), &json!({}))
        .await;
    let view = run(&test, &id).await;
    // Of a pipeline that is over, nobody is asked any more.
    assert!(step(&view, "train").question.is_none(), "{view:#?}");

    body["steps"][1]["if"] = json!({"at_least": 0.6});
    let view = run(&test, &started(&test, &body).await).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    assert_eq!(asked(&test).await.len(), 1);

    body["steps"][1]["if"] = json!({"at_least": 6});
    body["steps"][0]["if"] = json!({"at_least": 0.5});
    let (status, answer) = test.post("/v1/pipelines", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let errors = problem(answer).errors;
    assert_eq!(
        [errors[0].pointer.as_str(), errors[1].pointer.as_str()],
        ["/steps/0/if", "/steps/1/if/at_least"]
    );
}

/// Each candidate's worst case is known when the pipeline is created; a price that rises later is what resume is for.
#[sqlx::test(migrations = false)]
async fn a_step_budget_is_checked_before_the_comparison_and_can_be_raised(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut body = compare_and_train(compared());
    body["steps"][1]["full_run"]["budget_usd"] = json!(400);
    let (status, answer) = test.post("/v1/pipelines", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let error = &problem(answer).errors[0];
    assert_eq!(error.pointer, "/steps/1/full_run/budget_usd");
    let detail = &error.detail;
    println!("{detail}; {}", error.fix);
    assert!(
        detail.contains("p4de") && detail.contains("may cost $") && detail.contains("is $400"),
        "{detail}"
    );
    let least = error.fix.split("at least ").nth(1).unwrap();
    let least: f64 = least.split([',', ' ']).next().unwrap().parse().unwrap();
    body["steps"][1]["full_run"]["budget_usd"] = json!(least);
    let id = started(&test, &body).await;
    run_until(&test, &id, "compare", StepState::Running).await;

    // Ten times the price, from the moment after the trials are over.
    let mut view = read(&test, &id).await;
    for _ in 0..600 {
        if step(&view, "compare").state == StepState::Completed {
            break;
        }
        test.tick().await;
        test.advance(TimeDelta::minutes(5)).await;
        let of = step(&view, "compare").experiment_id.unwrap();
        if test.experiment(&of.to_string()).await.ended_at.is_some() {
            for kind in ["ml.p5.48xlarge", "ml.p4de.24xlarge"] {
                let price = json!({"region": "us-east-1", "usd_per_hour": 800, "source": "contract",
                    "effective_from": test.app.clock.now(), "reason": "signed today"});
                let (status, answer) = test.put(&format!("/v1/prices/{kind}"), &price).await;
                assert!(status.is_success(), "{answer:#}");
            }
            test.tick().await;
            turn(&test).await;
        }
        view = read(&test, &id).await;
    }
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Failed, "{view:#?}");
    let reason = step(&view, "train").reason.clone().unwrap();
    assert!(reason.contains("budget_usd"), "{reason}");
    let resume = format!("/v1/pipelines/{id}/resume");
    let budgets = |usd: i64| json!({"budget_usd": 40_000, "step_budgets_usd": {"train": usd}});
    let (status, answer) = test.post(&resume, &budgets(500)).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let (status, answer) = test
        .post(&resume, &json!({"step_budgets_usd": {"trian": 9000}}))
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let wrong = &problem(answer).errors[0];
    assert_eq!(wrong.pointer, "/step_budgets_usd/trian");
    let (status, answer) = test.post(&resume, &budgets(35_000)).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    // The region bills at its own price.
    assert_eq!(step(&view, "train").budget_usd, Some(Usd(35_000.into())));
}

/// p5 alone reaches a validation loss of 2.7 long before its trial is over.
#[sqlx::test(migrations = false)]
async fn a_trial_that_has_reached_the_target_loss_is_the_answer(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut asked = compared();
    asked["stopping_policy"] = json!("race");
    asked["checkpoint"]["interval_seconds"] = json!(600);
    let metrics = asked["workload"]["metrics"].as_array_mut().unwrap();
    metrics.push(
        json!({"name": "eval", "regex": "eval_loss=([0-9.]+)", "meaning": "validation_loss"}),
    );
    let whole = test.start(&asked).await;
    test.run_to_end(&whole, 48).await;
    let without = test.experiment(&whole).await.settled_usd;
    asked["objective"]["target_loss"] = json!(2.9);
    let id = test.start(&asked).await;
    test.run_to_end(&id, 48).await;
    let spent = test.experiment(&id).await.settled_usd;
    let answer: RecommendationView = test
        .read(&format!("/v1/experiments/{id}/recommendation"))
        .await;
    let answer = answer.recommendation;
    println!(
        "{spent} against {without} without a target: {}",
        answer.headline
    );
    assert_eq!(answer.conclusion, Conclusion::Reached, "{answer:#?}");
    assert!(
        answer.headline.contains("Its model is "),
        "{}",
        answer.headline
    );
    assert!(spent < without, "{spent} {without}");
    let trials = test.trials(&id).await;
    let reasons: Vec<&str> = (trials.iter())
        .filter_map(|one| one.reason.as_deref())
        .collect();
    let stopped = reasons.join("; ");
    assert!(stopped.contains("reached validation loss 2.9"), "{stopped}");
    let of = answer.ranked[0].trial_id;
    assert!(of != TrialId(uuid::Uuid::nil()));

    // None is recommended; one that a person names ends at the loss.
    let place = format!("/v1/experiments/{id}/full-run");
    let (status, refused) = test.post(&place, &json!({"budget_usd": 3000})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{refused:#}");
    let name = &answer.ranked[0].candidate;
    let to_loss: FullRunPreview = test
        .read(&format!("{place}?candidate={name}&from_checkpoint=false"))
        .await;
    let of_whole =
        format!("/v1/experiments/{whole}/full-run?candidate={name}&from_checkpoint=false");
    let to_end: FullRunPreview = test.read(&of_whole).await;
    println!(
        "{} to the loss, {} for all tokens",
        to_loss.budget_usd, to_end.budget_usd
    );
    assert!(to_loss.budget_usd.0 * rust_decimal::Decimal::from(2) < to_end.budget_usd.0);
    let before = jobs(&test.record().await).len();
    let (status, run) = test
        .post(
            &place,
            &json!({"budget_usd": to_loss.budget_usd, "candidate": name, "from_checkpoint": false}),
        )
        .await;
    assert_eq!(status, StatusCode::CREATED, "{run:#}");
    let run: CreatedExperiment = serde_json::from_value(run).unwrap();
    let run = run.id.to_string();
    test.run_to_end(&run, 48).await;
    assert_eq!(jobs(&test.record().await).len(), before + 1);
    let after = test.recommendation(&run).await;
    println!("{}", after.recommendation.headline);
}

/// Two full runs of one comparison would write to the same checkpoints: the second waits, and the pipeline's other steps
/// do not wait with it.
#[sqlx::test(migrations = false)]
async fn a_second_full_run_of_an_answer_waits_for_the_first(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut body = compare_and_train(compared());
    let mut again = body["steps"][1].clone();
    again["name"] = json!("again");
    body["steps"].as_array_mut().unwrap().push(again);
    body["budget_usd"] = json!(10_000);
    let id = started(&test, &body).await;
    run_until(&test, &id, "train", StepState::Running).await;
    for _ in 0..3 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(1)).await;
    }
    let view = read(&test, &id).await;
    let again = step(&view, "again");
    assert_eq!(again.state, StepState::Waiting, "{view:#?}");
    let reason = again.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("another full run"), "{reason}");
}

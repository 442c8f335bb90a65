//! Before a dollar is spent: plans and the linter, over HTTP and on the command line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bakeoff_api::findings::{FindingView, LintView, RuleView};
use bakeoff_api::plans::{ForecastView, PreviewView};
use bakeoff_planner::lint::Kind;
use bakeoff_planner::predict::fit::Verdict;
use bakeoff_planner::preview::{CandidatePreview, Preview};
use bakeoff_service::auth::keys::Role;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, on_p5, problem, spec};

fn document(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/documents")
        .join(name)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Of the candidate at a place.
fn forecast(plan: &PreviewView, place: usize) -> &ForecastView {
    plan.candidates[place].plan.forecast.as_ref().unwrap()
}

/// Tokens per second.
fn expected(plan: &PreviewView, place: usize) -> f64 {
    forecast(plan, place).tokens_per_second.expected
}

/// Of the interval of tokens per second, as a factor.
fn width(plan: &PreviewView, place: usize) -> f64 {
    let speed = &forecast(plan, place).tokens_per_second;
    speed.high / speed.low
}

async fn linted(test: &TestApp, query: &str, document: &Value) -> LintView {
    let (status, answer) = test.post(&format!("/v1/lint{query}"), document).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    serde_json::from_value(answer).unwrap()
}

#[sqlx::test(migrations = false)]
async fn a_plan_shows_what_a_start_would_reserve_and_writes_nothing(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let viewer = test.key(test.project, Role::Viewer).await;
    let (status, plan) = test
        .send(
            test.request(Method::POST, "/v1/plans", &viewer)
                .json(&spec()),
        )
        .await;
    assert_eq!(status, StatusCode::OK, "{plan:#}");
    let plan: PreviewView = serde_json::from_value(plan).unwrap();
    assert!(plan.would_start, "{plan:#?}");
    let written: i64 = sqlx::query_scalar("SELECT count(*) FROM experiments")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(written, 0);
    assert_eq!(plan.candidates.len(), 2);
    for candidate in &plan.candidates {
        let own = &candidate.plan;
        let forecast = own.forecast.as_ref().unwrap();
        let speed = &forecast.tokens_per_second;
        assert!(speed.low < speed.expected);
        let full_run = forecast.full_run_usd.as_ref().unwrap();
        assert!(full_run.low < full_run.high);
        assert_eq!(own.fit.as_ref().unwrap().verdict, Verdict::Fits);
        let advice = candidate.advice.as_ref().unwrap();
        assert_eq!(advice.fit.verdict, Verdict::Fits);
        let body = candidate.create_training_job.as_ref().unwrap();
        assert_eq!(body["ResourceConfig"]["InstanceType"], own.instance_type);
        assert!(!own.price.as_ref().unwrap().source.is_empty());
    }
    let id = test.start(&spec()).await;
    test.tick().await;
    let experiment = test.experiment(&id).await;
    assert_eq!(experiment.reserved_usd, plan.worst_case_usd);
}

#[sqlx::test(migrations = false)]
async fn a_plan_of_something_wrong_says_what_and_is_no_error(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut wrong = spec();
    wrong["budget_usd"] = json!(0);
    wrong["region"] = json!("eu-west-1");
    let (status, plan) = test.post("/v1/plans", &wrong).await;
    assert_eq!(status, StatusCode::OK, "{plan:#}");
    let plan: PreviewView = serde_json::from_value(plan).unwrap();
    assert!(!plan.would_start);
    let rules: Vec<&str> = (plan.findings.iter())
        .map(|one| one.rule.as_str())
        .collect();
    assert!(
        rules.contains(&"budget") && rules.contains(&"region-not-allowed"),
        "{rules:?}"
    );
    wrong["budget_us"] = json!(1);
    let (status, answer) = test.post("/v1/plans", &wrong).await;
    assert_eq!(
        (status, problem(answer).errors[0].pointer.as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "/budget_us")
    );
}

/// Two trials of an hour, of which the budget holds none, one, or both.
#[sqlx::test(migrations = false)]
async fn what_the_budget_can_never_reserve_is_refused_before_it_starts(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let plan: Preview = test.plan(&spec()).await;
    let mut costs: Vec<f64> = plan
        .candidates
        .iter()
        .map(|one| one.plan.worst_case.unwrap().total_usd.as_f64())
        .collect();
    costs.sort_by(f64::total_cmp);
    let mut asked = spec();
    let refused = |plan: &Preview| {
        plan.candidates
            .iter()
            .filter(|one| one.plan.refused)
            .count()
    };

    asked["budget_usd"] = json!(f64::midpoint(costs[0], costs[1]));
    let some: Preview = test.plan(&asked).await;
    assert_eq!((refused(&some), some.would_start), (1, true));

    asked["budget_usd"] = json!(costs[0] - 1.0);
    let none: Preview = test.plan(&asked).await;
    assert_eq!((refused(&none), none.would_start), (2, false));
    let (status, answer) = test.post("/v1/experiments", &asked).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let errors = problem(answer).errors;
    assert_eq!(errors.len(), 2);
    for error in errors {
        assert_eq!(error.pointer, "/budget_usd");
        let fix = error.fix;
        assert!(fix.contains("budget_usd to at least"), "{fix}");
    }

    asked["budget_usd"] = json!(costs[1]);
    let all: Preview = test.plan(&asked).await;
    assert_eq!((refused(&all), all.would_start), (0, true));
}

/// A quarter of an hour of minutes makes a figure; a trial of two minutes has none.
#[sqlx::test(migrations = false)]
async fn a_trial_too_short_to_be_measured_is_named_with_its_length(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut asked = spec();
    let found = |plan: &Preview| {
        plan.findings
            .iter()
            .filter(|one| one.rule == "trial-too-short")
            .map(|one| one.fix.clone())
            .collect::<Vec<String>>()
    };
    assert_eq!(found(&test.plan(&asked).await), Vec::<String>::new());
    asked["workload"]["trial_tokens"] = json!(5_000_000);
    let fixes = found(&test.plan(&asked).await);
    assert_eq!(fixes.len(), 2);
    // Who follows the fix has no such finding any more.
    let enough = fixes.iter().map(|fix| {
        let digits: String = fix.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap()
    });
    asked["workload"]["trial_tokens"] = json!(enough.max().unwrap());
    assert_eq!(found(&test.plan(&asked).await), Vec::<String>::new());
}

#[sqlx::test(migrations = false)]
async fn a_measured_run_moves_the_predictions_and_losers_are_named(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let profile = json!({"micro_batch_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_stage": 2,
        "activation_checkpointing": true});
    let mut asked = spec();
    let candidate =
        |name: &str, kind: &str| json!({"name": name, "instance_type": kind, "profile": profile});
    asked["candidates"] = json!([
        candidate("p4de", "ml.p4de.24xlarge"),
        candidate("p5", "ml.p5.48xlarge")
    ]);
    asked["objective"] = json!({"minimize": "time"});
    let before = test.plan_view(&asked).await;
    let losers = before
        .candidates
        .iter()
        .filter(|one| one.cannot_win.is_some());
    assert_eq!(losers.count(), 0, "twice as fast by the law is not certain");
    let mut eight = asked.clone();
    eight["budget_usd"] = json!(100_000);
    eight["candidates"][1]["instance_count"] = json!(8);
    eight["candidates"][1]["profile"]["gradient_accumulation_steps"] = json!(1);
    eight["candidates"][1]["profile"]["micro_batch_per_gpu"] = json!(1);
    let preview = test.plan(&eight).await;
    let reason = preview.candidates[0].cannot_win.as_ref().unwrap();
    assert!(
        reason.contains("best with P < 0.005") && reason.ends_with("of p5"),
        "{reason}"
    );
    assert_eq!(preview.candidates[1].cannot_win, None);
    let half = expected(&before, 0) * 0.8;
    asked["measurements"] = json!([{"instance_type": "ml.p4de.24xlarge", "profile": profile, "tokens_per_second": half,
        "source": "a trial of last week"}]);
    let after = test.plan_view(&asked).await;
    assert_eq!((before.candidates.len(), after.candidates.len()), (2, 2));
    let moved = [0, 1].map(|place| expected(&after, place) / expected(&before, place));
    assert!(
        (0.78..0.86).contains(&moved[0]),
        "the measured type: {moved:?}"
    );
    assert!((0.78..0.90).contains(&moved[1]), "the other: {moved:?}");
    assert!(forecast(&after, 0).is_rescaled);
    assert!(width(&after, 0) < width(&before, 0) && width(&after, 1) < width(&before, 1));
}

/// What this project has measured of a workload goes into its next plan by itself, and into no
/// other project's.
#[sqlx::test(migrations = false)]
async fn trials_that_have_run_teach_the_next_plan(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let before = test.plan_view(&spec()).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let after = test.plan_view(&spec()).await;
    let rows = test.comparison(&id).await.rows;
    for (place, row) in rows.iter().enumerate() {
        let measured = row.tokens_per_second.unwrap();
        let off = |plan: &PreviewView| (expected(plan, place) / measured).ln().abs();
        assert!(
            off(&after) < 0.08 && off(&after) < off(&before),
            "{place}: {} then {}",
            off(&before),
            off(&after)
        );
        assert!(forecast(&after, place).is_rescaled);
    }
    // Another version of the code may have another speed, but is no stranger.
    let mut other = spec();
    other["workload"]["code_version"] = json!("2");
    let other = test.plan_view(&other).await;
    let widths = [&after, &other, &before].map(|plan| width(plan, 0));
    assert!(
        widths.is_sorted() && widths[1] < 0.9 * widths[2],
        "{widths:?}"
    );
    assert!(widths[1] > 1.1 * widths[0], "{widths:?}");
    let said = forecast(&other, 0).basis.join("; ");
    assert!(said.contains("2 of other versions of the code"), "{said}");
    let stranger = test.other_project().await;
    let key = test.key(stranger, Role::Viewer).await;
    let (_, plan) = test
        .send(test.request(Method::POST, "/v1/plans", &key).json(&spec()))
        .await;
    let plan: PreviewView = serde_json::from_value(plan).unwrap();
    assert_eq!(forecast(&plan, 0), forecast(&before, 0));
}

/// Three starts say how long the next waits; two do not, and nothing is said of another type.
#[sqlx::test(migrations = false)]
async fn starts_that_have_waited_are_expected_to_wait_again(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let waits = async || {
        let plan = test.plan(&spec()).await;
        let of = |one: &CandidatePreview| one.plan.expected_wait;
        plan.candidates.iter().map(of).collect::<Vec<_>>()
    };
    for starts in [2, 1] {
        assert_eq!(waits().await, [None, None]);
        let id = test.start(&on_p5(starts)).await;
        test.run_to_end(&id, 24).await;
    }
    let found = waits().await;
    let wait = found[1].unwrap();
    assert!(found[0].is_none() && wait.starts == 3, "{found:?}");
    // The region takes minutes to start a job.
    assert!(wait.hours > 0.01 && wait.hours < 0.5, "{wait:?}");
}

#[sqlx::test(migrations = false)]
async fn documents_of_every_kind_are_checked_over_http(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for (name, kind) in [
        ("000-experiment.json", Kind::Experiment),
        ("000-estimator.json", Kind::Estimator),
        ("001-data-preparation.json", Kind::TrainingJob),
        ("003-run.json", Kind::Run),
    ] {
        let answer = linted(&test, "", &read(&document(name))).await;
        assert_eq!(answer.kind, kind, "{name}");
        assert_eq!(answer.passed, kind == Kind::Run, "{name}");
        assert!(answer.findings.iter().all(|one| !one.source.is_empty()));
    }
    let answer = linted(&test, "?fix=true", &read(&document("004-ddp.json"))).await;
    assert_eq!(
        answer.fixed.unwrap()["distribution"],
        json!({"torch_distributed": {"enabled": true}})
    );
    // What the user named keeps its name.
    let snake = json!({"resource_config": {}, "hyper_parameters": {"learning_rate": "1"}, "environment": {"NCCL_DEBUG": "INFO"}});
    let fixed = linted(&test, "?fix=true", &snake).await.fixed.unwrap();
    assert_eq!(fixed["HyperParameters"], json!({"learning_rate": "1"}));
    assert_eq!(fixed["Environment"], json!({"NCCL_DEBUG": "INFO"}));
    let profile = json!({"micro_batch_per_gpu": 0, "gradient_accumulation_steps": 1});
    let answer = linted(&test, "?kind=instance_profile", &profile).await;
    assert_eq!(answer.findings[0].pointer, "/micro_batch_per_gpu");
    let (status, answer) = test.post("/v1/lint", &json!({"what": "is this"})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let refused = problem(answer);
    assert!(refused.detail.contains("training_job"), "{refused:?}");
    let rules: Vec<RuleView> = test.page("/v1/lint/rules").await;
    assert!(rules.len() > 150);
}

/// The findings, which a plan and the linter both return.
#[derive(Debug, Deserialize)]
struct Checked {
    findings: Vec<FindingView>,
}

/// Bodies that would keep a careless linter busy for minutes are answered like any other.
#[sqlx::test(migrations = false)]
async fn what_is_beyond_all_bounds_is_refused_without_being_worked_through(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut many = spec();
    let candidate = many["candidates"][0].clone();
    let numbered = |index: i32| {
        let mut one = candidate.clone();
        one["name"] = json!(format!("c{index}"));
        one
    };
    many["candidates"] = (0..3000).map(numbered).collect();
    let mut huge = spec();
    huge["candidates"][0]["profile"]["micro_batch_per_gpu"] = json!(4_294_967_291_u32);
    huge["candidates"][1]["instance_type"] = json!("x".repeat(500_000));
    huge["workload"]["global_batch"] = json!(u64::MAX);
    for (asked, rule) in [(many, "candidate-count"), (huge, "profile-count")] {
        for path in ["/v1/plans", "/v1/lint?fix=true"] {
            let (status, answer) = test.post(path, &asked).await;
            assert_eq!(status, StatusCode::OK, "{path}");
            let checked: Checked = serde_json::from_value(answer).unwrap();
            assert!(
                checked.findings.iter().any(|one| one.rule == rule),
                "{path}: {rule}"
            );
        }
    }
}

fn bakeoff(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bakeoff"));
    // Neither needs a database, a service or AWS.
    command.args(arguments).env_clear().output().unwrap()
}

#[test]
fn the_command_line_checks_mends_and_plans_without_a_service() {
    let wrong = document("002-smddp.json");
    let output = bakeoff(&["lint", wrong.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        !output.status.success() && text.contains("[distribution-key]"),
        "{text}"
    );
    let copy = std::env::temp_dir().join(format!("bakeoff-lint-{}.json", std::process::id()));
    std::fs::copy(&wrong, &copy).unwrap();
    let output = bakeoff(&["lint", "--fix", copy.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("no findings, 1 fixed"),
        "{text}"
    );
    assert_eq!(read(&copy), read(&document("002-smddp.corrected.json")));
    std::fs::remove_file(&copy).unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hebrew-p4-p5.json");
    let output = bakeoff(&["plan", "--json", example.to_str().unwrap()]);
    // As the API answers.
    let plans: Vec<PreviewView> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && plans[0].would_start);
    assert!(plans[0].candidates[0].plan.request.is_some());
    let output = bakeoff(&["plan", example.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("cannot win") && text.contains("advice, by instance type"),
        "{text}"
    );
}

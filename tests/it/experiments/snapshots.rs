//! Snapshots of whole answers: what an experiment would do, and what a ranking says. A change in
//! them is reviewed as a diff (`INSTA_UPDATE=always cargo test snapshots::` writes them).

use std::fs;

use bakeoff_api::decisions::DecisionView;
use bakeoff_api::plans::PreviewView;
use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::ids::{PriceId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::measure::steady::Steady;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{Price, PriceStatus};
use bakeoff_domain::ranking::outcome::{Outcome, Pauses, Tokens};
use bakeoff_domain::ranking::recommend::recommend;
use bakeoff_domain::spec::{Minimize, ObjectiveSpec, PurchaseOption};
use chrono::DateTime;
use reqwest::StatusCode;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::clients::command_line::run;
use crate::support::{TestApp, scratch, spec};

/// Ids are drawn, and the last digits of a logarithm are the machine's.
fn stable(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(key, value)| match key.as_str() {
                    "id" => (key, json!("[id]")),
                    _ => (key, stable(value)),
                })
                .collect(),
        ),
        Value::Array(items) => items.into_iter().map(stable).collect(),
        Value::Number(number) if number.is_f64() => {
            let rounded = format!("{:.5e}", number.as_f64().unwrap_or_default());
            rounded.parse::<f64>().map_or(Value::Null, Value::from)
        }
        other => other,
    }
}

/// What a person sees of a plan; the service plans the same.
async fn planned(pool: PgPool, spec: &Value) -> String {
    let file = scratch("plan").join("experiment.json");
    fs::write(&file, spec.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let offline = run(&["plan", "--json", file], &[], "").await;
    let offline: Vec<PreviewView> = serde_json::from_str(&offline.out).unwrap();
    let test = TestApp::new(pool).await;
    let (status, plan) = test.post("/v1/plans", spec).await;
    assert_eq!(status, StatusCode::OK, "{plan}");
    // It is drawn with the database, and part of every job's name.
    let installation = test.app.store.installation().await.unwrap();
    let plan = plan.to_string();
    let masked = plan.replace(&installation, "offline");
    assert_ne!(masked, plan, "no job is named after the installation");
    let plan: PreviewView = serde_json::from_str(&masked).unwrap();
    assert_eq!(requests(&plan), requests(&offline[0]));
    assert_eq!(plan.would_start, offline[0].would_start);
    run(&["plan", file], &[], "").await.out
}

/// What SageMaker would be asked for, by candidate.
fn requests(plan: &PreviewView) -> Vec<Option<&Value>> {
    let candidates = plan.candidates.iter();
    candidates
        .map(|one| one.create_training_job.as_ref())
        .collect()
}

fn example(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[sqlx::test(migrations = false)]
async fn the_plan_of_the_cost_question(pool: PgPool) {
    let hebrew = example(include_str!("../../../examples/hebrew-p4-p5.json"));
    insta::assert_snapshot!(planned(pool, &hebrew).await);
}

#[sqlx::test(migrations = false)]
async fn the_plan_with_spot_and_a_candidate_that_cannot_run(pool: PgPool) {
    let legal = example(include_str!("../../../examples/legal-g5-spot.json"));
    insta::assert_snapshot!(planned(pool, &legal).await);
}

#[sqlx::test(migrations = false)]
async fn the_plan_of_what_would_not_start(pool: PgPool) {
    let mut wrong = spec();
    wrong["budget_usd"] = json!(-1);
    wrong["candidates"][0]["profile"]["zero_stage"] = json!(7);
    wrong["candidates"][1]["instance_type"] = json!("ml.p5.48xlrage");
    insta::assert_snapshot!(planned(pool, &wrong).await);
}

fn price(usd: i64, max: Option<i64>, status: PriceStatus) -> Price {
    Price {
        id: PriceId(uuid::Uuid::nil()),
        instance_type: "ml.x".to_owned(),
        region: "us-east-1".to_owned(),
        usd_per_hour: Usd(Decimal::from(usd)),
        usd_per_hour_max: max.map(|usd| Usd(Decimal::from(usd))),
        effective_from: DateTime::UNIX_EPOCH,
        source: "AWS Price List API".to_owned(),
        status,
        note: String::new(),
        confirmed_at: None,
    }
}

/// A trial that has completed at a speed known to 1 %.
fn completed(number: u128, candidate: &str, price: Price, tokens_per_second: f64) -> Outcome {
    Outcome {
        trial_id: TrialId(uuid::Uuid::from_u128(number)),
        candidate: candidate.to_owned(),
        instance_type: format!("ml.{candidate}.48xlarge"),
        instance_count: 1,
        purchase_option: PurchaseOption::OnDemand,
        state: TrialState::Completed,
        reason: None,
        released_at: None,
        refusals: Vec::new(),
        incomparable: None,
        price: Some(price),
        tokens_per_second: Some(Steady {
            mean: tokens_per_second,
            half_width: tokens_per_second / 100.0,
            points: 100,
            buckets: 20,
            buckets_dropped: 1,
            from_at: DateTime::UNIX_EPOCH,
            until_at: DateTime::UNIX_EPOCH,
        }),
        pauses: Pauses::Unknown,
        predicted: None,
        training_seconds: 3600,
        billable_seconds: 3600,
        wall_seconds: 4000,
        checkpoint_at: None,
        reached: None,
        cost_usd: Usd(100.into()),
        predicted_usd: None,
        expected_wait: None,
        overhead: None,
        tokens_done: None,
        intervals_divided_by: None,
    }
}

const TOKENS: Tokens = Tokens {
    trial: 100_000_000,
    total: 3_000_000_000,
    target: None,
};

fn decided(outcomes: &[Outcome], minimize: Minimize) -> Value {
    let objective = ObjectiveSpec {
        minimize,
        full_run_budget_usd: None,
        full_run_deadline_hours: None,
        target_loss: None,
    };
    let shown = DecisionView::from(recommend(outcomes, &objective, TOKENS));
    stable(serde_json::to_value(shown).unwrap())
}

fn different_batch() -> Finding {
    Finding {
        rule: "global-batch-differs".to_owned(),
        severity: Severity::Warning,
        pointer: "/candidates/2".to_owned(),
        message: "its global batch is 128, and the others' 64".to_owned(),
        fix: "use 4 accumulation steps".to_owned(),
        source: "Bakeoff".to_owned(),
        patch: Vec::new(),
        candidates: std::collections::BTreeSet::new(),
    }
}

#[test]
fn a_clear_decision_with_some_that_are_not_ranked() {
    let listed = |usd| price(usd, None, PriceStatus::Listed);
    let outcomes = [
        completed(1, "p4de", listed(28), 20_000.0),
        completed(2, "p5", listed(63), 60_000.0),
        Outcome {
            incomparable: Some(different_batch()),
            ..completed(3, "p5e", listed(70), 70_000.0)
        },
        Outcome {
            state: TrialState::Failed,
            reason: Some("CapacityError: no capacity within 72 hours".to_owned()),
            tokens_per_second: None,
            ..completed(4, "p5en", listed(80), 1.0)
        },
        Outcome {
            price: None,
            ..completed(5, "p6", listed(90), 90_000.0)
        },
    ];
    insta::assert_json_snapshot!(decided(&outcomes, Minimize::Cost));
}

#[test]
fn a_decision_that_an_estimated_price_leaves_open() {
    let outcomes = [
        completed(1, "p4de", price(28, None, PriceStatus::Listed), 20_000.0),
        completed(
            2,
            "p5",
            price(70, Some(98), PriceStatus::Estimated),
            60_000.0,
        ),
    ];
    insta::assert_json_snapshot!(decided(&outcomes, Minimize::Cost));
}

#[test]
fn no_decision_without_evidence() {
    let running = Outcome {
        state: TrialState::Running,
        tokens_per_second: None,
        ..completed(1, "p5", price(63, None, PriceStatus::Listed), 1.0)
    };
    insta::assert_json_snapshot!(decided(&[running], Minimize::Time));
}

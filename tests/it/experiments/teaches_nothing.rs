//! Runs that teach nothing end early, or raise an alarm; healthy ones do neither.

use bakeoff_api::decisions::RecommendationView;
use bakeoff_api::events::{EventData, EventView};
use bakeoff_api::page::Page;
use bakeoff_domain::event::EventSeverity;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, jobs, on_p5, spec};

/// Two types in a race, read by patterns in the style of a trainer that is not in use.
fn unread() -> Value {
    let mut spec = spec();
    spec["stopping_policy"] = json!("race");
    spec["workload"]["trial_tokens"] = json!(300_000_000);
    spec["workload"]["metrics"] = json!([
        {"name": "train:loss", "regex": "'loss': ([0-9.]+)", "meaning": "train_loss"},
        {"name": "train:samples", "regex": "'train_samples_per_second': ([0-9.]+)", "meaning": "samples_per_second"}]);
    spec
}

async fn told(test: &TestApp, kind: &str) -> Vec<EventView> {
    let events: Page<EventView> = test.read("/v1/events?page_size=500").await;
    let own = events.items.into_iter();
    own.filter(|event| event.kind == kind).collect()
}

async fn settled(test: &TestApp, id: &str) -> f64 {
    test.experiment(id).await.settled_usd.as_f64()
}

/// Nothing of what a healthy run does is a trouble.
async fn assert_no_trouble(test: &TestApp) {
    for kind in [
        "trial.no_readings",
        "trial.loss_not_finite",
        "trial.unit_doubtful",
        "trial.accelerators_idle",
    ] {
        assert_eq!(told(test, kind).await.len(), 0, "{kind}");
    }
}

/// The patch that the event proposes, applied to a document.
fn patched(spec: &Value, event: &EventView) -> Value {
    let Some(EventData::TrialNoReadings(none)) = &event.data else {
        panic!("{event:#?}");
    };
    let mut spec = spec.clone();
    for operation in &none.patch {
        let value = operation.value.clone().unwrap();
        match operation.path.strip_suffix("/-") {
            Some(list) => {
                let list = spec.pointer_mut(list).unwrap();
                list.as_array_mut().unwrap().push(value);
            }
            None => *spec.pointer_mut(&operation.path).unwrap() = value,
        }
    }
    spec
}

#[sqlx::test(migrations = false)]
async fn patterns_that_meet_no_line_stop_the_first_trial_and_hold_the_others(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut to_the_end = unread();
    to_the_end["no_readings"] = json!("alarm");
    let before = test.start(&to_the_end).await;
    test.run_to_end(&before, 48).await;
    assert_eq!(jobs(&test.record().await).len(), 2);
    let alarms = told(&test, "trial.no_readings").await;
    assert_eq!(alarms.len(), 2, "{alarms:#?}");
    assert_eq!(alarms[0].severity, EventSeverity::Alarm);

    let id = test.start(&unread()).await;
    test.run_to_end(&id, 48).await;
    assert_eq!(jobs(&test.record().await).len(), 3, "one trial ran");
    let (spent, would) = (settled(&test, &id).await, settled(&test, &before).await);
    println!("${spent:.2} instead of ${would:.2}");
    assert!(spent * 3.0 < would, "{spent} {would}");
    let alarms = told(&test, "trial.no_readings").await;
    assert_eq!(alarms.len(), 3);
    let alarm = alarms.last().unwrap();
    println!("{}", alarm.message);
    assert!(
        alarm
            .message
            .contains("'train_samples_per_second': ([0-9.]+)")
            && alarm.message.contains("samples_per_second="),
        "{}",
        alarm.message
    );
    let answer: RecommendationView = test
        .read(&format!("/v1/experiments/{id}/recommendation"))
        .await;
    let left_out = &answer.recommendation.not_ranked;
    assert!(
        left_out
            .iter()
            .any(|row| row.reason.contains("teaches nothing"))
            && left_out
                .iter()
                .any(|row| row.reason.contains("patterns met no line")),
        "{left_out:#?}"
    );

    // What it proposes is right.
    let mended = patched(&unread(), alarm);
    let id = test.start(&mended).await;
    test.run_to_end(&id, 48).await;
    let answer: RecommendationView = test
        .read(&format!("/v1/experiments/{id}/recommendation"))
        .await;
    assert!(
        !answer.recommendation.ranked.is_empty(),
        "{:#?}",
        answer.recommendation
    );
    assert_eq!(told(&test, "trial.no_readings").await.len(), 3);
}

#[sqlx::test(migrations = false)]
async fn a_loss_that_is_no_number_stops_its_trial(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut asked = spec();
    asked["workload"]["trial_tokens"] = json!(300_000_000);
    let metrics = asked["workload"]["metrics"].as_array_mut().unwrap();
    metrics
        .push(json!({"name": "loss", "regex": "(?:^|\\s)loss=([0-9.]+)", "meaning": "train_loss"}));
    let healthy = test.start(&asked).await;
    test.run_to_end(&healthy, 48).await;
    assert_no_trouble(&test).await;
    asked["workload"]["hyperparameters"] = json!({"diverges_at_step": "20"});
    let id = test.start(&asked).await;
    test.run_to_end(&id, 48).await;
    let alarms = told(&test, "trial.loss_not_finite").await;
    assert_eq!(alarms.len(), 2, "{alarms:#?}");
    assert!(
        alarms[0].message.contains("loss=NaN"),
        "{}",
        alarms[0].message
    );
    let (spent, would) = (settled(&test, &id).await, settled(&test, &healthy).await);
    println!("${spent:.2} instead of ${would:.2}");
    assert!(spent * 2.0 < would, "{spent} {would}");
}

#[sqlx::test(migrations = false)]
async fn samples_called_tokens_and_idle_accelerators_raise_an_alarm(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut asked = spec();
    asked["workload"]["trial_tokens"] = json!(200_000_000);
    asked["workload"]["hyperparameters"] = json!({"idles_after_step": "10"});
    asked["workload"]["metrics"] = json!([
        {"name": "tps", "regex": "samples_per_second=([0-9.]+)", "meaning": "tokens_per_second"}]);
    let id = test.start(&asked).await;
    test.run_to_end(&id, 48).await;
    let seen = test.get(&format!("/v1/experiments/{id}/trials")).await;
    assert!(
        !seen.to_string().contains("teaches nothing"),
        "none is stopped"
    );
    let units = told(&test, "trial.unit_doubtful").await;
    assert_eq!(units.len(), 2, "{units:#?}");
    println!("{}", units[0].message);
    assert!(
        units[0]
            .message
            .contains("samples per second, called tokens")
    );
    let idle = told(&test, "trial.accelerators_idle").await;
    assert_eq!(idle.len(), 2, "{idle:#?}");
    println!("{}", idle[0].message);
    assert!(idle[0].message.contains("an hour"));
}

/// Two repeats of one candidate: the first runs out of memory, and the second waits behind it for the quota.
#[sqlx::test(migrations = false)]
async fn a_twin_of_what_ran_out_of_memory_is_held(pool: PgPool) {
    let faults = [
        "--fails",
        "ml.p5.48xlarge=cuda-out-of-memory",
        "--quota-of",
        "ml.p5.48xlarge=1",
    ];
    let test = TestApp::with_faults(pool, &faults).await;
    test.tick().await;
    let id = test.start(&on_p5(2)).await;
    test.run_to_end(&id, 48).await;
    let record = test.record().await;
    let trained = jobs(&record);
    let failed = trained.iter().filter(|job| job["status"] == "Failed");
    assert_eq!(failed.count(), 1, "{trained:#?}");
    let seen = test.get(&format!("/v1/experiments/{id}/trials")).await;
    assert!(
        seen.to_string().contains("ran out of accelerator memory"),
        "{seen:#}"
    );
}

//! A loss that trials are to reach: a dip below it is no answer.

use bakeoff_domain::lifecycle::state::TrialState;
use chrono::TimeDelta;
use serde_json::json;
use sqlx::PgPool;

use crate::metrics::points::taken;
use crate::support::{TestApp, on_p5};

const ALL_TOKENS: Option<u64> = Some(3_000_000_000);

/// The last report of a trial that still runs is below the target, and the next is above it again. Taken for the answer,
/// it would have stopped all other trials.
#[sqlx::test(migrations = false)]
async fn a_loss_that_dips_below_the_target_has_not_reached_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut asked = on_p5(1);
    asked["objective"]["target_loss"] = json!(2.0);
    asked["workload"]["metrics"].as_array_mut().unwrap().push(
        json!({"name": "eval", "regex": "never_said=([0-9.]+)", "meaning": "validation_loss"}),
    );
    let id = test.start(&asked).await;
    for _ in 0..4 {
        test.tick().await;
        test.advance(TimeDelta::minutes(10)).await;
    }
    let trial = &test.trials(&id).await[0];
    assert_eq!(trial.state, TrialState::Running, "{trial:#?}");
    let path = format!("/v1/trials/{}/metrics", trial.id);
    let began = test.app.clock.now() - TimeDelta::minutes(40);
    let told = async |minute: i64, loss: f64| {
        let at = (began + TimeDelta::minutes(minute)).timestamp();
        let line = json!({"timestamp": at, "step": minute, "validation_loss": loss});
        taken(&test, &path, format!("{line}\n")).await;
        test.recommendation(&id).await.recommendation.ranked[0].projected_tokens
    };
    assert_eq!(told(10, 2.5).await, ALL_TOKENS);
    assert_eq!(
        told(16, 1.9).await,
        ALL_TOKENS,
        "a dip is taken for the end"
    );
    assert_eq!(told(22, 2.4).await, ALL_TOKENS);
    assert_eq!(told(28, 1.9).await, ALL_TOKENS);
    // It stays below.
    let reached = told(34, 1.8).await.unwrap();
    assert!(reached < 100_000_000, "{reached}");
}

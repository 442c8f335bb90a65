//! Lives of endpoints that are extended, each new end announced, and of those that wait for a person.

use bakeoff_domain::endpoint::EndpointState;
use chrono::TimeDelta;
use reqwest::StatusCode;
use serde_json::json;
use sqlx::PgPool;

use crate::endpoints::lives::{body, created, until};
use crate::pipelines::steps::turn;
use crate::support::{TestApp, number};

const ANNOUNCED: &str = "SELECT count(*) FROM events WHERE kind = 'endpoint.expiring'";

/// An extension gives an endpoint another end, and that is announced as the first one was.
#[sqlx::test(migrations = false)]
async fn each_new_end_is_announced(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    let path = format!("/v1/endpoints/{id}");
    for hours in [2, 3] {
        let told = number(&pool, ANNOUNCED).await;
        for _ in 0..60 {
            test.advance(TimeDelta::minutes(2)).await;
            turn(&test).await;
            if number(&pool, ANNOUNCED).await > told {
                break;
            }
        }
        assert_eq!(
            number(&pool, ANNOUNCED).await,
            told + 1,
            "before hour {hours}"
        );
        let longer = json!({"time_to_live_hours": hours, "budget_usd": 50});
        let (status, answer) = test.patch(&path, &longer).await;
        assert_eq!(status, StatusCode::OK, "{answer:#}");
    }
    until(&test, &id, EndpointState::Deleted).await;
    assert_eq!(number(&pool, ANNOUNCED).await, 3);
}

/// What waits for a permission goes on once that is given and somebody says so.
#[sqlx::test(migrations = false)]
async fn an_endpoint_that_waits_for_a_person_is_resumed(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let deny = |operations: &[&str]| json!({ "deny": operations });
    test.region_post("/_sim/setup", &deny(&["sagemaker:CreateEndpoint"]))
        .await;
    let id = created(&test, &body("one")).await;
    let parked = "SELECT count(*) FROM trials WHERE state = 'parked'";
    while number(&pool, parked).await == 0 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(1)).await;
    }
    test.region_post("/_sim/setup", &deny(&[])).await;
    let resume = format!("/v1/endpoints/{id}/resume");
    let (status, answer) = test.post(&resume, &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    until(&test, &id, EndpointState::InService).await;
    test.delete(&format!("/v1/endpoints/{id}")).await;
    until(&test, &id, EndpointState::Deleted).await;
    let (status, problem) = test.post(&resume, &json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem:#}");
}

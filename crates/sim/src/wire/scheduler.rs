//! EventBridge Scheduler, restJson1: `/schedules/{name}`.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{after, before, setup};
use crate::account::refusal::Refusal;
use crate::account::setup::denied;
use crate::jobs::model_packages::Call;
use crate::wire::rules;
use crate::world::World;
use crate::world::region::Region;
use crate::world::schedules::refused;

/// The service that assumes the roles of schedules.
const SCHEDULER: &str = "scheduler.amazonaws.com";

/// Create (POST), update (PUT), get and delete a schedule.
pub(super) async fn schedule(
    State(region): State<Region>,
    Path(name): Path<String>,
    method: Method,
    body: Bytes,
) -> Response {
    let fault = region.with(World::call_fault);
    if let Some(answer) = before(fault).await {
        return answer;
    }
    let operation = match method {
        Method::POST => "CreateSchedule",
        Method::PUT => "UpdateSchedule",
        Method::DELETE => "DeleteSchedule",
        _ => "GetSchedule",
    };
    let answer = match call(&region, operation, &name, &body) {
        Ok(value) => axum::Json(value).into_response(),
        Err(refusal) => told(&refusal),
    };
    after(fault, answer).await
}

fn call(region: &Region, operation: &str, name: &str, body: &[u8]) -> Result<Value, Refusal> {
    setup::authorized(region, "Scheduler", operation)?;
    let body: Value = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(body)
            .map_err(|error| refused("SerializationException", error.to_string()))?
    };
    region.with_time(|world, now| {
        if world.throttles(operation, now) {
            return Err(refused("ThrottlingException", "Rate exceeded".to_owned()));
        }
        if matches!(operation, "CreateSchedule" | "UpdateSchedule") {
            rules::role(world, &body["Target"]["RoleArn"])?;
            may_pass_role(world, &body)?;
        }
        let (account, own) = (world.account.clone(), world.region.clone());
        let call = Call {
            account: &account,
            region: &own,
            body: &body,
            now,
        };
        let before = world.schedules.count();
        let answer = match operation {
            "CreateSchedule" => world.schedules.create(name, call),
            "UpdateSchedule" => world.schedules.update(name, call),
            "DeleteSchedule" => world.schedules.delete(name, call),
            _ => world.schedules.get(name, call),
        };
        // The same create again changes nothing, and is answered.
        let changes = before != world.schedules.count() || operation == "UpdateSchedule";
        if answer.is_ok() && changes && world.loses_reply() {
            return Err(refused(
                "InternalServerException",
                "Unexpected error occurred".to_owned(),
            ));
        }
        answer
    })
}

/// Whether the caller may pass the role, and the scheduler assume it.
fn may_pass_role(world: &World, body: &Value) -> Result<(), Refusal> {
    let role = body["Target"]["RoleArn"].as_str().unwrap_or_default();
    if world.setup.denies("iam:PassRole") {
        return Err(denied(
            "iam:PassRole",
            &format!(
                "resource: {role} because no identity-based policy allows the iam:PassRole action"
            ),
        ));
    }
    if !world.setup.has_role() || world.setup.trusted_service(role) != SCHEDULER {
        return Err(refused(
            "ValidationException",
            "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
                .to_owned(),
        ));
    }
    Ok(())
}

fn told(refusal: &Refusal) -> Response {
    let status = match refusal.code {
        "ConflictException" => StatusCode::CONFLICT,
        "ResourceNotFoundException" => StatusCode::NOT_FOUND,
        "ThrottlingException" => StatusCode::TOO_MANY_REQUESTS,
        "AccessDeniedException" => StatusCode::FORBIDDEN,
        "InternalServerException" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    };
    let body = json!({ "Message": refusal.message });
    (
        status,
        [("x-amzn-errortype", refusal.code)],
        axum::Json(body),
    )
        .into_response()
}

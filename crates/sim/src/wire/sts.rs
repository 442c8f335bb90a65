//! STS: GetCallerIdentity in the AWS query protocol, and switching the account of callers'
//! credentials.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::{after, before};
use crate::region::Region;
use crate::world::World;

const OPERATION: &str = "GetCallerIdentity";

#[derive(Deserialize)]
pub(super) struct NewAccount {
    account: String,
}

/// Moves callers' credentials to another account, where earlier jobs do not exist.
pub(super) async fn set_account(
    State(region): State<Region>,
    axum::Json(new): axum::Json<NewAccount>,
) -> StatusCode {
    region.with(|world| world.account = new.account);
    StatusCode::NO_CONTENT
}

pub(super) async fn call(region: &Region, body: &Bytes) -> Response {
    let fault = region.with(World::call_fault);
    if let Some(answer) = before(fault).await {
        return answer;
    }
    let form = String::from_utf8_lossy(body);
    let is_known = form
        .split('&')
        .any(|pair| pair == format!("Action={OPERATION}"));
    let now = region.now();
    let (is_throttled, account) =
        region.with(|world| (world.throttles(OPERATION, now), world.account.clone()));
    let answer = if !is_known {
        error(
            StatusCode::BAD_REQUEST,
            "InvalidAction",
            "the simulated region does not know this operation",
        )
    } else if is_throttled {
        error(StatusCode::BAD_REQUEST, "Throttling", "Rate exceeded")
    } else {
        xml(
            StatusCode::OK,
            format!(
                "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><GetCallerIdentityResult>\
                 <Arn>arn:aws:sts::{account}:assumed-role/bakeoff/simulated</Arn><UserId>AROA:simulated</UserId>\
                 <Account>{account}</Account></GetCallerIdentityResult><ResponseMetadata><RequestId>simulated</RequestId>\
                 </ResponseMetadata></GetCallerIdentityResponse>"
            ),
        )
    };
    after(fault, answer).await
}

fn xml(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "text/xml")], body).into_response()
}

fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let body = format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type><Code>{code}</Code>\
         <Message>{message}</Message></Error><RequestId>simulated</RequestId></ErrorResponse>"
    );
    xml(status, body)
}

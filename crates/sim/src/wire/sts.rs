//! STS: GetCallerIdentity, and switching the account of callers' credentials.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use super::query;
use crate::world::region::Region;

pub(super) const OPERATION: &str = "GetCallerIdentity";

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

pub(super) fn caller(account: &str) -> Response {
    query::answer(
        OPERATION,
        "https://sts.amazonaws.com/doc/2011-06-15/",
        &format!(
            "<Arn>arn:aws:sts::{account}:assumed-role/bakeoff/simulated</Arn><UserId>AROA:simulated</UserId>\
             <Account>{account}</Account>"
        ),
    )
}

//! Corrections of an attempt's bill by hand: where SageMaker told nothing, an estimate is booked
//! until somebody knows better.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::ids::AttemptId;
use bakeoff_domain::money::Usd;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Admin;
use super::extract::{Id, Strict};
use super::problem::{FieldError, Problem, Problems};
use crate::app::App;
use crate::store::money::corrections::{BilledByHand, Corrected};

/// No job is billed for longer than its 28 days, the stop and the transfers; beyond, somebody has
/// given milliseconds.
const SECONDS_MAX: u64 = 30 * 86_400;

/// What AWS's bill says of an attempt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct NewCorrection {
    /// Seconds that one instance was billed, BillableTimeInSeconds.
    billable_seconds: u64,
    /// Where it is known from: kept in the event that tells of it.
    reason: String,
}

/// What a correction did.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct CorrectionView {
    attempt_id: AttemptId,
    /// What the attempt costs more than was booked; negative when less.
    adjusted_usd: Usd,
}

fn errors(new: &NewCorrection) -> Vec<FieldError> {
    let error = |pointer: &str, detail: &str, fix: &str| FieldError {
        pointer: pointer.to_owned(),
        detail: detail.to_owned(),
        fix: fix.to_owned(),
        rule: "correction".to_owned(),
    };
    let mut errors = Vec::new();
    if new.billable_seconds > SECONDS_MAX {
        errors.push(error(
            "/billable_seconds",
            "no job is billed for so long: SageMaker's longest is 28 days",
            "give the seconds of one instance",
        ));
    }
    if !(1..=500).contains(&new.reason.chars().count()) {
        errors.push(error(
            "/reason",
            "it is empty or longer than 500 characters",
            "say where the figure is from",
        ));
    }
    errors
}

/// Correct an attempt's bill
///
/// Bills a settled attempt for the seconds that AWS's bill has, in the place of what was booked: an
/// estimate, where the job had vanished or SageMaker gave no figure. The difference is a row of the
/// ledger, and an event says why.
#[utoipa::path(post, path = "/v1/attempts/{attempt_id}/corrections", operation_id = "correctAttempt", tag = "trials",
    params(("attempt_id" = AttemptId, Path)), request_body = NewCorrection,
    responses((status = 200, description = "What it changed", body = CorrectionView), Problems))]
pub(super) async fn correct(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(attempt): Id<AttemptId>,
    Strict(new): Strict<NewCorrection>,
) -> Result<Json<CorrectionView>, Problem> {
    let errors = errors(&new);
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let said = BilledByHand {
        project: caller.project,
        attempt,
        billable_seconds: new.billable_seconds,
        reason: &new.reason,
    };
    match app.store.correct_billing(said, app.clock.now()).await? {
        Corrected::By(adjusted_usd) => Ok(Json(CorrectionView {
            attempt_id: attempt,
            adjusted_usd,
        })),
        Corrected::Unknown => Err(Problem::not_found(format!(
            "there is no attempt {attempt} in this project"
        ))),
        Corrected::Followed => Err(Problem::conflict(
            "followed",
            "the job was found to run on after its attempt was over, and has been billed to its end as SageMaker told",
        )),
        Corrected::NotSettled => Err(Problem::conflict(
            "not_settled",
            "the attempt runs still, or never had instances: there is nothing to correct",
        )),
    }
}

//! Manual corrections of an attempt's bill: where SageMaker reported nothing, an estimate is booked
//! until the billed seconds are known.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::ids::JobId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::plumbing::auth::Admin;
use crate::plumbing::extract::{Id, Strict};
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::money::CorrectionView;
use bakeoff_service::app::App;
use bakeoff_store::money::corrections::{Corrected, CorrectedBill};

/// No job is billed for longer than its 28 days, the stop and the transfers; a larger value was
/// probably given in milliseconds.
const SECONDS_MAX: u64 = 30 * 86_400;

/// An attempt as it appears on AWS's bill.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct NewCorrection {
    /// Seconds billed for one instance, BillableTimeInSeconds.
    billable_seconds: u64,
    /// Source of the figure; kept in the event that records the correction.
    reason: String,
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
            "no job is billed for that long: SageMaker's limit is 28 days",
            "give the billable seconds of one instance",
        ));
    }
    if !(1..=500).contains(&new.reason.chars().count()) {
        errors.push(error(
            "/reason",
            "must have 1 to 500 characters",
            "say where the figure comes from",
        ));
    }
    errors
}

/// Correct a job's bill
///
/// Replaces the billable seconds booked for an attempt's settled job with those on AWS's bill, for example
/// if they were estimated because the job had vanished. The difference becomes a ledger entry, and
/// an event records the reason.
#[utoipa::path(post, path = "/v1/jobs/{job_id}/corrections", operation_id = "correctJob", tag = "trials",
    params(("job_id" = JobId, Path)), request_body = NewCorrection,
    responses((status = 200, description = "The adjustment", body = CorrectionView), Problems))]
pub(crate) async fn correct(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(attempt): Id<JobId>,
    Strict(new): Strict<NewCorrection>,
) -> Result<Json<CorrectionView>, Problem> {
    let errors = errors(&new);
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let said = CorrectedBill {
        project: caller.project,
        attempt,
        billable_seconds: new.billable_seconds,
        training_seconds: None,
        reason: &new.reason,
    };
    match app.store.correct_billing(said, app.clock.now()).await? {
        Corrected::By(adjusted_usd) => Ok(Json(CorrectionView {
            job_id: attempt,
            adjusted_usd,
        })),
        Corrected::Unknown => Err(Problem::not_found(format!(
            "there is no attempt {attempt} in this project"
        ))),
        Corrected::Followed => Err(Problem::conflict(
            "followed",
            "the job outlived its attempt, and is billed to its end as an orphaned job",
        )),
        Corrected::NotSettled => Err(Problem::conflict(
            "not_settled",
            "nothing to correct: the attempt is still running, or never had instances",
        )),
    }
}

//! The hard cap: reservations and settlements on the running totals of experiment and project,
//! inside the caller's transaction. Lock order everywhere: experiment, then project.

use bakeoff_domain::ids::{ExperimentId, ProjectId};
use bakeoff_domain::money::Usd;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::StoreError;
use crate::store::error::found_one;
use crate::store::events::{self, NewEvent};
use crate::store::money::ledger::Account;

/// Takes `amount` out of both budgets; false (and nothing taken that the caller's rollback would
/// not give back) when either has too little left, or the experiment is paused or over. The rows
/// are locked by their own UPDATE, so concurrent reservations take their turns and the cap holds in
/// every interleaving.
pub(crate) async fn reserve(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    project: ProjectId,
    amount: Usd,
) -> Result<bool, StoreError> {
    let within = sqlx::query!(
        r#"UPDATE experiments SET reserved_usd = reserved_usd + $2
           WHERE id = $1 AND state = 'running' AND paused_reason IS NULL
             AND reserved_usd + settled_usd + $2 <= budget_usd"#,
        experiment.0,
        amount.0,
    )
    .execute(&mut *tx)
    .await?;
    if within.rows_affected() == 0 {
        return Ok(false);
    }
    let within = sqlx::query!(
        r#"UPDATE projects SET reserved_usd = reserved_usd + $2
           WHERE id = $1 AND (budget_usd IS NULL OR reserved_usd + settled_usd + $2 <= budget_usd)"#,
        project.0,
        amount.0,
    )
    .execute(&mut *tx)
    .await?;
    Ok(within.rows_affected() == 1)
}

/// Something cost more than what was reserved for it: an alarm, and nothing more is started until a
/// person has looked.
pub(crate) async fn over_reservation(
    tx: &mut PgConnection,
    account: &Account,
    what: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let paused = sqlx::query!(
        "UPDATE experiments SET paused_reason = $2 WHERE id = $1",
        account.experiment_id.0,
        what
    )
    .execute(&mut *tx)
    .await?;
    found_one(&paused, "experiments", account.experiment_id)?;
    let event = NewEvent {
        project_id: account.project_id,
        experiment_id: account.experiment_id,
        trial_id: Some(account.trial_id),
        kind: "trial.over_reservation".to_owned(),
        severity: "alarm",
        message: what.to_owned(),
    };
    events::insert(tx, &event, now).await
}

/// Money was spent that was never reserved: if that passes the budget, nothing more is started.
pub(crate) async fn pause_when_overdrawn(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    job_name: &str,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"UPDATE experiments SET paused_reason = $2
           WHERE id = $1 AND reserved_usd + settled_usd > budget_usd AND paused_reason IS NULL"#,
        experiment.0,
        format!("{job_name} ran without a reservation, and the budget is overdrawn"),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Gives a reservation back and books what it really cost.
pub(crate) async fn settle(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    project: ProjectId,
    released: Usd,
    settled: Usd,
) -> Result<(), StoreError> {
    let booked = sqlx::query!(
        "UPDATE experiments SET reserved_usd = reserved_usd - $2, settled_usd = settled_usd + $3 WHERE id = $1",
        experiment.0,
        released.0,
        settled.0,
    )
    .execute(&mut *tx)
    .await?;
    found_one(&booked, "experiments", experiment)?;
    let booked = sqlx::query!(
        "UPDATE projects SET reserved_usd = reserved_usd - $2, settled_usd = settled_usd + $3 WHERE id = $1",
        project.0,
        released.0,
        settled.0,
    )
    .execute(&mut *tx)
    .await?;
    found_one(&booked, "projects", project)
}

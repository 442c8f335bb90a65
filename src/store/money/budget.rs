//! The hard budget cap: reservations and settlements change the running totals of experiment and
//! project inside the caller's transaction. Lock order everywhere: experiment, then project.

use bakeoff_domain::event::{Event, OverReservation};
use bakeoff_domain::ids::{ExperimentId, ProjectId};
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::Balance;
use sqlx::PgConnection;

use crate::store::error::found_one;
use crate::store::events::{EventSubject, NewEvent};
use crate::store::money::ledger::Account;
use crate::store::{Store, StoreError};

/// What an experiment of any kind may still spend, and whether it may.
#[derive(Debug, Clone)]
pub struct Means {
    pub state: ExperimentState,
    pub paused_reason: Option<String>,
    pub balance: Balance,
}

impl Store {
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn means(&self, experiment: ExperimentId) -> Result<Option<Means>, StoreError> {
        let row = sqlx::query!(
            "SELECT state, paused_reason, budget_usd, reserved_usd, settled_usd FROM experiments WHERE id = $1",
            experiment.0,
        )
        .fetch_optional(&self.pool)
        .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Means {
            state: ExperimentState::parse(&row.state)
                .ok_or_else(|| StoreError::corrupt("experiments", experiment, "state"))?,
            paused_reason: row.paused_reason,
            balance: Balance {
                budget_usd: Some(Usd(row.budget_usd)),
                reserved_usd: Usd(row.reserved_usd),
                settled_usd: Usd(row.settled_usd),
            },
        }))
    }
}

/// Reserves `amount` in both budgets. False when either has too little left, or when the experiment
/// is paused or over; the caller's rollback then undoes any partial change. Each UPDATE locks its
/// row, so concurrent reservations take turns and the cap holds in every interleaving.
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

/// Handles a cost above its reservation: pauses the experiment until a person has checked. Returns
/// the alarm.
pub(crate) async fn over_reservation(
    tx: &mut PgConnection,
    account: &Account,
    over: OverReservation,
) -> Result<NewEvent, StoreError> {
    let paused = sqlx::query!(
        "UPDATE experiments SET paused_reason = $2 WHERE id = $1",
        account.experiment_id.0,
        over.to_string()
    )
    .execute(&mut *tx)
    .await?;
    found_one(&paused, "experiments", account.experiment_id)?;
    Ok(EventSubject::from(account).told(Event::TrialOverReservation(over)))
}

/// Pauses the experiment if spending without a reservation has exceeded the budget.
pub(crate) async fn pause_when_overdrawn(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    job_name: &str,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"UPDATE experiments SET paused_reason = $2
           WHERE id = $1 AND reserved_usd + settled_usd > budget_usd AND paused_reason IS NULL"#,
        experiment.0,
        format!("{job_name} ran without a reservation and overdrew the budget"),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Releases a reservation and books the actual cost.
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

//! Reservations and settlements: they change the running totals of experiment, CI template and project inside the
//! caller's transaction. Whoever is asked before money is reserved is locked in one order: experiment, pipeline, CI
//! template, project, installation; [`bakeoff_domain::money::budget::decide`] says whether all of them allow it.

use bakeoff_domain::event::{Event, OverReservation};
use bakeoff_domain::ids::{ExperimentId, ProjectId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::{InstallationCaps, decide, month_of};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::StoreError;
use crate::account::Account;
use crate::error::found_one;
use crate::events::{EventSubject, NewEvent};
use crate::money::caps::{self, Ask, LockedCaps, NotReserved};

/// Reserves `amount` if every level allows it; returns the events to commit it with. Each row is locked until the
/// transaction ends, so concurrent reservations take turns and every limit holds in every interleaving. On a refusal
/// nothing was changed, but locks are held: roll back.
pub(crate) async fn reserve(
    tx: &mut PgConnection,
    installation: InstallationCaps,
    ask: Ask,
) -> Result<Result<Vec<NewEvent>, NotReserved>, StoreError> {
    let asked = match caps::ask(tx, installation, ask).await? {
        Ok(asked) => asked,
        Err(why) => return Ok(Err(why)),
    };
    if let Some(short) = decide(ask.amount, &asked.limits) {
        return Ok(Err(NotReserved::Short(short)));
    }
    hold(tx, &asked, ask).await?;
    caps::alarms(tx, &asked, ask).await.map(Ok)
}

/// Writes a reservation that was granted.
async fn hold(tx: &mut PgConnection, asked: &LockedCaps, ask: Ask) -> Result<(), StoreError> {
    let held = sqlx::query!(
        "UPDATE experiments SET reserved_usd = reserved_usd + $2 WHERE id = $1",
        ask.experiment.0,
        ask.amount.0,
    );
    found_one(
        &held.execute(&mut *tx).await?,
        "experiments",
        ask.experiment,
    )?;
    if let Some(template) = &asked.template {
        sqlx::query!(
            "UPDATE ci_templates SET reserved_usd = reserved_usd + $2 WHERE id = $1",
            template.id.0,
            ask.amount.0,
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            "UPDATE ci_rounds SET began_at = coalesce(began_at, $2) WHERE experiment_id = $1",
            ask.experiment.0,
            ask.at,
        )
        .execute(&mut *tx)
        .await?;
    }
    let held = sqlx::query!(
        "UPDATE projects SET reserved_usd = reserved_usd + $2 WHERE id = $1",
        ask.project.0,
        ask.amount.0,
    );
    found_one(&held.execute(tx).await?, "projects", ask.project)
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

/// A cost that is booked, with the reservation that it releases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Booking {
    pub(crate) experiment: ExperimentId,
    pub(crate) project: ProjectId,
    pub(crate) released: Usd,
    pub(crate) settled: Usd,
}

/// Releases a reservation and books the actual cost, in the day and the month in which that happens.
pub(crate) async fn settle(
    tx: &mut PgConnection,
    booking: Booking,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let Booking {
        experiment,
        project,
        released,
        settled,
    } = booking;
    let (day, month) = (now.date_naive(), month_of(now));
    let booked = sqlx::query!(
        "UPDATE experiments SET reserved_usd = reserved_usd - $2, settled_usd = settled_usd + $3 WHERE id = $1",
        experiment.0,
        released.0,
        settled.0,
    )
    .execute(&mut *tx)
    .await?;
    found_one(&booked, "experiments", experiment)?;
    // A clock that was set back books in the newest day and month that there are.
    sqlx::query!(
        r#"UPDATE ci_templates t
           SET reserved_usd = reserved_usd - $2,
               day_settled_usd = greatest(CASE WHEN day >= $4 THEN day_settled_usd ELSE 0 END + $3, 0),
               day = greatest(day, $4),
               month_settled_usd = greatest(CASE WHEN month >= $5 THEN month_settled_usd ELSE 0 END + $3, 0),
               month = greatest(month, $5)
           FROM ci_rounds o JOIN ci_runs r ON r.id = o.run_id
           WHERE o.experiment_id = $1 AND o.is_counted AND t.id = r.template_id"#,
        experiment.0,
        released.0,
        settled.0,
        day,
        month,
    )
    .execute(&mut *tx)
    .await?;
    let booked = sqlx::query!(
        r#"UPDATE projects
           SET reserved_usd = reserved_usd - $2, settled_usd = settled_usd + $3,
               month_settled_usd = greatest(CASE WHEN month >= $4 THEN month_settled_usd ELSE 0 END + $3, 0),
               month = greatest(month, $4)
           WHERE id = $1"#,
        project.0,
        released.0,
        settled.0,
        month,
    )
    .execute(&mut *tx)
    .await?;
    found_one(&booked, "projects", project)
}

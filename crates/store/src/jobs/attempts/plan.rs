//! A new attempt: its reservation, its row and its job's name, in one transaction before anything is sent to AWS.

use bakeoff_domain::event::{Event, PlannedAttempt};
use bakeoff_domain::ids::JobId;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::Price;
use bakeoff_domain::money::worst_case::WorstCase;
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{Due, Lease, advance, write_reservation};
use crate::account::Account;
use crate::events::{self, EventSubject, NewEvent};
use crate::experiments::trials::{Claimed, PlanColumns};
use crate::jobs::warm_pools;
use crate::money::budget;
use crate::money::caps::{Ask, NotReserved};
use crate::{Store, StoreError, retried};
use bakeoff_process::crash;

/// What became of a planned attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Planned {
    Done,
    /// The lease has passed to another scheduler: drop the work.
    Stale,
    /// Nothing was changed.
    NotReserved(NotReserved),
}

/// What a trial's next attempt asks for.
fn asked_for(trial: &Claimed, amount: Usd, at: DateTime<Utc>) -> Ask {
    Ask {
        experiment: trial.experiment_id,
        project: trial.project_id,
        amount,
        at,
    }
}

impl Store {
    /// Reserves the worst case and commits a new attempt with its job name, before anything is sent
    /// to AWS.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn plan_attempt(
        &self,
        trial: &Claimed,
        id: JobId,
        job_name: &str,
        plan: &TrialPlan,
        price: &Price,
        now: DateTime<Utc>,
    ) -> Result<Planned, StoreError> {
        let transaction = || async move {
            let Some(worst) = plan.worst_case else {
                return Ok(Planned::NotReserved(NotReserved::HeldBack(
                    "its worst case is not known".to_owned(),
                )));
            };
            let WorstCase {
                training_usd: training,
                metrics_usd: metrics,
                pool_usd: pool,
                total_usd: total,
                ..
            } = worst;
            let mut tx = self.pool.begin().await?;
            let reserved =
                budget::reserve(&mut tx, self.caps, asked_for(trial, total, now)).await?;
            let alarms = match reserved {
                Ok(alarms) => alarms,
                Err(why) => return Ok(Planned::NotReserved(why)),
            };
            let due = Due::at(now);
            if !advance(
                &mut tx,
                trial,
                TrialState::Submitting,
                due,
                Lease::Keep,
                now,
            )
            .await?
            {
                return Ok(Planned::Stale);
            }
            let number = count_attempt(&mut tx, trial, plan, price, &worst).await?;
            sqlx::query!(
                r#"INSERT INTO jobs (id, kind, region, account, project_id, experiment_id, trial_id, number, job_name, state,
                                     price_id, usd_per_hour, reserved_training_usd, reserved_metrics_usd, planned_at)
                   SELECT $1, t.job_kind, t.region, i.account, $2, $3, t.id, $5, $6, 'planned', $7, $8, $9, $10, $11
                   FROM trials t, installation i WHERE t.id = $4"#,
                id.0,
                trial.project_id.0,
                trial.experiment_id.0,
                trial.id.0,
                number,
                job_name,
                price.id.0,
                price.usd_per_hour.0,
                training.0,
                metrics.0,
                now,
            )
            .execute(&mut *tx)
            .await?;
            let account = Account {
                project_id: trial.project_id,
                experiment_id: trial.experiment_id,
                trial_id: trial.id,
                job_id: id,
                price_id: price.id,
            };
            write_reservation(&mut tx, trial, &account, &worst, now).await?;
            if pool > Usd::ZERO {
                warm_pools::reserve(&mut tx, &account, job_name, plan, pool, now).await?;
            }
            let planned = Event::TrialPlanned(PlannedAttempt {
                attempt: u32::try_from(number).unwrap_or(u32::MAX),
                job_name: job_name.to_owned(),
                reserved_usd: total,
            });
            crash::point("in_plan");
            let told = [EventSubject::from(trial).told(planned)];
            let told: Vec<NewEvent> = told.into_iter().chain(alarms).collect();
            events::commit(tx, &told, now).await?;
            Ok(Planned::Done)
        };
        let planned = retried(transaction).await?;
        if let Planned::NotReserved(NotReserved::Short(short)) = &planned {
            self.tell_used_up(short, asked_for(trial, short.needed, now))
                .await?;
        }
        Ok(planned)
    }
}

/// Counts the attempt, and stores the plan that it goes by; returns its number.
async fn count_attempt(
    tx: &mut PgConnection,
    trial: &Claimed,
    plan: &TrialPlan,
    price: &Price,
    worst: &WorstCase,
) -> Result<i32, StoreError> {
    let columns = PlanColumns::of(plan)?;
    let number = sqlx::query_scalar!(
        r#"UPDATE trials
           SET attempts_made = attempts_made + 1, plan = $2, price_id = $3, worst_case_training_usd = $4,
               worst_case_metrics_usd = $5, is_price_estimated = $6, volume_gb = $7, keep_alive_seconds = $8,
               checkpoint_s3_uri = $9, checkpoint_local_path = $10, checkpoint_interval_seconds = $11, metrics = $12,
               billed_seconds_max = $13
           WHERE id = $1 RETURNING attempts_made"#,
        trial.id.0,
        columns.plan,
        price.id.0,
        worst.training_usd.0,
        worst.metrics_usd.0,
        columns.is_price_estimated,
        columns.volume_gb,
        columns.keep_alive_seconds,
        columns.checkpoint_s3_uri,
        columns.checkpoint_local_path,
        columns.checkpoint_interval_seconds,
        columns.metrics,
        columns.billed_seconds_max,
    )
    .fetch_one(tx)
    .await?;
    Ok(number)
}

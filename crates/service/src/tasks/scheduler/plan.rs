//! Plans an attempt: its price, its worst case and its name, committed with the reservation before AWS is called.

use bakeoff_domain::ids::JobId;
use bakeoff_domain::lifecycle::decide::Look;
use bakeoff_domain::lifecycle::state::{AttemptPhase, TrialState};
use bakeoff_domain::money::price::{self, Price};
use bakeoff_domain::money::worst_case::{self, WorstCase};
use bakeoff_planner::render::attempt;
use chrono::{DateTime, Utc};

use super::claimed_trial::ClaimedTrial;
use super::{EARLIER_JOB, UNREADABLE};
use bakeoff_process::crash;
use bakeoff_process::ids;
use bakeoff_store::StoreError;
use bakeoff_store::experiments::trials::{Attempt, Claimed};
use bakeoff_store::jobs::attempts::Due;
use bakeoff_store::jobs::attempts::plan::Planned;
use bakeoff_store::money::caps::NotReserved;
use bakeoff_store::money::prices::PricesOf;

impl ClaimedTrial<'_> {
    /// Plans an attempt with the current price and worst case: a trial may have waited long, and a
    /// retry may come days later.
    pub(super) async fn plan(&mut self, now: DateTime<Utc>) -> Result<bool, StoreError> {
        let Some(mut plan) = self.trial.plan.clone() else {
            self.app
                .store
                .end_without_attempt(self.trial, TrialState::Parked, UNREADABLE, now)
                .await?;
            return Ok(false);
        };
        if !self.has_image(&mut plan, now).await? {
            return Ok(false);
        }
        let region = &self.trial.region;
        let of = PricesOf {
            kind: self.trial.kind,
            region,
            instance_types: std::slice::from_ref(&plan.instance_type),
        };
        let tariffs = self.app.store.tariffs(self.trial.project_id, of).await?;
        let current = price::in_force(&tariffs.prices, &plan.instance_type, region, now);
        let Some((price, job)) = current.zip(plan.job.as_ref()) else {
            self.app
                .store
                .refuse(
                    self.trial,
                    "its price is unknown, so its cost cannot be bounded; set one with PUT /v1/prices and start a new experiment",
                    now,
                )
                .await?;
            return Ok(false);
        };
        // The transfer time of its weights and data was computed with the plan.
        let transfer = plan.worst_case.map_or(0, |worst| worst.transfer_seconds);
        let spacing = self.app.settings.metrics_spacing();
        let worst = worst_case::worst_case(job, transfer, tariffs.as_ref(), &price, spacing, now);
        plan.price = Some(price.clone());
        plan.worst_case = Some(worst);
        let id = JobId(ids::fresh());
        let installation = &self.app.settings.installation;
        let job_name = attempt::job_name(self.trial.kind, installation, id.0);
        if self.has_earlier_job(now).await? {
            let at = now + self.app.settings.policy.poll;
            self.app
                .store
                .requeue(
                    self.trial,
                    Due::because(at, EARLIER_JOB),
                    worst.training_usd,
                    now,
                )
                .await?;
            return Ok(false);
        }
        crash::point("before_plan");
        let applied = self
            .app
            .store
            .plan_attempt(self.trial, id, &job_name, &plan, &price, now)
            .await?;
        crash::point("after_plan");
        match applied {
            Planned::Stale => Ok(false),
            Planned::NotReserved(why) => self.wait_for_budget(&why, &worst, now).await,
            Planned::Done => {
                self.attempt = Some(planned(self.trial, id, job_name, &worst, &price, now));
                self.seen = Look::NotLooked;
                self.planned_here = Some(id);
                Ok(true)
            }
        }
    }

    /// Waits while other reservations may be released, no longer than for capacity; otherwise refuses the trial.
    async fn wait_for_budget(
        &self,
        not: &NotReserved,
        worst: &WorstCase,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let (store, why) = (&self.app.store, not.why());
        tracing::info!(trial = %self.trial.id, worst = %worst.total_usd, why, "a reservation does not fit its budget");
        let is_paused = matches!(not, NotReserved::HeldBack(_));
        if not.may_wait() && (is_paused || now < self.trial.give_up_at) {
            let at = now + self.app.settings.policy.poll * 2;
            let due = Due::because(at, &why);
            store
                .requeue(self.trial, due, worst.training_usd, now)
                .await?;
        } else if not.may_wait() {
            let why = format!("gave up at the experiment's deadline: {why}");
            store.refuse(self.trial, &why, now).await?;
        } else {
            store.refuse(self.trial, &why, now).await?;
        }
        Ok(false)
    }
}

/// An attempt as it was just committed.
fn planned(
    trial: &Claimed,
    id: JobId,
    job_name: String,
    worst: &WorstCase,
    price: &Price,
    now: DateTime<Utc>,
) -> Attempt {
    Attempt {
        id,
        trial_id: trial.id,
        number: trial.attempts_made + 1,
        job_name,
        price_id: price.id,
        usd_per_hour: price.usd_per_hour,
        reserved_training_usd: worst.training_usd,
        reserved_metrics_usd: worst.metrics_usd,
        phase: AttemptPhase::Planned,
        absent: 0,
        postponed: 0,
        job_status: None,
        secondary_status: None,
        failure_reason: None,
        transitions: Vec::new(),
        training_seconds: None,
        billable_seconds: None,
        billing_estimated: false,
        metrics_requested: 0,
        planned_at: now,
        started_at: None,
        ended_at: None,
        is_compared: false,
        checkpoint_at: None,
        checkpoint_times: Vec::new(),
        training_since: None,
        modified_at: None,
        delete_asked_at: None,
        listed_at: None,
    }
}

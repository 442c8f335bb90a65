//! Experiments that compare nothing: the work of a pipeline's step, or an endpoint, with a budget and trials of
//! another kind than training, usually one.

use bakeoff_domain::event::{Conclusion, Event};
use bakeoff_domain::ids::{ExperimentId, JobId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::tuning::TunedTrials;
use bakeoff_domain::spec::deadline_after;
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::events::{self, EventSubject};
use crate::experiments::new_endpoint::{self, NewEndpoint};
use crate::experiments::{Concludable, TrialOf, insert_trial};
use crate::pipeline_wake::wake_pipeline;
use crate::{Store, StoreError, stored};

/// A step's work as it begins.
#[derive(Debug)]
pub struct NewStepWork<'a> {
    pub experiment_id: ExperimentId,
    pub project_id: ProjectId,
    pub name: &'a str,
    pub region: &'a str,
    pub budget_usd: Usd,
    /// `name=value`: tags of its jobs.
    pub labels: Vec<String>,
    pub trials: &'a [NewStepTrial],
    /// The endpoint that its trial is, if it is one.
    pub endpoint: Option<&'a NewEndpoint>,
}

/// A trial of a step's work.
#[derive(Debug)]
pub struct NewStepTrial {
    pub id: TrialId,
    pub plan: TrialPlan,
}

/// Writes the experiment and its trials inside the caller's transaction.
pub(crate) async fn insert(
    tx: &mut PgConnection,
    new: &NewStepWork<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"INSERT INTO experiments (id, project_id, name, kind, state, budget_usd, created_at, region, labels)
           VALUES ($1, $2, $3, 'step', 'running', $4, $5, $6, $7)"#,
        new.experiment_id.0,
        new.project_id.0,
        new.name,
        new.budget_usd.0,
        now,
        new.region,
        &new.labels,
    )
    .execute(&mut *tx)
    .await?;
    let of = TrialOf {
        project: new.project_id,
        experiment: new.experiment_id,
        region: new.region,
        priority: 0,
        deadline: deadline_after(None, now),
    };
    for (ordinal, trial) in (0..).zip(new.trials) {
        insert_trial(tx, of, trial.id, ordinal, &trial.plan, now).await?;
    }
    match new.endpoint {
        Some(endpoint) => new_endpoint::insert(tx, endpoint, now).await,
        None => Ok(()),
    }
}

/// The one trial of a step's experiment, and its last job.
#[derive(Debug, Clone)]
pub struct StepTrial {
    pub id: TrialId,
    pub state: TrialState,
    pub reason: Option<String>,
    pub job_id: Option<JobId>,
    pub job_name: Option<String>,
    pub exit_message: Option<String>,
    /// Of a tuning job: its trials.
    pub tuned: Option<TunedTrials>,
    pub settled_usd: Usd,
    pub plan: TrialPlan,
}

impl Store {
    /// Ends the experiment of a step whose trial is over. False when another replica already did, or when it has been
    /// resumed since it was found ready.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn conclude_step(
        &self,
        step: Concludable,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let Concludable {
            project,
            id,
            revision,
            ..
        } = step;
        let mut tx = self.pool.begin().await?;
        let row = sqlx::query!(
            r#"UPDATE experiments e
               SET state = CASE
                       WHEN EXISTS (SELECT FROM trials t WHERE t.experiment_id = $1 AND t.state = 'completed')
                            -- An endpoint is always stopped; it has done its work if it has served.
                            OR EXISTS (SELECT FROM endpoints p WHERE p.experiment_id = $1 AND p.in_service_at IS NOT NULL) THEN 'completed'
                       WHEN state = 'cancelling' THEN 'cancelled'
                       ELSE 'failed' END,
                   ended_at = $3
               WHERE id = $1 AND project_id = $2 AND kind = 'step' AND state IN ('running', 'cancelling')
                 AND revision = $4 AND NOT awaits_prices(e, $3)
               RETURNING state, name"#,
            id.0,
            project.0,
            now,
            revision,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(false) };
        let state = ExperimentState::parse(&row.state)
            .ok_or_else(|| StoreError::corrupt("experiments", id, "state"))?;
        wake_pipeline(&mut tx, id, now).await?;
        let subject = EventSubject {
            project,
            experiment: id,
            trial: None,
        };
        let concluded = Event::ExperimentConcluded(Conclusion {
            state,
            headline: format!("{} is {}", row.name, state.as_str()),
            winner: None,
        });
        events::commit(tx, &[subject.told(concluded)], now).await?;
        Ok(true)
    }

    /// The trials of experiments that are steps, by experiment.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn step_trials(
        &self,
        experiments: &[Uuid],
    ) -> Result<Vec<(ExperimentId, StepTrial)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT t.id, t.experiment_id, t.state, t.reason, t.plan, j.id AS "job_id?", j.job_name AS "job_name?",
                      j.exit_message AS "exit_message?", j.tuned AS "tuned?",
                      (SELECT coalesce(sum(usd), 0) FROM ledger l
                       WHERE l.experiment_id = t.experiment_id AND l.trial_id = t.id AND l.kind IN ('settled', 'adjusted')) AS "settled_usd!"
               FROM trials t JOIN experiments e ON e.id = t.experiment_id
                    LEFT JOIN LATERAL (SELECT * FROM jobs WHERE trial_id = t.id ORDER BY number DESC LIMIT 1) j ON true
               WHERE t.experiment_id = ANY($1) AND e.kind = 'step' ORDER BY t.experiment_id, t.ordinal"#,
            experiments,
        )
        .fetch_all(&self.pool)
        .await?;
        let trials = rows.into_iter().map(|row| {
            let trial = StepTrial {
                id: TrialId(row.id),
                state: TrialState::parse(&row.state)
                    .ok_or_else(|| StoreError::corrupt("trials", row.id, "state"))?,
                reason: row.reason,
                job_id: row.job_id.map(JobId),
                job_name: row.job_name,
                exit_message: row.exit_message,
                tuned: (row.tuned)
                    .map(|tuned| stored::read(tuned, "jobs", row.id, "tuned"))
                    .transpose()?,
                settled_usd: Usd(row.settled_usd),
                plan: stored::read(row.plan, "trials", row.id, "plan")?,
            };
            Ok((ExperimentId(row.experiment_id), trial))
        });
        trials.collect()
    }
}

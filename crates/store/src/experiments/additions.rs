//! Trials that are added to an experiment: of another candidate, or one that is done once more. An experiment that is
//! over goes on.

use bakeoff_domain::event::{Change, Event};
use bakeoff_domain::finding::Finding;
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::events::{self, EventSubject};
use crate::experiments::{TrialOf, insert_trial};
use crate::{Store, StoreError, error, retried, stored};

/// Trials to add.
#[derive(Debug, Clone, Copy)]
pub struct Addition<'a> {
    /// Of the experiment that they were planned for.
    pub based_on: u32,
    pub spec: &'a ExperimentSpec,
    /// All of the experiment's.
    pub findings: &'a [Finding],
    pub trials: &'a [(TrialId, TrialPlan)],
    /// What is told of it; names the trial that is done once more.
    pub change: &'a Change,
}

/// What has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    Done,
    /// The experiment was cancelled.
    Cancelled,
    /// It has been changed since: its revision now.
    Since(u32),
    /// What it consists of is not its own to change.
    Fixed(Fixed),
    /// The trial was done once more before, by this one.
    Before(TrialId),
    /// The trial is in another state than those that can be.
    NotRetryable(TrialState),
}

/// Whose experiment cannot be added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixed {
    Pipeline,
    CiRun,
    FullRun,
}

impl Store {
    /// Adds trials to an experiment, if it still has the revision that they were planned for.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn add_trials(
        &self,
        project: ProjectId,
        id: ExperimentId,
        new: Addition<'_>,
        now: DateTime<Utc>,
    ) -> Result<Added, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            if let Some(why) = hindrance(&mut tx, project, id, new.based_on).await? {
                return Ok(why);
            }
            if let Some(trial) = new.change.retry_of
                && let Some(why) = is_done_again(&mut tx, id, trial).await?
            {
                return Ok(why);
            }
            revive(&mut tx, id, new, now).await?;
            insert_trials(&mut tx, project, id, new, now).await?;
            sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
                .execute(&mut *tx)
                .await?;
            let subject = EventSubject {
                project,
                experiment: id,
                trial: None,
            };
            let told = Event::ExperimentChanged(new.change.clone());
            events::commit(tx, &[subject.told(told)], now).await?;
            Ok(Added::Done)
        };
        retried(transaction).await
    }
}

/// Writes the trials behind those that are there.
async fn insert_trials(
    tx: &mut PgConnection,
    project: ProjectId,
    id: ExperimentId,
    new: Addition<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let last = sqlx::query_scalar!(
        "SELECT max(ordinal) FROM trials WHERE experiment_id = $1",
        id.0
    );
    let last = last.fetch_one(&mut *tx).await?.unwrap_or(-1);
    let of = TrialOf {
        project,
        experiment: id,
        region: &new.spec.region,
        priority: new.spec.priority,
        deadline: new.spec.deadline(now),
    };
    for (ordinal, (trial, plan)) in (last + 1..).zip(new.trials) {
        insert_trial(tx, of, *trial, ordinal, plan, now).await?;
    }
    if let (Some(earlier), Some((trial, _))) = (new.change.retry_of, new.trials.first()) {
        sqlx::query!(
            "UPDATE trials SET retry_of = $2, is_automatic = $3 WHERE id = $1",
            trial.0,
            earlier.0,
            new.change.cause.is_some(),
        )
        .execute(tx)
        .await?;
    }
    Ok(())
}

/// Locks an experiment; why nothing can be added to it.
async fn hindrance(
    tx: &mut PgConnection,
    project: ProjectId,
    id: ExperimentId,
    based_on: u32,
) -> Result<Option<Added>, StoreError> {
    let row = sqlx::query!(
        r#"SELECT revision, state, full_run IS NOT NULL AS "is_full_run!",
                  EXISTS (SELECT FROM pipeline_works w WHERE w.experiment_id = e.id) AS "is_step!",
                  EXISTS (SELECT FROM ci_rounds r WHERE r.experiment_id = e.id) AS "is_of_ci!"
           FROM experiments e WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL FOR NO KEY UPDATE"#,
        id.0,
        project.0,
    )
    .fetch_optional(tx)
    .await?;
    let Some(row) = row else {
        return Ok(Some(Added::Cancelled));
    };
    let revision = error::count(row.revision, "experiments", id.0, "revision")?;
    Ok(if row.is_step {
        Some(Added::Fixed(Fixed::Pipeline))
    } else if row.is_of_ci {
        Some(Added::Fixed(Fixed::CiRun))
    } else if row.is_full_run {
        Some(Added::Fixed(Fixed::FullRun))
    } else if matches!(row.state.as_str(), "cancelling" | "cancelled") {
        Some(Added::Cancelled)
    } else {
        (revision != based_on).then_some(Added::Since(revision))
    })
}

/// Why a trial cannot be done once more.
async fn is_done_again(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    trial: TrialId,
) -> Result<Option<Added>, StoreError> {
    let row = sqlx::query!(
        r#"SELECT state, (SELECT r.id FROM trials r WHERE r.retry_of = t.id) AS retry
           FROM trials t WHERE id = $1 AND experiment_id = $2 FOR NO KEY UPDATE"#,
        trial.0,
        experiment.0,
    );
    let row = row.fetch_one(tx).await?;
    if let Some(retry) = row.retry {
        return Ok(Some(Added::Before(TrialId(retry))));
    }
    let state = TrialState::parse(&row.state);
    let state = state.ok_or_else(|| StoreError::corrupt("trials", trial.0, "state"))?;
    let is_retryable = state.is_terminal() && state != TrialState::Completed;
    Ok((!is_retryable).then_some(Added::NotRetryable(state)))
}

/// The experiment goes on, with what was added.
async fn revive(
    tx: &mut PgConnection,
    id: ExperimentId,
    new: Addition<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"UPDATE experiments SET state = 'running', ended_at = NULL, archived_at = NULL, revision = revision + 1, spec = $2,
                  findings = $3, race_due_at = $4
           WHERE id = $1"#,
        id.0,
        stored::write(new.spec)?,
        stored::write(&new.findings.to_vec())?,
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}

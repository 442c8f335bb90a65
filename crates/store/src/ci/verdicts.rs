//! The verdicts of CI runs: which are to be judged, what is written, and what a person accepts.

use bakeoff_domain::ci::gate::{Judgement, Reading};
use bakeoff_domain::ci::wording::CiNews;
use bakeoff_domain::event;
use bakeoff_domain::ids::{CiRunId, ExperimentId, ProjectId};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::commit_statuses;
use super::runs::{CiRun, RULE};
use crate::events::{self, EventSubject, NewEvent};
use crate::experiments::lifecycle::{self, ExperimentCommand};
use crate::{Store, StoreError, retried, stored};

/// A verdict to write.
#[derive(Debug, Clone, Copy)]
pub struct NewVerdict<'a> {
    pub readings: &'a Vec<Reading>,
    pub judgement: &'a Judgement,
    /// By the rule: it is on the baseline's branch, and has not regressed.
    pub is_accepted: bool,
    /// It is of what was measured: nothing must run again, since a person may have resumed it meanwhile.
    pub is_of_measured: bool,
}

impl Store {
    /// Runs without a verdict whose newest experiment is over, or waits for a person: all of it is parked.
    /// Oldest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn ci_runs_to_judge(
        &self,
        after: Option<CiRunId>,
        limit: i64,
    ) -> Result<Vec<(ProjectId, CiRunId)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT r.project_id, r.id FROM ci_runs r JOIN experiments e ON e.id = r.experiment_id
               WHERE r.verdict IS NULL AND r.superseded_by IS NULL AND ($1::uuid IS NULL OR r.id > $1)
                 -- One of which some trials have run is concluded without the parked ones, once their metrics are read.
                 AND (e.ended_at IS NOT NULL
                      OR NOT EXISTS (SELECT FROM trials t WHERE t.experiment_id = e.id AND t.state <> 'parked'))
               ORDER BY r.id LIMIT $2"#,
            after.map(|id| id.0),
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        Ok(rows
            .map(|row| (ProjectId(row.project_id), CiRunId(row.id)))
            .collect())
    }

    /// Writes a run's verdict, unless it has one or another round has begun. What is left of its experiment, parked or
    /// paused, is cancelled with it: it would be paid for, and change nothing.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn decide_ci_run(
        &self,
        run: &CiRun,
        new: NewVerdict<'_>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let Some(experiment) = run.experiments.last().copied() else {
            return Ok(false);
        };
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let Some(events) = decide(&mut tx, run, experiment, new, now).await? else {
                return Ok(false);
            };
            events::commit(tx, &events, now).await?;
            Ok(true)
        };
        retried(transaction).await
    }

    /// The CI run that has its verdict without an experiment's parked trials, which are not resumed any more.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn judged_run_of(
        &self,
        experiment: ExperimentId,
    ) -> Result<Option<CiRunId>, StoreError> {
        let run = sqlx::query_scalar!(
            r#"SELECT r.id FROM ci_rounds o JOIN ci_runs r ON r.id = o.run_id
               WHERE o.experiment_id = $1 AND r.verdict IS NOT NULL
                 AND EXISTS (SELECT FROM trials t WHERE t.experiment_id = $1 AND t.state = 'parked')"#,
            experiment.0,
        );
        Ok(run.fetch_optional(&self.pool).await?.map(CiRunId))
    }

    /// Makes a run a baseline of later ones, or ends that. False if it has no verdict, or nothing was measured.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn accept_ci_run(
        &self,
        run: &CiRun,
        by: Option<&str>,
        begins_level: bool,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let written = sqlx::query!(
            r#"UPDATE ci_runs SET accepted_at = CASE WHEN $2::text IS NOT NULL THEN $3::timestamptz END, accepted_by = $2,
                      begins_level = $2::text IS NOT NULL AND $4
               WHERE id = $1 AND verdict IN ('passed', 'regressed', 'inconclusive')"#,
            run.id.0,
            by,
            now,
            begins_level,
        );
        if written.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(false);
        }
        // CI shows an accepted regression as a success.
        commit_statuses::tell(&mut tx, run.id, run.template_id, now).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Writes a verdict, and cancels what is left of the experiment; returns what is to be told, `None` if it is not to be
/// written.
async fn decide(
    tx: &mut PgConnection,
    run: &CiRun,
    experiment: ExperimentId,
    new: NewVerdict<'_>,
    now: DateTime<Utc>,
) -> Result<Option<Vec<NewEvent>>, StoreError> {
    // A resume holds this row until it is seen below.
    sqlx::query!(
        "SELECT FROM ci_runs WHERE id = $1 FOR NO KEY UPDATE",
        run.id.0
    )
    .execute(&mut *tx)
    .await?;
    let verdict = new.judgement.verdict;
    let written = sqlx::query!(
        r#"UPDATE ci_runs SET readings = $3, judgement = $4, verdict = $5, decided_at = $6::timestamptz,
                  accepted_at = CASE WHEN $7 THEN $6::timestamptz END, accepted_by = CASE WHEN $7 THEN $8::text END,
                  -- What cost nothing may be tried again by whoever tells of the commit.
                  takes_deliveries = takes_deliveries AND NOT ($5 = 'error' AND superseded_by IS NULL AND 0 = (
                      SELECT coalesce(sum(e.reserved_usd + e.settled_usd), 0)
                      FROM ci_rounds o JOIN experiments e ON e.id = o.experiment_id WHERE o.run_id = $1))
           WHERE id = $1 AND experiment_id = $2 AND verdict IS NULL AND cardinality(other_branches) = $9
             AND NOT ($10 AND EXISTS (SELECT FROM experiments e JOIN trials t ON t.experiment_id = e.id
                                      WHERE e.id = $2 AND e.ended_at IS NULL AND t.state <> 'parked'))"#,
        run.id.0,
        experiment.0,
        stored::write(new.readings)?,
        stored::write(new.judgement)?,
        verdict.as_str(),
        now,
        new.is_accepted,
        RULE,
        i32::try_from(run.other_branches.len()).unwrap_or(i32::MAX),
        new.is_of_measured,
    );
    if written.execute(&mut *tx).await?.rows_affected() == 0 {
        return Ok(None);
    }
    let cancel = ExperimentCommand::Cancel;
    let cancelled = lifecycle::apply(tx, run.project_id, experiment, cancel, now).await?;
    commit_statuses::tell(tx, run.id, run.template_id, now).await?;
    let decided = event::Event::CiDecided(CiNews {
        run: run.id,
        template: run.template_name.clone(),
        commit: run.commit.clone(),
        verdict,
        summary: new.judgement.summary(),
    });
    let subject = EventSubject {
        project: run.project_id,
        experiment,
        trial: None,
    };
    let told = cancelled.into_iter().chain([decided]);
    Ok(Some(told.map(|event| subject.told(event)).collect()))
}

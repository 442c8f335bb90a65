//! What steps ask of a person before they buy, and what was decided. Whether a step has to ask is decided by
//! [`bakeoff_domain::ranking::purchase`].

use bakeoff_domain::event::{DecidedPurchase, Event, WaitingPurchase};
use bakeoff_domain::ids::{ExperimentId, PipelineId};
use bakeoff_domain::pipeline::purchase::PurchaseState;
use bakeoff_domain::spec::PurchaseOption;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::steps::{holds, place_of};
use super::{Pipeline, WriteOutcome};
use crate::events::{self, EventSubject};
use crate::{Store, StoreError, error};

const TABLE: &str = "pipeline_purchases";

/// A question that a step has asked, and its answer.
#[derive(Debug, Clone)]
pub struct PurchaseQuestion {
    /// Of the step.
    pub place: usize,
    pub experiment_id: ExperimentId,
    pub asked_at: DateTime<Utc>,
    pub decision: Decision,
}

/// A purchase that still waits for a decision.
#[derive(Debug, Clone, Copy)]
pub struct OpenPurchase {
    pub pipeline_id: PipelineId,
    /// Of the step.
    pub place: usize,
    pub experiment_id: ExperimentId,
    pub asked_at: DateTime<Utc>,
}

/// What a person has decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Open,
    Approved {
        candidate: String,
        purchase_option: PurchaseOption,
    },
    Refused {
        by: String,
        reason: Option<String>,
    },
}

struct Row {
    place: i32,
    experiment_id: Uuid,
    state: String,
    asked_at: DateTime<Utc>,
    candidate: Option<String>,
    purchase_option: Option<String>,
    reason: Option<String>,
    decided_by: Option<String>,
}

impl Row {
    fn question(self, pipeline: PipelineId) -> Result<PurchaseQuestion, StoreError> {
        let corrupt = |column| StoreError::corrupt(TABLE, pipeline, column);
        let state = PurchaseState::parse(&self.state).ok_or_else(|| corrupt("state"))?;
        let decision = match state {
            PurchaseState::Asked => Decision::Open,
            PurchaseState::Approved => Decision::Approved {
                candidate: self.candidate.ok_or_else(|| corrupt("candidate"))?,
                purchase_option: (self.purchase_option.as_deref())
                    .and_then(PurchaseOption::parse)
                    .ok_or_else(|| corrupt("purchase_option"))?,
            },
            PurchaseState::Refused => Decision::Refused {
                by: self.decided_by.ok_or_else(|| corrupt("decided_by"))?,
                reason: self.reason,
            },
        };
        Ok(PurchaseQuestion {
            place: error::count(self.place, TABLE, pipeline.0, "place")?,
            experiment_id: ExperimentId(self.experiment_id),
            asked_at: self.asked_at,
            decision,
        })
    }
}

impl Store {
    /// Every question of a pipeline.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn purchase_questions(
        &self,
        pipeline: PipelineId,
    ) -> Result<Vec<PurchaseQuestion>, StoreError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT place, experiment_id, state, asked_at, candidate, purchase_option, reason, decided_by
               FROM pipeline_purchases WHERE pipeline_id = $1 ORDER BY place, experiment_id"#,
            pipeline.0,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(|row| row.question(pipeline)).collect()
    }

    /// The open questions of some pipelines.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn open_purchases(
        &self,
        pipelines: &[Uuid],
    ) -> Result<Vec<OpenPurchase>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT pipeline_id, place, experiment_id, asked_at FROM pipeline_purchases
               WHERE pipeline_id = ANY($1) AND state = 'asked' ORDER BY pipeline_id, place, experiment_id"#,
            pipelines,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        let open = rows.map(|row| {
            Ok(OpenPurchase {
                pipeline_id: PipelineId(row.pipeline_id),
                place: error::count(row.place, TABLE, row.pipeline_id, "place")?,
                experiment_id: ExperimentId(row.experiment_id),
                asked_at: row.asked_at,
            })
        });
        open.collect()
    }

    /// Says that a step waits for a person; the event is told with the first question of a step about an answer.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn ask_purchase(
        &self,
        pipeline: &Pipeline,
        place: usize,
        experiment: ExperimentId,
        waiting: WaitingPurchase,
        now: DateTime<Utc>,
    ) -> Result<WriteOutcome, StoreError> {
        let mut tx = self.pool.begin().await?;
        if !holds(&mut tx, pipeline).await? {
            return Ok(WriteOutcome::Stale);
        }
        let asked = sqlx::query!(
            r#"INSERT INTO pipeline_purchases (pipeline_id, place, experiment_id, state, asked_at)
               VALUES ($1, $2, $3, 'asked', $4) ON CONFLICT DO NOTHING"#,
            pipeline.id.0,
            place_of(place),
            experiment.0,
            now,
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            "UPDATE pipeline_steps SET reason = left($3, 4000) WHERE pipeline_id = $1 AND place = $2 AND state = 'waiting'",
            pipeline.id.0,
            place_of(place),
            format!("it waits for a person: {}", waiting.reason),
        )
        .execute(&mut *tx)
        .await?;
        let subject = EventSubject {
            project: pipeline.project_id,
            experiment,
            trial: None,
        };
        let is_new = asked.rows_affected() == 1;
        let told = is_new.then(|| subject.told(Event::PurchaseWaiting(waiting)));
        events::commit(tx, told.as_slice(), now).await?;
        Ok(WriteOutcome::Done)
    }

    /// Writes what a person has decided about every open question on an answer, and tells of it; false if none is
    /// open.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn decide_purchase(
        &self,
        pipeline: &Pipeline,
        experiment: ExperimentId,
        option: Option<PurchaseOption>,
        decided: DecidedPurchase,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let state = if decided.candidate.is_some() {
            PurchaseState::Approved
        } else {
            PurchaseState::Refused
        };
        // The pipeline is locked first, as by the conductor.
        let woken = sqlx::query!(
            "UPDATE pipelines SET due_at = $2 WHERE id = $1 AND state = 'running'",
            pipeline.id.0,
            now,
        )
        .execute(&mut *tx)
        .await?;
        let changed = sqlx::query!(
            r#"UPDATE pipeline_purchases
               SET state = $3, candidate = $4, purchase_option = $5, reason = $6, decided_by = $7, decided_at = $8
               WHERE pipeline_id = $1 AND experiment_id = $2 AND state = 'asked'"#,
            pipeline.id.0,
            experiment.0,
            state.as_str(),
            decided.candidate,
            option.map(PurchaseOption::as_str),
            decided.reason,
            decided.by,
            now,
        )
        .execute(&mut *tx)
        .await?;
        if woken.rows_affected() == 0 || changed.rows_affected() == 0 {
            return Ok(false);
        }
        let subject = EventSubject {
            project: pipeline.project_id,
            experiment,
            trial: None,
        };
        let told = subject.told(Event::PurchaseDecided(decided));
        events::commit(tx, &[told], now).await?;
        Ok(true)
    }
}

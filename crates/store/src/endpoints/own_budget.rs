//! An endpoint's own budget when its time to live is extended: what a person has stated stays, unless the same request
//! states another; that of a pipeline's step grows within the pipeline's.

use bakeoff_domain::ids::{EndpointId, ExperimentId, PipelineId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::{Balance, BudgetLevel, Limit};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::StoreError;
use crate::money::caps::NotReserved;

/// A longer time to live.
#[derive(Debug, Clone, Copy)]
pub struct Extension {
    pub hours: u32,
    /// What is reserved in addition.
    pub usd: Usd,
    /// The endpoint's own budget afterwards, if one is stated.
    pub budget_usd: Option<Usd>,
}

/// The endpoint that is to live longer.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExtendedEndpoint {
    pub(super) id: EndpointId,
    pub(super) experiment: ExperimentId,
}

/// Whether a time to live was extended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extended {
    Done,
    /// A limit above its own budget does not allow it.
    NotReserved(NotReserved),
    /// Its own budget was stated, and is less than what it may cost.
    Stated {
        budget_usd: Usd,
        needed_usd: Usd,
    },
    /// Its budget is its pipeline's.
    OfPipeline(PipelineId),
    NotServing,
    /// It has been changed since it was read.
    Changed,
}

/// Its own budget, locked, and the pipeline that it is a step of.
struct OwnBudget {
    budget_usd: Usd,
    /// What it may cost in all, once it is extended.
    needed_usd: Usd,
    is_stated: bool,
    pipeline: Option<Uuid>,
}

/// Makes room in the endpoint's own budget, where that is allowed. `Some`: why it is not; roll back.
pub(super) async fn prepare(
    tx: &mut PgConnection,
    of: ExtendedEndpoint,
    by: Extension,
    now: DateTime<Utc>,
) -> Result<Option<Extended>, StoreError> {
    let row = sqlx::query!(
        r#"SELECT e.budget_usd, e.reserved_usd + e.settled_usd AS "used_usd!", p.is_budget_stated,
                  (SELECT w.pipeline_id FROM pipeline_works w WHERE w.experiment_id = e.id) AS pipeline
           FROM experiments e JOIN endpoints p ON p.experiment_id = e.id
           WHERE e.id = $1 AND p.id = $2 FOR NO KEY UPDATE OF e"#,
        of.experiment.0,
        of.id.0,
    )
    .fetch_one(&mut *tx)
    .await?;
    let own = OwnBudget {
        budget_usd: Usd(row.budget_usd),
        needed_usd: Usd(row.used_usd) + by.usd,
        is_stated: row.is_budget_stated,
        pipeline: row.pipeline,
    };
    if let Some(pipeline) = own.pipeline {
        if by.budget_usd.is_some() {
            return Ok(Some(Extended::OfPipeline(PipelineId(pipeline))));
        }
        if let Some(no) = grow_in_pipeline(tx, of, &own, pipeline, now).await? {
            return Ok(Some(no));
        }
    }
    let is_silent = by.budget_usd.is_none() && own.is_stated && own.pipeline.is_none();
    let budget = match by.budget_usd {
        Some(stated) => stated,
        None if is_silent => own.budget_usd,
        None => own.budget_usd.max(own.needed_usd),
    };
    if budget < own.needed_usd {
        return Ok(Some(Extended::Stated {
            budget_usd: budget,
            needed_usd: own.needed_usd,
        }));
    }
    sqlx::query!(
        "UPDATE experiments SET budget_usd = $2 WHERE id = $1",
        of.experiment.0,
        budget.0,
    )
    .execute(&mut *tx)
    .await?;
    if by.budget_usd.is_some() {
        sqlx::query!(
            "UPDATE endpoints SET is_budget_stated = true WHERE id = $1",
            of.id.0,
        )
        .execute(tx)
        .await?;
    }
    Ok(None)
}

/// Asks the pipeline for the larger budget of its step: together with the budgets of what is under way, it must fit. A
/// conductor that has read less before writes nothing: a claim counts up.
async fn grow_in_pipeline(
    tx: &mut PgConnection,
    of: ExtendedEndpoint,
    own: &OwnBudget,
    pipeline: Uuid,
    now: DateTime<Utc>,
) -> Result<Option<Extended>, StoreError> {
    let more = own.needed_usd - own.budget_usd;
    if more <= Usd::ZERO {
        return Ok(None);
    }
    let budget = sqlx::query_scalar!(
        r#"UPDATE pipelines SET claims = claims + 1, due_at = CASE WHEN due_at IS NOT NULL THEN least(due_at, $2) END
           WHERE id = $1 RETURNING budget_usd"#,
        pipeline,
        now,
    );
    let budget = budget.fetch_one(&mut *tx).await?;
    let others = sqlx::query!(
        r#"SELECT coalesce(sum(greatest(x.budget_usd, x.settled_usd + x.reserved_usd)) FILTER (WHERE x.ended_at IS NULL), 0)
                      AS "held_usd!",
                  coalesce(sum(x.settled_usd + x.reserved_usd) FILTER (WHERE x.ended_at IS NOT NULL), 0) AS "spent_usd!"
           FROM pipeline_works w JOIN experiments x ON x.id = w.experiment_id
           WHERE w.pipeline_id = $1 AND x.id <> $2"#,
        pipeline,
        of.experiment.0,
    )
    .fetch_one(tx)
    .await?;
    let balance = Balance {
        budget_usd: Some(Usd(budget)),
        reserved_usd: Usd(others.held_usd) + own.budget_usd,
        settled_usd: Usd(others.spent_usd),
    };
    let limit = Limit {
        pipeline: Some(PipelineId(pipeline)),
        ..Limit::new(BudgetLevel::Pipeline, balance)
    };
    let short = limit.shortfall(more);
    Ok(short.map(|short| Extended::NotReserved(NotReserved::Short(short))))
}

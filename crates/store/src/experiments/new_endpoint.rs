//! An endpoint as it begins: its row and its first revision, in the transaction of its trial.

use bakeoff_domain::ids::{EndpointId, ModelPackageId, TrialId};
use bakeoff_domain::sagemaker::endpoint::ModelRequest;
use bakeoff_domain::spec::pipeline::endpoint::EndpointSpec;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::{StoreError, stored};

/// An endpoint as it begins, with its trial.
#[derive(Debug, Clone)]
pub struct NewEndpoint {
    pub id: EndpointId,
    pub trial_id: TrialId,
    pub name: String,
    pub owner: String,
    pub spec: EndpointSpec,
    pub model: ModelRequest,
    pub model_package_id: Option<ModelPackageId>,
    /// A person has stated its budget: silence does not raise it.
    pub is_budget_stated: bool,
}

/// Writes an endpoint and its first revision inside the caller's transaction, after its trial; due at once.
pub(crate) async fn insert(
    tx: &mut PgConnection,
    new: &NewEndpoint,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"INSERT INTO endpoints (id, project_id, experiment_id, trial_id, name, owner, region, spec, state,
                                  time_to_live_seconds, due_at, created_at, is_budget_stated)
           SELECT $1, t.project_id, t.experiment_id, t.id, $3, $4, t.region, $5, 'creating', $6, $7, $7, $8
           FROM trials t WHERE t.id = $2"#,
        new.id.0,
        new.trial_id.0,
        new.name,
        new.owner,
        stored::write(&new.spec)?,
        i64::from(new.spec.time_to_live_hours) * 3600,
        now,
        new.is_budget_stated,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        r#"INSERT INTO endpoint_revisions (endpoint_id, revision, model_package_id, model, created_at)
           VALUES ($1, 0, $2, $3, $4)"#,
        new.id.0,
        new.model_package_id.map(|id| id.0),
        stored::write(&new.model)?,
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}

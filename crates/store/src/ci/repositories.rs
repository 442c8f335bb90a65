//! The repository whose webhooks a template takes: that of the first one that starts something, at each host.

use bakeoff_domain::ci::{Repository, Sender};
use bakeoff_domain::ids::TemplateId;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::Delivery;
use crate::{Store, StoreError};

/// The table whose row a delivery of another repository misses.
pub const BOUND: &str = "ci_repositories";

impl Store {
    /// The repository that a template is bound to at a host; `None` before the first webhook that starts something.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn repository_of(
        &self,
        template: TemplateId,
        host: Sender,
    ) -> Result<Option<Repository>, StoreError> {
        let row = sqlx::query!(
            "SELECT repository_id, name FROM ci_repositories WHERE template_id = $1 AND host = $2",
            template.0,
            host.as_str(),
        );
        let row = row.fetch_optional(&self.pool).await?;
        Ok(row.map(|row| Repository {
            id: row.repository_id,
            name: row.name,
        }))
    }
}

/// Binds a template to the repository of a delivery, in the transaction of what it starts. One that the settings state
/// takes the place of an earlier one. `Missing` if another repository was faster.
pub(super) async fn bind(
    tx: &mut PgConnection,
    delivery: &Delivery<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let Some(repository) = &delivery.trigger.repository else {
        return Ok(());
    };
    let bound = sqlx::query!(
        r#"INSERT INTO ci_repositories (template_id, host, repository_id, name, bound_at) VALUES ($1, $2, $3, left($4, 300), $5)
           ON CONFLICT (template_id, host) DO UPDATE SET repository_id = $3, name = left($4, 300)
           WHERE ci_repositories.repository_id = $3 OR $6"#,
        delivery.template.0,
        delivery.sender.as_str(),
        repository.id,
        repository.name,
        now,
        delivery.is_repository_stated,
    );
    if bound.execute(tx).await?.rows_affected() == 0 {
        return Err(StoreError::Missing {
            table: BOUND,
            id: delivery.template.to_string(),
        });
    }
    Ok(())
}

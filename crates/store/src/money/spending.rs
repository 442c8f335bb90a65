//! Spending, summed from the ledger by day, experiment, trial or component, for usage within a time
//! span.

use std::collections::BTreeMap;

use bakeoff_domain::ids::{ExperimentId, ProjectId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::EntryComponent;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

use crate::{Store, StoreError};

/// How rows are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// By UTC day.
    Day,
    Experiment,
    Trial,
    /// All rows together.
    Project,
}

/// Which rows to include.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub project: ProjectId,
    pub experiment: Option<ExperimentId>,
    pub from: DateTime<Utc>,
    pub until: DateTime<Utc>,
}

/// Spending on one component within a group.
#[derive(Debug, Clone)]
pub struct ComponentSpending {
    pub day: Option<DateTime<Utc>>,
    pub experiment: Option<Uuid>,
    pub trial: Option<Uuid>,
    pub component: EntryComponent,
    pub usd: Usd,
    pub estimated: bool,
}

/// Savings through spot within a group.
#[derive(Debug, Clone)]
pub struct Saved {
    pub day: Option<DateTime<Utc>>,
    pub experiment: Option<Uuid>,
    pub trial: Option<Uuid>,
    pub usd: Usd,
}

impl Store {
    /// Spending by group and component. Usage over several days is split between them by time;
    /// usage outside the span is not counted.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn spent(
        &self,
        span: &Span,
        by: By,
        limit: i64,
    ) -> Result<Vec<ComponentSpending>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT CASE WHEN $5 THEN d.day END AS day,
                      CASE WHEN $6 THEN l.experiment_id END AS experiment,
                      CASE WHEN $7 THEN l.trial_id END AS trial,
                      l.component, bool_or(l.estimated) AS "estimated!",
                      sum(CASE WHEN l.used_until = l.used_from THEN l.usd
                               ELSE l.usd * extract(epoch FROM least(l.used_until, d.day + interval '1 day', $4)
                                                               - greatest(l.used_from, d.day, $3))
                                          / extract(epoch FROM l.used_until - l.used_from) END) AS "usd!: Decimal"
               FROM ledger l
                    CROSS JOIN LATERAL generate_series(date_trunc('day', greatest(l.used_from, $3), 'UTC'),
                                                       least(l.used_until, $4), interval '1 day') AS d(day)
               WHERE l.project_id = $1 AND ($2::uuid IS NULL OR l.experiment_id = $2)
                 AND l.kind IN ('settled', 'adjusted') AND l.used_until >= $3 AND l.used_from < $4
                 AND (d.day < l.used_until OR d.day = date_trunc('day', l.used_from, 'UTC')) AND d.day < $4
               GROUP BY 1, 2, 3, l.component
               ORDER BY 1, 2, 3, l.component LIMIT $8"#,
            span.project.0,
            span.experiment.map(|id| id.0),
            span.from,
            span.until,
            by == By::Day,
            matches!(by, By::Experiment | By::Trial),
            by == By::Trial,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        let spent = rows.into_iter().map(|row| {
            let component = EntryComponent::parse(&row.component);
            Ok(ComponentSpending {
                day: row.day,
                experiment: row.experiment,
                trial: row.trial,
                component: component
                    .ok_or_else(|| StoreError::corrupt("ledger", &row.component, "component"))?,
                usd: Usd(row.usd).rounded(),
                estimated: row.estimated,
            })
        });
        spent.collect()
    }

    /// The names of experiments.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn experiment_names(
        &self,
        project: ProjectId,
        experiments: &[Uuid],
    ) -> Result<BTreeMap<Uuid, String>, StoreError> {
        let rows = sqlx::query!(
            "SELECT id, name FROM experiments WHERE project_id = $1 AND id = ANY($2)",
            project.0,
            experiments,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        Ok(rows.map(|row| (row.id, row.name)).collect())
    }

    /// Savings of ended attempts through managed spot: the training time that was not billed, at the
    /// average price that was booked for the billed time, counted on the day they ended. What was
    /// not billed at all is counted at the price agreed at the start.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn saved_by_spot(&self, span: &Span, by: By) -> Result<Vec<Saved>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT CASE WHEN $5 THEN date_trunc('day', j.ended_at, 'UTC') END AS day,
                      CASE WHEN $6 THEN j.experiment_id END AS experiment,
                      CASE WHEN $7 THEN j.trial_id END AS trial,
                      sum((j.training_seconds - j.billable_seconds)
                          * coalesce(l.usd / nullif(j.billable_seconds, 0), t.instance_count * j.usd_per_hour / 3600))
                          AS "usd!: Decimal"
               FROM jobs j JOIN trials t ON t.id = j.trial_id
                    CROSS JOIN LATERAL (SELECT sum(usd) AS usd FROM ledger
                                        WHERE job_id = j.id AND component = 'training'
                                          AND kind IN ('settled', 'adjusted')) l
               WHERE j.project_id = $1 AND ($2::uuid IS NULL OR j.experiment_id = $2)
                 AND j.settled_at IS NOT NULL AND j.ended_at >= $3 AND j.ended_at < $4
                 AND t.purchase_option = 'spot' AND j.training_seconds >= j.billable_seconds
               GROUP BY 1, 2, 3"#,
            span.project.0,
            span.experiment.map(|id| id.0),
            span.from,
            span.until,
            by == By::Day,
            matches!(by, By::Experiment | By::Trial),
            by == By::Trial,
        )
        .fetch_all(&self.pool)
        .await?;
        let saved = rows.into_iter().map(|row| Saved {
            day: row.day,
            experiment: row.experiment,
            trial: row.trial,
            usd: Usd(row.usd).rounded(),
        });
        Ok(saved.collect())
    }
}

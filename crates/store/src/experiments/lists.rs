//! Lists of experiments: which ones a filter finds, page by page, and what a line of a list shows of them.

use std::collections::HashMap;

use bakeoff_domain::ids::{ApiKeyId, ExperimentId, PipelineId, ProjectId, TemplateId};
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::ranking::looks::Brief;
use bakeoff_domain::ranking::recommendation::Recommendation;
use bakeoff_domain::spec::labels::{self, Labels};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::experiments::Experiment;
use crate::stored;
use crate::{Store, StoreError, error};

/// The most frequent values that are listed of a facet.
const FACET_VALUES: i64 = 50;

/// Filter for lists of experiments.
#[derive(Debug, Clone, Default)]
pub struct ExperimentFilter {
    pub states: Option<Vec<String>>,
    pub name_contains: Option<String>,
    /// `name=value`, all of them.
    pub labels: Vec<String>,
    pub created_by: Option<String>,
    /// Its name.
    pub workload: Option<String>,
    pub instance_type: Option<String>,
    pub settled_usd_min: Option<Usd>,
    pub settled_usd_max: Option<Usd>,
    /// Those in the archive, or the others.
    pub archived: bool,
    /// Deleted ones, or the others.
    pub deleted: bool,
    pub created_after: Option<DateTime<Utc>>,
    pub created_before: Option<DateTime<Utc>>,
}

/// An experiment as a list shows it.
#[derive(Debug, Clone)]
pub struct ExperimentLine {
    pub id: ExperimentId,
    pub name: String,
    pub state: ExperimentState,
    pub workload: String,
    pub workload_version: i32,
    pub budget_usd: Usd,
    pub reserved_usd: Usd,
    pub settled_usd: Usd,
    pub paused_reason: Option<String>,
    pub trials: TrialCounts,
    /// Of its newest answer, if it has one.
    pub answer: Option<Brief>,
    pub full_run_of: Option<ExperimentId>,
    pub revision: u32,
    pub labels: Labels,
    pub created_by: Option<String>,
    /// The name of the key or the CI template that began it.
    pub creator: Option<String>,
    pub archived_at: Option<DateTime<Utc>>,
    pub deleted_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// Trials by what they do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrialCounts {
    pub waiting: u32,
    pub running: u32,
    pub parked: u32,
    pub completed: u32,
    pub stopped: u32,
    pub failed: u32,
    pub refused: u32,
}

/// How many experiments have a value; `name` is what people call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facet {
    pub value: String,
    pub name: String,
    pub count: i64,
}

/// How many experiments there are of each kind.
#[derive(Debug, Clone, Default)]
pub struct Facets {
    pub states: Vec<(ExperimentState, i64)>,
    pub creators: Vec<Facet>,
    pub workloads: Vec<Facet>,
}

/// One page of a list.
#[derive(Debug, Clone, Copy)]
pub struct PageOf {
    pub newest_first: bool,
    /// The last id of the page before.
    pub from: Option<Uuid>,
    pub limit: i64,
}

impl PageOf {
    /// The newest so many.
    pub fn newest(limit: i64) -> Self {
        Self {
            newest_first: true,
            from: None,
            limit,
        }
    }
}

impl Store {
    /// One page of experiments, whole.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn experiments(
        &self,
        project: ProjectId,
        filter: &ExperimentFilter,
        page: PageOf,
    ) -> Result<Vec<Experiment>, StoreError> {
        let ids = self.found(project, filter, page).await?;
        let found = self.any_by_id(project, &ids).await?;
        Ok(in_order(&ids, found, |one| one.id.0))
    }

    /// One page of experiments, as lists show them.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn experiment_lines(
        &self,
        project: ProjectId,
        filter: &ExperimentFilter,
        page: PageOf,
    ) -> Result<Vec<ExperimentLine>, StoreError> {
        let ids = self.found(project, filter, page).await?;
        let mut found = self.lines(&ids).await?;
        self.name_creators(project, &mut found).await?;
        Ok(in_order(&ids, found, |one| one.id.0))
    }

    /// Ids by keyset (they sort by creation): those before `from` when newest come first, otherwise those after it.
    async fn found(
        &self,
        project: ProjectId,
        filter: &ExperimentFilter,
        page: PageOf,
    ) -> Result<Vec<Uuid>, StoreError> {
        let PageOf {
            newest_first,
            from,
            limit,
        } = page;
        // Two statements, because the index is scanned in one direction or the other.
        let ids = if newest_first {
            sqlx::query_scalar!(
                r#"SELECT id FROM experiments
                   WHERE project_id = $1 AND kind = 'comparison' AND id < coalesce($6::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                     AND ($2::text[] IS NULL OR state = ANY($2))
                     AND ($3::text IS NULL OR position(lower($3) IN lower(name)) > 0)
                     AND ($4::timestamptz IS NULL OR created_at > $4)
                     AND ($5::timestamptz IS NULL OR created_at < $5)
                     AND labels @> $8 AND ($9::text IS NULL OR created_by = $9)
                     AND ($10::text IS NULL OR workload_id IN (SELECT w.id FROM workloads w WHERE w.project_id = $1 AND w.name = $10))
                     AND ($11::text IS NULL OR EXISTS (SELECT FROM trials t WHERE t.experiment_id = experiments.id AND t.instance_type = $11))
                     AND ($12::numeric IS NULL OR settled_usd >= $12) AND ($13::numeric IS NULL OR settled_usd <= $13)
                     AND ($15 OR (archived_at IS NOT NULL) = $14) AND (deleted_at IS NOT NULL) = $15 AND purged_at IS NULL
                   ORDER BY id DESC LIMIT $7"#,
                project.0,
                filter.states.as_deref(),
                filter.name_contains,
                filter.created_after,
                filter.created_before,
                from,
                limit,
                &filter.labels,
                filter.created_by,
                filter.workload,
                filter.instance_type,
                filter.settled_usd_min.map(|usd| usd.0),
                filter.settled_usd_max.map(|usd| usd.0),
                filter.archived,
                filter.deleted,
            )
            .fetch_all(&self.pool)
            .await?
        } else {
            sqlx::query_scalar!(
                r#"SELECT id FROM experiments
                   WHERE project_id = $1 AND kind = 'comparison' AND id > coalesce($6::uuid, '00000000-0000-0000-0000-000000000000')
                     AND ($2::text[] IS NULL OR state = ANY($2))
                     AND ($3::text IS NULL OR position(lower($3) IN lower(name)) > 0)
                     AND ($4::timestamptz IS NULL OR created_at > $4)
                     AND ($5::timestamptz IS NULL OR created_at < $5)
                     AND labels @> $8 AND ($9::text IS NULL OR created_by = $9)
                     AND ($10::text IS NULL OR workload_id IN (SELECT w.id FROM workloads w WHERE w.project_id = $1 AND w.name = $10))
                     AND ($11::text IS NULL OR EXISTS (SELECT FROM trials t WHERE t.experiment_id = experiments.id AND t.instance_type = $11))
                     AND ($12::numeric IS NULL OR settled_usd >= $12) AND ($13::numeric IS NULL OR settled_usd <= $13)
                     AND ($15 OR (archived_at IS NOT NULL) = $14) AND (deleted_at IS NOT NULL) = $15 AND purged_at IS NULL
                   ORDER BY id LIMIT $7"#,
                project.0,
                filter.states.as_deref(),
                filter.name_contains,
                filter.created_after,
                filter.created_before,
                from,
                limit,
                &filter.labels,
                filter.created_by,
                filter.workload,
                filter.instance_type,
                filter.settled_usd_min.map(|usd| usd.0),
                filter.settled_usd_max.map(|usd| usd.0),
                filter.archived,
                filter.deleted,
            )
            .fetch_all(&self.pool)
            .await?
        };
        Ok(ids)
    }

    async fn lines(&self, ids: &[Uuid]) -> Result<Vec<ExperimentLine>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT e.id, e.name, e.state, e.budget_usd, e.reserved_usd, e.settled_usd, e.paused_reason, e.revision, e.labels,
                      e.created_by, e.archived_at, e.deleted_at, e.created_at, e.ended_at, e.full_run_of, e.answer_brief,
                      -- Concluded before answers were kept in brief.
                      CASE WHEN e.answer_brief IS NULL THEN e.recommendation END AS recommendation,
                      w.name AS workload, w.version AS workload_version,
                      count(*) FILTER (WHERE t.state IN ('queued', 'submitting')) AS "waiting!",
                      count(*) FILTER (WHERE t.state IN ('running', 'stopping')) AS "running!",
                      count(*) FILTER (WHERE t.state = 'parked') AS "parked!",
                      count(*) FILTER (WHERE t.state = 'completed') AS "completed!",
                      count(*) FILTER (WHERE t.state = 'stopped') AS "stopped!",
                      count(*) FILTER (WHERE t.state = 'failed') AS "failed!",
                      count(*) FILTER (WHERE t.state = 'refused') AS "refused!"
               FROM experiments e JOIN workloads w ON w.id = e.workload_id LEFT JOIN trials t ON t.experiment_id = e.id
               WHERE e.id = ANY($1) GROUP BY e.id, w.id"#,
            ids,
        )
        .fetch_all(&self.pool)
        .await?;
        let few = |count: i64| u32::try_from(count).unwrap_or(u32::MAX);
        let line = rows.into_iter().map(|row| {
            let brief = row.answer_brief;
            let brief =
                brief.map(|value| stored::read(value, "experiments", row.id, "answer_brief"));
            let answer = row.recommendation;
            let answer =
                answer.map(|value| stored::read(value, "experiments", row.id, "recommendation"));
            let answer: Option<Recommendation> = answer.transpose()?;
            Ok(ExperimentLine {
                id: ExperimentId(row.id),
                name: row.name,
                state: ExperimentState::parse(&row.state)
                    .ok_or_else(|| StoreError::corrupt("experiments", row.id, "state"))?,
                workload: row.workload,
                workload_version: row.workload_version,
                budget_usd: Usd(row.budget_usd),
                reserved_usd: Usd(row.reserved_usd),
                settled_usd: Usd(row.settled_usd),
                paused_reason: row.paused_reason,
                trials: TrialCounts {
                    waiting: few(row.waiting),
                    running: few(row.running),
                    parked: few(row.parked),
                    completed: few(row.completed),
                    stopped: few(row.stopped),
                    failed: few(row.failed),
                    refused: few(row.refused),
                },
                answer: brief.transpose()?.or(answer.as_ref().map(Brief::from)),
                full_run_of: row.full_run_of.map(ExperimentId),
                revision: error::count(row.revision, "experiments", row.id, "revision")?,
                labels: labels::of_pairs(&row.labels),
                created_by: row.created_by,
                creator: None,
                archived_at: row.archived_at,
                deleted_at: row.deleted_at,
                created_at: row.created_at,
                ended_at: row.ended_at,
            })
        });
        line.collect()
    }

    /// Says the names of those who began them.
    async fn name_creators(
        &self,
        project: ProjectId,
        lines: &mut [ExperimentLine],
    ) -> Result<(), StoreError> {
        let by = lines.iter().filter_map(|line| line.created_by.clone());
        let names = self.creators(project, &by.collect::<Vec<_>>()).await?;
        for line in lines {
            let name = line.created_by.as_ref().and_then(|by| names.get(by));
            line.creator = name.cloned();
        }
        Ok(())
    }

    /// The names of API keys, CI templates and pipelines, by their ids as text.
    async fn creators(
        &self,
        project: ProjectId,
        by: &[String],
    ) -> Result<HashMap<String, String>, StoreError> {
        let id = |text: &String| {
            let key = text.parse::<ApiKeyId>().map(|id| id.0);
            let template = || text.parse::<TemplateId>().map(|id| id.0);
            let pipeline = || text.parse::<PipelineId>().map(|id| id.0);
            key.or_else(|_| template()).or_else(|_| pipeline()).ok()
        };
        let ids: HashMap<Uuid, &String> = by
            .iter()
            .filter_map(|text| Some((id(text)?, text)))
            .collect();
        let rows = sqlx::query!(
            r#"SELECT id AS "id!", name AS "name!" FROM api_keys WHERE project_id = $1 AND id = ANY($2)
               UNION ALL SELECT id, name FROM ci_templates WHERE project_id = $1 AND id = ANY($2)
               UNION ALL SELECT id, name FROM pipelines WHERE project_id = $1 AND id = ANY($2)"#,
            project.0,
            &ids.keys().copied().collect::<Vec<_>>(),
        )
        .fetch_all(&self.pool)
        .await?;
        let name = rows
            .into_iter()
            .filter_map(|row| Some(((*ids.get(&row.id)?).clone(), row.name)));
        Ok(name.collect())
    }

    /// How many experiments of a project there are of each kind; those in the archive and deleted ones are left out.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn experiment_facets(&self, project: ProjectId) -> Result<Facets, StoreError> {
        let rows = sqlx::query!(
            r#"WITH shown AS MATERIALIZED (
                   SELECT state, created_by, workload_id FROM experiments
                   WHERE project_id = $1 AND kind = 'comparison' AND archived_at IS NULL AND deleted_at IS NULL)
               SELECT 'state' AS "facet!", state AS "value!", count(*) AS "count!" FROM shown GROUP BY state
               UNION ALL (SELECT 'creator', created_by, count(*) FROM shown WHERE created_by IS NOT NULL
                          GROUP BY created_by ORDER BY count(*) DESC, created_by LIMIT $2)
               UNION ALL (SELECT 'workload', w.name, count(*) FROM shown s JOIN workloads w ON w.id = s.workload_id
                          GROUP BY w.name ORDER BY count(*) DESC, w.name LIMIT $2)"#,
            project.0,
            FACET_VALUES,
        )
        .fetch_all(&self.pool)
        .await?;
        let by = rows.iter().filter(|row| row.facet == "creator");
        let by: Vec<String> = by.map(|row| row.value.clone()).collect();
        let names = self.creators(project, &by).await?;
        let mut facets = Facets::default();
        for row in rows {
            match row.facet.as_str() {
                "state" => {
                    let state = ExperimentState::parse(&row.value)
                        .ok_or_else(|| StoreError::corrupt("experiments", project, "state"))?;
                    facets.states.push((state, row.count));
                }
                "creator" => facets.creators.push(Facet {
                    name: names.get(&row.value).unwrap_or(&row.value).clone(),
                    value: row.value,
                    count: row.count,
                }),
                _ => facets.workloads.push(Facet {
                    name: row.value.clone(),
                    value: row.value,
                    count: row.count,
                }),
            }
        }
        Ok(facets)
    }
}

/// Puts the rows that were found into the order of their ids.
fn in_order<T>(ids: &[Uuid], found: Vec<T>, id: impl Fn(&T) -> Uuid) -> Vec<T> {
    let mut by_id: HashMap<Uuid, T> = found.into_iter().map(|one| (id(&one), one)).collect();
    ids.iter().filter_map(|id| by_id.remove(id)).collect()
}

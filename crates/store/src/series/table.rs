//! Many series at once, in a fixed number of queries: whose they are, and their points.

use std::collections::HashMap;

use bakeoff_domain::ids::{ExperimentId, ProjectId, RunId, TrialId};
use bakeoff_domain::measure::metric::Subject;
use bakeoff_domain::measure::rollup::Columns;
use uuid::Uuid;

use crate::series::Series;
use crate::{Store, StoreError};

/// Whose series are asked for.
#[derive(Debug, Clone, Default)]
pub struct SubjectFilter {
    pub trials: Vec<TrialId>,
    /// All trials of these.
    pub experiments: Vec<ExperimentId>,
    pub runs: Vec<RunId>,
}

/// A trial or a run of a project.
#[derive(Debug, Clone)]
pub struct MeasuredSubject {
    pub subject: Subject,
    pub candidate: String,
    /// Of a trial.
    pub experiment: Option<ExperimentId>,
}

/// The points of a series.
#[derive(Debug, Clone, Default)]
pub struct SeriesPoints {
    pub columns: Columns,
    /// Whether they are five-minute means, at the time and the step of the last point of each.
    pub are_means: bool,
}

impl Store {
    /// Trials and runs of a project, in the order of their specifications; what it does not have is left out.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn measured_subjects(
        &self,
        project: ProjectId,
        of: &SubjectFilter,
        limit: i64,
    ) -> Result<Vec<MeasuredSubject>, StoreError> {
        let trials: Vec<Uuid> = of.trials.iter().map(|id| id.0).collect();
        let experiments: Vec<Uuid> = of.experiments.iter().map(|id| id.0).collect();
        let runs: Vec<Uuid> = of.runs.iter().map(|id| id.0).collect();
        let rows = sqlx::query!(
            r#"(SELECT t.id AS "id!", t.candidate AS "candidate!", t.experiment_id FROM trials t
                WHERE t.project_id = $1 AND (t.id = ANY($2) OR t.experiment_id = ANY($3))
                  AND NOT EXISTS (SELECT FROM experiments e WHERE e.id = t.experiment_id AND e.deleted_at IS NOT NULL)
                ORDER BY t.experiment_id, t.ordinal LIMIT $5)
               UNION ALL (SELECT r.id, r.name, NULL FROM runs r WHERE r.project_id = $1 AND r.id = ANY($4) ORDER BY r.id LIMIT $5)"#,
            project.0,
            &trials,
            &experiments,
            &runs,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        let subject = rows.into_iter().map(|row| MeasuredSubject {
            subject: if row.experiment_id.is_some() {
                Subject::Trial(TrialId(row.id))
            } else {
                Subject::Run(RunId(row.id))
            },
            candidate: row.candidate,
            experiment: row.experiment_id.map(ExperimentId),
        });
        Ok(subject.collect())
    }

    /// All points of series with at most `few`, and five-minute means of the others.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn points_of_all(
        &self,
        series: &[Series],
        few: i64,
    ) -> Result<HashMap<i32, SeriesPoints>, StoreError> {
        let (short, long): (Vec<&Series>, Vec<&Series>) =
            series.iter().partition(|one| one.points <= few);
        let long: Vec<i32> = long.iter().map(|one| one.id).collect();
        let mut found = self.all_points(&short).await?;
        for (id, bucket) in self.rollups(&long).await? {
            let points: &mut SeriesPoints = found.entry(id).or_default();
            points.are_means = true;
            points.columns.at.push(bucket.last_at);
            points.columns.step.push(bucket.last_step.unwrap_or(-1));
            points.columns.value.push(bucket.mean);
        }
        Ok(found)
    }

    async fn all_points(
        &self,
        series: &[&Series],
    ) -> Result<HashMap<i32, SeriesPoints>, StoreError> {
        let mut found: HashMap<i32, SeriesPoints> = HashMap::new();
        let from = series.iter().filter_map(|one| one.first_at).min();
        let until = series.iter().filter_map(|one| one.last_at).max();
        let (Some(from), Some(until)) = (from, until) else {
            return Ok(found);
        };
        let ids: Vec<i32> = series.iter().map(|one| one.id).collect();
        let live = sqlx::query!(
            r#"SELECT series_id, sampled_at, step, value FROM samples
               WHERE series_id = ANY($1) AND sampled_at BETWEEN $2 AND $3 ORDER BY series_id, sampled_at, step"#,
            &ids,
            from,
            until,
        )
        .fetch_all(&self.pool)
        .await?;
        for row in live {
            let columns = &mut found.entry(row.series_id).or_default().columns;
            columns.at.push(row.sampled_at);
            columns.step.push(row.step);
            columns.value.push(row.value);
        }
        // Read after the live points: a series that is compacted meanwhile is found here.
        let ids: Vec<i32> = ids
            .into_iter()
            .filter(|id| !found.contains_key(id))
            .collect();
        let chunks = sqlx::query!(
            r#"SELECT series_id, sampled_at, step, value FROM sample_chunks
               WHERE series_id = ANY($1) ORDER BY series_id, number"#,
            &ids,
        )
        .fetch_all(&self.pool)
        .await?;
        for chunk in chunks {
            let columns = &mut found.entry(chunk.series_id).or_default().columns;
            let steps = chunk.step.unwrap_or_else(|| vec![-1; chunk.value.len()]);
            columns.step.extend(steps);
            columns.at.extend(chunk.sampled_at);
            columns.value.extend(chunk.value);
        }
        Ok(found)
    }
}

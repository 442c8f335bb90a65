//! Series of many trials and runs in one answer, thinned to what a chart can show.

use std::collections::{BTreeMap, HashMap};

use axum::extract::State;
use axum::response::Response;
use bakeoff_domain::ids::{ExperimentId, RunId, TrialId};
use bakeoff_domain::measure::metric::{self, Subject};
use bakeoff_domain::measure::rollup::thin;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::plumbing::auth::Caller;
use crate::plumbing::extract::Params;
use crate::plumbing::heavy;
use crate::plumbing::page::parameter;
use crate::plumbing::problem::{Problem, Problems};
use crate::samples::point_columns;
use bakeoff_api::series::{MetricName, SeriesLine, SeriesTable};
use bakeoff_service::app::App;
use bakeoff_service::read::figures::preferred;
use bakeoff_store::series::Series;
use bakeoff_store::series::table::{MeasuredSubject, SeriesPoints, SubjectFilter};

/// Trials and runs in one answer.
const SUBJECTS_MAX: usize = 200;
const METRICS_MAX: usize = 16;
const POINTS_DEFAULT: usize = 300;
const POINTS_MAX: usize = 2000;
/// Points in one answer.
const ALL_POINTS_MAX: usize = 300_000;
/// Series with at most so many times the points that are asked for are thinned from all of them.
const READ_PER_POINT: usize = 2;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SeriesTableParams {
    /// All trials of an experiment; repeat for several.
    #[serde(default)]
    experiment_id: Vec<ExperimentId>,
    /// A trial; repeat for several.
    #[serde(default)]
    trial_id: Vec<TrialId>,
    /// A run outside SageMaker; repeat for several.
    #[serde(default)]
    run_id: Vec<RunId>,
    /// A standard name (`tokens_per_second`, `train_loss`), or a name as reported; repeat for several, at most 16.
    /// Without one, only the names of what is there are told.
    #[serde(default)]
    metric: Vec<String>,
    /// Maximum number of points of each series, 10 to 2000; 300 when absent. A chart needs no more than it is wide.
    points: Option<usize>,
}

/// Series of trials and runs
///
/// Several metrics of up to 200 trials and runs, for charts: one call instead of one for each trial and metric. A trial
/// that has not reported a metric has no line for it.
#[utoipa::path(get, path = "/v1/series", operation_id = "listSeries", tag = "metrics", params(SeriesTableParams),
    responses((status = 200, description = "The series, of the source that is believed", body = SeriesTable), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<SeriesTableParams>,
) -> Result<Response, Problem> {
    let points = params.points.unwrap_or(POINTS_DEFAULT);
    if !(10..=POINTS_MAX).contains(&points) {
        let detail = format!("must be 10 to {POINTS_MAX}");
        return Err(parameter("points", detail));
    }
    if params.metric.len() > METRICS_MAX {
        let detail = format!("at most {METRICS_MAX} at a time");
        return Err(parameter("metric", detail));
    }
    let wanted: Vec<String> = params.metric.iter().map(|name| standard(name)).collect();
    let subjects = subjects(&app, caller, params).await?;
    if subjects.len() * wanted.len().max(1) * points > ALL_POINTS_MAX {
        let detail = format!(
            "{} trials and runs × {} metrics × {points} points are too many: at most {ALL_POINTS_MAX} points in all",
            subjects.len(),
            wanted.len()
        );
        return Err(parameter("points", detail));
    }
    let ids: Vec<Uuid> = subjects.iter().map(|one| one.subject.uuid()).collect();
    let all = preferred(app.store.series_of(&ids, None).await?);
    let metrics = names(&all);
    let is_wanted = |one: &Series| wanted.contains(&one.metric) || wanted.contains(&one.name);
    let series: Vec<Series> = all.into_iter().filter(is_wanted).collect();
    let few = i64::try_from(points * READ_PER_POINT).unwrap_or(i64::MAX);
    let found = app.store.points_of_all(&series, few).await?;
    let as_of = app.clock.now();
    let series = heavy::aside(move || lines(&subjects, series, found, points)).await?;
    heavy::json(SeriesTable {
        series,
        metrics,
        as_of,
    })
    .await
}

fn standard(name: &str) -> String {
    metric::standard(name).map_or_else(|| name.to_owned(), |found| found.name.to_owned())
}

/// The trials and runs that are asked for. One that the project does not have is refused by name.
async fn subjects(
    app: &App,
    caller: Caller,
    params: SeriesTableParams,
) -> Result<Vec<MeasuredSubject>, Problem> {
    let filter = SubjectFilter {
        trials: params.trial_id,
        experiments: params.experiment_id,
        runs: params.run_id,
    };
    let asked = filter.trials.len() + filter.experiments.len() + filter.runs.len();
    if asked == 0 {
        let detail = "name at least one: experiment_id, trial_id or run_id";
        return Err(parameter("trial_id", detail));
    }
    let limit = i64::try_from(SUBJECTS_MAX + 1).unwrap_or(i64::MAX);
    let found = app
        .store
        .measured_subjects(caller.project, &filter, limit)
        .await?;
    if asked > SUBJECTS_MAX || found.len() > SUBJECTS_MAX {
        let detail = format!("at most {SUBJECTS_MAX} trials and runs at a time");
        return Err(parameter("trial_id", detail));
    }
    let has = |subject: Subject| found.iter().any(|one| one.subject == subject);
    let trial = filter.trials.iter().find(|id| !has(Subject::Trial(**id)));
    let run = filter.runs.iter().find(|id| !has(Subject::Run(**id)));
    let of = |id: &ExperimentId| found.iter().any(|one| one.experiment == Some(*id));
    let experiment = filter.experiments.iter().find(|id| !of(id));
    let missing = trial
        .map(|id| format!("there is no trial {id} in this project"))
        .or_else(|| run.map(|id| format!("there is no run {id} in this project")))
        .or_else(|| experiment.map(|id| format!("there is no experiment {id} in this project")));
    match missing {
        Some(missing) => Err(Problem::not_found(missing)),
        None => Ok(found),
    }
}

fn names(series: &[Series]) -> Vec<MetricName> {
    let mut names: BTreeMap<&str, MetricName> = BTreeMap::new();
    for one in series {
        let name = names.entry(&one.metric).or_insert_with(|| MetricName {
            metric: one.metric.clone(),
            unit: one.unit.clone(),
            subjects: 0,
        });
        name.subjects += 1;
    }
    names.into_values().collect()
}

fn lines(
    subjects: &[MeasuredSubject],
    series: Vec<Series>,
    mut points: HashMap<i32, SeriesPoints>,
    most: usize,
) -> Vec<SeriesLine> {
    let mut of_subject: HashMap<Uuid, Vec<Series>> = HashMap::new();
    for one in series {
        of_subject.entry(one.subject_id).or_default().push(one);
    }
    let mut lines = Vec::new();
    for subject in subjects {
        let own = of_subject.remove(&subject.subject.uuid());
        for series in own.unwrap_or_default() {
            let SeriesPoints { columns, are_means } = points.remove(&series.id).unwrap_or_default();
            let (trial_id, run_id) = match subject.subject {
                Subject::Trial(id) => (Some(id), None),
                Subject::Run(id) => (None, Some(id)),
            };
            lines.push(SeriesLine {
                trial_id,
                run_id,
                candidate: subject.candidate.clone(),
                metric: series.metric,
                unit: series.unit,
                source: series.source,
                stored_points: series.points,
                are_means,
                points: point_columns(&thin(&columns, most)),
            });
        }
    }
    lines
}

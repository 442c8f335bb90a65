//! The record of a project's own predictions: what plans said of trials that were measured since.

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::measure::calibration::{self, Class, Score};
use chrono::{DateTime, Utc};

use crate::api::calibration::Calibration;
use crate::read::load_all;
use crate::store::experiments::ExperimentFilter;
use crate::store::{Store, StoreError};

/// Experiments looked at, the newest first: enough to tell a bias, and bounded as history grows.
const EXPERIMENTS: i64 = 100;

/// Scores the newest experiments' predictions of speed, in a fixed number of queries.
pub async fn of_project(
    store: &Store,
    project: ProjectId,
    now: DateTime<Utc>,
) -> Result<Calibration, StoreError> {
    let filter = ExperimentFilter::default();
    let experiments = store
        .experiments(project, &filter, true, None, EXPERIMENTS)
        .await?;
    let evidence = load_all(store, &experiments).await?;
    let mut scores = Vec::new();
    for experiment in &experiments {
        let own = evidence
            .trials
            .iter()
            .filter(|trial| trial.experiment_id == experiment.id && trial.state.is_terminal());
        for trial in own {
            let speed = evidence.speed(trial, experiment.resolved.workload());
            let (Some(forecast), Some(speed)) = (&trial.plan.forecast, speed) else {
                continue;
            };
            let predicted = forecast.tokens_per_second;
            scores.push(Score {
                class: Class {
                    instance_type: trial.plan.instance_type.clone(),
                    is_adjusted: forecast.is_rescaled,
                },
                low: predicted.low,
                expected: predicted.expected,
                high: predicted.high,
                measured: speed.mean,
            });
        }
    }
    Ok(Calibration {
        experiments: u32::try_from(experiments.len()).unwrap_or(u32::MAX),
        rows: calibration::records(&scores)
            .into_iter()
            .map(Into::into)
            .collect(),
        as_of: now,
    })
}

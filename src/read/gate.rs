//! What the trials of a CI run have measured, as its gate compares it.

use std::collections::BTreeMap;

use bakeoff_domain::ci::gate::{Reading, Unmeasured};
use bakeoff_domain::ci::template;
use bakeoff_domain::ids::{ExperimentId, ProjectId};
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::measure::metric;
use bakeoff_domain::number::real;
use bakeoff_domain::spec::{ExperimentSpec, PurchaseOption};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Selection, comparison_of, figures};
use crate::api::comparison::ComparisonRow;
use crate::store::error::to_json;
use crate::store::{Store, StoreError};

/// Share of its steps from which on a trial has trained its tokens: scripts report some of the last ones late.
const ALL_STEPS: f64 = 0.98;

/// What all rounds of a run have measured.
#[derive(Debug, Default)]
pub struct Measured {
    pub readings: Vec<Reading>,
    pub unmeasured: Vec<Unmeasured>,
    /// Somebody has cancelled the newest experiment.
    pub is_cancelled: bool,
}

/// Reads the trials of a run's experiments; `spec` is its template's.
pub async fn measured(
    store: &Store,
    project: ProjectId,
    experiments: &[ExperimentId],
    spec: &ExperimentSpec,
    now: DateTime<Utc>,
) -> Result<Measured, StoreError> {
    let ids: Vec<Uuid> = experiments.iter().map(|id| id.0).collect();
    let found = store.experiments_by_id(project, &ids).await?;
    let newest = found.iter().find(|one| Some(&one.id) == experiments.last());
    let is_cancelled = newest.is_some_and(|one| one.state == ExperimentState::Cancelled);
    let selection = Selection {
        experiments: found,
        whole: experiments.to_vec(),
        ..Selection::default()
    };
    let rows = comparison_of(store, &selection, now).await?.rows;
    let peaks = peaks(store, &rows).await?;
    let written = to_json(spec)?;
    let completed = rows.iter().filter(|row| row.state == TrialState::Completed);
    let readings: Vec<Reading> = completed
        .map(|row| Reading {
            comparable: template::comparable(&written, &row.candidate),
            peak_gpu_memory_percent: row.trial_id.and_then(|id| peaks.get(&id.0).copied()),
            ..reading(row)
        })
        .collect();
    Ok(Measured {
        unmeasured: unmeasured(&rows, &readings),
        readings,
        is_cancelled,
    })
}

/// Candidates without a reading; of their trials, one that has failed says why.
fn unmeasured(rows: &[ComparisonRow], readings: &[Reading]) -> Vec<Unmeasured> {
    let mut unmeasured: BTreeMap<String, Unmeasured> = BTreeMap::new();
    for row in rows {
        let name = name(row);
        let has_failed = unmeasured.get(&name).is_some_and(|one| one.has_failed);
        if !has_failed && !readings.iter().any(|one| one.candidate == name) {
            unmeasured.insert(name.clone(), unmeasured_row(row, name));
        }
    }
    unmeasured.into_values().collect()
}

/// What a row is called in a verdict.
fn name(row: &ComparisonRow) -> String {
    match row.purchase_option {
        Some(PurchaseOption::Spot) => format!("{} (spot)", row.candidate),
        _ => row.candidate.clone(),
    }
}

fn unmeasured_row(row: &ComparisonRow, candidate: String) -> Unmeasured {
    let why = row.diagnosis.as_ref().or(row.reason.as_ref());
    Unmeasured {
        candidate,
        why: why.map_or_else(|| row.state.as_str().to_owned(), Clone::clone),
        has_failed: row.state == TrialState::Failed,
    }
}

fn reading(row: &ComparisonRow) -> Reading {
    let price = row.usd_per_hour.filter(|usd| usd.as_f64() > 0.0);
    let per_million = row.usd_per_million_tokens.zip(price);
    let has_trained = row.progress.is_some_and(|progress| progress >= ALL_STEPS);
    Reading {
        candidate: name(row),
        comparable: String::new(),
        hours_per_million_tokens: per_million.map(|(usd, price)| usd.as_f64() / price.as_f64()),
        tokens_per_second: row.tokens_per_second,
        peak_gpu_memory_percent: None,
        loss: row
            .validation_loss
            .or(row.train_loss)
            .filter(|_| has_trained),
        billed_hours: Some(real(row.billable_seconds) * f64::from(row.instance_count) / 3600.0),
        usd_per_hour: price,
    }
}

/// The most memory of one GPU that each trial used, percent.
async fn peaks(store: &Store, rows: &[ComparisonRow]) -> Result<BTreeMap<Uuid, f64>, StoreError> {
    let trials: Vec<Uuid> = rows
        .iter()
        .filter_map(|row| row.trial_id)
        .map(|id| id.0)
        .collect();
    let wanted = [metric::GPU_MEMORY_UTILIZATION.to_owned()];
    let series = figures::preferred(store.series_of(&trials, Some(&wanted)).await?);
    let ids: Vec<i32> = series.iter().map(|one| one.id).collect();
    let buckets = store.buckets(&ids).await?;
    let peak = |id| buckets.get(&id)?.iter().map(|one| one.max).reduce(f64::max);
    let peaks = series
        .iter()
        .filter_map(|one| Some((one.subject_id, peak(one.id)?)));
    Ok(peaks.collect())
}

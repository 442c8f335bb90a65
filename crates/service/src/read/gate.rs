//! What the trials of a CI run have measured, as its gate compares it.

use std::collections::BTreeMap;

use bakeoff_domain::ci::gate::{Reading, Unmeasured};
use bakeoff_domain::ci::template;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::measure::metric;
use bakeoff_domain::number::real;
use bakeoff_domain::spec::{ExperimentSpec, PurchaseOption};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Selection, comparison_of, figures};
use bakeoff_api::comparison::ComparisonRow;
use bakeoff_store::ci::runs::CiRun;
use bakeoff_store::{Store, StoreError, to_json};

/// Share of its steps from which on a trial has trained its tokens: metrics are of whole minutes, and the last steps of a
/// short trial are not seen.
const ALL_STEPS: f64 = 0.9;

/// What all rounds of a run have measured.
#[derive(Debug, Default)]
pub struct Measured {
    pub readings: Vec<Reading>,
    pub unmeasured: Vec<Unmeasured>,
}

/// Reads the trials of a run's experiments; `spec` is its template's.
pub async fn measured(
    store: &Store,
    run: &CiRun,
    spec: &ExperimentSpec,
    now: DateTime<Utc>,
) -> Result<Measured, StoreError> {
    let ids: Vec<Uuid> = run.experiments.iter().map(|id| id.0).collect();
    let found = store.experiments_by_id(run.project_id, &ids).await?;
    let newest = found.last().map(|one| one.state);
    let resolved = found
        .first()
        .map(|one| to_json(one.resolved.spec()))
        .transpose()?;
    let resolved = resolved.unwrap_or_default();
    let selection = Selection {
        experiments: found,
        whole: run.experiments.clone(),
        ..Selection::default()
    };
    let rows = comparison_of(store, &selection, now).await?.rows;
    let peaks = peaks(store, &rows).await?;
    let written = to_json(spec)?;
    let has_gate = run.settings.gate.is_some();
    let completed = rows.iter().filter(|row| missing(row, has_gate).is_none());
    let readings = completed
        .map(|row| Reading {
            comparable: template::comparable(&written, &resolved, &row.candidate),
            peak_gpu_memory_percent: row.trial_id.and_then(|id| peaks.get(&id.0).copied()),
            ..reading(row)
        })
        .collect();
    let mut unmeasured = unmeasured(&rows, has_gate);
    if newest == Some(ExperimentState::Cancelled) {
        unmeasured.insert(0, Unmeasured::cancelled());
    }
    Ok(Measured {
        readings,
        unmeasured,
    })
}

/// Candidates of which a trial has not completed; one that has failed says why.
fn unmeasured(rows: &[ComparisonRow], has_gate: bool) -> Vec<Unmeasured> {
    let mut unmeasured: BTreeMap<String, Unmeasured> = BTreeMap::new();
    for row in rows {
        let Some(why) = missing(row, has_gate) else {
            continue;
        };
        let one = Unmeasured {
            candidate: name(row),
            why,
            // Without a gate a race may stop what loses.
            has_failed: has_gate || row.state != TrialState::Stopped,
        };
        let earlier = unmeasured.get(&one.candidate);
        if !earlier.is_some_and(|earlier| earlier.has_failed) {
            unmeasured.insert(one.candidate.clone(), one);
        }
    }
    unmeasured.into_values().collect()
}

/// Why a trial tells nothing; `None` if it has trained its tokens.
fn missing(row: &ComparisonRow, has_gate: bool) -> Option<String> {
    if row.state != TrialState::Completed {
        let why = row.diagnosis.as_ref().or(row.reason.as_ref());
        return Some(why.map_or_else(|| row.state.as_str().to_owned(), Clone::clone));
    }
    // A script that gives up early and says that all is well has trained less, and looks cheap.
    let (step, planned) = row.step.zip(row.planned_steps)?;
    let is_short = has_gate && count(step) < ALL_STEPS * count(planned);
    is_short.then(|| format!("it has ended after {step} of {planned} steps"))
}

fn count(steps: i64) -> f64 {
    real(steps.max(0).unsigned_abs())
}

/// What a row is called in a verdict.
fn name(row: &ComparisonRow) -> String {
    if is_spot(row) {
        format!("{} (spot)", row.candidate)
    } else {
        row.candidate.clone()
    }
}

fn is_spot(row: &ComparisonRow) -> bool {
    row.purchase_option == Some(PurchaseOption::Spot)
}

fn reading(row: &ComparisonRow) -> Reading {
    let price = row.usd_per_hour.filter(|usd| usd.as_f64() > 0.0);
    let per_million = row.usd_per_million_tokens.zip(price);
    let useful = 1.0 - row.wasted_share.unwrap_or_default();
    let billed = real(row.billable_seconds) * f64::from(row.instance_count) / 3600.0;
    Reading {
        candidate: name(row),
        comparable: String::new(),
        hours_per_million_tokens: per_million.map(|(usd, price)| usd.as_f64() / price.as_f64()),
        tokens_per_second: row.tokens_per_second,
        peak_gpu_memory_percent: None,
        train_loss: row.train_loss,
        validation_loss: row.validation_loss,
        billed_hours: Some(billed * useful),
        is_spot: is_spot(row),
        usd_per_hour: price,
    }
}

/// The highest minute of GPU memory in use of each trial, percent.
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

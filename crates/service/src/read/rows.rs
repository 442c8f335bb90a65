//! Comparison rows: what one trial or one external run did and cost, from its figures, its attempts
//! and its plan. Pure: all input has been read already.

use bakeoff_domain::catalog;
use bakeoff_domain::lifecycle::attempt_cost::{self, AttemptRun, BilledShares, PhaseSeconds};
use bakeoff_domain::lifecycle::spot;
use bakeoff_domain::lifecycle::state::{RunState, TrialState};
use bakeoff_domain::measure::derived::TrainingShape;
use bakeoff_domain::measure::eta::{self, NoEta};
use bakeoff_domain::measure::metric;
use bakeoff_domain::money::bill::Agreed;
use bakeoff_domain::money::{Usd, cost};
use bakeoff_domain::number::real;
use bakeoff_domain::sagemaker::observed::seconds_between;
use bakeoff_domain::spec::expectation::Expectation;
use bakeoff_domain::spec::run::RunSpec;
use bakeoff_domain::spec::{PurchaseOption, WorkloadSpec};
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

use super::{Evidence, total};
use crate::read::figures::Figures;
use bakeoff_api::comparison::{ComparisonRow, ExpectationView, RowKind};
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::runs::Run;
use bakeoff_store::experiments::trials::{Attempt, Trial};

/// Compares each expectation with the measured values of the matching rows.
pub(super) fn expectations(
    expected: &[Expectation],
    rows: &[ComparisonRow],
) -> Vec<ExpectationView> {
    let mut views = Vec::new();
    for (expectation, row) in expected
        .iter()
        .flat_map(|one| rows.iter().map(move |row| (one, row)))
    {
        if expectation
            .candidate
            .as_ref()
            .is_some_and(|name| *name != row.candidate)
        {
            continue;
        }
        let columns = serde_json::json!(row);
        let measured = columns
            .get(&expectation.column)
            .and_then(serde_json::Value::as_f64);
        views.push(ExpectationView {
            candidate: row.candidate.clone(),
            column: expectation.column.clone(),
            at_least: expectation.at_least,
            at_most: expectation.at_most,
            note: expectation.note.clone(),
            measured,
            verdict: expectation.verdict(measured),
        });
    }
    views
}

/// The shape of a plan, without its cost.
pub(super) fn shape_of_plan<'a>(plan: &TrialPlan, workload: &'a WorkloadSpec) -> TrainingShape<'a> {
    let instance = catalog::find(&plan.instance_type);
    let accelerators = instance.map_or(0, |found| found.accelerator_count * plan.instance_count);
    let kind = &plan.instance_type;
    TrainingShape {
        planned_steps: i64::try_from(plan.steps).ok().filter(|steps| *steps > 0),
        ..TrainingShape::of_workload(workload, kind, accelerators, plan.global_batch)
    }
}

pub(super) fn shape_of_run(spec: &RunSpec) -> TrainingShape<'_> {
    TrainingShape {
        model: spec.model.as_ref(),
        global_batch: spec.global_batch,
        accelerators: spec.accelerator_count,
        peak_tflops: spec.peak_tflops(),
        accelerator_gib: spec.like().and_then(|one| one.accelerator_memory_gib),
        epoch_tokens: spec.epoch_tokens,
        planned_steps: spec
            .planned_steps
            .and_then(|steps| i64::try_from(steps).ok()),
        usd_per_hour: spec.usd_per_hour,
        billed_share: Some(1.0),
    }
}

/// The columns derived from figures and shape; the others stay empty.
fn measured(
    figures: &Figures,
    id: Uuid,
    shape: &TrainingShape<'_>,
    is_over: bool,
    now: DateTime<Utc>,
) -> ComparisonRow {
    let found = figures.speed(id, shape);
    let speed = found.as_ref().map(|found| &found.steady);
    let derived = shape.derive(speed.map(|speed| speed.mean));
    let step = figures.step(id);
    let steps_per_second = figures.mean(id, metric::STEPS_PER_SECOND);
    let steps_per_second = steps_per_second.or(derived.steps_per_second);
    let row = ComparisonRow {
        instance_count: 1,
        accelerator_count: shape.accelerators,
        tokens_per_second: speed.map(|speed| speed.mean),
        tokens_per_second_half_width: speed.map(|speed| speed.half_width),
        tokens_per_second_from_at: speed.map(|speed| speed.from_at),
        tokens_per_second_until_at: speed.map(|speed| speed.until_at),
        tokens_per_second_source: found
            .as_ref()
            .and_then(|found| figures.speed_source(id, found.basis)),
        tokens_per_second_basis: found.as_ref().map(|found| found.basis),
        samples_per_second: figures
            .mean(id, metric::SAMPLES_PER_SECOND)
            .or(derived.samples_per_second),
        steps_per_second,
        steps_per_hour: steps_per_second.map(|speed| 3600.0 * speed),
        mfu_percent: derived.mfu_percent,
        gpu_utilization_percent: figures.mean(id, metric::GPU_UTILIZATION),
        gpu_memory_utilization_percent: gpu_memory(figures, id, shape),
        train_loss: figures.last(id, metric::TRAIN_LOSS),
        validation_loss: figures.last(id, metric::VALIDATION_LOSS),
        step,
        planned_steps: shape.planned_steps,
        progress: shape.progress(step),
        usd_per_million_tokens: derived.usd_per_million_tokens,
        usd_per_step: derived.usd_per_step,
        usd_per_epoch: derived.usd_per_epoch,
        usd_per_hour: shape.usd_per_hour,
        global_batch: shape.global_batch,
        ..ComparisonRow::default()
    };
    if is_over {
        row
    } else {
        remaining(row, figures, id, shape, now)
    }
}

/// Percent of an accelerator's memory: as reported, or else of what is used.
fn gpu_memory(figures: &Figures, id: Uuid, shape: &TrainingShape<'_>) -> Option<f64> {
    let reported = figures.mean(id, metric::GPU_MEMORY_UTILIZATION);
    reported.or_else(|| {
        shape.memory_percent(
            figures.mean(id, metric::GPU_MEMORY_USED),
            figures.mean(id, metric::GPU_MEMORY_TOTAL),
        )
    })
}

/// Adds the remaining time and cost of a training run with a planned end.
fn remaining(
    row: ComparisonRow,
    figures: &Figures,
    id: Uuid,
    shape: &TrainingShape<'_>,
    now: DateTime<Utc>,
) -> ComparisonRow {
    let Some(planned) = shape.planned_steps else {
        return row;
    };
    match eta::estimate(&figures.progress(id), planned, shape.usd_per_hour, now) {
        Ok(eta) => ComparisonRow {
            remaining_hours: Some(eta.remaining_hours),
            remaining_hours_low: Some(eta.remaining_hours_low),
            remaining_hours_high: Some(eta.remaining_hours_high),
            remaining_usd: eta.remaining_usd,
            remaining_usd_low: eta.remaining_usd_low,
            remaining_usd_high: eta.remaining_usd_high,
            pace_change_percent: eta.pace_change.map(|change| change.percent),
            pace_has_changed: eta.pace_change.map(|change| change.has_changed),
            ..row
        },
        Err(NoEta::Stalled { since }) => ComparisonRow {
            stalled_since: Some(since),
            ..row
        },
        Err(_) => row,
    }
}

pub(super) fn of_trial(
    evidence: &Evidence,
    experiment: &Experiment,
    trial: &Trial,
    now: DateTime<Utc>,
) -> ComparisonRow {
    let attempts = evidence.attempts(trial);
    let plan = &trial.plan;
    let price = evidence.price(trial, now);
    let price = price.as_ref();
    let billable_seconds = total(attempts, |attempt| attempt.billable_seconds);
    let workload = experiment.resolved.workload();
    let bare = shape_of_plan(plan, workload);
    let speed = evidence.figures.speed(trial.id.0, &bare);
    let speed = speed.map(|found| found.steady.mean);
    let shape = TrainingShape {
        usd_per_hour: price.map(|price| price.usd_per_hour * Decimal::from(plan.instance_count)),
        billed_share: billed_share(trial, speed, workload.trial_tokens, billable_seconds),
        ..bare
    };
    let is_over = trial.state.is_terminal();
    let figures = measured(&evidence.figures, trial.id.0, &shape, is_over, now);
    // What spot saves is known only at the end.
    let figures = match plan.purchase_option {
        PurchaseOption::OnDemand => figures,
        PurchaseOption::Spot => ComparisonRow {
            remaining_usd: None,
            remaining_usd_low: None,
            remaining_usd_high: None,
            ..figures
        },
    };
    let runs = attempt_runs(trial, attempts);
    let phases = PhaseSeconds::of(&runs);
    ComparisonRow {
        candidate: plan.candidate.clone(),
        instance_type: plan.instance_type.clone(),
        instance_count: plan.instance_count,
        purchase_option: Some(plan.purchase_option),
        state: trial.state,
        reason: trial.reason.clone(),
        diagnosis: evidence.failures.get(&trial.id).cloned(),
        secondary_status: attempts.last().and_then(|one| one.secondary_status.clone()),
        attempts: trial.attempts_made,
        interruptions: interruptions(attempts),
        comparable: plan.incomparable.is_none(),
        progress: match trial.state {
            TrialState::Completed => Some(1.0),
            _ => figures.progress,
        },
        training_seconds: total(attempts, |attempt| attempt.training_seconds),
        billable_seconds,
        starting_seconds: phases.starting,
        downloading_seconds: phases.loading(),
        uploading_seconds: phases.uploading,
        usd_per_hour: price.map(|price| price.usd_per_hour),
        price_source: price.map(|price| price.source.clone()),
        price_status: price.map(|price| price.status),
        price_effective_from: price.map(|price| price.effective_from),
        price_note: price.map(|price| price.note.clone()),
        kind: RowKind::Trial,
        experiment_id: Some(experiment.id),
        trial_id: Some(trial.id),
        ..costs(figures, evidence, trial, &runs, now)
    }
}

/// Adds a trial's cost and how the billed time is divided.
fn costs(
    row: ComparisonRow,
    evidence: &Evidence,
    trial: &Trial,
    runs: &[AttemptRun<'_>],
    now: DateTime<Utc>,
) -> ComparisonRow {
    let cost = evidence.costs.get(&trial.id).cloned().unwrap_or_default();
    let running = unsettled(evidence, trial, runs, now);
    let training = cost.training_usd + running;
    let shares = BilledShares::of(runs);
    let is_spot = trial.plan.purchase_option == PurchaseOption::Spot;
    ComparisonRow {
        cost_usd: Some(training),
        setup_share: shares.map(|shares| shares.setup),
        downloading_share: shares.map(|shares| shares.downloading),
        training_share: shares.map(|shares| shares.training),
        uploading_share: shares.map(|shares| shares.uploading),
        wasted_share: shares.map(|shares| shares.wasted),
        wasted_usd: attempt_cost::wasted(runs, &evidence.prices),
        storage_cost_usd: cost.storage_usd,
        metrics_cost_usd: cost.metrics_usd,
        other_cost_usd: cost.other_usd,
        total_usd: Some(training + cost.storage_usd + cost.metrics_usd + cost.other_usd),
        spot_saved_usd: is_spot.then(|| attempt_cost::spot_saved(runs, &evidence.prices)),
        cost_estimated: cost.estimated || running > Usd::ZERO,
        ..row
    }
}

/// What the attempts that are not settled yet have cost so far; those that are settled are in the
/// ledger.
fn unsettled(
    evidence: &Evidence,
    trial: &Trial,
    runs: &[AttemptRun<'_>],
    now: DateTime<Utc>,
) -> Usd {
    let cost = evidence.costs.get(&trial.id);
    let is_settled = |id| cost.is_some_and(|cost| cost.settled.contains(id));
    let attempts = evidence.attempts(trial).iter().zip(runs);
    let unsettled: Vec<AttemptRun<'_>> = attempts
        .filter(|(attempt, _)| !is_settled(&attempt.id))
        .map(|(_, run)| *run)
        .collect();
    attempt_cost::so_far(&unsettled, &evidence.prices, now)
}

/// All that a trial has cost so far.
pub(super) fn total_so_far(evidence: &Evidence, trial: &Trial, now: DateTime<Utc>) -> Usd {
    let runs = attempt_runs(trial, evidence.attempts(trial));
    let booked = evidence.costs.get(&trial.id).map_or(Usd::ZERO, |cost| {
        cost.training_usd + cost.storage_usd + cost.metrics_usd + cost.other_usd
    });
    booked + unsettled(evidence, trial, &runs, now)
}

pub(super) fn of_run(run: &Run, figures: &Figures, now: DateTime<Utc>) -> ComparisonRow {
    let spec = &run.spec;
    let shape = shape_of_run(spec);
    let is_over = run.state != RunState::Running;
    // Only reports are known about an external run: its time is from its start to its end, or to
    // the last point.
    let begun = run.started_at.or(figures.first_at(run.id.0));
    let until = run.ended_at.or(figures.last_at(run.id.0));
    let seconds = begun
        .zip(until)
        .map_or(0, |(begun, until)| seconds_between(begun, until));
    ComparisonRow {
        candidate: spec.name.clone(),
        instance_type: spec.hardware.clone(),
        state: match run.state {
            RunState::Running => TrialState::Running,
            RunState::Completed => TrialState::Completed,
            RunState::Failed => TrialState::Failed,
        },
        training_seconds: seconds,
        billable_seconds: seconds,
        cost_usd: spec
            .usd_per_hour
            .map(|rate| cost::training(seconds, 1, rate)),
        total_usd: spec
            .usd_per_hour
            .map(|rate| cost::training(seconds, 1, rate)),
        cost_estimated: !is_over,
        price_source: (!spec.price_source.is_empty()).then(|| spec.price_source.clone()),
        kind: RowKind::Run,
        run_id: Some(run.id),
        ..measured(figures, run.id.0, &shape, is_over, now)
    }
}

fn interruptions(attempts: &[Attempt]) -> u32 {
    let count: usize = attempts
        .iter()
        .map(|attempt| spot::interruptions(&attempt.transitions).len())
        .sum();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A trial's attempts, as their cost is computed.
fn attempt_runs<'a>(trial: &'a Trial, attempts: &'a [Attempt]) -> Vec<AttemptRun<'a>> {
    let seconds = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
    let runs = attempts.iter().map(|attempt| AttemptRun {
        instance_type: &trial.plan.instance_type,
        region: &trial.region,
        instance_count: trial.plan.instance_count,
        purchase_option: trial.plan.purchase_option,
        agreed: Agreed {
            price_id: attempt.price_id,
            usd_per_hour: attempt.usd_per_hour,
            estimated: false,
        },
        phase: attempt.phase,
        is_in_progress: attempt.job_status.as_deref() == Some("InProgress"),
        transitions: &attempt.transitions,
        training_seconds: seconds(attempt.training_seconds),
        billable_seconds: seconds(attempt.billable_seconds),
        started_at: attempt.started_at,
        ended_at: attempt.ended_at,
        modified_at: attempt.modified_at,
        listed_at: attempt.listed_at,
        checkpoints: &attempt.checkpoint_times,
    });
    runs.collect()
}

/// The billed share: billed time divided by productive time, as in the ranking. For spot it is
/// observed, so a spot trial has none before its end.
fn billed_share(
    trial: &Trial,
    tokens_per_second: Option<f64>,
    trial_tokens: u64,
    billable: u64,
) -> Option<f64> {
    let speed = tokens_per_second.filter(|speed| *speed > 0.0)?;
    match trial.plan.purchase_option {
        PurchaseOption::OnDemand => Some(1.0),
        PurchaseOption::Spot if trial.state == TrialState::Completed => {
            Some(real(billable) / (real(trial_tokens) / speed))
        }
        PurchaseOption::Spot => None,
    }
}

//! Comparison rows: what one trial or one external run did and cost, from its figures, its attempts
//! and its plan. Pure: all input has been read already.

use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::catalog::{self, InstanceType};
use bakeoff_domain::ids::JobId;
use bakeoff_domain::lifecycle::spot;
use bakeoff_domain::lifecycle::state::{AttemptEnd, AttemptPhase, RunState, TrialState};
use bakeoff_domain::measure::eta::{self, NoEta};
use bakeoff_domain::measure::metric;
use bakeoff_domain::money::bill::{self, Agreed, Usage};
use bakeoff_domain::money::{Usd, cost};
use bakeoff_domain::sagemaker::observed::seconds_between;
use bakeoff_domain::sagemaker::phase::JobPhase;
use bakeoff_domain::spec::expectation::Expectation;
use bakeoff_domain::spec::run::RunSpec;
use bakeoff_domain::spec::{PurchaseOption, WorkloadSpec};
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use rust_decimal::prelude::FromPrimitive;
use uuid::Uuid;

use super::{Evidence, total};
use crate::api::comparison::{ComparisonRow, ExpectationView, RowKind};
use crate::read::figures::Figures;
use crate::store::experiments::Experiment;
use crate::store::runs::Run;
use crate::store::trials::{Attempt, Trial};

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

/// Inputs for derived columns, the same for trials and runs.
struct Shape<'a> {
    model: Option<&'a ModelShape>,
    global_batch: Option<u64>,
    accelerators: u32,
    peak_tflops: Option<f64>,
    epoch_tokens: Option<u64>,
    planned_steps: Option<i64>,
    /// Price of all instances together.
    usd_per_hour: Option<Usd>,
    /// Billed time divided by productive time; none while unknown.
    billed_share: Option<f64>,
}

impl<'a> Shape<'a> {
    /// The shape of a plan, without its cost.
    fn of_plan(plan: &TrialPlan, workload: &'a WorkloadSpec) -> Self {
        let instance = catalog::find(&plan.instance_type);
        Self {
            model: Some(&workload.model),
            global_batch: Some(plan.global_batch).filter(|batch| *batch > 0),
            accelerators: instance.map_or(0, |found| found.accelerator_count * plan.instance_count),
            peak_tflops: instance.and_then(InstanceType::peak_tflops),
            epoch_tokens: workload.epoch_tokens,
            planned_steps: i64::try_from(plan.steps).ok().filter(|steps| *steps > 0),
            usd_per_hour: None,
            billed_share: None,
        }
    }

    fn of_run(spec: &'a RunSpec) -> Self {
        Self {
            model: spec.model.as_ref(),
            global_batch: spec.global_batch,
            accelerators: spec.accelerator_count,
            peak_tflops: spec.peak_tflops(),
            epoch_tokens: spec.epoch_tokens,
            planned_steps: spec
                .planned_steps
                .and_then(|steps| i64::try_from(steps).ok()),
            usd_per_hour: spec.usd_per_hour,
            billed_share: Some(1.0),
        }
    }
}

/// The columns derived from figures and shape; the others stay empty.
fn measured(
    figures: &Figures,
    id: Uuid,
    shape: &Shape<'_>,
    is_over: bool,
    now: DateTime<Utc>,
) -> ComparisonRow {
    let speed = speed(figures, id, shape);
    let mean = speed.tokens_per_second;
    let sequence = shape.model.map(|model| f64::from(model.sequence_length));
    let tokens_per_step = sequence
        .zip(shape.global_batch)
        .map(|(sequence, batch)| sequence * real(batch));
    let per_million = mean.zip(shape.usd_per_hour).zip(shape.billed_share);
    let per_million = per_million
        .and_then(|((mean, rate), share)| cost::usd_per_million_tokens(rate, 1, mean, share));
    let of_tokens = |tokens: Option<f64>| {
        let millions = Decimal::from_f64(tokens? / 1e6)?;
        Some(Usd(per_million?.0.checked_mul(millions)?).rounded())
    };
    let step = figures.step(id);
    ComparisonRow {
        instance_count: 1,
        accelerator_count: shape.accelerators,
        gpu_utilization_percent: figures.mean(id, metric::GPU_UTILIZATION),
        gpu_memory_utilization_percent: figures.mean(id, metric::GPU_MEMORY_UTILIZATION),
        train_loss: figures.last(id, metric::TRAIN_LOSS),
        validation_loss: figures.last(id, metric::VALIDATION_LOSS),
        step,
        planned_steps: shape.planned_steps,
        progress: step
            .zip(shape.planned_steps.filter(|planned| *planned > 0))
            .map(|(step, planned)| {
                (real(step.unsigned_abs()) / real(planned.unsigned_abs())).clamp(0.0, 1.0)
            }),
        usd_per_million_tokens: per_million,
        usd_per_step: of_tokens(tokens_per_step),
        usd_per_epoch: of_tokens(shape.epoch_tokens.map(real)),
        usd_per_hour: shape.usd_per_hour,
        global_batch: shape.global_batch,
        ..if is_over {
            speed
        } else {
            remaining(speed, figures, id, shape, now)
        }
    }
}

/// The speed columns: measured values and what is derived from them.
fn speed(figures: &Figures, id: Uuid, shape: &Shape<'_>) -> ComparisonRow {
    let steady = figures.steady(id, metric::TOKENS_PER_SECOND);
    let mean = steady.map(|steady| steady.mean);
    let sequence = shape.model.map(|model| f64::from(model.sequence_length));
    let tokens_per_step = sequence
        .zip(shape.global_batch)
        .map(|(sequence, batch)| sequence * real(batch));
    let per = |divisor: Option<f64>| Some(mean? / divisor?).filter(|rate| rate.is_finite());
    let peak = shape
        .peak_tflops
        .map(|peak| peak * 1e12 * f64::from(shape.accelerators));
    let flops = shape.model.map(ModelShape::flops_per_token);
    ComparisonRow {
        tokens_per_second: mean,
        tokens_per_second_half_width: steady.map(|steady| steady.half_width),
        tokens_per_second_from_at: steady.map(|steady| steady.from_at),
        tokens_per_second_until_at: steady.map(|steady| steady.until_at),
        tokens_per_second_source: steady
            .and_then(|_| figures.source(id, metric::TOKENS_PER_SECOND)),
        samples_per_second: figures
            .mean(id, metric::SAMPLES_PER_SECOND)
            .or_else(|| per(sequence)),
        steps_per_second: figures
            .mean(id, metric::STEPS_PER_SECOND)
            .or_else(|| per(tokens_per_step)),
        mfu_percent: mean
            .zip(flops)
            .zip(peak)
            .map(|((mean, flops), peak)| 100.0 * mean * flops / peak),
        ..ComparisonRow::default()
    }
}

/// Adds the remaining time and cost of a training run with a planned end.
fn remaining(
    row: ComparisonRow,
    figures: &Figures,
    id: Uuid,
    shape: &Shape<'_>,
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
    let speed = evidence.figures.mean(trial.id.0, metric::TOKENS_PER_SECOND);
    let workload = experiment.resolved.workload();
    let shape = Shape {
        usd_per_hour: price.map(|price| price.usd_per_hour * Decimal::from(plan.instance_count)),
        billed_share: billed_share(trial, speed, workload.trial_tokens, billable_seconds),
        ..Shape::of_plan(plan, workload)
    };
    let is_over = trial.state.is_terminal();
    let figures = measured(&evidence.figures, trial.id.0, &shape, is_over, now);
    let phases = phases(attempts);
    ComparisonRow {
        candidate: plan.candidate.clone(),
        instance_type: plan.instance_type.clone(),
        instance_count: plan.instance_count,
        purchase_option: Some(plan.purchase_option),
        state: trial.state,
        reason: trial.reason.clone(),
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
        ..costs(figures, evidence, trial, attempts, now)
    }
}

/// Adds a trial's cost and how the billed time is divided.
fn costs(
    row: ComparisonRow,
    evidence: &Evidence,
    trial: &Trial,
    attempts: &[Attempt],
    now: DateTime<Utc>,
) -> ComparisonRow {
    let cost = evidence.costs.get(&trial.id).cloned().unwrap_or_default();
    let running = so_far(evidence, trial, attempts, &cost.settled, now);
    let training = cost.training_usd + running;
    let shares = shares(attempts);
    ComparisonRow {
        cost_usd: Some(training),
        setup_share: shares.map(|shares| shares.setup),
        downloading_share: shares.map(|shares| shares.downloading),
        training_share: shares.map(|shares| shares.training),
        uploading_share: shares.map(|shares| shares.uploading),
        wasted_share: shares.map(|shares| shares.wasted),
        wasted_usd: wasted(evidence, trial, attempts),
        storage_cost_usd: cost.storage_usd,
        metrics_cost_usd: cost.metrics_usd,
        other_cost_usd: cost.other_usd,
        total_usd: Some(training + cost.storage_usd + cost.metrics_usd + cost.other_usd),
        spot_saved_usd: spot_saved(evidence, trial, attempts),
        cost_estimated: cost.estimated || running > Usd::ZERO,
        ..row
    }
}

pub(super) fn of_run(run: &Run, figures: &Figures, now: DateTime<Utc>) -> ComparisonRow {
    let spec = &run.spec;
    let shape = Shape::of_run(spec);
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

#[derive(Default)]
struct Phases {
    /// Waiting for instances; not billed.
    starting: u64,
    pulling: u64,
    downloading: u64,
    training: u64,
    uploading: u64,
}

impl Phases {
    /// Loading the image and the data.
    fn loading(&self) -> u64 {
        self.pulling + self.downloading
    }
}

/// Time in each of SageMaker's phases, over all attempts.
fn phases<'a>(attempts: impl IntoIterator<Item = &'a Attempt>) -> Phases {
    let mut phases = Phases::default();
    for transition in attempts
        .into_iter()
        .flat_map(|attempt| &attempt.transitions)
    {
        let Some(ended_at) = transition.ended_at else {
            continue;
        };
        let seconds = seconds_between(transition.started_at, ended_at);
        match transition.phase() {
            JobPhase::Starting => phases.starting += seconds,
            JobPhase::PullingImage => phases.pulling += seconds,
            JobPhase::DownloadingData => phases.downloading += seconds,
            JobPhase::Training => phases.training += seconds,
            JobPhase::UploadingModel => phases.uploading += seconds,
            JobPhase::Unreported
            | JobPhase::Interrupted
            | JobPhase::Stopping
            | JobPhase::RuntimeLimit
            | JobPhase::WaitLimit
            | JobPhase::Over
            | JobPhase::Other => {}
        }
    }
    phases
}

/// How the billed seconds of ended attempts are divided; the shares add up to 1.
#[derive(Clone, Copy)]
struct Shares {
    /// From the start of billing: pulling the image, and time outside SageMaker's named phases.
    setup: f64,
    downloading: f64,
    training: f64,
    uploading: f64,
    /// Attempts that failed, in all their phases.
    wasted: f64,
}

/// Managed spot bills less than the running time; the billed time is assumed to divide in the same
/// proportions.
fn shares(attempts: &[Attempt]) -> Option<Shares> {
    let billed = |attempt: &Attempt| {
        attempt
            .billable_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
    };
    let total = total(attempts, |attempt| attempt.billable_seconds);
    if total == 0 {
        return None;
    }
    let mut sum = Shares {
        setup: 0.0,
        downloading: 0.0,
        training: 0.0,
        uploading: 0.0,
        wasted: 0.0,
    };
    for attempt in attempts {
        let Some(share) = billed(attempt).map(|billed| real(billed) / real(total)) else {
            continue;
        };
        if has_failed(attempt) {
            sum.wasted += share;
            continue;
        }
        let phases = phases([attempt]);
        let known = phases.loading() + phases.training + phases.uploading;
        let ran = attempt
            .started_at
            .zip(attempt.ended_at)
            .map_or(0, |(start, end)| seconds_between(start, end));
        let time = real(ran.max(known).max(1));
        let of = |seconds: u64| share * real(seconds) / time;
        sum.downloading += of(phases.downloading);
        sum.training += of(phases.training);
        sum.uploading += of(phases.uploading);
        sum.setup += share - of(phases.downloading + phases.training + phases.uploading);
    }
    Some(sum)
}

/// The cost of the given seconds of an attempt, at the prices in force while it ran.
fn billed(
    evidence: &Evidence,
    trial: &Trial,
    attempt: &Attempt,
    until: DateTime<Utc>,
    seconds: u64,
) -> Usd {
    let Some(from) = attempt.started_at else {
        return Usd::ZERO;
    };
    let usage = Usage {
        instance_type: trial.plan.instance_type.clone(),
        region: trial.region.clone(),
        count: trial.plan.instance_count,
        from,
        until: until.max(from),
        waits: bill::waits(&attempt.transitions),
        billed_seconds: seconds,
        run_seconds: seconds,
        volume_gb: 0,
    };
    let agreed = Agreed {
        price_id: attempt.price_id,
        usd_per_hour: attempt.usd_per_hour,
        estimated: false,
    };
    bill::lines(&usage, &evidence.prices, &[], agreed)
        .iter()
        .map(|line| line.usd)
        .sum()
}

fn has_failed(attempt: &Attempt) -> bool {
    attempt.phase == AttemptPhase::Over(AttemptEnd::Failed)
}

/// The cost of attempts that failed.
fn wasted(evidence: &Evidence, trial: &Trial, attempts: &[Attempt]) -> Usd {
    let lost = attempts.iter().filter(|attempt| has_failed(attempt));
    let cost = lost.filter_map(|attempt| {
        let seconds = u64::try_from(attempt.billable_seconds?).ok()?;
        Some(billed(evidence, trial, attempt, attempt.ended_at?, seconds))
    });
    cost.sum()
}

/// Lower bound on the cost of running attempts: from the start of billing to when they were last
/// known to run, without waiting time. It never exceeds what will be settled, so it never falls.
/// Spot savings are known only at the end, so spot counts its minimum cost.
fn so_far(
    evidence: &Evidence,
    trial: &Trial,
    attempts: &[Attempt],
    settled: &[JobId],
    now: DateTime<Utc>,
) -> Usd {
    let running = attempts
        .iter()
        .filter(|attempt| !attempt.phase.is_over() && !settled.contains(&attempt.id));
    let cost = running.filter_map(|attempt| {
        let from = attempt.started_at?;
        let is_running = attempt.job_status.as_deref() == Some("InProgress");
        let known = if is_running {
            attempt.listed_at
        } else {
            attempt.modified_at
        };
        let until = attempt.ended_at.or(known)?.min(now).max(from);
        let ran = bill::ran(from, until, &bill::waits(&attempt.transitions));
        let seconds = match trial.plan.purchase_option {
            PurchaseOption::OnDemand => ran,
            PurchaseOption::Spot => ran * u64::from(100 - spot::SAVING_PERCENT_MAX) / 100,
        };
        Some(billed(evidence, trial, attempt, until, seconds))
    });
    cost.sum()
}

/// How much more ended spot attempts would have cost on demand, for the time they ran.
fn spot_saved(evidence: &Evidence, trial: &Trial, attempts: &[Attempt]) -> Option<Usd> {
    if trial.plan.purchase_option != PurchaseOption::Spot {
        return None;
    }
    let saved = attempts.iter().filter_map(|attempt| {
        let seconds = u64::try_from(
            attempt
                .training_seconds?
                .checked_sub(attempt.billable_seconds?)?,
        )
        .ok()?;
        Some(billed(evidence, trial, attempt, attempt.ended_at?, seconds))
    });
    Some(saved.sum())
}

fn interruptions(attempts: &[Attempt]) -> u32 {
    let count: usize = attempts
        .iter()
        .map(|attempt| spot::interruptions(&attempt.transitions).len())
        .sum();
    u32::try_from(count).unwrap_or(u32::MAX)
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

#[expect(
    clippy::cast_precision_loss,
    reason = "seconds, steps and tokens lie far below 2^53"
)]
fn real(count: u64) -> f64 {
    count as f64
}

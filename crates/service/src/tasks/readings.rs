//! Readings: does a running trial teach anything? Looks at what each training job has reported, and at the end of its log
//! where that is too little; tells what is wrong, once, and stops what is paid for in vain.

use bakeoff_domain::diagnosis::fruitless::{
    PredictedSpeed, RunningTrial, SILENT_FOR, Trouble, needs_log, troubles,
};
use bakeoff_domain::event::Event;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::spec::NoReadings;
use chrono::TimeDelta;
use rust_decimal::Decimal;

use crate::app::App;
use crate::live::job_log::{self, LogQuery, LoggedJob};
use crate::read::figures::Figures;
use bakeoff_store::StoreError;
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::race::Judged;
use bakeoff_store::experiments::trials::Trial;
use bakeoff_store::jobs::readings::{FoundTrouble, ReadingsDue};

const DUE_MAX: i64 = 100;
/// Between two looks at a job.
const AGAIN: TimeDelta = TimeDelta::minutes(5);
/// Lines that are read of each stream.
const LINES: usize = 300;

/// Runs one tick; returns how many jobs were looked at.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let now = app.clock.now();
    let (region, store) = (&app.place.region, &app.store);
    let due = store
        .claim_due_readings(region, now - SILENT_FOR, now, AGAIN, DUE_MAX)
        .await?;
    let count = due.len();
    for one in due {
        app.pulse.beat();
        // One that cannot be read must not hold up the others.
        if let Err(error) = look(app, &one).await {
            tracing::warn!(%error, job = one.job_name, "looking at what a job teaches failed");
        }
    }
    Ok(count)
}

async fn look(app: &App, due: &ReadingsDue) -> Result<(), StoreError> {
    let experiment = app
        .store
        .experiment(due.project_id, due.experiment_id)
        .await?;
    let Some(experiment) = experiment else {
        return Ok(());
    };
    let trials = app.store.trials_of(&[due.experiment_id.0]).await?;
    let Some(trial) = trials.iter().find(|trial| trial.id == due.trial_id) else {
        return Ok(());
    };
    let all: Vec<_> = trials.iter().map(|trial| trial.id.0).collect();
    let figures = Figures::load(&app.store, &all).await?;
    let subject = due.trial_id.0;
    let utilization = figures.utilization(subject);
    let workload = experiment.resolved.workload();
    let predicted = trial.plan.forecast.as_ref().map(|forecast| PredictedSpeed {
        low: forecast.tokens_per_second.low,
        expected: forecast.tokens_per_second.expected,
        high: forecast.tokens_per_second.high,
    });
    let known = RunningTrial {
        training_since: due.training_since,
        now: app.clock.now(),
        definitions: &workload.metrics,
        has_speed: figures.reports_speed(subject),
        has_speed_elsewhere: all.iter().any(|other| figures.reports_speed(*other)),
        loss: figures.reported_loss(subject),
        lines: None,
        tokens_per_second: figures.reported_tokens_per_second(subject),
        predicted,
        sequence_length: workload.model.sequence_length,
        utilization: &utilization,
        usd_per_hour: Usd(due.usd_per_hour.0 * Decimal::from(due.instance_count)),
    };
    let lines = if needs_log(&known) {
        read_log(app, due).await
    } else {
        None
    };
    let known = RunningTrial {
        lines: lines.as_deref(),
        ..known
    };
    for trouble in troubles(&known) {
        let found = found(&experiment, &trials, trial, trouble);
        let now = app.clock.now();
        if app.store.record_trouble(due, &found, now).await? {
            tracing::info!(
                job = due.job_name,
                kind = found.kind.as_str(),
                "found trouble in a running trial"
            );
            app.wake_schedulers();
        }
    }
    Ok(())
}

/// The end of each stream of its log; nothing if it cannot be read.
async fn read_log(app: &App, due: &ReadingsDue) -> Option<Vec<String>> {
    let job = LoggedJob {
        kind: JobKind::Training,
        name: &due.job_name,
    };
    let read = job_log::tails(&app.place.aws, job, &LogQuery::default(), LINES).await;
    let read = read.inspect_err(|error| {
        tracing::info!(%error, job = due.job_name, "the log of a running job could not be read");
    });
    let lines = read.ok()?.lines.into_iter();
    Some(lines.map(|line| line.message).collect())
}

/// A trouble as it is told, with the trials that are stopped for it.
fn found(
    experiment: &Experiment,
    trials: &[Trial],
    trial: &Trial,
    trouble: Trouble,
) -> FoundTrouble {
    let kind = trouble.kind();
    let may_stop = experiment.resolved.spec().no_readings.unwrap_or_default() == NoReadings::Stop;
    let stop = |reason: String| Judged {
        trial: trial.id,
        reason,
    };
    let (event, stops) = match trouble {
        Trouble::NoReadings(none) => {
            let own = stop(format!("it teaches nothing: {none}"));
            // Every trial of an experiment has the same patterns.
            let waiting = trials.iter().filter(|one| one.state == TrialState::Queued);
            let siblings = waiting.map(|one| Judged {
                trial: one.id,
                reason: format!(
                    "not started: its patterns met no line of the log of {}",
                    trial.plan.candidate
                ),
            });
            let stops = std::iter::once(own).chain(siblings);
            let stops = stops.filter(|_| !none.is_read_otherwise).collect();
            (Event::TrialNoReadings(none), stops)
        }
        Trouble::LossNotFinite(lost) => {
            let stops = vec![stop(format!("it teaches nothing: {lost}"))];
            (Event::TrialLossNotFinite(lost), stops)
        }
        Trouble::UnitDoubtful(unit) => (Event::TrialUnitDoubtful(unit), Vec::new()),
        Trouble::AcceleratorsIdle(idle) => (Event::TrialAcceleratorsIdle(idle), Vec::new()),
    };
    FoundTrouble {
        kind,
        event,
        stops: if may_stop { stops } else { Vec::new() },
    }
}

//! Ends the waits of CI runs that their experiments do not end: shows that one is paused or waits for its image, gives up
//! one that goes on waiting, and ends those that a newer commit of their branch has taken the place of.

use bakeoff_domain::ci::gate::Judgement;
use bakeoff_domain::ids::{CiRunId, ExperimentId, ProjectId};
use chrono::TimeDelta;

use crate::app::App;
use bakeoff_store::StoreError;
use bakeoff_store::ci::verdicts::NewVerdict;
use bakeoff_store::ci::waits::{SupersededRun, WaitingRun};
use bakeoff_store::experiments::lifecycle::ExperimentCommand;

/// Runs read per page.
const PAGE: usize = 20;
/// How long a run of which nothing runs stays pending: long enough for a person to come to work, and CI does not wait for
/// ever.
const WAIT_MAX: TimeDelta = TimeDelta::hours(24);

/// Runs one tick; returns how many runs have changed.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    Ok(superseded(app).await? + waiting(app).await?)
}

async fn superseded(app: &App) -> Result<usize, StoreError> {
    let (mut done, mut after) = (0, None);
    loop {
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let page = app.store.superseded_ci_runs(after, limit).await?;
        for one in &page {
            app.pulse.beat();
            // A run that cannot be read must not hold up the others.
            match end_superseded(app, *one).await {
                Ok(is_done) => done += usize::from(is_done),
                Err(error) => {
                    tracing::error!(%error, run = %one.run, "ending a superseded run failed");
                }
            }
        }
        after = page.last().map(|one| one.run);
        if page.len() < PAGE {
            return Ok(done);
        }
    }
}

async fn end_superseded(app: &App, one: SupersededRun) -> Result<bool, StoreError> {
    cancel(app, one.project, one.experiment).await?;
    let Some(run) = app.store.ci_run(one.project, one.run).await? else {
        return Ok(false);
    };
    let newer = run.newer_commit.as_deref().unwrap_or("a newer commit");
    end(app, one.project, one.run, format!("superseded by {newer}")).await
}

/// Before the run is read: one that this version cannot read must not go on being paid for.
async fn cancel(app: &App, project: ProjectId, experiment: ExperimentId) -> Result<(), StoreError> {
    let now = app.clock.now();
    let cancel = ExperimentCommand::Cancel;
    if app.store.command(project, experiment, cancel, now).await? {
        app.wake_schedulers();
    }
    Ok(())
}

async fn waiting(app: &App) -> Result<usize, StoreError> {
    let (mut done, mut after) = (0, None);
    let waited_before = app.clock.now() - WAIT_MAX;
    loop {
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let page = app
            .store
            .waiting_ci_runs(waited_before, after, limit)
            .await?;
        for one in &page {
            app.pulse.beat();
            match wait(app, one).await {
                Ok(is_done) => done += usize::from(is_done),
                Err(error) => {
                    tracing::error!(%error, run = %one.run, "a CI run's wait was not shown");
                }
            }
        }
        after = page.last().map(|one| one.run);
        if page.len() < PAGE {
            return Ok(done);
        }
    }
}

async fn wait(app: &App, one: &WaitingRun) -> Result<bool, StoreError> {
    if one.kind != one.shown {
        return app.store.note_wait(one, app.clock.now()).await;
    }
    let why = one.why.as_deref().unwrap_or_default();
    let hours = WAIT_MAX.num_hours();
    let waited = match one.kind.as_deref() {
        Some("paused") => "paused",
        _ => "nothing could be created",
    };
    let why = format!(
        "error: not measured, and cancelled: {waited} for {hours} h ({why}); bakeoff gate --again measures the commit again"
    );
    end(app, one.project, one.run, why).await
}

/// Ends a run without a figure.
async fn end(app: &App, project: ProjectId, run: CiRunId, why: String) -> Result<bool, StoreError> {
    let Some(run) = app.store.ci_run(project, run).await? else {
        return Ok(false);
    };
    let judgement = Judgement::ended(why);
    let new = NewVerdict {
        readings: &Vec::new(),
        judgement: &judgement,
        is_accepted: false,
        is_of_measured: false,
    };
    let is_ended = app.store.decide_ci_run(&run, new, app.clock.now()).await?;
    if is_ended {
        app.wake_schedulers();
    }
    Ok(is_ended)
}

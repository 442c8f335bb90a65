//! From an experiment's answer to its full run: loads what the answer rests on, and hands the spec
//! that it becomes to [`crate::intake`]. Nothing is written here.

use bakeoff_domain::ranking::full_run::{self, FullRunOf};
use bakeoff_domain::spec::full_run::FullRunSpec;
use bakeoff_planner::plan::Measured;
use chrono::{DateTime, Utc};

use crate::app::App;
use crate::intake::{self, Loaded};
use crate::read;
use crate::store::StoreError;
use crate::store::experiments::Experiment;

/// A full run that is ready to be planned.
#[derive(Debug)]
pub struct FullRun {
    pub loaded: Loaded,
    pub of: FullRunOf,
    /// When the newest checkpoint that it goes on from was seen.
    pub checkpoint_at: Option<DateTime<Utc>>,
}

/// Why there is no full run to plan.
#[derive(Debug)]
pub enum NoFullRun {
    /// The experiment is in no state for it.
    NotNow(String),
    /// What was asked for is not there: the field, and why.
    Unknown {
        pointer: &'static str,
        detail: String,
        fix: &'static str,
    },
    Store(StoreError),
}

impl From<StoreError> for NoFullRun {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The full run of an ended experiment's answer.
pub async fn load(
    app: &App,
    experiment: &Experiment,
    run: &FullRunSpec,
) -> Result<FullRun, NoFullRun> {
    if experiment.ended_at.is_none() {
        return Err(NoFullRun::NotNow(
            "the experiment is still running: wait for its answer, or cancel it and run what was measured".to_owned(),
        ));
    }
    if experiment.full_run.is_some() {
        return Err(NoFullRun::NotNow(
            "this is a full run itself: start another from the experiment that it belongs to"
                .to_owned(),
        ));
    }
    let now = app.clock.now();
    let answer = read::recommendation(&app.store, experiment, now).await?;
    let row = full_run::choose(&answer, run.candidate.as_deref(), run.purchase_option);
    let row = row.map_err(|detail| NoFullRun::Unknown {
        pointer: "/candidate",
        detail,
        fix: "name a ranked candidate, and its purchase_option",
    })?;
    full_run::is_told_its_length(experiment.resolved.workload(), run).map_err(|detail| {
        NoFullRun::Unknown {
            pointer: "/hyperparameters",
            detail,
            fix: "give the hyperparameters that make it train all of its tokens",
        }
    })?;
    let trial = read::trial_behind(&app.store, experiment, row, now).await?;
    let Some((outcome, request)) = trial else {
        return Err(NoFullRun::NotNow(
            "the trial behind this answer cannot be read any more: run the experiment again"
                .to_owned(),
        ));
    };
    let goes_on = run.from_checkpoint && request.checkpoint.is_some();
    let of = FullRunOf::of(experiment.id, row, &outcome, goes_on);
    let spec = full_run::spec(experiment.resolved.spec(), row, run);
    let measured = Measured {
        // A trial that went on in another's folder, as a full run does, is never the one behind it.
        checkpoint_trial: goes_on.then_some(outcome.trial_id),
        request,
        changed: run.hyperparameters.clone(),
    };
    let loaded = intake::load(app, experiment.project_id, spec).await?;
    Ok(FullRun {
        loaded: loaded.full_run(of.clone(), measured),
        of,
        checkpoint_at: outcome.checkpoint_at.filter(|_| goes_on),
    })
}

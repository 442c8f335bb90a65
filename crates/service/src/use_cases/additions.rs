//! Trials that are added to an experiment: of another candidate, or one that is done once more, for a person or after a
//! defective machine.

use bakeoff_domain::event::Change;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::Shortfall;
use bakeoff_domain::spec::{ExperimentSpec, StoppingPolicy};
use bakeoff_planner::plan::TrialPlan;

use crate::app::App;
use crate::use_cases::intake::{self, LoadedSpec, PreparedTrials};
use bakeoff_store::StoreError;
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::additions::{Added, Addition};
use bakeoff_store::experiments::trials::Trial;
use bakeoff_store::money::caps::Purchase;

/// What to add to an experiment: trials of one of its candidates.
pub struct WantedTrials {
    /// The experiment's, with the candidate.
    pub spec: ExperimentSpec,
    /// The candidate's place in it.
    pub index: usize,
    pub change: Change,
    pub is_wanted: Box<dyn Fn(&TrialPlan) -> bool + Send>,
}

/// What is to be added, loaded; [`LoadedTrials::check`] is pure but takes a while.
pub struct LoadedTrials {
    loaded: LoadedSpec,
    wanted: WantedTrials,
    /// Of the budget.
    left: Usd,
    /// The whole budget.
    written: Usd,
}

/// Trials that can be added.
pub struct CheckedTrials {
    prepared: PreparedTrials,
    change: Change,
}

impl CheckedTrials {
    /// Whether any of them would run.
    pub fn starts(&self) -> bool {
        self.prepared.trials.iter().any(|(_, plan)| plan.starts())
    }
}

/// Why nothing was added.
#[derive(Debug)]
pub enum NotAdded {
    /// All of the budget is spent.
    Spent,
    /// The linter says so; `left`: of the budget.
    Refused {
        findings: Vec<Finding>,
        left: Usd,
    },
    /// A limit of the project or the installation is too low.
    OverLimit(Shortfall),
    /// The experiment or the trial is not in a state for it.
    NotNow(Added),
    /// The check ended the thread that it ran on.
    Unchecked(String),
    Store(StoreError),
}

impl From<StoreError> for NotAdded {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl WantedTrials {
    /// A trial once more. `None` if the experiment no longer has its candidate.
    pub fn retry(experiment: &Experiment, trial: &Trial, change: Change) -> Option<Self> {
        let spec = experiment.resolved.spec().clone();
        let plan = &trial.plan;
        let mut candidates = spec.candidates.iter();
        let index = candidates.position(|one| one.name == plan.candidate)?;
        let (option, repeat) = (plan.purchase_option, plan.repeat);
        Some(Self {
            spec,
            index,
            change: Change {
                retry_of: Some(trial.id),
                ..change
            },
            is_wanted: Box::new(move |plan| {
                (plan.purchase_option, plan.repeat) == (option, repeat)
            }),
        })
    }
}

/// Loads what the trials are checked against.
pub async fn load(
    app: &App,
    experiment: &Experiment,
    mut wanted: WantedTrials,
) -> Result<LoadedTrials, NotAdded> {
    let spec = &mut wanted.spec;
    // Experiments from before there was a choice ran in full, and go on so.
    spec.stopping_policy.get_or_insert(StoppingPolicy::Full);
    let written = spec.budget_usd;
    // What is left of it: a trial that can never be paid for is refused now.
    let left = experiment.budget_usd - experiment.settled_usd;
    spec.budget_usd = left;
    if left <= Usd::ZERO {
        return Err(NotAdded::Spent);
    }
    let loaded = intake::load(app, experiment.project_id, spec.clone()).await?;
    Ok(LoadedTrials {
        loaded,
        wanted,
        left,
        written,
    })
}

impl LoadedTrials {
    pub fn check(self) -> Result<CheckedTrials, NotAdded> {
        let WantedTrials {
            index,
            change,
            is_wanted,
            ..
        } = self.wanted;
        let left = self.left;
        let more = self
            .loaded
            .more(index, change.retry_of.is_some(), is_wanted);
        let mut prepared = more.map_err(|findings| NotAdded::Refused { findings, left })?;
        prepared.spec.budget_usd = self.written;
        Ok(CheckedTrials { prepared, change })
    }
}

/// Adds them, within every limit on dollars; returns what was added.
pub async fn add(
    app: &App,
    experiment: &Experiment,
    checked: CheckedTrials,
) -> Result<PreparedTrials, NotAdded> {
    let CheckedTrials { prepared, change } = checked;
    let (project, now) = (experiment.project_id, app.clock.now());
    let least = intake::least_usd(&prepared.trials);
    let purchase = Purchase::Experiment;
    let short = app
        .store
        .can_never_buy(project, purchase, least, now)
        .await?;
    if let Some(short) = short {
        return Err(NotAdded::OverLimit(short));
    }
    let mut findings = experiment.findings.clone();
    if change.retry_of.is_none() {
        findings.extend(prepared.findings.iter().cloned());
    }
    let addition = Addition {
        based_on: experiment.revision,
        spec: &prepared.spec,
        findings: &findings,
        trials: &prepared.trials,
        change: &change,
    };
    match app
        .store
        .add_trials(project, experiment.id, addition, now)
        .await?
    {
        Added::Done => {
            app.wake_schedulers();
            Ok(prepared)
        }
        why => Err(NotAdded::NotNow(why)),
    }
}

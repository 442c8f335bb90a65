//! From an experiment's answer to its full run: loads what the answer rests on, and hands the spec
//! that it becomes to [`crate::use_cases::intake`]. Nothing is written here.

use bakeoff_domain::ids::TrialId;
use bakeoff_domain::ranking::full_run::{self, ChosenCheckpoint, FullRunOf};
use bakeoff_domain::ranking::outcome::Outcome;
use bakeoff_domain::ranking::recommendation::Ranked;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::spec::full_run::FullRunSpec;
use bakeoff_planner::plan::Measured;
use chrono::{DateTime, Utc};

use crate::app::App;
use crate::live::artifacts::{self, CheckpointCopy, CheckpointRefusal};
use crate::read;
use crate::use_cases::intake::{self, LoadedSpec};
use bakeoff_store::StoreError;
use bakeoff_store::experiments::Experiment;

/// A full run that is ready to be planned.
#[derive(Debug)]
pub struct FullRun {
    pub loaded: LoadedSpec,
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
    /// AWS did not show the checkpoints.
    Aws(AwsError),
    Store(StoreError),
}

impl From<StoreError> for NoFullRun {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What a full run is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Show,
    Start,
}

/// The full run of an ended experiment's answer.
pub async fn load(
    app: &App,
    experiment: &Experiment,
    run: &FullRunSpec,
    purpose: Purpose,
) -> Result<FullRun, NoFullRun> {
    is_ready(experiment)?;
    let now = app.clock.now();
    let answer = read::recommendation(&app.store, experiment, now).await?;
    let row = full_run::choose(&answer, run.candidate.as_deref(), run.purchase_option);
    let row = row.map_err(unknown(
        "/candidate",
        "name a ranked candidate, and its purchase_option",
    ))?;
    let tokens = read::full_run_tokens(&app.store, experiment, now).await?;
    let row = &full_run::while_training(row);
    let trial = read::trial_behind(&app.store, experiment, row, now).await?;
    let Some((outcome, request)) = trial else {
        return Err(NoFullRun::NotNow(
            "none of its trials is over with a figure: resume what is parked, or run it again"
                .to_owned(),
        ));
    };
    if purpose == Purpose::Start {
        let told = full_run::is_told_its_length(
            experiment.resolved.workload(),
            run,
            &request.hyperparameters,
        );
        told.map_err(unknown(
            "/hyperparameters",
            "give the hyperparameters that make it train all of its tokens",
        ))?;
    }
    let has_place = request.checkpoint.is_some();
    let begins = beginning(app, experiment, row, &outcome, has_place, run, purpose).await?;
    let of = begins.of;
    let spec = full_run::spec(experiment.resolved.spec(), row, run, tokens);
    full_run::is_long_enough(&of, spec.max_runtime_seconds).map_err(unknown(
        "/max_runtime_seconds",
        "give it more time, or choose a faster candidate",
    ))?;
    let measured = Measured {
        // A trial that went on in another's folder, as a full run does, is never the one behind it.
        checkpoint_trial: begins.folder,
        request,
        changed: run.hyperparameters.clone(),
    };
    let loaded = intake::load(app, experiment.project_id, spec).await?;
    Ok(FullRun {
        loaded: loaded.full_run(of.clone(), measured),
        of,
        checkpoint_at: begins.checkpoint_at,
    })
}

/// Where a full run begins: at its first step, at its trial's newest checkpoint, or at the copy of another.
struct Beginning {
    of: FullRunOf,
    /// Of its checkpoints, if it goes on from some.
    folder: Option<TrialId>,
    checkpoint_at: Option<DateTime<Utc>>,
}

async fn beginning(
    app: &App,
    experiment: &Experiment,
    row: &Ranked,
    outcome: &Outcome,
    has_place: bool,
    run: &FullRunSpec,
    purpose: Purpose,
) -> Result<Beginning, NoFullRun> {
    let goes_on = run.from_checkpoint && has_place;
    let of = FullRunOf::of(experiment.id, row, outcome, goes_on);
    if !goes_on {
        if run.checkpoint.is_some() {
            let why = "the run does not go on from checkpoints".to_owned();
            return Err(unknown("/checkpoint", "leave it out")(why));
        }
        return Ok(Beginning {
            of,
            folder: None,
            checkpoint_at: None,
        });
    }
    let chosen = chosen(app, experiment, outcome, run, purpose).await?;
    let folder = chosen.as_ref().map_or(outcome.trial_id, |one| one.folder);
    // No run has used the folder of a copy.
    let is_shared = chosen.is_none();
    if is_shared && app.store.has_completed_from(experiment.id, folder).await? {
        return Err(NoFullRun::Unknown {
            pointer: "/from_checkpoint",
            detail:
                "a full run has completed in these checkpoints: another would be at its end at once"
                    .to_owned(),
            fix: "set from_checkpoint to false, which starts at the first step in a folder of its own",
        });
    }
    let checkpoint = run.checkpoint.clone().zip(chosen.as_ref());
    let of = FullRunOf {
        checkpoint: checkpoint.map(|(name, one)| ChosenCheckpoint {
            name,
            share: one.share_of_trial(outcome.checkpoint_at),
        }),
        ..of
    };
    Ok(Beginning {
        of,
        folder: Some(folder),
        checkpoint_at: chosen.map(|one| one.written_at).or(outcome.checkpoint_at),
    })
}

/// The checkpoint that was asked for; to start from it, its copy must be there.
async fn chosen(
    app: &App,
    experiment: &Experiment,
    trial: &Outcome,
    run: &FullRunSpec,
    purpose: Purpose,
) -> Result<Option<CheckpointCopy>, NoFullRun> {
    let Some(name) = &run.checkpoint else {
        return Ok(None);
    };
    let place = app
        .store
        .checkpoint_place(experiment.project_id, trial.trial_id)
        .await?;
    let region = app.places.get(&experiment.resolved.spec().region);
    let Some((place, region)) = place.zip(region) else {
        return Err(unknown("/checkpoint", "leave it out")(
            "the trial saves no checkpoints, or its region is not served".to_owned(),
        ));
    };
    let place = place.on(&trial.instance_type, trial.instance_count);
    let used = app.store.folders_gone_on_in(experiment.id).await?;
    let found = artifacts::choose(&region.aws, &place, name, &used, app.clock.now()).await;
    let id = trial.trial_id;
    let found = found.map_err(|none| {
        let why = match none {
            CheckpointRefusal::Absent(whole) => {
                format!(
                    "trial {id} has no {name}; complete are: {}",
                    whole.join(", ")
                )
            }
            CheckpointRefusal::Incomplete(why) => format!("{name} is not complete: {why}"),
            CheckpointRefusal::Aws(error) => return NoFullRun::Aws(error),
        };
        unknown(
            "/checkpoint",
            "choose a complete one of the trial's checkpoints",
        )(why)
    })?;
    if purpose == Purpose::Start && !found.copy.is_done(&found.there) {
        let detail = format!(
            "{name} is not copied, or a run went on in the last copy: POST /v1/trials/{id}/checkpoints/copy until it is done"
        );
        return Err(unknown("/checkpoint", "copy it first")(detail));
    }
    Ok(Some(found))
}

fn is_ready(experiment: &Experiment) -> Result<(), NoFullRun> {
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
    Ok(())
}

/// What is wrong with a field, and the way out.
fn unknown(pointer: &'static str, fix: &'static str) -> impl FnOnce(String) -> NoFullRun {
    move |detail| NoFullRun::Unknown {
        pointer,
        detail,
        fix,
    }
}

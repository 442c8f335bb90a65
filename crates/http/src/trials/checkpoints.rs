//! Checkpoints of trials: listed in S3 when they are asked for, and pruned.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::checkpoint::cost::{self, Loss};
use bakeoff_domain::checkpoint::keep::Fate;
use bakeoff_domain::checkpoint::{Checkpoint, Completeness};
use bakeoff_domain::ids::{ExperimentId, TrialId};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::links;

use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Id, Strict};
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::checkpoints::{
    CheckpointFateView, CheckpointState, CheckpointView, CheckpointsView, CopyCheckpoint,
    CopyState, CopyView, LossView, PruneCheckpoints, PrunedView,
};
use bakeoff_service::app::{App, Place};
use bakeoff_service::live::artifacts::{self, CheckpointCopy, CheckpointRefusal, TrialArtifacts};
use bakeoff_service::live::copies::CopyStart;
use bakeoff_store::jobs::checkpoints::CheckpointPlace;

/// Checkpoints of a trial
///
/// Read from S3 when asked for: each step by its writer's layout, whether it is whole, and what it costs
/// to keep.
#[utoipa::path(get, path = "/v1/trials/{trial_id}/checkpoints", operation_id = "listCheckpoints", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 200, description = "The oldest step first", body = CheckpointsView), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
) -> Result<Json<CheckpointsView>, Problem> {
    let there = TrialPrefix::find(&app, caller, id).await?;
    let found = there.read(&app).await?;
    Ok(Json(there.view(&found)))
}

/// Delete old checkpoints of a trial
///
/// Keeps the newest whole ones, the best as Hugging Face's Trainer records it (Lightning and Composer record
/// none), what a tracker file names, and what is newer than the newest whole one. Each folder and writer
/// counts on its own. A dry run unless told otherwise. Refused while a job uses the prefix: SageMaker would upload
/// what was deleted.
#[utoipa::path(post, path = "/v1/trials/{trial_id}/checkpoints/prune", operation_id = "pruneCheckpoints", tag = "trials",
    params(("trial_id" = TrialId, Path)), request_body = PruneCheckpoints,
    responses((status = 200, description = "What is deleted, and why the others stay", body = PrunedView), Problems))]
pub(crate) async fn prune(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<TrialId>,
    Strict(asked): Strict<PruneCheckpoints>,
) -> Result<Json<PrunedView>, Problem> {
    let keep = kept(asked.keep)?;
    let there = TrialPrefix::find(&app, caller, id).await?;
    let found = there.read(&app).await?;
    let fates = artifacts::fates_of(&found, keep);
    let is_deleted = |fate: &&Fate| **fate == Fate::Deleted;
    let has_work = fates.iter().any(|fate| is_deleted(&fate));
    let deleted = if has_work && !asked.dry_run {
        there.delete(&app, caller, id, &found, &fates).await?
    } else {
        0
    };
    let both = || found.checkpoints.iter().zip(&fates);
    let freed = both().filter(|(_, fate)| is_deleted(fate));
    Ok(Json(PrunedView {
        dry_run: asked.dry_run,
        freed_bytes: freed.map(|(one, _)| one.bytes).sum(),
        deleted_objects: u64::try_from(deleted).unwrap_or(u64::MAX),
        checkpoints: both().map(|(one, fate)| fate_view(one, *fate)).collect(),
    }))
}

/// How many to keep.
fn kept(keep: u32) -> Result<usize, Problem> {
    if (1..=1_000).contains(&keep) {
        return Ok(usize::try_from(keep).unwrap_or(usize::MAX));
    }
    Err(Problem::invalid(vec![FieldError {
        pointer: "/keep".to_owned(),
        detail: format!("must be 1 to 1000, not {keep}"),
        fix: String::new(),
        rule: "checkpoints-kept".to_owned(),
    }]))
}

fn fate_view(checkpoint: &Checkpoint, fate: Fate) -> CheckpointFateView {
    CheckpointFateView {
        name: checkpoint.name.clone(),
        step: checkpoint.step,
        bytes: checkpoint.bytes,
        kept_for: match fate {
            Fate::Kept(kept_for) => Some(kept_for),
            Fate::Deleted => None,
        },
    }
}

/// Copy a checkpoint
///
/// Into a prefix of its own, with the trackers that name it to a script: SageMaker restores a whole prefix,
/// and a script takes the newest checkpoint that it finds there. A full run then goes on from it
/// (`"checkpoint"` of `POST /v1/experiments/{experiment_id}/full-run`). Copying goes on after the answer: ask
/// again until it is done. Safe to repeat.
#[utoipa::path(post, path = "/v1/trials/{trial_id}/checkpoints/copy", operation_id = "copyCheckpoint", tag = "trials",
    params(("trial_id" = TrialId, Path)), request_body = CopyCheckpoint,
    responses((status = 200, description = "How far it is", body = CopyView), Problems))]
pub(crate) async fn copy(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<TrialId>,
    Strict(asked): Strict<CopyCheckpoint>,
) -> Result<Json<CopyView>, Problem> {
    let there = TrialPrefix::find(&app, caller, id).await?;
    let aws = &there.place.aws;
    let now = app.clock.now();
    let used = app.store.folders_gone_on_in(there.experiment).await?;
    let chosen = artifacts::choose(aws, &there.prefix, &asked.checkpoint, &used, now)
        .await
        .map_err(|none| there.not_chosen(none, &asked.checkpoint))?;
    let view = copy_view(asked.checkpoint, &chosen);
    if view.state == CopyState::Copying {
        match app.copies.start(aws.clone(), chosen) {
            CopyStart::UnderWay => {}
            CopyStart::Busy => {
                return Err(Problem::unavailable(
                    "other checkpoints are being copied; ask again when they are done",
                ));
            }
            CopyStart::Failed(AwsError::Rejected { code, .. }) if code == "PreconditionFailed" => {
                return Err(Problem::conflict(
                    "checkpoint_changed",
                    "it was written again while it was copied; ask again, or choose one that nothing writes to",
                ));
            }
            CopyStart::Failed(error) => {
                return Err(there.refused(error, "s3:GetObject and s3:PutObject"));
            }
        }
    }
    Ok(Json(view))
}

fn copy_view(checkpoint: String, chosen: &CheckpointCopy) -> CopyView {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let copy = &chosen.copy;
    let missing: Vec<_> = copy.missing(&chosen.there).collect();
    let missing_bytes: u64 = missing.iter().map(|object| object.bytes).sum();
    CopyView {
        checkpoint,
        step: chosen.step,
        s3_uri: chosen.to.clone(),
        state: if copy.is_done(&chosen.there) {
            CopyState::Done
        } else {
            CopyState::Copying
        },
        objects: count(copy.objects.len()),
        copied_objects: count(copy.objects.len() - missing.len()),
        bytes: copy.bytes(),
        copied_bytes: copy.bytes() - missing_bytes,
        usd_per_month: cost::usd_per_month(copy.bytes()),
    }
}

/// The prefix of a trial, and the region that it is in.
struct TrialPrefix {
    place: Place,
    prefix: CheckpointPlace,
    experiment: ExperimentId,
    losses: Vec<Loss>,
}

impl TrialPrefix {
    async fn find(app: &App, caller: Caller, id: TrialId) -> Result<Self, Problem> {
        let trial = crate::trials::find(app, caller, id).await?;
        let place = crate::trials::place(app, &trial)?;
        let prefix = app.store.checkpoint_place(caller.project, id).await?;
        let prefix = prefix.ok_or_else(|| {
            Problem::not_found(
                "this trial saves no checkpoints: its experiment names no `checkpoint`",
            )
        })?;
        let plan = &trial.plan;
        let interval = plan
            .training()
            .and_then(|request| Some(request.checkpoint.as_ref()?.interval_seconds));
        let price = plan.price.as_ref().map(|price| price.usd_per_hour);
        Ok(Self {
            experiment: trial.experiment_id,
            losses: price.map_or_else(Vec::new, |usd| {
                cost::losses(usd, plan.instance_count, interval)
            }),
            place,
            prefix: prefix.on(&plan.instance_type, plan.instance_count),
        })
    }

    async fn read(&self, app: &App) -> Result<TrialArtifacts, Problem> {
        let read = artifacts::read(&self.place.aws, &self.prefix, app.clock.now()).await;
        read.map_err(|error| self.refused(error, "s3:ListBucket"))
    }

    /// Deletes one checkpoint after the other, as long as nothing begins to use the prefix.
    async fn delete(
        &self,
        app: &App,
        caller: Caller,
        id: TrialId,
        found: &TrialArtifacts,
        fates: &[Fate],
    ) -> Result<usize, Problem> {
        if let Some(key) = &found.unread {
            return Err(Problem::conflict(
                "checkpoints_unread",
                format!(
                    "{key} could not be read, and it may say which checkpoint is the best or the newest: nothing is \
                     deleted. Allow the service s3:GetObject there"
                ),
            ));
        }
        let mut gone = 0;
        for (checkpoint, _) in found
            .checkpoints
            .iter()
            .zip(fates)
            .filter(|(_, fate)| **fate == Fate::Deleted)
        {
            let prefix = app.store.checkpoint_place(caller.project, id).await?;
            if prefix.is_none_or(|prefix| prefix.is_in_use) {
                let detail = format!(
                    "a job saves to this prefix or may be restored from it: prune it once the job is over ({gone} \
                     objects were deleted before)"
                );
                return Err(Problem::conflict("checkpoints_in_use", detail));
            }
            gone += artifacts::delete(&self.place.aws, &self.prefix, checkpoint)
                .await
                .map_err(|error| self.refused(error, "s3:DeleteObject"))?;
        }
        tracing::info!(trial = %id, gone, "checkpoints pruned");
        Ok(gone)
    }

    fn not_chosen(&self, none: CheckpointRefusal, name: &str) -> Problem {
        match none {
            CheckpointRefusal::Absent(whole) => Problem::invalid(vec![FieldError {
                pointer: "/checkpoint".to_owned(),
                detail: format!("there is no {name} below {}", self.prefix.s3_uri),
                fix: match whole.as_slice() {
                    [] => "none is whole yet".to_owned(),
                    names => format!("name one of {}", names.join(", ")),
                },
                rule: "checkpoint".to_owned(),
            }]),
            CheckpointRefusal::Incomplete(why) => Problem::conflict(
                "checkpoint_incomplete",
                format!("{name} is not whole: {why}"),
            ),
            CheckpointRefusal::Aws(error) => self.refused(error, "s3:ListBucket"),
        }
    }

    fn refused(&self, error: AwsError, action: &str) -> Problem {
        let what = format!("the checkpoints below {}", self.prefix.s3_uri);
        Problem::of_aws(error, &what, &format!("{action} there"))
    }

    fn view(&self, found: &TrialArtifacts) -> CheckpointsView {
        let base = &self.prefix.s3_uri;
        let view = |one: &Checkpoint| {
            let (state, missing) = match &one.wholeness {
                Completeness::Complete => (CheckpointState::Complete, None),
                Completeness::BeingWritten => (CheckpointState::BeingWritten, None),
                Completeness::Unknown => (CheckpointState::Unknown, None),
                Completeness::Incomplete { missing } => {
                    (CheckpointState::Incomplete, Some(missing.clone()))
                }
            };
            CheckpointView {
                s3_uri: format!("{base}/{}", one.name),
                is_best: found.protected.best.contains(&one.name),
                name: one.name.clone(),
                writer: one.writer,
                step: one.step,
                state,
                missing,
                bytes: one.bytes,
                objects: u32::try_from(one.keys.len()).unwrap_or(u32::MAX),
                written_at: one.written_at,
                usd_per_month: cost::usd_per_month(one.bytes),
            }
        };
        CheckpointsView {
            checkpoints: found.checkpoints.iter().map(view).collect(),
            bytes: found.bytes(),
            usd_per_month: cost::usd_per_month(found.bytes()),
            warning: cost::restore_warning(found.bytes()),
            seen_interval_seconds: cost::seen_interval(&found.checkpoints),
            losses: self.losses.iter().copied().map(LossView::from).collect(),
            console_url: links::object(&self.place.region, &format!("{base}/")),
            s3_uri: base.clone(),
        }
    }
}

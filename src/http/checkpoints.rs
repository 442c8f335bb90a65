//! Checkpoints of trials: listed in S3 when they are asked for, and pruned.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::checkpoint::keep::Fate;
use bakeoff_domain::checkpoint::{Checkpoint, Wholeness};
use bakeoff_domain::ids::TrialId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::links;
use rust_decimal::Decimal;

use super::auth::{Caller, Editor};
use super::extract::{Id, Strict};
use super::problem::{FieldError, Problem, Problems};
use crate::api::checkpoints::{
    CheckpointFateView, CheckpointState, CheckpointView, CheckpointsView, PruneCheckpoints,
    PrunedView,
};
use crate::app::{App, Place};
use crate::artifacts::{self, Found};
use crate::store::jobs::checkpoints::CheckpointPlace;

/// Prefixes of 92 GB were restored, one of 369 GB failed the job before its container started.
const RESTORED_GB: u64 = 92;
const GB: u64 = 1_000_000_000;

/// Checkpoints of a trial
///
/// Read from S3 when asked for: each step by its writer's layout, whether it is whole, and what it costs
/// to keep.
#[utoipa::path(get, path = "/v1/trials/{trial_id}/checkpoints", operation_id = "listCheckpoints", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 200, description = "The oldest step first", body = CheckpointsView), Problems))]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
) -> Result<Json<CheckpointsView>, Problem> {
    let there = There::find(&app, caller, id).await?;
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
pub(super) async fn prune(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<TrialId>,
    Strict(asked): Strict<PruneCheckpoints>,
) -> Result<Json<PrunedView>, Problem> {
    let keep = kept(asked.keep)?;
    let there = There::find(&app, caller, id).await?;
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

/// The prefix of a trial, and the region that it is in.
struct There {
    place: Place,
    prefix: CheckpointPlace,
}

impl There {
    async fn find(app: &App, caller: Caller, id: TrialId) -> Result<Self, Problem> {
        let trial = super::trials::find(app, caller, id).await?;
        let place = super::trials::place(app, &trial)?;
        let prefix = app.store.checkpoint_place(caller.project, id).await?;
        let prefix = prefix.ok_or_else(|| {
            Problem::not_found(
                "this trial saves no checkpoints: its experiment names no `checkpoint`",
            )
        })?;
        let gpus = bakeoff_domain::catalog::find(&trial.plan.instance_type)
            .map(|kind| kind.accelerator_count * trial.plan.instance_count);
        Ok(Self {
            place,
            prefix: CheckpointPlace {
                ranks: gpus,
                ..prefix
            },
        })
    }

    async fn read(&self, app: &App) -> Result<Found, Problem> {
        let read = artifacts::read(&self.place.aws, &self.prefix, app.clock.now()).await;
        read.map_err(|error| self.refused(error, "s3:ListBucket"))
    }

    /// Deletes one checkpoint after the other, as long as nothing begins to use the prefix.
    async fn delete(
        &self,
        app: &App,
        caller: Caller,
        id: TrialId,
        found: &Found,
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

    fn refused(&self, error: AwsError, action: &str) -> Problem {
        let what = format!("the checkpoints below {}", self.prefix.s3_uri);
        Problem::of_aws(error, &what, &format!("{action} there"))
    }

    fn view(&self, found: &Found) -> CheckpointsView {
        let base = &self.prefix.s3_uri;
        let view = |one: &Checkpoint| {
            let (state, missing) = match &one.wholeness {
                Wholeness::Complete => (CheckpointState::Complete, None),
                Wholeness::BeingWritten => (CheckpointState::BeingWritten, None),
                Wholeness::Incomplete { missing } => {
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
                usd_per_month: monthly(one.bytes),
            }
        };
        let gb = found.bytes / GB;
        CheckpointsView {
            checkpoints: found.checkpoints.iter().map(view).collect(),
            bytes: found.bytes,
            usd_per_month: monthly(found.bytes),
            warning: (gb > RESTORED_GB).then(|| {
                format!(
                    "{gb} GB lie below this prefix, and a restart restores all of it: {RESTORED_GB} GB were seen to \
                     work, 369 GB to fail the job before its container starts. Keep fewer checkpoints"
                )
            }),
            console_url: links::object(&self.place.region, &format!("{base}/")),
            s3_uri: base.clone(),
        }
    }
}

/// S3 Standard, the first 50 TB a month in us-east-1 (https://aws.amazon.com/s3/pricing, 2026-11).
fn monthly(bytes: u64) -> Usd {
    let per_gb = Decimal::new(23, 3);
    Usd(Decimal::from(bytes) / Decimal::from(GB) * per_gb)
}

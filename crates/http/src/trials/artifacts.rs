//! What trials left in S3: the model, and other files of their output prefix.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::checkpoint::StoredObject;
use bakeoff_domain::ids::TrialId;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::links;

use crate::plumbing::auth::Caller;
use crate::plumbing::extract::Id;
use crate::plumbing::problem::{Problem, Problems};
use crate::trials;
use bakeoff_api::artifacts::{AttemptArtifactsView, OutputFileView};
use bakeoff_api::page::Page;
use bakeoff_service::app::{App, Place};
use bakeoff_service::live::artifacts;

/// Artifacts of a trial
///
/// Each attempt's model and output files, with links into AWS's console. Files are listed in S3 when
/// asked for.
#[utoipa::path(get, path = "/v1/trials/{trial_id}/artifacts", operation_id = "listArtifacts", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 200, description = "One entry for each attempt, in order", body = Page<AttemptArtifactsView>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
) -> Result<Json<Page<AttemptArtifactsView>>, Problem> {
    let trial = trials::find(&app, caller, id).await?;
    let place = trials::place(&app, &trial)?;
    let shown = app.store.shown_trial(caller.project, id).await?;
    let attempts = shown.map_or_else(Vec::new, |shown| shown.attempts);
    let mut aftermath = app.store.aftermath(&[id.0]).await?;
    let output = trial.plan.training();
    let output = output.map(|request| request.output_s3_uri.as_str());
    let mut items = Vec::with_capacity(attempts.len());
    for attempt in attempts {
        let found = aftermath.remove(&attempt.id).unwrap_or_default();
        let prefix =
            output.map(|output| format!("{}/{}", output.trim_end_matches('/'), attempt.job_name));
        let files = match &prefix {
            Some(prefix) if attempt.started_at.is_some() => files(&place, prefix).await?,
            _ => Vec::new(),
        };
        let model = found.model_s3_uri.as_deref();
        items.push(AttemptArtifactsView {
            number: attempt.number,
            console_url: links::job(trial.plan.kind(), &place.region, &attempt.job_name),
            model_console_url: model.and_then(|uri| links::object(&place.region, uri)),
            job_name: attempt.job_name,
            model_s3_uri: found.model_s3_uri,
            files,
        });
    }
    Ok(Json(Page {
        items,
        next_page_token: None,
    }))
}

async fn files(place: &Place, prefix: &str) -> Result<Vec<OutputFileView>, Problem> {
    let read = artifacts::output_files(&place.aws, prefix).await;
    let view = |object: StoredObject| OutputFileView {
        s3_uri: format!("{prefix}/{}", object.key),
        bytes: object.bytes,
        written_at: object.written_at,
    };
    Ok(read.map_err(refused)?.into_iter().map(view).collect())
}

fn refused(error: AwsError) -> Problem {
    Problem::of_aws(error, "the output prefix", "s3:ListBucket there")
}

//! The outputs of a completed step, which later steps refer to.

use std::collections::BTreeMap;

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::pipeline::StepKind;
use bakeoff_domain::ranking::recommendation::Ranked;
use bakeoff_domain::sagemaker::job::Job;
use serde_json::{Value, json};

use crate::app::App;
use bakeoff_store::StoreError;
use bakeoff_store::endpoints::WhichEndpoints;
use bakeoff_store::experiments::steps::StepTrial;
use bakeoff_store::pipelines::{Pipeline, Step};

/// The outputs of a step whose work has completed.
pub async fn of_step(app: &App, pipeline: &Pipeline, step: &Step) -> Result<Value, StoreError> {
    match step.kind {
        StepKind::Processing => outputs_of_processing(app, step).await,
        StepKind::Experiment | StepKind::FullRun => {
            outputs_of_experiment(app, pipeline, step).await
        }
        StepKind::Model => {
            let Some(id) = step.model_package_id else {
                return Ok(json!({}));
            };
            let package = app.store.model_package(pipeline.project_id, id).await?;
            Ok(package.map_or(json!({}), |package| {
                json!({
                    "model_package_id": package.id, "arn": package.arn, "version": package.version,
                    "group": package.request.group,
                })
            }))
        }
        StepKind::Tuning => outputs_of_tuning(app, step).await,
        StepKind::Transform => outputs_of_transform(app, step).await,
        StepKind::Endpoint => outputs_of_endpoint(app, pipeline, step).await,
    }
}

async fn outputs_of_processing(app: &App, step: &Step) -> Result<Value, StoreError> {
    let Some(trial) = trials(app, step).await?.into_iter().next() else {
        return Ok(json!({}));
    };
    let outputs: BTreeMap<String, String> = match trial.plan.job {
        Some(Job::Processing(request)) => {
            let outputs = request.outputs.into_iter();
            outputs.map(|output| (output.name, output.s3_uri)).collect()
        }
        _ => BTreeMap::new(),
    };
    // The message is what the script says: JSON, if it is one that can be stored and read again.
    let message = trial.exit_message.map(|text| {
        let value = serde_json::from_str::<Value>(&text).ok();
        let value = value.filter(|value| is_plain(value, MESSAGE_DEPTH));
        value.unwrap_or(Value::String(text))
    });
    Ok(json!({"outputs": outputs, "message": message, "job_name": trial.job_name}))
}

/// The trials of a step that compares nothing.
async fn trials(app: &App, step: &Step) -> Result<Vec<StepTrial>, StoreError> {
    let experiments: Vec<uuid::Uuid> = step.experiment_id.iter().map(|id| id.0).collect();
    let trials = app.store.step_trials(&experiments).await?;
    Ok(trials.into_iter().map(|(_, trial)| trial).collect())
}

async fn outputs_of_transform(app: &App, step: &Step) -> Result<Value, StoreError> {
    let trial = trials(app, step).await?.into_iter().next();
    let output = trial.as_ref().and_then(|trial| match &trial.plan.job {
        Some(Job::Transform(request)) => Some(&request.output_s3_uri),
        _ => None,
    });
    let name = trial.as_ref().and_then(|trial| trial.job_name.as_ref());
    Ok(json!({"output_s3_uri": output, "job_name": name}))
}

async fn outputs_of_endpoint(
    app: &App,
    pipeline: &Pipeline,
    step: &Step,
) -> Result<Value, StoreError> {
    let of = WhichEndpoints::OfExperiments(step.experiment_id.iter().map(|id| id.0).collect());
    let found = app.store.endpoints(pipeline.project_id, of, 1).await?;
    Ok(found.into_iter().next().map_or(json!({}), |endpoint| {
        json!({
            "endpoint_id": endpoint.id, "endpoint_name": endpoint.job_name,
            "expires_at": endpoint.expires_at, "model_package_id": endpoint.model_package_id,
        })
    }))
}

/// The best trial of all candidates, and what each candidate has come to. Dollars are those of all of its trials.
async fn outputs_of_tuning(app: &App, step: &Step) -> Result<Value, StoreError> {
    let trials = trials(app, step).await?;
    let first = trials.iter().find_map(|trial| trial.plan.tuning());
    let Some((goal, metric)) = first.map(|request| (request.goal, &request.objective)) else {
        return Ok(json!({}));
    };
    let best_of = |trial: &StepTrial| trial.tuned.as_ref()?.best(goal).cloned();
    let candidates = trials.iter().map(|trial| {
        json!({
            "instance_type": trial.plan.instance_type, "tuning_job_name": trial.job_name,
            "state": trial.state, "cost_usd": trial.settled_usd,
            "trials": trial.tuned.as_ref().map_or(0, |tuned| tuned.trials.len()),
            "best_objective": best_of(trial).and_then(|best| best.objective),
        })
    });
    let candidates: Vec<Value> = candidates.collect();
    let winner = trials
        .iter()
        .filter_map(|trial| Some((trial.id, trial.plan.tuning()?, best_of(trial)?)))
        .min_by(|(_, _, a), (_, _, b)| goal.compare(a.objective, b.objective));
    let best = winner.map(|(trial_id, request, best)| {
        json!({
            "trial_id": trial_id, "model_s3_uri": request.model_s3_uri(&best),
            "instance_type": request.training.instance_type, "objective": best.objective,
            "hyperparameters": best.hyperparameters, "job_name": best.job_name,
        })
    });
    Ok(json!({"best": best, "candidates": candidates, "metric": metric, "goal": goal}))
}

/// Members of members of an exit message, at most.
const MESSAGE_DEPTH: u32 = 16;

/// Whether a value is no deeper than that, and holds nothing that Postgres refuses.
fn is_plain(value: &Value, depth: u32) -> bool {
    let is_storable = |text: &str| !text.contains('\0');
    match value {
        Value::String(text) => is_storable(text),
        Value::Array(items) => depth > 0 && items.iter().all(|item| is_plain(item, depth - 1)),
        Value::Object(fields) => {
            let mut fields = fields.iter();
            depth > 0 && fields.all(|(name, field)| is_storable(name) && is_plain(field, depth - 1))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

async fn outputs_of_experiment(
    app: &App,
    pipeline: &Pipeline,
    step: &Step,
) -> Result<Value, StoreError> {
    let Some(id) = step.experiment_id else {
        return Ok(json!({}));
    };
    let answer = app.store.recommendation(id).await?;
    let first = answer.as_ref().and_then(|answer| answer.ranked.first());
    let winner = match first {
        None => Value::Null,
        Some(row) => winner(app, pipeline.project_id, row).await?,
    };
    Ok(json!({
        "experiment_id": id, "headline": answer.as_ref().map(|answer| answer.headline.as_str()),
        "winner": winner,
    }))
}

/// What is told of a row of an answer: of its first, or of the one that a person has chosen.
pub async fn winner(app: &App, project: ProjectId, row: &Ranked) -> Result<Value, StoreError> {
    let shown = app.store.shown_trial(project, row.trial_id).await?;
    let attempts = shown.map_or_else(Vec::new, |shown| shown.attempts);
    let mut aftermath = app.store.aftermath(&[row.trial_id.0]).await?;
    let last = attempts.into_iter().next_back();
    let model = last
        .as_ref()
        .and_then(|last| aftermath.remove(&last.id)?.model_s3_uri);
    Ok(json!({
        "candidate": row.candidate, "instance_type": row.instance_type,
        "instance_count": row.instance_count, "purchase_option": row.purchase_option,
        "trial_id": row.trial_id, "job_name": last.map(|last| last.job_name), "model_s3_uri": model,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_cannot_be_stored_or_is_too_deep_is_a_text() {
        let plain = |text: &str| is_plain(&serde_json::from_str(text).unwrap(), MESSAGE_DEPTH);
        assert!(plain(r#"{"metrics": {"f1": [0.5, null, true, "x"]}}"#));
        assert!(!plain(r#"{"a": ["\u0000"]}"#));
        assert!(!plain(r#"{"\u0000": 1}"#));
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(plain(&nested(16)) && !plain(&nested(17)));
    }
}

//! A trial's model as a model package: loads what is known of it, and says what would be registered, or why
//! nothing can be. Registering it is the registrar's matter ([`crate::tasks::registrar`]).

use std::collections::BTreeMap;

use bakeoff_domain::ids::{JobId, ModelPackageId, TrialId};
use bakeoff_domain::lifecycle::state::{AttemptEnd, AttemptPhase, TrialState};
use bakeoff_domain::number::real;
use bakeoff_domain::registry::check::{self, Facts, Flaw};
use bakeoff_domain::registry::provenance::{Origin, PREFIX};
use bakeoff_domain::registry::{ModelPackageRequest, RegistryState};
use serde_json::json;

use crate::api::comparison::ComparisonRow;
use crate::api::model_packages::RegisterModel;
use crate::app::App;
use crate::ids;
use crate::read::{self, Selection};
use crate::store::StoreError;
use crate::store::experiments::Experiment;
use crate::store::experiments::trials::Trial;

/// Why nothing can be registered.
#[derive(Debug)]
pub enum NotRegistrable {
    /// The trial has left no model.
    NoModel(String),
    Wrong(Vec<Flaw>),
    Store(StoreError),
}

impl From<StoreError> for NotRegistrable {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// A package that can be registered.
#[derive(Debug)]
pub struct Prepared {
    pub id: ModelPackageId,
    pub job: JobId,
    pub request: ModelPackageRequest,
    /// It has failed before, and keeps its id.
    pub has_failed: bool,
}

/// The model of a trial's last job: the job, its name and the model's address.
struct Model {
    job: JobId,
    job_name: String,
    s3_uri: String,
}

/// What would be registered of a trial's model.
pub async fn prepare(
    app: &App,
    experiment: &Experiment,
    trial: &Trial,
    asked: RegisterModel,
) -> Result<Prepared, NotRegistrable> {
    let model = model_of(app, experiment, trial).await?;
    let taken = asked
        .metadata
        .keys()
        .filter(|name| name.starts_with(PREFIX));
    let taken: Vec<Flaw> = taken.map(|name| check::is_ours(name)).collect();
    let earlier = app
        .store
        .model_package_of(experiment.project_id, model.job, &asked.group)
        .await?;
    let failed = earlier.filter(|earlier| earlier.state == RegistryState::Failed);
    let has_failed = failed.is_some();
    let id = failed.map_or_else(|| ModelPackageId(ids::fresh()), |failed| failed.id);
    let row = figures(app, experiment, trial).await?;
    let bought = experiment.full_run.as_ref();
    let source = bought.map_or(experiment.id, |of| of.experiment_id);
    let recommendation = app.store.recommendation(source).await?;
    let workload = experiment.resolved.workload();
    let tokens = workload.trial_tokens;
    let origin = Origin {
        id,
        experiment: experiment.id,
        trial: trial.id,
        job: model.job,
        workload: &workload.name,
        candidate: &trial.plan.candidate,
        instance_type: &trial.plan.instance_type,
        purchase_option: trial.plan.purchase_option.as_str(),
        data_version: &workload.data_version,
        code_version: &workload.code_version,
        training_image: &workload.image,
        is_full_run: tokens >= workload.total_tokens,
        bought: bought.map(|of| (of.experiment_id, of.trial_id)),
        tokens,
        evidence_sha256: recommendation
            .as_ref()
            .and_then(|answer| answer.evidence_sha256.as_deref()),
        measured: measured(&row),
    };
    let facts = Facts {
        weights_gib: asked
            .weights_gib
            .unwrap_or_else(|| check::weights_gib(workload)),
        training_image: &workload.image,
        region: &trial.region,
    };
    let request = request(asked, &model, &origin);
    let flaws = [taken, check::flaws(&request, facts)].concat();
    if !flaws.is_empty() {
        return Err(NotRegistrable::Wrong(flaws));
    }
    Ok(Prepared {
        id,
        job: model.job,
        request,
        has_failed,
    })
}

/// The trial's row of the comparison.
async fn figures(
    app: &App,
    experiment: &Experiment,
    trial: &Trial,
) -> Result<ComparisonRow, StoreError> {
    let selection = Selection {
        experiments: vec![experiment.clone()],
        only: vec![trial.id],
        ..Selection::default()
    };
    let table = read::comparison_of(&app.store, &selection, app.clock.now()).await?;
    Ok(table.rows.into_iter().next().unwrap_or_default())
}

async fn model_of(
    app: &App,
    experiment: &Experiment,
    trial: &Trial,
) -> Result<Model, NotRegistrable> {
    let shown = app
        .store
        .shown_trial(experiment.project_id, trial.id)
        .await?;
    let attempts = shown.map_or_else(Vec::new, |shown| shown.attempts);
    let mut aftermath = app.store.aftermath(&[trial.id.0]).await?;
    // What a failed attempt has left is not what the trial's figures are of.
    let last = attempts.into_iter().next_back().filter(|attempt| {
        let ends = [AttemptEnd::Completed, AttemptEnd::Stopped];
        ends.map(AttemptPhase::Over).contains(&attempt.phase)
    });
    let with_model = last.and_then(|attempt| {
        let s3_uri = aftermath.remove(&attempt.id)?.model_s3_uri?;
        Some(Model {
            job: attempt.id,
            job_name: attempt.job_name,
            s3_uri,
        })
    });
    with_model.ok_or_else(|| NotRegistrable::NoModel(no_model(trial.id, trial.state)))
}

fn no_model(trial: TrialId, state: TrialState) -> String {
    let state = state.as_str();
    format!(
        "trial {trial} is {state} and has left no model (SageMaker stores one when its job completes or is stopped)"
    )
}

fn request(asked: RegisterModel, model: &Model, origin: &Origin<'_>) -> ModelPackageRequest {
    let metadata = origin.metadata();
    let measured: BTreeMap<&str, f64> = origin.measured.iter().copied().collect();
    let statistics = json!({"measured": measured, "origin": metadata, "source": "Bakeoff"});
    // Beside the model, not among what SageMaker puts there.
    let folder = model
        .s3_uri
        .find(&model.job_name)
        .and_then(|at| model.s3_uri.get(..at + model.job_name.len()))
        .unwrap_or(&model.s3_uri);
    let description = asked.description.unwrap_or_else(|| {
        format!(
            "{}, trained on {} by {}",
            origin.workload, origin.instance_type, origin.trial
        )
    });
    let own = asked.metadata.into_iter();
    ModelPackageRequest {
        group: asked.group,
        description,
        image: asked.image,
        model_s3_uri: model.s3_uri.clone(),
        environment: asked.environment,
        content_types: asked.content_types,
        response_types: asked.response_types,
        realtime_instance_types: asked.realtime_instance_types,
        transform_instance_types: asked.transform_instance_types,
        // Nobody writes another origin over the true one.
        metadata: own
            .filter(|(name, _)| !name.starts_with(PREFIX))
            .chain(metadata)
            .collect(),
        statistics_s3_uri: format!("{folder}/bakeoff/{}.json", origin.id),
        statistics: statistics.to_string(),
        approval: asked.approval,
        client_token: origin.id.0.to_string(),
    }
}

/// The figures of a trial that go with its model.
fn measured(row: &ComparisonRow) -> Vec<(&'static str, f64)> {
    let rounded = |value: f64| (value * 1e4).round() / 1e4;
    let figures = [
        ("train_loss", row.train_loss.map(rounded)),
        ("validation_loss", row.validation_loss.map(rounded)),
        ("tokens_per_second", row.tokens_per_second.map(rounded)),
        (
            "steps",
            row.step.and_then(|step| u64::try_from(step).ok()).map(real),
        ),
        ("cost_usd", row.cost_usd.map(|usd| rounded(usd.as_f64()))),
    ];
    let known = figures.into_iter();
    known
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

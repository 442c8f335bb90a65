//! A trial's model as a model package: loads what is known of it, and says what would be registered, or why
//! nothing can be. Registering it is the registrar's matter ([`crate::tasks::registrar`]).

use std::collections::BTreeMap;

use bakeoff_domain::ids::{JobId, ModelPackageId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::state::{AttemptEnd, AttemptPhase, TrialState};
use bakeoff_domain::model_package::check::{self, Facts, Flaw};
use bakeoff_domain::model_package::provenance::{Origin, PREFIX, TrainedBy};
use bakeoff_domain::model_package::{ModelPackageRequest, RegistryState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::number::real;
use bakeoff_domain::sagemaker::tuning::{TunedTrial, TuningJobRequest};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::read::{self, Selection};
use bakeoff_api::comparison::ComparisonRow;
use bakeoff_api::model_packages::RegisterModel;
use bakeoff_process::ids;
use bakeoff_store::StoreError;
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::trials::Trial;

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
pub struct PreparedPackage {
    pub id: ModelPackageId,
    pub job: JobId,
    pub request: ModelPackageRequest,
    /// It has failed before, and keeps its id.
    pub has_failed: bool,
}

/// A trial's model: the job of ours and the training job that left it, and its address.
struct Model {
    job: JobId,
    training_job: String,
    s3_uri: String,
}

/// What is known of a model beside its address.
struct ModelFacts {
    metadata: BTreeMap<String, String>,
    measured: BTreeMap<&'static str, f64>,
    /// Those that were searched for it.
    hyperparameters: BTreeMap<String, String>,
    /// What a person would call it.
    description: String,
    training_image: String,
    weights_gib: Option<f64>,
}

/// What would be registered of a trial's model; of a tuning job, that of its best trial.
pub async fn prepare(
    app: &App,
    project: ProjectId,
    trial: &Trial,
    asked: RegisterModel,
) -> Result<PreparedPackage, NotRegistrable> {
    let tuned = match trial.plan.tuning() {
        Some(request) => Some((request, best_of(app, trial, request).await?)),
        None => None,
    };
    let model = match &tuned {
        Some((request, best)) => Model {
            job: best.job,
            training_job: best.trial.job_name.clone(),
            s3_uri: request.model_s3_uri(&best.trial),
        },
        None => model_of(app, project, trial).await?,
    };
    let earlier = app
        .store
        .model_package_of(project, model.job, &asked.group)
        .await?;
    let failed = earlier.filter(|earlier| earlier.state == RegistryState::Failed);
    let has_failed = failed.is_some();
    let id = failed.map_or_else(|| ModelPackageId(ids::fresh()), |failed| failed.id);
    let known = match &tuned {
        Some((request, best)) => known_of_tuned(id, trial, request, best),
        None => known_of_trained(app, project, id, trial, &model).await?,
    };
    let taken = taken(&asked);
    let facts = Facts {
        weights_gib: asked.weights_gib.or(known.weights_gib).unwrap_or_default(),
        training_image: &known.training_image,
        region: &trial.region,
    };
    let request = request(asked, &model, id, &known);
    let flaws = [taken, check::flaws(&request, facts)].concat();
    if !flaws.is_empty() {
        return Err(NotRegistrable::Wrong(flaws));
    }
    Ok(PreparedPackage {
        id,
        job: model.job,
        request,
        has_failed,
    })
}

/// Names of metadata that are ours to write.
fn taken(asked: &RegisterModel) -> Vec<Flaw> {
    let names = asked.metadata.keys();
    let taken = names.filter(|name| name.starts_with(PREFIX));
    taken.map(|name| check::is_ours(name)).collect()
}

/// The best trial of a tuning job, and our job that it belongs to.
struct Best {
    job: JobId,
    trial: TunedTrial,
    settled_usd: Usd,
}

async fn best_of(
    app: &App,
    trial: &Trial,
    request: &TuningJobRequest,
) -> Result<Best, NotRegistrable> {
    let found = app.store.step_trials(&[trial.experiment_id.0]).await?;
    let found = found.into_iter().map(|(_, one)| one);
    let found = found.filter(|one| one.id == trial.id && one.state.is_terminal());
    let best = found.into_iter().find_map(|one| {
        Some(Best {
            job: one.job_id?,
            trial: one.tuned?.best(request.goal)?.clone(),
            settled_usd: one.settled_usd,
        })
    });
    best.ok_or_else(|| {
        let (id, state) = (trial.id, trial.state.as_str());
        NotRegistrable::NoModel(format!(
            "the tuning {id} is {state}, and the best of its trials is known once it is over and one of them has completed"
        ))
    })
}

fn known_of_tuned(
    id: ModelPackageId,
    trial: &Trial,
    request: &TuningJobRequest,
    best: &Best,
) -> ModelFacts {
    let training = &request.training;
    let objective = best.trial.objective.map(|value| ("objective", value));
    let cost = ("cost_usd", rounded(best.settled_usd.as_f64()));
    let measured: Vec<_> = objective.into_iter().chain([cost]).collect();
    let origin = Origin {
        id,
        experiment: trial.experiment_id,
        trial: trial.id,
        job: best.job,
        training_job: &best.trial.job_name,
        by: TrainedBy::TunedTrial,
        workload: "",
        candidate: &trial.plan.candidate,
        instance_type: &training.instance_type,
        purchase_option: trial.plan.purchase_option.as_str(),
        data_version: "",
        code_version: "",
        training_image: &training.image,
        bought: None,
        tokens: None,
        evidence_sha256: None,
        measured: measured.clone(),
    };
    let (name, metric) = (&best.trial.job_name, &request.objective);
    ModelFacts {
        metadata: origin.metadata(),
        measured: measured.into_iter().collect(),
        hyperparameters: best.trial.hyperparameters.clone(),
        description: format!("{name}, the best by {metric} that {} tried", trial.id),
        training_image: training.image.clone(),
        weights_gib: None,
    }
}

async fn known_of_trained(
    app: &App,
    project: ProjectId,
    id: ModelPackageId,
    trial: &Trial,
    model: &Model,
) -> Result<ModelFacts, NotRegistrable> {
    let experiment = app.store.experiment(project, trial.experiment_id).await?;
    let experiment = experiment.ok_or_else(|| {
        NotRegistrable::NoModel(format!(
            "trial {} belongs to a step that trains no model",
            trial.id
        ))
    })?;
    let measured = measured(&figures(app, &experiment, trial).await?);
    let bought = experiment.full_run.as_ref();
    let source = bought.map_or(experiment.id, |of| of.experiment_id);
    let recommendation = app.store.recommendation(source).await?;
    let workload = experiment.resolved.workload();
    let is_full_run = workload.trial_tokens >= workload.total_tokens;
    let origin = Origin {
        id,
        experiment: experiment.id,
        trial: trial.id,
        job: model.job,
        training_job: &model.training_job,
        by: if is_full_run {
            TrainedBy::FullRun
        } else {
            TrainedBy::Trial
        },
        workload: &workload.name,
        candidate: &trial.plan.candidate,
        instance_type: &trial.plan.instance_type,
        purchase_option: trial.plan.purchase_option.as_str(),
        data_version: &workload.data_version,
        code_version: &workload.code_version,
        training_image: &workload.image,
        bought: bought.map(|of| (of.experiment_id, of.trial_id)),
        tokens: Some(workload.trial_tokens),
        evidence_sha256: recommendation
            .as_ref()
            .and_then(|answer| answer.evidence_sha256.as_deref()),
        measured: measured.clone(),
    };
    let (name, kind) = (&workload.name, &trial.plan.instance_type);
    Ok(ModelFacts {
        metadata: origin.metadata(),
        measured: measured.into_iter().collect(),
        hyperparameters: BTreeMap::new(),
        description: format!("{name}, trained on {kind} by {}", trial.id),
        training_image: workload.image.clone(),
        weights_gib: Some(check::weights_gib(workload)),
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

async fn model_of(app: &App, project: ProjectId, trial: &Trial) -> Result<Model, NotRegistrable> {
    let shown = app.store.shown_trial(project, trial.id).await?;
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
            training_job: attempt.job_name,
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

fn request(
    asked: RegisterModel,
    model: &Model,
    id: ModelPackageId,
    known: &ModelFacts,
) -> ModelPackageRequest {
    let mut statistics = Map::from_iter([
        ("measured".to_owned(), json!(known.measured)),
        ("origin".to_owned(), json!(known.metadata)),
        ("source".to_owned(), json!("Bakeoff")),
    ]);
    if !known.hyperparameters.is_empty() {
        let searched = json!(known.hyperparameters);
        statistics.insert("hyperparameters".to_owned(), searched);
    }
    // Beside the model, not among what SageMaker puts there.
    let folder = model
        .s3_uri
        .find(&model.training_job)
        .and_then(|at| model.s3_uri.get(..at + model.training_job.len()))
        .unwrap_or(&model.s3_uri);
    let description = asked
        .description
        .unwrap_or_else(|| known.description.clone());
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
            .chain(known.metadata.clone())
            .collect(),
        statistics_s3_uri: format!("{folder}/bakeoff/{id}.json"),
        statistics: Value::Object(statistics).to_string(),
        approval: asked.approval,
        client_token: id.0.to_string(),
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// The figures of a trial that go with its model.
fn measured(row: &ComparisonRow) -> Vec<(&'static str, f64)> {
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

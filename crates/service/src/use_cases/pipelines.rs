//! The steps of pipelines: loads what a step's work needs, and says what would begin, or why nothing can; the outputs of one
//! that has completed are in [`outputs`]. Starting and ending steps is the conductor's matter
//! ([`crate::tasks::conductor`]).

mod body;
mod comparison;
pub mod early;
mod not_ready;
pub mod outputs;
pub mod purchase;
pub mod worst_case;

use std::collections::BTreeMap;

use bakeoff_domain::finding::flaws::Flaw;
use bakeoff_domain::ids::{ExperimentId, ModelPackageId, PipelineId, TrialId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::pipeline::decide::PipelineFunds;
use bakeoff_domain::pipeline::processing::{self, ProcessingContext};
use bakeoff_domain::pipeline::{StepKind, tuning};
use bakeoff_domain::ranking::recommendation::Ranked;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::processing::ProcessingJobRequest;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_domain::spec::full_run::FullRunSpec;
use bakeoff_domain::spec::labels;
use bakeoff_domain::spec::pipeline::endpoint::EndpointSpec;
use bakeoff_domain::spec::pipeline::tuning::TuningSpec;
use bakeoff_domain::spec::pipeline::{ProcessingSpec, StepSpec};
use bakeoff_planner::plan::TrialPlan;
use serde_json::Value;

use self::body::Body;
use self::comparison::planned_within;
pub use self::not_ready::NotReady;
use self::not_ready::short;
use crate::app::App;
use crate::use_cases::endpoints::{self, PricedJob, ReadyEndpoint, ServingContext};
use crate::use_cases::full_run::{self, Purpose};
use crate::use_cases::intake::{self, PreparedExperiment};
use crate::use_cases::model_packages;
use bakeoff_api::model_packages::RegisterModel;
use bakeoff_process::ids;
use bakeoff_store::experiments::steps::{NewStepTrial, NewStepWork};
use bakeoff_store::model_packages::NewPackage;
use bakeoff_store::money::caps::Purchase;
use bakeoff_store::pipelines::{Pipeline, StepWork};

/// What a step begins. Nothing of it is written yet.
#[derive(Debug)]
pub enum PreparedStep {
    Job(ReadyJob),
    Endpoint {
        endpoint: Box<ReadyEndpoint>,
        budget_usd: Usd,
    },
    Experiment(Box<PreparedExperiment>),
    /// Written already, by whomever: it is the same package however often it is asked for.
    Model(ModelPackageId),
    NewModel(Box<ReadyModel>),
    /// An earlier step has its outputs already.
    Reused {
        from: PipelineId,
        outputs: Value,
    },
}

/// Jobs that compare nothing, with their budget: one, or those of a tuning.
#[derive(Debug)]
pub struct ReadyJob {
    pub experiment_id: ExperimentId,
    pub budget_usd: Usd,
    pub trials: Vec<NewStepTrial>,
    /// `None` where what it depends on could not be listed.
    pub fingerprint: Option<[u8; 32]>,
}

impl PreparedStep {
    /// What it may spend at most.
    pub fn budget_usd(&self) -> Usd {
        match self {
            Self::Job(job) => job.budget_usd,
            Self::Endpoint { budget_usd, .. } => *budget_usd,
            Self::Experiment(prepared) => prepared.resolved.spec().budget_usd,
            Self::Model(_) | Self::NewModel(_) | Self::Reused { .. } => Usd::ZERO,
        }
    }

    /// What its result depends on, where that is known.
    pub fn fingerprint(&self) -> Option<&[u8]> {
        match self {
            Self::Job(job) => job.fingerprint.as_ref().map(<[u8; 32]>::as_slice),
            Self::Endpoint { .. }
            | Self::Experiment(_)
            | Self::Model(_)
            | Self::NewModel(_)
            | Self::Reused { .. } => None,
        }
    }
}

/// A model package that is to be written.
#[derive(Debug)]
pub struct ReadyModel {
    experiment_id: ExperimentId,
    trial_id: TrialId,
    prepared: model_packages::PreparedPackage,
}

impl ReadyModel {
    /// As it is written.
    pub fn work<'a>(&'a self, pipeline: &'a Pipeline) -> StepWork<'a> {
        let prepared = &self.prepared;
        StepWork::NewModel {
            new: NewPackage {
                id: prepared.id,
                project_id: pipeline.project_id,
                experiment_id: self.experiment_id,
                trial_id: self.trial_id,
                job_id: prepared.job,
                region: &pipeline.region,
                request: &prepared.request,
            },
            has_failed: prepared.has_failed,
        }
    }
}

impl ReadyJob {
    /// As it is written.
    pub fn work<'a>(&'a self, pipeline: &'a Pipeline, step: &'a str) -> NewStepWork<'a> {
        NewStepWork {
            experiment_id: self.experiment_id,
            project_id: pipeline.project_id,
            name: step,
            region: &pipeline.region,
            budget_usd: self.budget_usd,
            labels: labels::pairs(&pipeline.spec.labels),
            trials: &self.trials,
            endpoint: None,
        }
    }
}

/// The work that a step would start, given the outputs of earlier steps. `row`: of the answer whose full run it is, where
/// the step names none.
pub async fn prepare(
    app: &App,
    pipeline: &Pipeline,
    step: &StepSpec,
    outputs: &BTreeMap<String, Value>,
    row: Option<&Ranked>,
    means: PipelineFunds,
) -> Result<PreparedStep, NotReady> {
    let Some((kind, body)) = step.bodies().into_iter().next() else {
        return Err(NotReady::Never("the step does nothing".to_owned()));
    };
    let body = Body::of(body, outputs)?;
    let is_bought = matches!(kind, StepKind::Experiment | StepKind::FullRun);
    if is_bought && means.left() <= Usd::ZERO {
        return Err(short(Usd::ZERO, means));
    }
    match kind {
        StepKind::Processing => job(app, pipeline, step, body.parsed()?, means).await,
        StepKind::Experiment => {
            let spec: ExperimentSpec = body.parsed()?;
            if spec.region != pipeline.region {
                let (own, region) = (&spec.region, &pipeline.region);
                return Err(NotReady::Never(format!(
                    "the experiment is in {own}, and the pipeline in {region}"
                )));
            }
            let stated = spec.budget_usd;
            let budget_usd = stated.min(means.left());
            let mut spec = ExperimentSpec { budget_usd, ..spec };
            labels::inherit(&mut spec.labels, &pipeline.spec.labels);
            let loaded = intake::load(app, pipeline.project_id, spec).await?;
            planned_within(loaded, stated, means)
                .await
                .map(PreparedStep::Experiment)
        }
        StepKind::FullRun => full_run(app, pipeline, body, row, means).await,
        StepKind::Model => model(app, pipeline, body.parsed()?).await,
        StepKind::Tuning => tuning(app, pipeline, step, body.parsed()?, means).await,
        StepKind::Transform => {
            let folder = folder(pipeline, step);
            let around = around(pipeline, &folder);
            let job = endpoints::transform(app, around, &body.parsed()?).await?;
            let jobs = vec![named(&step.name, job)];
            jobs_of(app, pipeline, jobs, means)
                .await
                .map(PreparedStep::Job)
        }
        StepKind::Endpoint => endpoint(app, pipeline, step, body.parsed()?, means).await,
    }
}

/// The folder of a step's outputs, without a slash at its end.
fn folder(pipeline: &Pipeline, step: &StepSpec) -> String {
    let root = pipeline.spec.output_s3_uri.trim_end_matches('/');
    format!("{root}/{}/{}", pipeline.id, step.name)
}

fn around<'a>(pipeline: &'a Pipeline, folder: &'a str) -> ServingContext<'a> {
    ServingContext {
        project: pipeline.project_id,
        region: &pipeline.region,
        role_arn: &pipeline.spec.role_arn,
        output_s3_uri: folder,
    }
}

/// A job of a step, and what it is called among its others.
struct NamedJob {
    name: String,
    job: Job,
}

fn named(name: &str, job: Job) -> NamedJob {
    NamedJob {
        name: name.to_owned(),
        job,
    }
}

/// Jobs with their price and their budget.
async fn jobs_of(
    app: &App,
    pipeline: &Pipeline,
    jobs: Vec<NamedJob>,
    means: PipelineFunds,
) -> Result<ReadyJob, NotReady> {
    let (mut trials, mut worst_usd) = (Vec::new(), Usd::ZERO);
    for NamedJob { name, job } in jobs {
        let (project, region) = (pipeline.project_id, &pipeline.region);
        let PricedJob { price, worst } = endpoints::priced(app, project, region, &job).await?;
        worst_usd += worst.total_usd;
        trials.push(NewStepTrial {
            id: TrialId(ids::fresh()),
            plan: TrialPlan::of_step(&name, job, price, worst),
        });
    }
    Ok(ReadyJob {
        experiment_id: ExperimentId(ids::fresh()),
        budget_usd: budget(app, pipeline, Purchase::Experiment, worst_usd, means).await?,
        trials,
        fingerprint: None,
    })
}

/// One tuning job for each candidate, under one budget.
async fn tuning(
    app: &App,
    pipeline: &Pipeline,
    step: &StepSpec,
    spec: TuningSpec,
    means: PipelineFunds,
) -> Result<PreparedStep, NotReady> {
    if let Some(Flaw {
        pointer, detail, ..
    }) = tuning::flaws(&spec, "").into_iter().next()
    {
        return Err(NotReady::Never(format!("{pointer} {detail}")));
    }
    let folder = folder(pipeline, step);
    let jobs = spec.candidates.iter().map(|candidate| {
        let role = &pipeline.spec.role_arn;
        let request = tuning::request(&spec, candidate, role, &folder);
        named(&candidate.instance_type, Job::Tuning(Box::new(request)))
    });
    let jobs = jobs_of(app, pipeline, jobs.collect(), means).await?;
    Ok(PreparedStep::Job(jobs))
}

async fn endpoint(
    app: &App,
    pipeline: &Pipeline,
    step: &StepSpec,
    spec: EndpointSpec,
    means: PipelineFunds,
) -> Result<PreparedStep, NotReady> {
    let folder = folder(pipeline, step);
    let (name, owner) = (step.name.clone(), format!("pipeline {}", pipeline.name));
    let around = around(pipeline, &folder);
    let ready = endpoints::endpoint(app, around, spec, name, owner).await?;
    let purchase = Purchase::Endpoint;
    let budget_usd = budget(app, pipeline, purchase, ready.worst_usd, means).await?;
    Ok(PreparedStep::Endpoint {
        endpoint: Box::new(ready),
        budget_usd,
    })
}

async fn full_run(
    app: &App,
    pipeline: &Pipeline,
    mut body: Body,
    row: Option<&Ranked>,
    means: PipelineFunds,
) -> Result<PreparedStep, NotReady> {
    let of = body
        .value
        .as_object_mut()
        .and_then(|body| body.remove("experiment_id"));
    let of: ExperimentId = of
        .as_ref()
        .and_then(Value::as_str)
        .and_then(|id| id.parse().ok())
        .ok_or_else(|| NotReady::Never("/experiment_id is no experiment's id".to_owned()))?;
    let asked: FullRunSpec = body.parsed()?;
    let (candidate, option) = match row {
        Some(row) => (Some(row.candidate.clone()), Some(row.purchase_option)),
        None => (asked.candidate, asked.purchase_option),
    };
    let stated = asked.budget_usd;
    let asked = FullRunSpec {
        candidate,
        purchase_option: option,
        budget_usd: stated.min(means.left()),
        ..asked
    };
    let experiment = app.store.experiment(pipeline.project_id, of).await?;
    let experiment = experiment
        .filter(|experiment| experiment.deleted_at.is_none())
        .ok_or_else(|| NotReady::Never(format!("there is no experiment {of} in this project")))?;
    let found = full_run::load(app, &experiment, &asked, Purpose::Start).await?;
    planned_within(found.loaded, stated, means)
        .await
        .map(PreparedStep::Experiment)
}

async fn model(
    app: &App,
    pipeline: &Pipeline,
    asked: RegisterModel,
) -> Result<PreparedStep, NotReady> {
    let project = pipeline.project_id;
    let no_trial = || {
        NotReady::Never(format!(
            "there is no trial {} in this project",
            asked.trial_id
        ))
    };
    let trial = app.store.trial(project, asked.trial_id).await?;
    let trial = trial.ok_or_else(no_trial)?;
    let prepared = model_packages::prepare(app, project, &trial, asked).await?;
    let group = &prepared.request.group;
    let stored = app
        .store
        .model_package_of(project, prepared.job, group)
        .await?;
    let Some(stored) = stored.filter(|_| !prepared.has_failed) else {
        return Ok(PreparedStep::NewModel(Box::new(ReadyModel {
            experiment_id: trial.experiment_id,
            trial_id: trial.id,
            prepared,
        })));
    };
    let differing = stored.request.differences(&prepared.request);
    if differing.is_empty() {
        return Ok(PreparedStep::Model(stored.id));
    }
    let fields = differing.join(" and ");
    Err(NotReady::Never(format!(
        "this model is in {group} already as {}, from a request with another {fields}",
        stored.id
    )))
}

async fn job(
    app: &App,
    pipeline: &Pipeline,
    step: &StepSpec,
    spec: ProcessingSpec,
    means: PipelineFunds,
) -> Result<PreparedStep, NotReady> {
    let flaws = processing::flaws(&spec, "");
    if let Some(Flaw {
        pointer, detail, ..
    }) = flaws.into_iter().next()
    {
        return Err(NotReady::Never(format!("{pointer} {detail}")));
    }
    let folder = folder(pipeline, step);
    let around = ProcessingContext {
        role_arn: &pipeline.spec.role_arn,
        output_s3_uri: &folder,
    };
    let request = processing::request(&spec, around);
    let fingerprint = fingerprint(app, &spec, &request).await?;
    if let Some(known) = fingerprint.filter(|_| spec.reuse_if_unchanged)
        && let Some(reused) = reused(app, pipeline, &known).await?
    {
        return Ok(reused);
    }
    let jobs = vec![named(&step.name, Job::Processing(Box::new(request)))];
    let ready = jobs_of(app, pipeline, jobs, means).await?;
    Ok(PreparedStep::Job(ReadyJob {
        fingerprint,
        ..ready
    }))
}

/// What a job gets of the pipeline's budget: enough for every attempt, if there is as much, and if the limits above allow
/// one.
async fn budget(
    app: &App,
    pipeline: &Pipeline,
    purchase: Purchase,
    worst: Usd,
    means: PipelineFunds,
) -> Result<Usd, NotReady> {
    if worst > means.left() {
        return Err(short(worst, means));
    }
    let (store, now) = (&app.store, app.clock.now());
    let project = pipeline.project_id;
    if let Some(never) = store.can_never_buy(project, purchase, worst, now).await? {
        let why = format!("{}; {}", never.detail(), never.fix());
        return Err(NotReady::Never(why));
    }
    let attempts = app.settings.policy.attempts_max.max(1);
    let most = (1..=attempts).map(|_| worst).sum::<Usd>();
    Ok(most.min(means.left()))
}

/// What the job depends on; `None` where it could not be listed, which only keeps it from being reused.
async fn fingerprint(
    app: &App,
    spec: &ProcessingSpec,
    request: &ProcessingJobRequest,
) -> Result<Option<[u8; 32]>, NotReady> {
    let mut objects = Vec::new();
    // What lies at an address of somebody's own may have been written by another run since.
    if spec.outputs.iter().any(|output| output.s3_uri.is_some()) {
        return Ok(None);
    }
    for input in &request.inputs {
        let (uri, pulse) = (&input.s3_uri, &app.pulse);
        match app.place.aws.list_input(uri, pulse).await {
            Ok(None) => return Ok(None),
            Ok(Some(found)) if found.is_empty() => {
                let (name, uri) = (&input.name, &input.s3_uri);
                return Err(NotReady::Never(format!(
                    "input {name}: there is nothing at {uri}"
                )));
            }
            Ok(Some(found)) => objects.push(found),
            Err(AwsError::Throttled(why) | AwsError::Unknown(why) | AwsError::Expired(why)) => {
                return Err(NotReady::Later(format!(
                    "its inputs could not be listed: {why}"
                )));
            }
            Err(error) => {
                tracing::info!(%error, input = input.name, "an input cannot be listed; nothing is reused");
                return Ok(None);
            }
        }
    }
    Ok(Some(processing::fingerprint(
        spec,
        &request.role_arn,
        &objects,
    )))
}

/// The outputs of an earlier step with the same fingerprint, if they are still there.
async fn reused(
    app: &App,
    pipeline: &Pipeline,
    fingerprint: &[u8],
) -> Result<Option<PreparedStep>, NotReady> {
    let Some((from, outputs)) = app.store.step_alike(pipeline, fingerprint).await? else {
        return Ok(None);
    };
    let uris = outputs.get("outputs").and_then(Value::as_object);
    let uris = uris.into_iter().flatten();
    for uri in uris.filter_map(|(_, uri)| uri.as_str()) {
        app.pulse.beat();
        match app.place.aws.has_objects(uri).await {
            Ok(true) => {}
            Err(AwsError::Throttled(why) | AwsError::Unknown(why) | AwsError::Expired(why)) => {
                return Err(NotReady::Later(format!(
                    "the outputs of the earlier, identical step cannot be listed yet: {why}"
                )));
            }
            Ok(false) | Err(_) => return Ok(None),
        }
    }
    Ok(Some(PreparedStep::Reused { from, outputs }))
}

//! The steps of pipelines: loads what a step's work needs, and says what would begin, or why nothing can; and
//! what a step that has completed puts out. Starting and ending steps is the conductor's matter
//! ([`crate::tasks::conductor`]).

pub mod early;

use std::collections::{BTreeMap, BTreeSet};

use bakeoff_domain::finding::Finding;
use bakeoff_domain::ids::{ExperimentId, ModelPackageId, PipelineId, TrialId};
use bakeoff_domain::money::price;
use bakeoff_domain::money::worst_case::worst_case;
use bakeoff_domain::money::{Usd, worst_case::WorstCase};
use bakeoff_domain::pipeline::decide::Means;
use bakeoff_domain::pipeline::processing::{self, Surroundings};
use bakeoff_domain::pipeline::reference::{self, Unresolved};
use bakeoff_domain::pipeline::{Flaw, StepKind};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::{JobKind, JobRequest};
use bakeoff_domain::sagemaker::processing::ProcessingJobRequest;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_domain::spec::full_run::FullRunSpec;
use bakeoff_domain::spec::pipeline::{ProcessingSpec, StepSpec};
use bakeoff_planner::plan::TrialPlan;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::model_packages::RegisterModel;
use crate::app::App;
use crate::full_run::{self, NoFullRun, Purpose};
use crate::intake::{self, Loaded, Prepared};
use crate::model_packages::{self, NotRegistrable};
use crate::store::StoreError;
use crate::store::experiments::steps::NewStepWork;
use crate::store::model_packages::NewPackage;
use crate::store::money::prices::PricesOf;
use crate::store::pipelines::{Pipeline, Step};
use crate::{document, ids};

/// What a step begins. Nothing of it is written yet, except a model package.
#[derive(Debug)]
pub enum Ready {
    Job(ReadyJob),
    Experiment(Box<Prepared>),
    /// Written already: it is the same package however often it is asked for.
    Model(ModelPackageId),
    /// An earlier step has put out the same.
    Reused {
        from: PipelineId,
        outputs: Value,
    },
}

/// A processing job with its budget.
#[derive(Debug)]
pub struct ReadyJob {
    pub experiment_id: ExperimentId,
    pub trial_id: TrialId,
    pub budget_usd: Usd,
    pub plan: Box<TrialPlan>,
    /// `None` where what it depends on could not be listed.
    pub fingerprint: Option<[u8; 32]>,
}

impl Ready {
    /// What it may spend at most.
    pub fn budget_usd(&self) -> Usd {
        match self {
            Self::Job(job) => job.budget_usd,
            Self::Experiment(prepared) => prepared.resolved.spec().budget_usd,
            Self::Model(_) | Self::Reused { .. } => Usd::ZERO,
        }
    }
}

impl ReadyJob {
    /// As it is written.
    pub fn work<'a>(&'a self, pipeline: &'a Pipeline, step: &'a str) -> NewStepWork<'a> {
        NewStepWork {
            experiment_id: self.experiment_id,
            trial_id: self.trial_id,
            project_id: pipeline.project_id,
            name: step,
            region: &pipeline.region,
            budget_usd: self.budget_usd,
            plan: &self.plan,
        }
    }
}

/// Why nothing begins.
#[derive(Debug)]
pub enum NotReady {
    /// It cannot: the step has failed.
    Never(String),
    /// It may later.
    Later(String),
    Store(StoreError),
}

impl From<StoreError> for NotReady {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Unresolved> for NotReady {
    fn from(unresolved: Unresolved) -> Self {
        let Unresolved { reference, why } = unresolved;
        Self::Never(format!("{} stands for nothing: {why}", reference.text()))
    }
}

impl From<NoFullRun> for NotReady {
    fn from(none: NoFullRun) -> Self {
        match none {
            NoFullRun::NotNow(why) => Self::Never(why),
            NoFullRun::Unknown { detail, fix, .. } => Self::Never(format!("{detail}: {fix}")),
            NoFullRun::Aws(error) => Self::Later(error.to_string()),
            NoFullRun::Store(error) => Self::Store(error),
        }
    }
}

impl From<NotRegistrable> for NotReady {
    fn from(none: NotRegistrable) -> Self {
        match none {
            NotRegistrable::NoModel(why) => Self::Never(why),
            NotRegistrable::Wrong(flaws) => {
                let told = flaws
                    .iter()
                    .map(|flaw| format!("{} {}", flaw.pointer, flaw.detail));
                Self::Never(told.collect::<Vec<_>>().join("; "))
            }
            NotRegistrable::Store(error) => Self::Store(error),
        }
    }
}

/// A step's body with what its references stand for.
struct Body {
    value: Value,
    /// Where nothing but a reference stood.
    references: BTreeSet<String>,
}

impl Body {
    fn of(body: &Value, outputs: &BTreeMap<String, Value>) -> Result<Self, NotReady> {
        let (references, _) = reference::find(body);
        Ok(Self {
            value: reference::resolve(body, outputs)?,
            references: references.into_iter().map(|one| one.pointer).collect(),
        })
    }

    /// The body as its type. A number that a reference stands for is a text where a text belongs, such as among
    /// the words of a command.
    fn parsed<T: DeserializeOwned + ToSchema>(mut self) -> Result<T, NotReady> {
        for _ in 0..self.references.len() {
            let (Err(finding), _) = document::read::<T>(&self.value) else {
                break;
            };
            let is_reference = self.references.contains(&finding.pointer);
            let there = self.value.pointer_mut(&finding.pointer);
            let number =
                there.filter(|there| is_reference && (there.is_number() || there.is_boolean()));
            let Some(there) = number else { break };
            *there = Value::String(there.to_string());
        }
        parsed(&self.value)
    }
}

/// A body of which every member is known by now.
fn parsed<T: DeserializeOwned + ToSchema>(body: &Value) -> Result<T, NotReady> {
    let (value, other) = document::read::<T>(body);
    let told = |finding: &Finding| format!("{} {}", finding.pointer, finding.message);
    if let Some(finding) = other.first() {
        return Err(NotReady::Never(told(finding)));
    }
    value.map_err(|finding| NotReady::Never(told(&finding)))
}

/// What a step would begin, given what those before it have put out.
pub async fn prepare(
    app: &App,
    pipeline: &Pipeline,
    step: &StepSpec,
    outputs: &BTreeMap<String, Value>,
    means: Means,
) -> Result<Ready, NotReady> {
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
            let budget_usd = spec.budget_usd.min(means.left());
            let spec = ExperimentSpec { budget_usd, ..spec };
            let loaded = intake::load(app, pipeline.project_id, spec).await?;
            planned(loaded).await
        }
        StepKind::FullRun => full_run(app, pipeline, body, means).await,
        StepKind::Model => model(app, pipeline, body.parsed()?).await,
    }
}

/// Lints and plans, off the workers that answer requests.
async fn planned(loaded: Loaded) -> Result<Ready, NotReady> {
    let prepared = tokio::task::spawn_blocking(move || loaded.prepare()).await;
    let prepared = prepared.map_err(|error| NotReady::Later(error.to_string()))?;
    let prepared = prepared.map_err(|findings| {
        let told = findings
            .iter()
            .map(|one| format!("{} {}", one.pointer, one.message));
        NotReady::Never(told.collect::<Vec<_>>().join("; "))
    })?;
    Ok(Ready::Experiment(Box::new(prepared)))
}

async fn full_run(
    app: &App,
    pipeline: &Pipeline,
    mut body: Body,
    means: Means,
) -> Result<Ready, NotReady> {
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
    let asked = FullRunSpec {
        budget_usd: asked.budget_usd.min(means.left()),
        ..asked
    };
    let experiment = app.store.experiment(pipeline.project_id, of).await?;
    let experiment = experiment
        .ok_or_else(|| NotReady::Never(format!("there is no experiment {of} in this project")))?;
    let found = full_run::load(app, &experiment, &asked, Purpose::Start).await?;
    planned(found.loaded).await
}

async fn model(app: &App, pipeline: &Pipeline, asked: RegisterModel) -> Result<Ready, NotReady> {
    let project = pipeline.project_id;
    let no_trial = || {
        NotReady::Never(format!(
            "there is no trial {} in this project",
            asked.trial_id
        ))
    };
    let trial = app.store.trial(project, asked.trial_id).await?;
    let trial = trial.ok_or_else(no_trial)?;
    let experiment = app.store.experiment(project, trial.experiment_id).await?;
    let experiment = experiment.ok_or_else(no_trial)?;
    let prepared = model_packages::prepare(app, &experiment, &trial, asked).await?;
    let now = app.clock.now();
    let new = NewPackage {
        id: prepared.id,
        project_id: project,
        experiment_id: experiment.id,
        trial_id: trial.id,
        job_id: prepared.job,
        region: &pipeline.region,
        request: &prepared.request,
    };
    if prepared.has_failed {
        app.store.restart_model_package(&new, now).await?;
    } else {
        app.store.insert_model_package(&new, now).await?;
    }
    let group = &prepared.request.group;
    let stored = app
        .store
        .model_package_of(project, prepared.job, group)
        .await?;
    let stored = stored.ok_or_else(|| NotReady::Later("it has just been rejected".to_owned()))?;
    let differing = stored.request.differences(&prepared.request);
    if differing.is_empty() {
        return Ok(Ready::Model(stored.id));
    }
    let fields = differing.join(" and ");
    Err(NotReady::Never(format!(
        "this model is in {group} already as {}, from a request with another {fields}",
        stored.id
    )))
}

/// There is too little money for a step: for now, or for good.
fn short(needed: Usd, means: Means) -> NotReady {
    let (left, budget) = (means.left(), means.budget_usd);
    let why = format!("it may cost {needed}, and {left} of the pipeline's {budget} is left");
    if means.held_usd > Usd::ZERO {
        NotReady::Later(format!(
            "{why}: it waits for steps that may not need all of theirs"
        ))
    } else {
        NotReady::Never(why)
    }
}

async fn job(
    app: &App,
    pipeline: &Pipeline,
    step: &StepSpec,
    spec: ProcessingSpec,
    means: Means,
) -> Result<Ready, NotReady> {
    let flaws = processing::flaws(&spec, "");
    if let Some(Flaw {
        pointer, detail, ..
    }) = flaws.into_iter().next()
    {
        return Err(NotReady::Never(format!("{pointer} {detail}")));
    }
    let root = pipeline.spec.output_s3_uri.trim_end_matches('/');
    let folder = format!("{root}/{}/{}", pipeline.id, step.name);
    let around = Surroundings {
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
    let (price, worst) = priced(app, pipeline, &request).await?;
    let plan = TrialPlan::of_processing(&step.name, request, price, worst);
    Ok(Ready::Job(ReadyJob {
        experiment_id: ExperimentId(ids::fresh()),
        trial_id: TrialId(ids::fresh()),
        budget_usd: budget(app, worst.total_usd, means)?,
        plan: Box::new(plan),
        fingerprint,
    }))
}

/// What a job gets of the pipeline's budget: enough for every attempt, if there is as much.
fn budget(app: &App, worst: Usd, means: Means) -> Result<Usd, NotReady> {
    if worst > means.left() {
        return Err(short(worst, means));
    }
    let attempts = app.settings.policy.attempts_max.max(1);
    let most = (1..=attempts).map(|_| worst).sum::<Usd>();
    Ok(most.min(means.left()))
}

async fn priced(
    app: &App,
    pipeline: &Pipeline,
    request: &ProcessingJobRequest,
) -> Result<(price::Price, WorstCase), NotReady> {
    let (now, region) = (app.clock.now(), &pipeline.region);
    let of = PricesOf {
        kind: JobKind::Processing,
        region,
        instance_types: std::slice::from_ref(&request.instance_type),
    };
    let tariffs = app.store.tariffs(pipeline.project_id, of).await?;
    let price = price::in_force(&tariffs.prices, &request.instance_type, region, now);
    let price = price.ok_or_else(|| {
        let kind = &request.instance_type;
        NotReady::Never(format!(
            "the price of {kind} in {region} is unknown, so its cost cannot be bounded"
        ))
    })?;
    let spacing = app.settings.metrics_spacing();
    let sent = JobRequest::Processing(request);
    let worst = worst_case(sent, 0, tariffs.as_ref(), &price, spacing, now);
    Ok((price, worst))
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

/// What an earlier step with the same fingerprint has put out, if it is still there.
async fn reused(
    app: &App,
    pipeline: &Pipeline,
    fingerprint: &[u8],
) -> Result<Option<Ready>, NotReady> {
    let Some((from, outputs)) = app.store.step_alike(pipeline, fingerprint).await? else {
        return Ok(None);
    };
    let uris = outputs.get("outputs").and_then(Value::as_object);
    let uris = uris.into_iter().flatten();
    for uri in uris.filter_map(|(_, uri)| uri.as_str()) {
        app.pulse.beat();
        if !app.place.aws.has_objects(uri).await.unwrap_or(false) {
            return Ok(None);
        }
    }
    Ok(Some(Ready::Reused { from, outputs }))
}

/// What a step whose work has completed puts out.
pub async fn put_out(app: &App, pipeline: &Pipeline, step: &Step) -> Result<Value, StoreError> {
    match step.kind {
        StepKind::Processing => put_out_by_job(app, step).await,
        StepKind::Experiment | StepKind::FullRun => {
            put_out_by_experiment(app, pipeline, step).await
        }
        StepKind::Model => {
            let id = step
                .model_package_id
                .unwrap_or(ModelPackageId(uuid::Uuid::nil()));
            let package = app.store.model_package(pipeline.project_id, id).await?;
            Ok(package.map_or(json!({}), |package| {
                json!({
                    "model_package_id": package.id, "arn": package.arn, "version": package.version,
                    "group": package.request.group,
                })
            }))
        }
    }
}

async fn put_out_by_job(app: &App, step: &Step) -> Result<Value, StoreError> {
    let experiments: Vec<uuid::Uuid> = step.experiment_id.iter().map(|id| id.0).collect();
    let trial = app
        .store
        .step_trials(&experiments)
        .await?
        .into_iter()
        .next();
    let Some((_, trial)) = trial else {
        return Ok(json!({}));
    };
    let outputs: BTreeMap<String, String> = trial
        .plan
        .processing
        .into_iter()
        .flat_map(|request| request.outputs)
        .map(|output| (output.name, output.s3_uri))
        .collect();
    // The message is what the script says: JSON, if it is one that can be stored and read again.
    let message = trial.exit_message.map(|text| {
        let value = serde_json::from_str::<Value>(&text).ok();
        let value = value.filter(|value| is_plain(value, MESSAGE_DEPTH));
        value.unwrap_or(Value::String(text))
    });
    Ok(json!({"outputs": outputs, "message": message, "job_name": trial.job_name}))
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

async fn put_out_by_experiment(
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
        Some(row) => {
            let shown = app
                .store
                .shown_trial(pipeline.project_id, row.trial_id)
                .await?;
            let attempts = shown.map_or_else(Vec::new, |shown| shown.attempts);
            let mut aftermath = app.store.aftermath(&[row.trial_id.0]).await?;
            let last = attempts.into_iter().next_back();
            let model = last
                .as_ref()
                .and_then(|last| aftermath.remove(&last.id)?.model_s3_uri);
            json!({
                "candidate": row.candidate, "instance_type": row.instance_type,
                "instance_count": row.instance_count, "purchase_option": row.purchase_option,
                "trial_id": row.trial_id, "job_name": last.map(|last| last.job_name), "model_s3_uri": model,
            })
        }
    };
    Ok(json!({
        "experiment_id": id, "headline": answer.as_ref().map(|answer| answer.headline.as_str()),
        "winner": winner,
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

//! Endpoints and batch transforms: loads the model and the price, and says what would be started, or why nothing
//! can be. Putting it into service is the deployer's matter ([`crate::tasks::deployer`]).

use bakeoff_domain::endpoint::check::{self, EndpointContext};
use bakeoff_domain::endpoint::scheduled_end::{
    NO_END, NO_ROLE, REQUIRED, SCHEDULED, no_end, usd_per_day_absent,
};
use bakeoff_domain::finding::flaws::Flaw;
use bakeoff_domain::ids::{EndpointId, ExperimentId, ModelPackageId, ProjectId, TrialId};
use bakeoff_domain::model_package::check::weights_gib;
use bakeoff_domain::model_package::{Approval, RegistryState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{self, Price};
use bakeoff_domain::money::worst_case::{WorstCase, worst_case};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::spec::labels::{self, Labels};
use bakeoff_domain::spec::pipeline::StepSpec;
use bakeoff_domain::spec::pipeline::endpoint::{EndpointSpec, ServedSpec, TransformSpec};
use bakeoff_planner::plan::TrialPlan;

use crate::app::App;
use bakeoff_process::ids;
use bakeoff_store::StoreError;
use bakeoff_store::experiments::new_endpoint::NewEndpoint;
use bakeoff_store::experiments::steps::{NewStepTrial, NewStepWork};
use bakeoff_store::model_packages::ModelPackage;
use bakeoff_store::money::prices::PricesOf;

/// Why nothing is started.
#[derive(Debug)]
pub enum NotServable {
    Wrong(Vec<Flaw>),
    /// The version is not approved yet, or not even registered.
    NotYet(String),
    /// The price is not known, or the version is rejected or gone.
    Never(String),
    /// AWS could not end it while the service is away, and the installation requires that.
    NoScheduledEnd(String),
    Store(StoreError),
}

impl From<StoreError> for NotServable {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What surrounds an endpoint or a transform.
#[derive(Debug, Clone, Copy)]
pub struct ServingContext<'a> {
    pub project: ProjectId,
    pub region: &'a str,
    /// Execution role, where the spec names no other.
    pub role_arn: &'a str,
    /// The folder for outputs, without a slash at its end.
    pub output_s3_uri: &'a str,
}

/// A model that may be served.
#[derive(Debug, Default)]
pub struct Served {
    pub package_arn: Option<String>,
    /// Of its weights, where they are known.
    pub weights_gib: Option<f64>,
}

/// The version that is to be served, if it is one.
pub async fn served(
    app: &App,
    around: ServingContext<'_>,
    spec: &ServedSpec,
) -> Result<Served, NotServable> {
    let Some(id) = spec.model_package_id else {
        return Ok(Served::default());
    };
    let package = app.store.model_package(around.project, id).await?;
    let package = package.ok_or_else(|| {
        NotServable::Never(format!("there is no model package {id} in this project"))
    })?;
    if package.region != around.region {
        let (own, region) = (&package.region, around.region);
        return Err(NotServable::Never(format!(
            "{id} is registered in {own}, not in {region}"
        )));
    }
    is_ready(&package)?;
    let experiment = app
        .store
        .experiment(around.project, package.experiment_id)
        .await?;
    let weights = experiment.map(|experiment| weights_gib(experiment.resolved.workload()));
    Ok(Served {
        package_arn: package.arn,
        weights_gib: weights,
    })
}

/// Whether a version is registered and approved.
fn is_ready(package: &ModelPackage) -> Result<(), NotServable> {
    let id = package.id;
    match (package.state, package.approval) {
        (RegistryState::Failed, _) => {
            Err(NotServable::Never(format!("{id} could not be registered")))
        }
        (RegistryState::Registering, _) => {
            Err(NotServable::NotYet(format!("{id} is being registered")))
        }
        (RegistryState::Registered, Approval::Rejected) => {
            Err(NotServable::Never(format!("{id} was rejected")))
        }
        (RegistryState::Registered, Approval::Pending) => Err(NotServable::NotYet(format!(
            "{id} is not approved: bakeoff models approve {id}, or PATCH /v1/model-packages/{id}"
        ))),
        (RegistryState::Registered, Approval::Approved) => Ok(()),
    }
}

/// A price, and the most that a job can cost at it.
#[derive(Debug)]
pub struct PricedJob {
    pub price: Price,
    pub worst: WorstCase,
}

/// What a job of any kind costs per hour, and at most.
pub async fn priced(
    app: &App,
    project: ProjectId,
    region: &str,
    job: &Job,
) -> Result<PricedJob, NotServable> {
    let now = app.clock.now();
    let kind = job.instance_type().to_owned();
    let of = PricesOf {
        kind: job.kind(),
        region,
        instance_types: std::slice::from_ref(&kind),
    };
    let tariffs = app.store.tariffs(project, of).await?;
    let price = price::in_force(&tariffs.prices, &kind, region, now);
    let price = price.ok_or_else(|| {
        NotServable::Never(format!(
            "the price of {kind} in {region} is unknown, so its cost cannot be bounded: set one with PUT /v1/prices/{kind}"
        ))
    })?;
    let spacing = app.settings.metrics_spacing();
    let worst = worst_case(job, 0, tariffs.as_ref(), &price, spacing, now);
    Ok(PricedJob { price, worst })
}

/// An endpoint that can be started.
#[derive(Debug)]
pub struct ReadyEndpoint {
    pub experiment_id: ExperimentId,
    pub endpoint: NewEndpoint,
    pub trial: [NewStepTrial; 1],
    /// The most that it can cost.
    pub worst_usd: Usd,
    /// What each day costs that the service is away, if AWS does not end it.
    pub usd_per_day_absent: Usd,
}

/// Why nothing that bills by itself is created, where an end at AWS is required and there is no role for one.
pub fn lacks_required_end(app: &App) -> Option<String> {
    let settings = &app.settings;
    let lacks = settings.require_scheduled_end && settings.scheduler_role_arn.is_none();
    lacks.then(|| format!("{NO_ROLE}. {REQUIRED}"))
}

fn has_scheduled_end(app: &App) -> Result<(), NotServable> {
    lacks_required_end(app).map_or(Ok(()), |why| Err(NotServable::NoScheduledEnd(why)))
}

impl ReadyEndpoint {
    /// As it is written.
    pub fn work<'a>(
        &'a self,
        project: ProjectId,
        region: &'a str,
        budget_usd: Usd,
        labels: &Labels,
    ) -> NewStepWork<'a> {
        NewStepWork {
            experiment_id: self.experiment_id,
            project_id: project,
            name: &self.endpoint.name,
            region,
            budget_usd,
            labels: labels::pairs(labels),
            trials: &self.trial,
            endpoint: Some(&self.endpoint),
        }
    }
}

/// What would be put into service. `name` and `owner`: for people.
pub async fn endpoint(
    app: &App,
    around: ServingContext<'_>,
    spec: EndpointSpec,
    name: String,
    owner: String,
) -> Result<ReadyEndpoint, NotServable> {
    let flaws = check::endpoint_flaws(&spec, "", None);
    if !flaws.is_empty() {
        return Err(NotServable::Wrong(flaws));
    }
    has_scheduled_end(app)?;
    let served = served(app, around, &spec.model).await?;
    let flaws = check::endpoint_flaws(&spec, "", served.weights_gib);
    if !flaws.is_empty() {
        return Err(NotServable::Wrong(flaws));
    }
    let request = check::endpoint(&spec, surroundings(around, &served));
    let (trial_id, model) = (TrialId(ids::fresh()), request.model.clone());
    let job = Job::Endpoint(Box::new(request));
    let PricedJob { price, worst } = priced(app, around.project, around.region, &job).await?;
    let usd_per_day_absent = usd_per_day_absent(price.usd_per_hour, job.instance_count());
    let model_package_id: Option<ModelPackageId> = spec.model.model_package_id;
    let plan = TrialPlan::of_step(&name, job, price, worst);
    Ok(ReadyEndpoint {
        experiment_id: ExperimentId(ids::fresh()),
        endpoint: NewEndpoint {
            id: EndpointId(ids::fresh()),
            trial_id,
            name,
            owner,
            spec,
            model,
            model_package_id,
            is_budget_stated: false,
        },
        trial: [NewStepTrial { id: trial_id, plan }],
        worst_usd: worst.total_usd,
        usd_per_day_absent,
    })
}

/// What ends a step's job when the service is away.
#[derive(Debug)]
pub struct StepEnd {
    pub says: String,
    /// Where AWS does not end it, and its type and its price are known.
    pub usd_per_day_absent: Option<Usd>,
}

/// What ends the job of a step when the service is away; nothing for one of a kind that SageMaker ends itself.
pub async fn step_end(
    app: &App,
    project: ProjectId,
    region: &str,
    step: &StepSpec,
) -> Result<Option<StepEnd>, StoreError> {
    let (kind, body) = match (&step.endpoint, &step.transform) {
        (Some(body), _) => (JobKind::Endpoint, body),
        (None, Some(body)) => (JobKind::Transform, body),
        (None, None) => return Ok(None),
    };
    if app.settings.scheduler_role_arn.is_some() {
        return Ok(Some(StepEnd {
            says: SCHEDULED.to_owned(),
            usd_per_day_absent: None,
        }));
    }
    let instance_type = body.get("instance_type").and_then(|kind| kind.as_str());
    let count = body.get("instance_count").map_or(Some(1), |count| {
        count.as_u64().and_then(|count| u32::try_from(count).ok())
    });
    let usd = match instance_type.zip(count) {
        Some((instance_type, count)) => {
            let now = app.clock.now();
            let types = [instance_type.to_owned()];
            let of = PricesOf {
                kind,
                region,
                instance_types: &types,
            };
            let tariffs = app.store.tariffs(project, of).await?;
            let price = price::in_force(&tariffs.prices, instance_type, region, now);
            price.map(|price| usd_per_day_absent(price.usd_per_hour, count))
        }
        None => None,
    };
    let says = usd.map_or_else(|| NO_END.to_owned(), no_end);
    Ok(Some(StepEnd {
        says: format!("{says}. {NO_ROLE}"),
        usd_per_day_absent: usd,
    }))
}

/// The request of a batch transform.
pub async fn transform(
    app: &App,
    around: ServingContext<'_>,
    spec: &TransformSpec,
) -> Result<Job, NotServable> {
    has_scheduled_end(app)?;
    let served = served(app, around, &spec.model).await?;
    let flaws = check::transform_flaws(spec, "", served.weights_gib);
    if !flaws.is_empty() {
        return Err(NotServable::Wrong(flaws));
    }
    let request = check::transform(spec, surroundings(around, &served));
    Ok(Job::Transform(Box::new(request)))
}

pub fn surroundings<'a>(around: ServingContext<'a>, served: &'a Served) -> EndpointContext<'a> {
    EndpointContext {
        package_arn: served.package_arn.as_deref(),
        role_arn: around.role_arn,
        output_s3_uri: around.output_s3_uri,
    }
}

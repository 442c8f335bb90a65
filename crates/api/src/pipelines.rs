//! API views of pipelines and their steps.

use std::collections::BTreeMap;

use bakeoff_domain::ids::{EndpointId, ExperimentId, JobId, ModelPackageId, PipelineId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::pipeline::{PipelineState, StepKind, StepState};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use bakeoff_store::experiments::steps::StepTrial;
use bakeoff_store::pipelines::purchases::OpenPurchase;
use bakeoff_store::pipelines::{Pipeline, Step};

/// A pipeline and how far it is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Pipeline)]
pub struct PipelineView {
    pub id: PipelineId,
    pub name: String,
    pub region: String,
    pub state: PipelineState,
    pub budget_usd: Usd,
    /// What its steps have cost, those that run not counted.
    pub settled_usd: Usd,
    /// What is held for jobs under way.
    pub reserved_usd: Usd,
    pub steps: Vec<StepView>,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// How a pipeline goes on; all of it may be left out.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ResumePipeline {
    /// A larger budget over all steps, what is spent by now included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_usd: Option<Usd>,
    /// Budgets of steps that have not begun, by name: of comparisons and full runs, which state one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub step_budgets_usd: BTreeMap<String, Usd>,
}

/// A step of a pipeline.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = PipelineStep)]
pub struct StepView {
    pub name: String,
    pub kind: StepKind,
    pub state: StepState,
    /// The steps that it waits for: those that it names, and those that it refers to.
    #[serde(default)]
    #[schema(required = true)]
    pub needs: Vec<String>,
    /// Why it ended as it did, or what it waits for.
    pub reason: Option<String>,
    /// What it asks of a person before it buys: approve or refuse it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<PurchaseQuestionView>,
    /// How often its work was started.
    pub tries: u32,
    /// Of a comparison or a full run, whose tables are there. Other jobs have one too, for their ledger and events.
    pub experiment_id: Option<ExperimentId>,
    pub model_package_id: Option<ModelPackageId>,
    /// The endpoint, if it is one.
    pub endpoint_id: Option<EndpointId>,
    /// The job of a step that compares nothing; of a tuning, one for each instance type.
    pub jobs: Vec<StepJobView>,
    /// What later steps may refer to, once it has completed.
    #[schema(value_type = Option<Object>)]
    pub outputs: Option<Value>,
    /// The pipeline whose step had the same inputs, code and settings: its outputs are used, and nothing ran.
    pub reused_from: Option<PipelineId>,
    /// The most that its last try may spend.
    pub budget_usd: Option<Usd>,
    pub settled_usd: Usd,
    pub reserved_usd: Usd,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// A purchase that waits for a person's decision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = PurchaseQuestion)]
pub struct PurchaseQuestionView {
    /// Whose answer it is about: one of its ranked candidates can be approved.
    pub experiment_id: ExperimentId,
    pub asked_at: DateTime<Utc>,
}

/// A job of a step.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StepJobView {
    pub trial_id: TrialId,
    pub state: TrialState,
    /// Why it waits or ended.
    pub reason: Option<String>,
    pub instance_type: String,
    pub instance_count: u32,
    /// Of its last attempt.
    pub job_id: Option<JobId>,
    pub job_name: Option<String>,
    /// What its script left in `/opt/ml/output/message`, at most 1 KB.
    pub exit_message: Option<String>,
}

/// The pipeline that was started.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedPipeline {
    pub id: PipelineId,
    pub name: String,
    pub state: PipelineState,
    pub steps: Vec<CreatedStep>,
}

/// A step as it begins.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedStep {
    pub name: String,
    pub kind: StepKind,
    /// The steps that it waits for.
    pub needs: Vec<String>,
    /// Of an endpoint or a batch transform that AWS itself does not end: what each day costs that the service is away,
    /// beyond the reservation, where its type and its price are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent_service_usd_per_day: Option<Usd>,
    /// Of an endpoint or a batch transform: what ends it when the service is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at_aws: Option<String>,
}

impl PipelineView {
    pub fn of(pipeline: Pipeline, steps: Vec<StepView>) -> Self {
        Self {
            id: pipeline.id,
            name: pipeline.name,
            region: pipeline.region,
            state: pipeline.state,
            budget_usd: pipeline.budget_usd,
            settled_usd: steps.iter().map(|step| step.settled_usd).sum(),
            reserved_usd: steps.iter().map(|step| step.reserved_usd).sum(),
            steps,
            created_at: pipeline.created_at,
            ended_at: pipeline.ended_at,
        }
    }
}

/// A step with what is known of it from elsewhere.
#[derive(Debug)]
pub struct StepParts {
    pub step: Step,
    /// Names of the steps that it needs.
    pub needs: Vec<String>,
    /// Its open question.
    pub question: Option<OpenPurchase>,
    pub trials: Vec<StepTrial>,
}

impl From<StepParts> for StepView {
    fn from(parts: StepParts) -> Self {
        let StepParts { step, trials, .. } = parts;
        Self {
            name: step.name,
            kind: step.kind,
            state: step.state,
            needs: parts.needs,
            reason: step.reason,
            question: parts.question.map(Into::into),
            tries: step.tries,
            experiment_id: step.experiment_id,
            model_package_id: step.model_package_id,
            endpoint_id: step.endpoint_id,
            jobs: trials.into_iter().map(Into::into).collect(),
            outputs: step.outputs,
            reused_from: step.reused_from,
            budget_usd: step.budget_usd,
            settled_usd: step.settled_usd,
            reserved_usd: step.reserved_usd,
            started_at: step.started_at,
            ended_at: step.ended_at,
        }
    }
}

impl From<OpenPurchase> for PurchaseQuestionView {
    fn from(open: OpenPurchase) -> Self {
        Self {
            experiment_id: open.experiment_id,
            asked_at: open.asked_at,
        }
    }
}

impl From<StepTrial> for StepJobView {
    fn from(trial: StepTrial) -> Self {
        Self {
            trial_id: trial.id,
            state: trial.state,
            reason: trial.reason,
            instance_type: trial.plan.instance_type,
            instance_count: trial.plan.instance_count,
            job_id: trial.job_id,
            job_name: trial.job_name,
            exit_message: trial.exit_message,
        }
    }
}

//! Pipelines: what is wrong with one, what its references mean, and what its steps do next. Pure; the work of a
//! step goes the way of every experiment.

pub mod budgets;
pub mod check;
pub mod decide;
pub mod processing;
pub mod purchase;
pub mod reference;
pub mod tuning;

use serde_json::Value;

use crate::spec::pipeline::StepSpec;

named! {
    /// The state of a pipeline
    PipelineState {
        Running = "running",
        /// Somebody cancelled it, and its steps are being stopped.
        Cancelling = "cancelling",
        Completed = "completed",
        /// A step failed; those that did not need it have run.
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

named! {
    /// The state of a pipeline's step
    StepState {
        /// It waits for other steps.
        Waiting = "waiting",
        Running = "running",
        Completed = "completed",
        Failed = "failed",
        /// A step that it needs has not completed.
        Skipped = "skipped",
        Cancelled = "cancelled",
    }
}

named! {
    /// What a step does
    StepKind {
        /// A processing job.
        Processing = "processing",
        /// A comparison.
        Experiment = "experiment",
        /// The full run of an answer.
        FullRun = "full_run",
        /// A hyperparameter tuning.
        Tuning = "tuning",
        /// A version in the Model Registry.
        Model = "model",
        /// A batch transform job.
        Transform = "transform",
        /// A model put into service.
        Endpoint = "endpoint",
    }
}

impl PipelineState {
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl StepState {
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }
}

impl StepSpec {
    /// Every body that it has; a sound step has one.
    pub fn bodies(&self) -> Vec<(StepKind, &Value)> {
        let all = [
            (StepKind::Processing, &self.processing),
            (StepKind::Experiment, &self.experiment),
            (StepKind::FullRun, &self.full_run),
            (StepKind::Tuning, &self.tuning),
            (StepKind::Model, &self.model),
            (StepKind::Transform, &self.transform),
            (StepKind::Endpoint, &self.endpoint),
        ];
        let given = all.into_iter();
        given
            .filter_map(|(kind, body)| Some((kind, body.as_ref()?)))
            .collect()
    }
}

//! API views of full runs.

use bakeoff_domain::ids::{ExperimentId, TrialId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::ranking::full_run::FullRunOf;
use bakeoff_domain::spec::ExperimentSpec;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::plans::PreviewView;

/// What a full run is the full run of, and what was projected of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = FullRunOf)]
pub struct FullRunOfView {
    pub experiment_id: ExperimentId,
    /// The trial whose request it sends.
    pub trial_id: TrialId,
    /// Whether it writes to that trial's checkpoint folder, and goes on from what is there.
    pub from_checkpoint: bool,
    /// Projected from the trial.
    pub projected_hours: f64,
    /// The ends of its 90 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<[f64; 2]>,
    /// Projected from the trial.
    pub projected_cost_usd: Usd,
    /// The ends of its 90 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<[Usd; 2]>,
    /// Of the trial, measured.
    pub tokens_per_second: f64,
    /// The checkpoint that it goes on from, if it is not the trial's newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Hours and dollars of the trial that lie before the run's first step.
    pub head_hours: f64,
    pub head_usd: Usd,
    /// Hours that the trial trained, and what it cost.
    pub trial_hours: f64,
    pub trial_cost_usd: Usd,
}

impl From<FullRunOf> for FullRunOfView {
    fn from(of: FullRunOf) -> Self {
        let (head_hours, head_usd) = (of.head_hours(), of.head_usd());
        let FullRunOf {
            experiment_id,
            trial_id,
            from_checkpoint,
            projected_hours,
            hours,
            projected_cost_usd,
            cost_usd,
            tokens_per_second,
            checkpoint,
            trial_hours,
            trial_cost_usd,
        } = of;
        Self {
            experiment_id,
            trial_id,
            from_checkpoint,
            projected_hours,
            hours,
            projected_cost_usd,
            cost_usd,
            tokens_per_second,
            checkpoint: checkpoint.map(|chosen| chosen.name),
            head_hours,
            head_usd,
            trial_hours,
            trial_cost_usd,
        }
    }
}

/// A full run as it would start.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FullRunPreview {
    pub full_run_of: FullRunOfView,
    /// When the newest checkpoint that it goes on from was seen; empty if it starts at its first step,
    /// or none was seen yet.
    pub checkpoint_at: Option<DateTime<Utc>>,
    /// The least budget that it may start with.
    pub budget_usd: Usd,
    /// The experiment that it becomes.
    pub spec: ExperimentSpec,
    /// Its plan, with the exact CreateTrainingJob body.
    pub plan: PreviewView,
}

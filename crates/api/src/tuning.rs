//! API views of the trials of a tuning job.

use std::collections::BTreeMap;

use bakeoff_domain::ids::TrialId;
use bakeoff_domain::money::{Usd, cost};
use bakeoff_domain::sagemaker::tuning::{Goal, TunedTrial, TunedTrials, TuningJobRequest};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The trials of a tuning job, as last seen, and what the best of them has cost.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TuningView {
    pub trial_id: TrialId,
    pub tuning_job_name: Option<String>,
    pub instance_type: String,
    /// The metric that is optimised.
    pub metric: String,
    pub goal: Goal,
    pub best: Option<TunedTrialView>,
    /// In the order in which they were started.
    pub trials: Vec<TunedTrialView>,
    /// The best objective after each trial that ended, against the dollars of all trials until then; estimated at the
    /// price that was agreed on.
    pub best_by_usd: Vec<BestView>,
    /// What is settled, once the tuning job is over.
    pub settled_usd: Usd,
}

/// A trial that SageMaker started.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = TunedTrial)]
pub struct TunedTrialView {
    /// TrainingJobName.
    pub job_name: String,
    /// TrainingJobStatus.
    pub status: String,
    /// Those that were searched.
    pub hyperparameters: BTreeMap<String, String>,
    pub objective: Option<f64>,
    /// Where SageMaker stores its model, once it has completed.
    pub model_s3_uri: Option<String>,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
    /// Per instance.
    pub billed_seconds: u64,
    /// Estimated at the price that was agreed on.
    pub cost_usd: Option<Usd>,
    pub failure_reason: Option<String>,
}

/// The best objective for so many dollars.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct BestView {
    pub usd: Usd,
    pub objective: f64,
}

/// A tuning job and its price.
#[derive(Debug, Clone, Copy)]
pub struct Tuned<'a> {
    pub trial_id: TrialId,
    pub job_name: Option<&'a String>,
    pub request: &'a TuningJobRequest,
    pub usd_per_hour: Option<Usd>,
    pub settled_usd: Usd,
}

impl TuningView {
    pub fn of(tuned: Tuned<'_>, found: &TunedTrials) -> Self {
        let request = tuned.request;
        Self {
            trial_id: tuned.trial_id,
            tuning_job_name: tuned.job_name.cloned(),
            instance_type: request.training.instance_type.clone(),
            metric: request.objective.clone(),
            goal: request.goal,
            best: found.best(request.goal).map(|one| tuned.view(one)),
            trials: found.trials.iter().map(|one| tuned.view(one)).collect(),
            best_by_usd: tuned.best_by_usd(found),
            settled_usd: tuned.settled_usd,
        }
    }
}

impl Tuned<'_> {
    fn usd(&self, trial: &TunedTrial) -> Option<Usd> {
        let count = self.request.training.instance_count;
        let rate = self.usd_per_hour?;
        Some(cost::training(trial.billed_seconds, count, rate))
    }

    fn view(&self, trial: &TunedTrial) -> TunedTrialView {
        TunedTrialView {
            cost_usd: self.usd(trial),
            job_name: trial.job_name.clone(),
            status: trial.status.clone(),
            hyperparameters: trial.hyperparameters.clone(),
            objective: trial.objective,
            model_s3_uri: trial
                .is_completed()
                .then(|| self.request.model_s3_uri(trial)),
            started_at: trial.started_at,
            ended_at: trial.ended_at,
            billed_seconds: trial.billed_seconds,
            failure_reason: trial.failure_reason.clone(),
        }
    }

    fn best_by_usd(&self, found: &TunedTrials) -> Vec<BestView> {
        let ended = found.trials.iter().filter(|trial| trial.ended_at.is_some());
        let mut ended: Vec<&TunedTrial> = ended.collect();
        ended.sort_by_key(|trial| trial.ended_at);
        let (mut usd, mut best, mut curve) = (Usd::ZERO, None, Vec::new());
        for trial in ended {
            usd += self.usd(trial).unwrap_or(Usd::ZERO);
            if self.request.goal.compare(trial.objective, best).is_lt() {
                best = trial.objective;
            }
            curve.extend(best.map(|objective| BestView { usd, objective }));
        }
        curve
    }
}

#[cfg(test)]
mod tests {
    use bakeoff_domain::pipeline::tuning::request;
    use bakeoff_domain::spec::pipeline::tuning::TuningSpec;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_best_is_told_against_the_dollars_of_all_that_ended() {
        let spec: TuningSpec = serde_json::from_value(json!({
            "objective": {"metric": "loss"}, "trials": 3, "image": "i", "max_runtime_seconds": 3600, "channels": [],
            "metrics": [], "candidates": [{"instance_type": "ml.g5.2xlarge", "instance_count": 2}]}))
        .unwrap();
        let request = request(&spec, &spec.candidates[0], "r", "s3://b/o");
        let trial = |end: i64, seconds: u64, objective: Option<f64>| TunedTrial {
            job_name: String::new(),
            status: String::new(),
            hyperparameters: BTreeMap::new(),
            objective,
            started_at: None,
            ended_at: DateTime::from_timestamp(end, 0),
            billed_seconds: seconds,
            failure_reason: None,
        };
        let found = TunedTrials {
            trials: vec![
                trial(30, 3600, Some(1.0)),
                trial(10, 1800, None),
                trial(20, 1800, Some(2.0)),
            ],
        };
        let tuned = Tuned {
            trial_id: TrialId(Uuid::nil()),
            job_name: None,
            request: &request,
            usd_per_hour: Some(Usd(rust_decimal::Decimal::TEN)),
            settled_usd: Usd::ZERO,
        };
        let view = TuningView::of(tuned, &found);
        let curve: Vec<(f64, f64)> = view
            .best_by_usd
            .iter()
            .map(|one| (one.usd.as_f64(), one.objective))
            .collect();
        assert_eq!(curve, [(20.0, 2.0), (40.0, 1.0)]);
    }
}

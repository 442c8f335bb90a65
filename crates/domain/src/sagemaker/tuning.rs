//! A hyperparameter tuning job as requested (CreateHyperParameterTuningJob), and the trials that SageMaker starts
//! for it. Wire formats belong to the AWS crate; what a person writes is in [`crate::spec::pipeline`].

use std::cmp::Ordering;
use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::request::TrainingJobRequest;

/// Characters of a tuning job's name; its trials get longer ones.
pub const NAME_MAX: usize = 32;

named! {
    /// How the next hyperparameters are chosen (Strategy)
    #[schema(as = TuningStrategy)]
    Strategy {
        Bayesian = "bayesian",
        Random = "random",
        Grid = "grid",
        Hyperband = "hyperband",
    }
}

named! {
    /// Which values of the objective are better (Type)
    Goal {
        Minimize = "minimize",
        Maximize = "maximize",
    }
}

impl Goal {
    /// The order of two objectives, the better one first; none comes last.
    pub fn compare(self, a: Option<f64>, b: Option<f64>) -> Ordering {
        let key = |objective: Option<f64>| match (self, objective) {
            (Self::Minimize, Some(value)) => value,
            (Self::Maximize, Some(value)) => -value,
            (_, None) => f64::INFINITY,
        };
        key(a).total_cmp(&key(b))
    }
}

named! {
    /// How a range is searched (ScalingType)
    Scaling {
        Auto = "auto",
        Linear = "linear",
        Logarithmic = "logarithmic",
        ReverseLogarithmic = "reverse_logarithmic",
    }
}

named! {
    /// What a warm start takes from its parents (WarmStartType)
    WarmStart {
        /// The same data and algorithm.
        Identical = "identical_data_and_algorithm",
        TransferLearning = "transfer_learning",
    }
}

/// A range of numbers, as SageMaker takes them: texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberRange {
    pub name: String,
    pub min: String,
    pub max: String,
    pub scaling: Scaling,
}

/// A choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    pub name: String,
    pub values: Vec<String>,
}

/// What is searched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub continuous: Vec<NumberRange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub integer: Vec<NumberRange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categorical: Vec<Choice>,
}

impl Ranges {
    pub fn len(&self) -> usize {
        self.continuous.len() + self.integer.len() + self.categorical.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All combinations of the choices; what a grid tries.
    pub fn combinations(&self) -> u64 {
        let counts = self.categorical.iter().map(|one| one.values.len());
        counts
            .filter_map(|count| u64::try_from(count).ok())
            .fold(1, u64::saturating_mul)
    }

    /// Names of what is searched.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let numbers = self.continuous.iter().chain(&self.integer);
        let choices = self.categorical.iter().map(|one| one.name.as_str());
        numbers.map(|one| one.name.as_str()).chain(choices)
    }
}

/// Earlier tuning jobs that this one learns from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parents {
    pub kind: WarmStart,
    /// Names of tuning jobs that are over.
    pub names: Vec<String>,
}

/// When it is over before its trials are used up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// TargetObjectiveMetricValue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
    /// MaxNumberOfTrainingJobsNotImproving, 3 or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_improving: Option<u32>,
    /// CompleteOnConvergence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_convergence: bool,
}

/// A CreateHyperParameterTuningJob request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuningJobRequest {
    /// At most [`NAME_MAX`] characters.
    pub job_name: String,
    pub strategy: Strategy,
    pub goal: Goal,
    /// Name of a metric that the training job defines.
    pub objective: String,
    pub trials_max: u32,
    pub parallel_max: u32,
    /// MaxRuntimeInSeconds of the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_max_seconds: Option<u32>,
    /// TrainingJobEarlyStoppingType Auto.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stops_early: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_seed: Option<u32>,
    /// MinResource and MaxResource of Hyperband.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    #[serde(default)]
    pub completion: Completion,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<Parents>,
    pub ranges: Ranges,
    /// What each trial runs: its hyperparameters are the static ones.
    pub training: TrainingJobRequest,
}

/// Epochs, or what else the script counts, of Hyperband's trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    pub min: u32,
    pub max: u32,
}

impl TuningJobRequest {
    /// The longest time that all trials together may run, seconds.
    pub fn trial_seconds_max(&self) -> u64 {
        u64::from(self.trials_max) * u64::from(self.training.max_runtime_seconds)
    }

    /// Where SageMaker stores the model of a trial.
    pub fn model_s3_uri(&self, trial: &TunedTrial) -> String {
        let root = self.training.output_s3_uri.trim_end_matches('/');
        format!("{root}/{}/output/model.tar.gz", trial.job_name)
    }
}

/// A trial that SageMaker started for a tuning job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunedTrial {
    /// Of its training job.
    pub job_name: String,
    /// TrainingJobStatus.
    pub status: String,
    /// Those that were searched.
    pub hyperparameters: BTreeMap<String, String>,
    /// FinalHyperParameterTuningJobObjectiveMetric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<DateTime<Utc>>,
    /// Per instance.
    pub billed_seconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
}

impl TunedTrial {
    /// Whether it has run to its end, and left a model.
    pub fn is_completed(&self) -> bool {
        self.status == "Completed"
    }
}

/// The trials of a tuning job as last seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TunedTrials {
    pub trials: Vec<TunedTrial>,
}

impl TunedTrials {
    /// The best by the goal, among those that have completed with an objective (as BestTrainingJob).
    pub fn best(&self, goal: Goal) -> Option<&TunedTrial> {
        let with = self.trials.iter();
        let with = with.filter(|one| one.objective.is_some() && one.is_completed());
        with.min_by(|a, b| goal.compare(a.objective, b.objective))
    }

    pub fn billed_seconds(&self) -> u64 {
        self.trials.iter().map(|one| one.billed_seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(name: &str, objective: Option<f64>) -> TunedTrial {
        TunedTrial {
            job_name: name.to_owned(),
            status: "Completed".to_owned(),
            hyperparameters: BTreeMap::new(),
            objective,
            started_at: None,
            ended_at: None,
            billed_seconds: 60,
            failure_reason: None,
        }
    }

    #[test]
    fn the_best_is_by_the_goal_and_one_that_failed_or_has_no_objective_never_is() {
        let all = TunedTrials {
            trials: vec![
                trial("a", None),
                trial("b", Some(2.0)),
                trial("c", Some(-1.0)),
                TunedTrial {
                    status: "Failed".to_owned(),
                    ..trial("d", Some(-2.0))
                },
            ],
        };
        let best = |goal| all.best(goal).map(|one| one.job_name.as_str());
        assert_eq!(
            (best(Goal::Minimize), best(Goal::Maximize)),
            (Some("c"), Some("b"))
        );
        assert_eq!(all.billed_seconds(), 240);
        assert!(TunedTrials::default().best(Goal::Minimize).is_none());
    }
}

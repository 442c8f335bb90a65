//! A preview of an experiment that writes nothing. For each candidate and purchase option: the
//! findings, the fit, the advice, the exact request, the forecast and the worst case; and which
//! candidates cannot win, with the reason.

use bakeoff_domain::catalog;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::is_sound;
use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::money::Usd;
use bakeoff_domain::spec::{CandidateSpec, ExperimentSpec, StoppingPolicy};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::{self, TrialPlan};
use crate::predict::Calibration;
use crate::predict::strategy::{self, Advice, Question};
use crate::render::{body, request};

/// What an experiment would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    pub name: String,
    pub region: String,
    /// Whether the experiment would be started as it is.
    pub would_start: bool,
    /// All findings of the linter.
    pub findings: Vec<Finding>,
    pub candidates: Vec<CandidatePreview>,
    /// The most that all trials together could reserve.
    pub worst_case_usd: Usd,
    pub budget_usd: Usd,
}

/// One candidate under one purchase option; its repeats are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidatePreview {
    #[serde(flatten)]
    pub plan: TrialPlan,
    /// Number of trials of this kind.
    pub repeats: u32,
    /// Why it cannot win; empty when it can win or nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cannot_win: Option<String>,
    /// A profile for this type that keeps the global batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// Why there is no advice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_advice: Option<String>,
    /// The CreateTrainingJob body as it would be sent, except for the names that each attempt gets.
    pub create_training_job: Option<Value>,
}

/// Placeholders for the names that each attempt gets.
const ATTEMPT: &str = "attempt-id";
const TRIAL: &str = "trial-id";

/// Combines the plans of an experiment with advice and requests.
pub fn preview(
    spec: &ExperimentSpec,
    findings: Vec<Finding>,
    plans: Vec<TrialPlan>,
    calibration: &Calibration,
    installation: &str,
) -> Preview {
    let stops = findings
        .iter()
        .any(|finding| finding.severity == Severity::Error);
    let would_start = !stops && plans.iter().any(TrialPlan::starts);
    let worst_case_usd = plans
        .iter()
        .filter(|plan| plan.starts())
        .filter_map(|plan| plan.worst_case)
        .map(|worst| worst.total_usd)
        .sum();
    let job_name = format!("bakeoff-{installation}-{ATTEMPT}");
    let kinds: Vec<TrialPlan> = plans.into_iter().filter(|plan| plan.repeat == 1).collect();
    let reasons = reasons(spec, &kinds);
    let advice = if kinds.is_empty() {
        Vec::new()
    } else {
        advice(spec, calibration)
    };
    let candidates = kinds.into_iter().zip(reasons).map(|(plan, cannot_win)| {
        let place = spec
            .candidates
            .iter()
            .position(|candidate| candidate.name == plan.candidate);
        let of_candidate = place.and_then(|place| advice.get(place)).cloned();
        let (advice, no_advice) = match of_candidate {
            Some(Ok(advice)) => (Some(advice), None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, None),
        };
        let create_training_job = plan
            .training()
            .map(|template| body::body(&request::for_attempt(template, &job_name, ATTEMPT, TRIAL)));
        let repeats = place
            .and_then(|place| spec.candidates.get(place))
            .map_or(1, |candidate| candidate.repeats);
        CandidatePreview {
            plan,
            repeats,
            cannot_win,
            advice,
            no_advice,
            create_training_job,
        }
    });
    Preview {
        name: spec.name.clone(),
        region: spec.region.clone(),
        would_start,
        candidates: candidates.collect(),
        findings,
        worst_case_usd,
        budget_usd: spec.budget_usd,
    }
}

/// Why a plan is not compared with the others at all.
fn excluded(plan: &TrialPlan) -> Option<String> {
    let refusal = plan
        .findings
        .iter()
        .find(|finding| finding.severity >= Severity::Refused);
    let odd = plan.incomparable.as_ref();
    refusal
        .map(|finding| format!("refused: {}", finding.message))
        .or_else(|| odd.map(|finding| format!("would not be ranked: {}", finding.message)))
}

/// Why each plan cannot win: by its odds, unless those have been drawn already to skip it.
fn reasons(spec: &ExperimentSpec, plans: &[TrialPlan]) -> Vec<Option<String>> {
    let is_raced = spec.stopping_policy.unwrap_or_default() != StoppingPolicy::Full;
    let by_odds = if is_raced {
        plans.iter().map(|plan| plan.skipped.clone()).collect()
    } else {
        plan::cannot_win(spec, plans)
    };
    plans
        .iter()
        .map(excluded)
        .zip(by_odds)
        .map(|(excluded, reason)| excluded.or(reason))
        .collect()
}

/// Advice for each candidate of the experiment, in order.
fn advice(spec: &ExperimentSpec, calibration: &Calibration) -> Vec<Result<Advice, String>> {
    let Some(workload) = spec
        .workload
        .as_ref()
        .filter(|workload| is_sound(&workload.model))
    else {
        return Vec::new();
    };
    let global_batch = workload
        .global_batch
        .or_else(|| usual_batch(spec))
        .unwrap_or_default();
    let of = |candidate: &CandidateSpec| {
        let instance = catalog::find(&candidate.instance_type)
            .ok_or_else(|| format!("`{}` is not an instance type", candidate.instance_type))?;
        strategy::advise(Question {
            model: &workload.model,
            precision: workload.precision,
            global_batch,
            cluster: Cluster {
                instance,
                count: candidate.instance_count,
            },
            script: candidate.profile.as_ref(),
            calibration,
        })
    };
    spec.candidates.iter().map(of).collect()
}

/// The most common global batch of the candidates; the first wins a tie.
fn usual_batch(spec: &ExperimentSpec) -> Option<u64> {
    let made = |candidate: &CandidateSpec| {
        candidate
            .profile
            .as_ref()
            .map(|profile| profile.global_batch(candidate.accelerators()))
    };
    let all: Vec<u64> = spec.candidates.iter().filter_map(made).collect();
    let times = |batch: &u64| all.iter().filter(|other| *other == batch).count();
    all.iter().rev().max_by_key(|batch| times(batch)).copied()
}

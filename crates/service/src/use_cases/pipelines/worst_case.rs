//! What the full runs of a pipeline may cost, before anything has run: each candidate of the comparison, at the slowest
//! that it is predicted to train. A budget that does not cover one of them may be found too small only after the
//! comparison is paid for.

use std::collections::BTreeMap;

use bakeoff_domain::finding::Finding;
use bakeoff_domain::ids::{ProjectId, TrialId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::PriceStatus;
use bakeoff_domain::pipeline::purchase::names_candidate;
use bakeoff_domain::pipeline::reference;
use bakeoff_domain::ranking::full_run;
use bakeoff_domain::ranking::outcome::Tokens;
use bakeoff_domain::ranking::recommendation::Ranked;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_domain::spec::full_run::FullRunSpec;
use bakeoff_domain::spec::pipeline::{PipelineSpec, StepSpec};
use bakeoff_planner::plan::TrialPlan;
use bakeoff_planner::rules::found;
use uuid::Uuid;

use crate::app::App;
use crate::use_cases::intake;
use bakeoff_store::StoreError;

/// A budget that no full run reaches: the worst case is asked for.
const ANY_BUDGET: i64 = 100_000_000;

/// Comparisons and full runs of a pipeline, as far as they can be read before it begins.
#[derive(Debug, Default)]
pub struct ReadSteps {
    pub comparisons: BTreeMap<String, ExperimentSpec>,
    /// By their places.
    pub full_runs: BTreeMap<usize, FullRunSpec>,
}

/// The full runs whose budget, or whose pipeline's, does not cover every candidate that may be bought.
pub async fn findings(
    app: &App,
    project: ProjectId,
    spec: &PipelineSpec,
    read: &ReadSteps,
) -> Result<Vec<Finding>, StoreError> {
    let mut told = Vec::new();
    for (place, run) in &read.full_runs {
        let Some(step) = spec.steps.get(*place) else {
            continue;
        };
        let comparison = comparison_of(step).and_then(|name| read.comparisons.get(&name));
        let Some(comparison) = comparison else {
            continue;
        };
        // On the heap, as it is large.
        let looked = Box::pin(dearest(app, project, comparison, step, run)).await?;
        let Some(dearest) = looked else {
            continue;
        };
        let needed = Usd(dearest.usd.0.ceil());
        let TooDear { candidate, usd } = &dearest;
        let says = |of: &str, has: Usd| {
            format!(
                "one attempt of the full run of {candidate} may cost {usd}, and {of} is {has}: it would fail after the comparison is paid for"
            )
        };
        let fix = |member: &str| {
            format!(
                "set {member} to at least {}, or max_runtime_seconds to bound the run",
                needed.0
            )
        };
        if run.budget_usd < dearest.usd {
            let finding = found("pipeline", format!("/steps/{place}/full_run/budget_usd"));
            told.push(
                finding
                    .says(says("budget_usd", run.budget_usd))
                    .fix(fix("budget_usd")),
            );
        }
        if spec.budget_usd < dearest.usd {
            let finding = found("pipeline", "/budget_usd");
            told.push(
                finding
                    .says(says("the pipeline's budget_usd", spec.budget_usd))
                    .fix(fix("it")),
            );
        }
    }
    Ok(told)
}

/// The comparison of the same pipeline whose answer a full run is of.
fn comparison_of(step: &StepSpec) -> Option<String> {
    let of = step.full_run.as_ref()?.get("experiment_id")?;
    let (references, _) = reference::find(of);
    let [one] = references.as_slice() else {
        return None;
    };
    (one.path == ["experiment_id"]).then(|| one.step.clone())
}

/// The candidate whose full run may cost the most.
struct TooDear {
    candidate: String,
    usd: Usd,
}

async fn dearest(
    app: &App,
    project: ProjectId,
    comparison: &ExperimentSpec,
    step: &StepSpec,
    run: &FullRunSpec,
) -> Result<Option<TooDear>, StoreError> {
    let body = step.full_run.as_ref();
    let named = body.filter(|body| names_candidate(body));
    let named = named.and(run.candidate.as_ref());
    // Whether its own budget suffices is another question.
    let comparison = ExperimentSpec {
        budget_usd: Usd(ANY_BUDGET.into()),
        ..comparison.clone()
    };
    let loaded = intake::load(app, project, comparison).await?;
    let preview = tokio::task::spawn_blocking(move || (loaded.spec().clone(), loaded.preview()));
    let Ok((comparison, preview)) = preview.await else {
        return Ok(None);
    };
    let mut dearest: Option<TooDear> = None;
    for one in preview.candidates {
        let plan = one.plan;
        if plan.refused || named.is_some_and(|name| *name != plan.candidate) {
            continue;
        }
        let Some(usd) = worst_usd(app, project, &comparison, &plan, run).await? else {
            continue;
        };
        if dearest.as_ref().is_none_or(|other| usd > other.usd) {
            let candidate = plan.candidate;
            dearest = Some(TooDear { candidate, usd });
        }
    }
    Ok(dearest)
}

/// The worst case of a candidate's full run, at the slowest that is predicted; `None` where nothing is predicted and no
/// runtime is stated.
async fn worst_usd(
    app: &App,
    project: ProjectId,
    comparison: &ExperimentSpec,
    plan: &TrialPlan,
    run: &FullRunSpec,
) -> Result<Option<Usd>, StoreError> {
    let Some(workload) = &comparison.workload else {
        return Ok(None);
    };
    let slowest = plan
        .forecast
        .as_ref()
        .map(|forecast| forecast.full_run_hours.high);
    let Some(hours) = slowest.or_else(|| run.max_runtime_seconds.map(|_| 0.0)) else {
        return Ok(None);
    };
    let row = unmeasured(plan, hours);
    let run = FullRunSpec {
        budget_usd: Usd(ANY_BUDGET.into()),
        ..run.clone()
    };
    let spec = full_run::spec(comparison, &row, &run, Tokens::of(workload));
    let loaded = intake::load(app, project, spec).await?;
    let preview = tokio::task::spawn_blocking(move || loaded.preview()).await;
    let plan = preview
        .ok()
        .and_then(|preview| preview.candidates.into_iter().next());
    let worst = plan.and_then(|one| one.plan.worst_case);
    Ok(worst.map(|worst| worst.total_usd))
}

/// A candidate as the answer's row, at a projection of so many hours.
fn unmeasured(plan: &TrialPlan, hours: f64) -> Ranked {
    Ranked {
        rank: 1,
        trial_id: TrialId(Uuid::nil()),
        candidate: plan.candidate.clone(),
        instance_type: plan.instance_type.clone(),
        instance_count: plan.instance_count,
        purchase_option: plan.purchase_option,
        tokens_per_second: 1.0,
        tokens_per_second_half_width: 0.0,
        stepping_share: None,
        usd_per_million_tokens: Usd::ZERO,
        projected_tokens: None,
        projected_hours: hours,
        waiting_hours: None,
        projected_cost_usd: Usd::ZERO,
        projected_cost_usd_max: Usd::ZERO,
        price: String::new(),
        price_status: PriceStatus::Listed,
        saves_usd: None,
        return_on_trials: None,
        pareto: false,
        feasible: true,
        odds: None,
    }
}

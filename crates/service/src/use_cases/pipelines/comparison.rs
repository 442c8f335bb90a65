//! Plans a comparison, or the full run of one, within what is left of the pipeline's budget.

use bakeoff_domain::finding::{BUDGET_BELOW_TRIAL, Finding};
use bakeoff_domain::money::Usd;
use bakeoff_domain::pipeline::decide::PipelineFunds;
use bakeoff_planner::plan::TrialPlan;

use super::not_ready::{NotReady, short};
use crate::use_cases::intake::{LoadedSpec, PreparedExperiment};

/// Lints and plans, off the workers that answer requests; findings where nothing can start.
async fn prepared(
    loaded: LoadedSpec,
) -> Result<Result<PreparedExperiment, Vec<Finding>>, NotReady> {
    let prepared = tokio::task::spawn_blocking(move || loaded.prepare()).await;
    prepared.map_err(|error| NotReady::Later(error.to_string()))
}

fn planned(
    prepared: Result<PreparedExperiment, Vec<Finding>>,
) -> Result<Box<PreparedExperiment>, NotReady> {
    let prepared = prepared.map_err(|findings| {
        let told = findings
            .iter()
            .map(|one| format!("{} {}", one.pointer, one.message));
        NotReady::Never(told.collect::<Vec<_>>().join("; "))
    })?;
    Ok(Box::new(prepared))
}

/// The same with what is left of the stated budget. Where that is too little for a trial that the stated one would hold, the
/// step waits for what other steps only hold, rather than fail or go without candidates.
pub(super) async fn planned_within(
    loaded: LoadedSpec,
    stated: Usd,
    means: PipelineFunds,
) -> Result<Box<PreparedExperiment>, NotReady> {
    let prepared = prepared(loaded).await?;
    let is_cut = stated > means.left() && means.held_usd > Usd::ZERO;
    let is_of_budget = |finding: &Finding| finding.rule == BUDGET_BELOW_TRIAL;
    let is_short = match &prepared {
        Ok(prepared) => {
            let would_fit = |plan: &TrialPlan| {
                let worst = plan.worst_case.map(|worst| worst.total_usd);
                plan.refused && worst.is_some_and(|worst| worst <= stated)
            };
            prepared.findings.iter().any(is_of_budget)
                && prepared.trials.iter().any(|(_, plan)| would_fit(plan))
        }
        Err(findings) => findings.iter().any(is_of_budget),
    };
    if is_cut && is_short {
        return Err(short(stated, means));
    }
    planned(prepared)
}

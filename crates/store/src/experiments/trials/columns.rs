//! Columns derived from a trial's plan, for use in SQL.

use bakeoff_domain::money::price::PriceStatus;
use bakeoff_planner::plan::TrialPlan;
use serde_json::Value;

use crate::{StoreError, stored};

/// The columns derived from a plan.
#[derive(Debug)]
pub(crate) struct PlanColumns {
    pub(crate) plan: Value,
    pub(crate) job_kind: &'static str,
    pub(crate) is_price_estimated: bool,
    /// Zero for a trial that cannot run.
    pub(crate) volume_gb: i32,
    pub(crate) keep_alive_seconds: Option<i32>,
    pub(crate) checkpoint_s3_uri: Option<String>,
    pub(crate) checkpoint_local_path: Option<String>,
    pub(crate) checkpoint_interval_seconds: Option<i32>,
    pub(crate) metrics: Value,
    /// The longest that one instance of its job can be billed, if the plan has a worst case.
    pub(crate) billed_seconds_max: Option<i64>,
}

impl PlanColumns {
    pub(crate) fn of(plan: &TrialPlan) -> Result<Self, StoreError> {
        let (job, request) = (plan.job.as_ref(), plan.training());
        let checkpoint = request.and_then(|request| request.checkpoint.as_ref());
        let keep_alive = request.and_then(|request| request.keep_alive_seconds);
        let longest = plan.worst_case.map(|worst| worst.billed_seconds);
        Ok(Self {
            plan: stored::write(plan)?,
            job_kind: plan.kind().as_str(),
            is_price_estimated: plan
                .price
                .as_ref()
                .is_some_and(|price| price.status == PriceStatus::Estimated),
            volume_gb: job.map_or(Ok(0), |job| integer(job.volume_size_gb()))?,
            keep_alive_seconds: keep_alive
                .filter(|seconds| *seconds > 0)
                .map(integer)
                .transpose()?,
            checkpoint_s3_uri: checkpoint.map(|checkpoint| checkpoint.s3_uri.clone()),
            checkpoint_local_path: checkpoint.map(|checkpoint| checkpoint.local_path.clone()),
            checkpoint_interval_seconds: checkpoint
                .map(|checkpoint| integer(checkpoint.interval_seconds))
                .transpose()?,
            metrics: stored::write(&request.map_or_else(Vec::new, |it| it.metrics.clone()))?,
            billed_seconds_max: longest
                .filter(|seconds| *seconds > 0)
                .map(integer)
                .transpose()?,
        })
    }
}

fn integer<T, U: TryFrom<T>>(value: T) -> Result<U, StoreError> {
    U::try_from(value).map_err(|_| StoreError::Refused {
        what: "a number in the plan is too large".to_owned(),
    })
}

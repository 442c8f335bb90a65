//! Admission: which waiting trials start now, under the account's instance quotas, the projects'
//! own limits and the create rate. It is fair between projects and follows priority within one. No
//! trial blocks another: a full quota pool (instance type × use) is skipped, not waited
//! for.
//!
//! AWS enforces the quotas, not this module: requesting no more than is free only avoids refusals.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::ids::{ProjectId, TrialId};
use crate::sagemaker::quota::Usage;

/// A quota pool: an instance type and what it is used for, which share a quota.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuotaPool {
    pub instance_type: String,
    pub usage: Usage,
}

/// A trial waiting to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub trial: TrialId,
    pub project: ProjectId,
    pub quota_pool: QuotaPool,
    pub instances: u32,
    /// Higher goes first, within its project.
    pub priority: i32,
    pub since: DateTime<Utc>,
    /// Match key of the warm pools that it can use.
    pub pool_key: Option<String>,
}

/// State of a quota pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaPoolState {
    /// The figure from Service Quotas; unknown when empty.
    pub quota: Option<u32>,
    /// Instances used by our own jobs and idle warm pools.
    pub in_use: u32,
    /// AWS refused recently: start nothing until then.
    pub held_until: Option<DateTime<Utc>>,
    /// AWS has refused a create and not accepted one since: start one at a time.
    pub is_doubtful: bool,
}

/// State of a project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProjectState {
    /// Trials with a living attempt.
    pub running: u32,
    /// Maximum number of such trials; no limit when empty.
    pub concurrent_max: Option<u32>,
}

/// The capacity that admission depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    pub quota_pools: BTreeMap<QuotaPool, QuotaPoolState>,
    pub projects: BTreeMap<ProjectId, ProjectState>,
    /// Idle warm pools by match key, with the instance count of each.
    pub pools: BTreeMap<String, Vec<u32>>,
    /// Number of jobs that may be created now.
    pub creates: usize,
}

/// Trials to start, in order, and trials that can never start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    pub admitted: Vec<TrialId>,
    /// Trials that need more than the whole quota: a person must act.
    pub parked: Vec<(TrialId, String)>,
}

/// Decides which trials start now.
pub fn admit(waiting: &[Waiting], mut capacity: Capacity, now: DateTime<Utc>) -> Admission {
    let mut admission = Admission::default();
    let mut queues: BTreeMap<ProjectId, Vec<&Waiting>> = BTreeMap::new();
    for trial in waiting {
        let quota = capacity
            .quota_pools
            .get(&trial.quota_pool)
            .and_then(|quota_pool| quota_pool.quota);
        match quota.filter(|quota| *quota < trial.instances) {
            Some(quota) => admission
                .parked
                .push((trial.trial, over_the_whole_quota(trial, quota))),
            None => queues.entry(trial.project).or_default().push(trial),
        }
    }
    for queue in queues.values_mut() {
        // An idle warm pool costs money: among equal priorities, a trial that fits one goes first.
        let fits = |trial: &Waiting| {
            trial
                .pool_key
                .as_ref()
                .is_some_and(|key| capacity.pools.contains_key(key))
        };
        queue.sort_by_key(|trial| {
            (
                std::cmp::Reverse(trial.priority),
                !fits(trial),
                trial.since,
                trial.trial,
            )
        });
    }
    while admission.admitted.len() < capacity.creates {
        let Some((project, position)) = next(&queues, &capacity, now) else {
            break;
        };
        let Some(queue) = queues.get_mut(&project) else {
            break;
        };
        let trial = queue.remove(position);
        take(trial, &mut capacity);
        admission.admitted.push(trial.trial);
    }
    admission
}

/// Picks the project with the fewest running trials (the longest wait breaks ties) and its first
/// trial that has room.
fn next(
    queues: &BTreeMap<ProjectId, Vec<&Waiting>>,
    capacity: &Capacity,
    now: DateTime<Utc>,
) -> Option<(ProjectId, usize)> {
    let candidates = queues.iter().filter_map(|(project, queue)| {
        let state = capacity.projects.get(project).copied().unwrap_or_default();
        if state
            .concurrent_max
            .is_some_and(|most| state.running >= most)
        {
            return None;
        }
        let position = queue
            .iter()
            .position(|trial| has_room(trial, capacity, now))?;
        Some((
            state.running,
            queue.get(position)?.since,
            *project,
            position,
        ))
    });
    candidates
        .min()
        .map(|(_, _, project, position)| (project, position))
}

fn pool_for<'a>(trial: &Waiting, capacity: &'a Capacity) -> Option<&'a Vec<u32>> {
    capacity
        .pools
        .get(trial.pool_key.as_ref()?)
        .filter(|pools| pools.contains(&trial.instances))
}

fn has_room(trial: &Waiting, capacity: &Capacity, now: DateTime<Utc>) -> bool {
    if pool_for(trial, capacity).is_some() {
        return true;
    }
    let Some(quota_pool) = capacity.quota_pools.get(&trial.quota_pool) else {
        return true;
    };
    quota_pool.held_until.is_none_or(|until| until <= now)
        && quota_pool
            .quota
            .is_none_or(|quota| quota_pool.in_use.saturating_add(trial.instances) <= quota)
}

fn take(trial: &Waiting, capacity: &mut Capacity) {
    capacity.projects.entry(trial.project).or_default().running += 1;
    if pool_for(trial, capacity).is_some() {
        let pools = trial
            .pool_key
            .as_ref()
            .and_then(|key| capacity.pools.get_mut(key));
        if let Some(pools) = pools
            && let Some(index) = pools
                .iter()
                .position(|instances| *instances == trial.instances)
        {
            pools.swap_remove(index);
        }
        // The pool's instances are already counted.
        return;
    }
    let quota_pool = capacity
        .quota_pools
        .entry(trial.quota_pool.clone())
        .or_default();
    quota_pool.in_use = quota_pool.in_use.saturating_add(trial.instances);
    if quota_pool.is_doubtful {
        quota_pool.held_until = Some(DateTime::<Utc>::MAX_UTC);
    }
}

fn over_the_whole_quota(trial: &Waiting, quota: u32) -> String {
    let usage = trial.quota_pool.usage.quota_name();
    format!(
        "the account's quota `{} for {usage}` is {quota}, but the trial needs {}: request a quota increase (Service Quotas, \
         Amazon SageMaker), then resume the experiment",
        trial.quota_pool.instance_type, trial.instances
    )
}

#[cfg(test)]
mod tests;

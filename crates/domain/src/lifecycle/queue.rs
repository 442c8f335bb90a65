//! Whose turn it is: which waiting trials are started now, under the account's instance quotas, the
//! projects' own limits and the rate at which jobs may be created. Fair between projects, by
//! priority within one, and no trial blocks another: a lane (instance type × purchase option) that
//! is full is passed over, not waited for.
//!
//! It does not hold the quota: AWS does. Asking for less than there is only saves refusals.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::ids::{ProjectId, TrialId};
use crate::spec::PurchaseOption;

/// What shares a quota: an instance type under a purchase option.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    pub instance_type: String,
    pub option: PurchaseOption,
}

/// A trial that waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub trial: TrialId,
    pub project: ProjectId,
    pub lane: Lane,
    pub instances: u32,
    /// Higher goes first, within its project.
    pub priority: i32,
    pub since: DateTime<Utc>,
    /// What a warm pool must match to be used by it.
    pub pool_key: Option<String>,
}

/// What is known of a lane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneState {
    /// Service Quotas' figure; unknown when empty.
    pub quota: Option<u32>,
    /// Instances that our own jobs and idle warm pools use.
    pub in_use: u32,
    /// AWS refused lately: nothing until then.
    pub held_until: Option<DateTime<Utc>>,
    /// AWS has refused and not accepted since: one at a time.
    pub is_doubtful: bool,
}

/// What is known of a project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProjectState {
    /// Trials with a living attempt.
    pub running: u32,
    /// The most that may; no limit when empty.
    pub concurrent_max: Option<u32>,
}

/// Everything that admission rests on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    pub lanes: BTreeMap<Lane, LaneState>,
    pub projects: BTreeMap<ProjectId, ProjectState>,
    /// Idle warm pools by match key, with their instances.
    pub pools: BTreeMap<String, Vec<u32>>,
    /// Jobs that may be created now.
    pub creates: usize,
}

/// Who is started, in order, and who can never be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    pub admitted: Vec<TrialId>,
    /// Wants more than the whole quota: a person must act.
    pub parked: Vec<(TrialId, String)>,
}

/// Decides whose turn it is.
pub fn admit(waiting: &[Waiting], mut capacity: Capacity, now: DateTime<Utc>) -> Admission {
    let mut admission = Admission::default();
    let mut queues: BTreeMap<ProjectId, Vec<&Waiting>> = BTreeMap::new();
    for trial in waiting {
        let quota = capacity.lanes.get(&trial.lane).and_then(|lane| lane.quota);
        match quota.filter(|quota| *quota < trial.instances) {
            Some(quota) => admission
                .parked
                .push((trial.trial, over_the_whole_quota(trial, quota))),
            None => queues.entry(trial.project).or_default().push(trial),
        }
    }
    for queue in queues.values_mut() {
        // A warm pool that waits costs money: whoever fits it goes first among equals.
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

/// The project with the fewest running trials goes next (the longest wait decides a tie), with its
/// first trial that has room.
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
    let Some(lane) = capacity.lanes.get(&trial.lane) else {
        return true;
    };
    lane.held_until.is_none_or(|until| until <= now)
        && lane
            .quota
            .is_none_or(|quota| lane.in_use.saturating_add(trial.instances) <= quota)
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
        // The pool's instances are counted already.
        return;
    }
    let lane = capacity.lanes.entry(trial.lane.clone()).or_default();
    lane.in_use = lane.in_use.saturating_add(trial.instances);
    if lane.is_doubtful {
        lane.held_until = Some(DateTime::<Utc>::MAX_UTC);
    }
}

fn over_the_whole_quota(trial: &Waiting, quota: u32) -> String {
    let usage = match trial.lane.option {
        PurchaseOption::OnDemand => "training job usage",
        PurchaseOption::Spot => "spot training job usage",
    };
    format!(
        "the account's quota `{} for {usage}` is {quota}, and the trial needs {}: ask AWS for more (Service Quotas, \
         Amazon SageMaker), then resume the experiment",
        trial.lane.instance_type, trial.instances
    )
}

#[cfg(test)]
mod tests;

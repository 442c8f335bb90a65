//! Admission case by case, and properties that hold for every queue.

use chrono::TimeDelta;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

fn quota_pool(name: &str) -> QuotaPool {
    QuotaPool {
        instance_type: name.into(),
        usage: Usage::OnDemand,
    }
}

fn waiting(trial: u128, project: u128, kind: &str) -> Waiting {
    Waiting {
        trial: TrialId(Uuid::from_u128(trial)),
        project: ProjectId(Uuid::from_u128(project)),
        quota_pool: quota_pool(kind),
        instances: 1,
        priority: 0,
        since: now() + TimeDelta::seconds(i64::try_from(trial).unwrap()),
        pool_key: None,
    }
}

fn capacity(quota: u32, creates: usize) -> Capacity {
    let state = QuotaPoolState {
        quota: Some(quota),
        ..QuotaPoolState::default()
    };
    Capacity {
        quota_pools: BTreeMap::from([(quota_pool("p5"), state)]),
        creates,
        ..Capacity::default()
    }
}

fn order(waiting: &[Waiting], capacity: Capacity) -> Vec<u128> {
    admit(waiting, capacity, now() + TimeDelta::days(1))
        .admitted
        .iter()
        .map(|trial| trial.0.as_u128())
        .collect()
}

#[test]
fn a_full_lane_is_passed_over() {
    let queue = [
        waiting(1, 1, "p5"),
        waiting(2, 1, "p5"),
        waiting(3, 1, "g5"),
    ];
    assert_eq!(order(&queue, capacity(1, 10)), [1, 3]);
}

#[test]
fn projects_take_turns_however_long_one_queue_is() {
    let mut queue: Vec<Waiting> = (1..=50).map(|trial| waiting(trial, 1, "g5")).collect();
    queue.extend([waiting(51, 2, "g5"), waiting(52, 2, "g5")]);
    assert_eq!(order(&queue, capacity(0, 4)), [1, 51, 2, 52]);
}

#[test]
fn priority_counts_within_a_project_and_not_between() {
    let mut queue = vec![
        waiting(1, 1, "g5"),
        waiting(2, 1, "g5"),
        waiting(3, 2, "g5"),
    ];
    queue[1].priority = 5;
    assert_eq!(order(&queue, capacity(0, 3)), [2, 3, 1]);
}

#[test]
fn a_projects_own_limit_leaves_room_to_the_others() {
    let queue = [
        waiting(1, 1, "g5"),
        waiting(2, 1, "g5"),
        waiting(3, 2, "g5"),
    ];
    let mut limited = capacity(0, 10);
    limited.projects.insert(
        ProjectId(Uuid::from_u128(1)),
        ProjectState {
            running: 1,
            concurrent_max: Some(2),
        },
    );
    assert_eq!(order(&queue, limited), [3, 1]);
}

#[test]
fn an_idle_pool_is_given_to_whoever_fits_it_even_when_the_lane_is_full() {
    let mut queue = [waiting(1, 1, "p5"), waiting(2, 1, "p5")];
    queue[1].pool_key = Some("key".into());
    let mut full = capacity(1, 10);
    full.quota_pools.get_mut(&quota_pool("p5")).unwrap().in_use = 1;
    full.pools.insert("key".into(), vec![1]);
    assert_eq!(order(&queue, full), [2]);
}

#[test]
fn after_a_refusal_a_lane_waits_and_then_tries_one() {
    let queue = [waiting(1, 1, "p5"), waiting(2, 1, "p5")];
    let mut refused = capacity(9, 10);
    let state = refused.quota_pools.get_mut(&quota_pool("p5")).unwrap();
    state.is_doubtful = true;
    state.held_until = Some(now() + TimeDelta::days(2));
    assert_eq!(order(&queue, refused.clone()), Vec::<u128>::new());
    refused
        .quota_pools
        .get_mut(&quota_pool("p5"))
        .unwrap()
        .held_until = Some(now());
    assert_eq!(order(&queue, refused), [1]);
}

#[test]
fn more_than_the_whole_quota_is_parked_with_the_way_out() {
    let mut queue = [waiting(1, 1, "p5"), waiting(2, 1, "p5")];
    queue[0].instances = 4;
    let admission = admit(&queue, capacity(2, 10), now());
    assert!(
        admission.parked[0]
            .1
            .contains("quota `p5 for training job usage` is 2"),
        "{}",
        admission.parked[0].1
    );
    assert_eq!(admission.admitted.len(), 1, "the other goes on");
}

proptest! {
    /// Never exceeds a quota, a project's limit or the create rate, and leaves nothing waiting that
    /// had room.
    #[test]
    fn no_limit_is_passed_and_no_room_is_left(
        trials in prop::collection::vec((1u128..4, 0usize..3, 1u32..3), 0..40),
        quota in 0u32..12,
        most in 1u32..6,
        creates in 0usize..30,
    ) {
        let kinds = ["p5", "g5", "p4d"];
        let queue: Vec<Waiting> = trials.iter().enumerate().map(|(i, (project, kind, instances))| {
            let mut trial = waiting(u128::try_from(i).unwrap(), *project, kinds[*kind]);
            trial.instances = *instances;
            trial
        }).collect();
        let mut start = Capacity { creates, ..Capacity::default() };
        for kind in kinds {
            start.quota_pools.insert(quota_pool(kind), QuotaPoolState { quota: Some(quota), ..QuotaPoolState::default() });
        }
        for project in 1..4 {
            let state = ProjectState { running: 0, concurrent_max: Some(most) };
            start.projects.insert(ProjectId(Uuid::from_u128(project)), state);
        }
        let admission = admit(&queue, start, now());
        let admitted: Vec<&Waiting> = queue.iter().filter(|t| admission.admitted.contains(&t.trial)).collect();
        prop_assert!(admitted.len() <= creates);
        let used = |kind: &str| admitted.iter().filter(|t| t.quota_pool == quota_pool(kind)).map(|t| t.instances).sum::<u32>();
        let running = |project| u32::try_from(admitted.iter().filter(|t| t.project == project).count()).unwrap();
        for kind in kinds {
            prop_assert!(used(kind) <= quota);
        }
        for trial in &queue {
            prop_assert!(running(trial.project) <= most);
            let is_out = !admission.admitted.contains(&trial.trial) && trial.instances <= quota;
            let had_room = admitted.len() < creates && running(trial.project) < most
                && used(&trial.quota_pool.instance_type) + trial.instances <= quota;
            prop_assert!(!(is_out && had_room), "{trial:?} was passed over");
        }
    }
}

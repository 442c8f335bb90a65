//! What a pipeline's steps do next: which start, are stopped, are tried again or are skipped, and when the whole
//! is over. Pure; called with what is stored, as often as anybody likes.

use super::{PipelineState, StepState};
use crate::money::Usd;

/// How a step's work stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    UnderWay,
    Completed,
    Failed(String),
    /// It was stopped, by a person or with the pipeline.
    Stopped(String),
}

/// What is known of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepFacts {
    pub state: StepState,
    /// Places of the steps that it needs.
    pub needs: Vec<usize>,
    /// How often its work was started.
    pub tries: u32,
    pub retries: u32,
    /// Of a running step.
    pub work: Option<Work>,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Start its work.
    Start(usize),
    /// Have its work stopped; asked for again until it is over.
    Stop(usize),
    /// Its work failed, and is tried again: it waits once more.
    Again(usize, String),
    End(usize, StepState, Option<String>),
    EndPipeline(PipelineState),
}

/// Decides what to do now.
pub fn decide(state: PipelineState, steps: &[StepFacts]) -> Vec<Act> {
    if state.is_over() {
        return Vec::new();
    }
    let is_cancelled = state == PipelineState::Cancelling;
    let mut next = Next {
        acts: Vec::new(),
        states: steps.iter().map(|step| step.state).collect(),
    };
    for (place, step) in steps.iter().enumerate() {
        if step.state == StepState::Running {
            next.add(after_work(place, step, is_cancelled));
        }
    }
    // A step that ends may end or start others, which again may end others: as often as there are steps.
    for _ in steps {
        for (place, step) in steps.iter().enumerate() {
            if next.waits(place) {
                let act = while_waiting(place, step, &next.states, is_cancelled);
                next.add(act);
            }
        }
    }
    if next.states.iter().all(|state| state.is_over()) {
        let end = end(&next.states, is_cancelled);
        next.acts.push(Act::EndPipeline(end));
    }
    next.acts
}

/// What is to be done, and the states of the steps after it.
struct Next {
    acts: Vec<Act>,
    states: Vec<StepState>,
}

impl Next {
    fn add(&mut self, act: Option<Act>) {
        if let Some(Act::End(place, end, _)) = &act
            && let Some(state) = self.states.get_mut(*place)
        {
            *state = *end;
        }
        self.acts.extend(act);
    }

    /// Whether a step still waits, and nothing is done about it yet.
    fn waits(&self, place: usize) -> bool {
        self.states.get(place) == Some(&StepState::Waiting)
            && !self.acts.contains(&Act::Start(place))
    }
}

fn after_work(place: usize, step: &StepFacts, is_cancelled: bool) -> Option<Act> {
    match step.work.as_ref()? {
        Work::UnderWay if is_cancelled => Some(Act::Stop(place)),
        Work::UnderWay => None,
        Work::Completed => Some(Act::End(place, StepState::Completed, None)),
        Work::Failed(why) if !is_cancelled && step.tries <= step.retries => {
            Some(Act::Again(place, why.clone()))
        }
        Work::Stopped(_) if is_cancelled => Some(Act::End(place, StepState::Cancelled, None)),
        Work::Failed(why) | Work::Stopped(why) => {
            Some(Act::End(place, StepState::Failed, Some(why.clone())))
        }
    }
}

fn while_waiting(
    place: usize,
    step: &StepFacts,
    states: &[StepState],
    is_cancelled: bool,
) -> Option<Act> {
    if is_cancelled {
        return Some(Act::End(place, StepState::Cancelled, None));
    }
    let needed = || step.needs.iter().filter_map(|need| states.get(*need));
    if needed().any(|state| state.is_over() && *state != StepState::Completed) {
        let why = "a step that it needs has not completed".to_owned();
        return Some(Act::End(place, StepState::Skipped, Some(why)));
    }
    needed()
        .all(|state| *state == StepState::Completed)
        .then_some(Act::Start(place))
}

fn end(states: &[StepState], is_cancelled: bool) -> PipelineState {
    if states.iter().all(|state| *state == StepState::Completed) {
        PipelineState::Completed
    } else if is_cancelled {
        PipelineState::Cancelled
    } else {
        PipelineState::Failed
    }
}

/// A pipeline's money: what its steps have cost, and what those under way may still cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineFunds {
    pub budget_usd: Usd,
    /// Of works that are over, with what is still held for them.
    pub spent_usd: Usd,
    /// Budgets of those under way.
    pub held_usd: Usd,
}

impl PipelineFunds {
    /// What the next step may get: a started step's budget is its own until it is over, so the sum never exceeds
    /// the pipeline's.
    pub fn left(&self) -> Usd {
        (self.budget_usd - self.spent_usd - self.held_usd).max(Usd::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn step(state: StepState, needs: &[usize], work: Option<Work>) -> StepFacts {
        StepFacts {
            state,
            needs: needs.to_vec(),
            tries: u32::from(state != StepState::Waiting),
            retries: 0,
            work,
        }
    }

    #[test]
    fn what_needs_nothing_starts_and_the_rest_waits() {
        let steps = [
            step(StepState::Waiting, &[], None),
            step(StepState::Waiting, &[0], None),
            step(StepState::Waiting, &[], None),
        ];
        let acts = decide(PipelineState::Running, &steps);
        assert_eq!(acts, [Act::Start(0), Act::Start(2)]);
    }

    #[test]
    fn what_completes_starts_its_follower_at_once() {
        let steps = [
            step(StepState::Running, &[], Some(Work::Completed)),
            step(StepState::Waiting, &[0], None),
        ];
        let acts = decide(PipelineState::Running, &steps);
        assert_eq!(
            acts,
            [Act::End(0, StepState::Completed, None), Act::Start(1)]
        );
    }

    #[test]
    fn a_failure_skips_all_that_need_it_and_lets_the_others_run() {
        let failed = Some(Work::Failed("no".into()));
        let steps = [
            step(StepState::Running, &[], failed),
            step(StepState::Waiting, &[2], None),
            step(StepState::Waiting, &[0], None),
            step(StepState::Running, &[], Some(Work::UnderWay)),
        ];
        let acts = decide(PipelineState::Running, &steps);
        let ended: Vec<(usize, StepState)> = acts
            .iter()
            .filter_map(|act| match act {
                Act::End(place, state, _) => Some((*place, *state)),
                _ => None,
            })
            .collect();
        let (failed, skipped) = (StepState::Failed, StepState::Skipped);
        assert_eq!(ended, [(0, failed), (2, skipped), (1, skipped)]);
        assert!(!acts.iter().any(|act| matches!(act, Act::EndPipeline(_))));
    }

    #[test]
    fn a_retry_waits_and_does_not_end_the_pipeline() {
        let mut failed = step(StepState::Running, &[], Some(Work::Failed("no".into())));
        failed.retries = 1;
        let again = decide(PipelineState::Running, std::slice::from_ref(&failed));
        assert_eq!(again, [Act::Again(0, "no".into())]);
        failed.tries = 2;
        let acts = decide(PipelineState::Running, &[failed]);
        assert_eq!(acts.last(), Some(&Act::EndPipeline(PipelineState::Failed)));
    }

    #[test]
    fn a_cancel_stops_what_runs_and_ends_when_all_is_over() {
        let steps = [
            step(StepState::Completed, &[], None),
            step(StepState::Running, &[0], Some(Work::UnderWay)),
            step(StepState::Waiting, &[1], None),
        ];
        let acts = decide(PipelineState::Cancelling, &steps);
        assert_eq!(
            acts,
            [Act::Stop(1), Act::End(2, StepState::Cancelled, None)]
        );
        let stopped = Some(Work::Stopped("cancelled".into()));
        let steps = [
            step(StepState::Running, &[], stopped),
            step(StepState::Cancelled, &[0], None),
        ];
        let acts = decide(PipelineState::Cancelling, &steps);
        assert_eq!(
            acts.last(),
            Some(&Act::EndPipeline(PipelineState::Cancelled))
        );
    }

    proptest! {
        /// However works end, every pipeline ends, no step starts before what it needs has completed, and none
        /// starts more often than it may.
        #[test]
        fn every_pipeline_ends(
            graph in prop::collection::vec((prop::collection::vec(any::<prop::sample::Index>(), 0..3), 0_u32..3), 1..8),
            ends in prop::collection::vec(0_u8..4, 40),
            cancel_at in 0_usize..30,
        ) {
            let mut steps: Vec<StepFacts> = graph
                .iter()
                .enumerate()
                .map(|(place, (needs, retries))| StepFacts {
                    needs: needs.iter().filter(|_| place > 0).map(|need| need.index(place.max(1))).collect(),
                    retries: *retries,
                    tries: 0,
                    ..step(StepState::Waiting, &[], None)
                })
                .collect();
            let mut state = PipelineState::Running;
            let mut ends = ends.into_iter().cycle();
            for round in 0..200 {
                if round == cancel_at && !state.is_over() {
                    state = PipelineState::Cancelling;
                }
                for act in decide(state, &steps) {
                    match act {
                        Act::Start(place) => {
                            let done = |need: &usize| steps[*need].state == StepState::Completed;
                            prop_assert!(steps[place].needs.iter().all(done));
                            let step = &mut steps[place];
                            step.tries += 1;
                            prop_assert!(step.tries <= step.retries + 1);
                            (step.state, step.work) = (StepState::Running, Some(Work::UnderWay));
                        }
                        Act::Stop(place) => steps[place].work = Some(Work::Stopped("cancelled".into())),
                        Act::Again(place, _) => (steps[place].state, steps[place].work) = (StepState::Waiting, None),
                        Act::End(place, end, _) => (steps[place].state, steps[place].work) = (end, None),
                        Act::EndPipeline(end) => state = end,
                    }
                }
                for step in steps.iter_mut().filter(|step| step.work == Some(Work::UnderWay)) {
                    step.work = Some(match ends.next() {
                        Some(0) => Work::Completed,
                        Some(1) => Work::Failed("no".into()),
                        Some(2) => Work::Stopped("by hand".into()),
                        _ => Work::UnderWay,
                    });
                }
            }
            prop_assert!(state.is_over() || steps.iter().any(|step| step.state == StepState::Running));
            if state.is_over() {
                prop_assert!(steps.iter().all(|step| step.state.is_over()));
            }
        }
    }
}

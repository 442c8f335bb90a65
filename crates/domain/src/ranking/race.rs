//! The race between the trials of an experiment: which of them can no longer change the answer, and
//! which have said what they can. It stops nothing itself; the odds are those of
//! [`crate::ranking::posterior`], whose spread is mostly how much machines and predictions differ:
//! that does not shrink by looking again. How often it is wrong on real traces is `race` in `eval`.

use chrono::TimeDelta;

use crate::lifecycle::state::TrialState;
use crate::measure::steady::Steady;
use crate::ranking::outcome::{Outcome, Tokens};
use crate::ranking::recommend::recommend;
use crate::ranking::recommendation::{Recommendation, RunOdds};
use crate::ranking::wording::tokens_told;
use crate::spec::{Minimize, ObjectiveSpec, PurchaseOption, StoppingPolicy};

/// P(best) below which a choice is out of the race.
const OUT: f64 = 0.005;
/// P(best) of the leader that others are stopped for.
const LEAD: f64 = 0.5;
/// Half width of a speed's interval, as a share of it, that a probe is done with: the floor of a
/// measured speed is 2 %.
const PROBED: f64 = 0.025;

/// Half width of a young trial's speed, as a share of it, beyond which it says nothing yet: its slow
/// start may be a part of it.
const COARSE: f64 = 0.1;
const YOUNG: TimeDelta = TimeDelta::minutes(30);

/// How much newer than a checkpoint a figure may be that the checkpoint is kept for. What was trained
/// in between, and until the trial stops, is lost: that costs less than to wait for the next checkpoint.
const UNSAVED: TimeDelta = TimeDelta::minutes(10);
/// P(best) of a probe that is worth a wait for its next checkpoint: a head costs about twice what the
/// wait does, so that two to one against it is where waiting pays.
const SAVED_FOR: f64 = 1.0 / 3.0;

/// A trial that need not run, or run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// Of its outcome.
    pub index: usize,
    pub reason: String,
}

/// Which living trials are to be stopped now.
///
/// `writes_checkpoints`: a probe that may well be bought is the head of the full run, and ends soon
/// after a checkpoint.
pub fn stops(
    outcomes: &[Outcome],
    policy: StoppingPolicy,
    objective: &ObjectiveSpec,
    tokens: Tokens,
    writes_checkpoints: bool,
) -> Vec<Stop> {
    if policy == StoppingPolicy::Full {
        return Vec::new();
    }
    if let Some(stops) = reached(outcomes, tokens) {
        return stops;
    }
    let answer = recommend(&runnable(outcomes), objective, tokens);
    let mut stops = losers_of(&answer, outcomes, objective, Leader::Measured);
    let choices = choices(&answer);
    for (index, outcome) in outcomes.iter().enumerate() {
        let is_out = stops.iter().any(|stop| stop.index == index);
        let goes_on = || policy == StoppingPolicy::Race && is_settled(&answer, outcomes, outcome);
        if is_out || goes_on() {
            continue;
        }
        // The measured ones come first, by rank.
        let is_likely = choices.iter().enumerate().any(|(place, one)| {
            let is_first = place == 0 && one.is_measured;
            one.is_of(outcome) && (is_first || one.odds.p_best >= SAVED_FOR)
        });
        if let Some(reason) = probed(outcome, writes_checkpoints && is_likely) {
            stops.push(Stop { index, reason });
        }
    }
    stops.retain(|stop| {
        outcomes
            .get(stop.index)
            .is_some_and(|outcome| !outcome.state.is_terminal())
    });
    stops
}

/// Once a trial has reached the target loss and saved its model, the question is answered: it stops, and so does
/// every other. One that saves nothing goes on, since its model is there only at its end.
fn reached(outcomes: &[Outcome], tokens: Tokens) -> Option<Vec<Stop>> {
    let target = tokens.target?;
    let first = outcomes
        .iter()
        .find(|outcome| outcome.has_reached_model())?;
    let living = outcomes.iter().enumerate();
    let living = living.filter(|(_, outcome)| !outcome.state.is_terminal());
    let stops = living.map(|(index, outcome)| {
        let own = outcome.reached.filter(|_| outcome.has_reached_model());
        let reason = match own {
            Some(own) => format!(
                "reached {} after {}, and has saved a checkpoint since: its model is the answer",
                target.name(),
                tokens_told(own.tokens)
            ),
            None => format!(
                "{} has reached {}, and its model is kept: no run to it is left to buy",
                first.candidate,
                target.name()
            ),
        };
        Stop { index, reason }
    });
    Some(stops.collect())
}

/// Whether a trial is of the first, whose place nothing can take any more: it goes on, as the head of
/// the full run.
fn is_settled(answer: &Recommendation, outcomes: &[Outcome], own: &Outcome) -> bool {
    let is_first = answer.ranked.first().is_some_and(|first| {
        first.candidate == own.candidate && first.purchase_option == own.purchase_option
    });
    is_first && !outcomes.iter().any(|other| is_measuring(other, own))
}

/// For whom others may be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leader {
    /// Only one that was measured: another may never run.
    Measured,
    /// Also one that is only predicted, before anything has started.
    Predicted,
}

/// The trials whose choice is the best with P < 0.005. None while nobody clearly leads.
pub fn losers(
    outcomes: &[Outcome],
    objective: &ObjectiveSpec,
    tokens: Tokens,
    leader: Leader,
) -> Vec<Stop> {
    let answer = recommend(&runnable(outcomes), objective, tokens);
    losers_of(&answer, outcomes, objective, leader)
}

/// Those that may run: nobody is given up for one that the budget keeps from running.
fn runnable(outcomes: &[Outcome]) -> Vec<Outcome> {
    let all = outcomes.iter();
    all.filter(|outcome| outcome.state != TrialState::Refused)
        .cloned()
        .collect()
}

fn losers_of(
    answer: &Recommendation,
    outcomes: &[Outcome],
    objective: &ObjectiveSpec,
    leader: Leader,
) -> Vec<Stop> {
    let choices = choices(answer);
    let is_leader = |choice: &&Choice<'_>| {
        choice.odds.p_best >= LEAD && (choice.is_measured || leader == Leader::Predicted)
    };
    let Some(leader) = choices.iter().find(is_leader) else {
        return Vec::new();
    };
    let stop = |(index, outcome): (usize, &Outcome)| {
        let own = choices.iter().find(|choice| choice.is_of(outcome))?;
        let is_coarse = |speed: &Steady| {
            speed.half_width > COARSE * speed.mean && speed.until_at - speed.from_at < YOUNG
        };
        if outcome.tokens_per_second.as_ref().is_some_and(is_coarse) {
            return None;
        }
        (own.odds.p_best < OUT).then(|| Stop {
            index,
            reason: reason(own, leader, objective.minimize),
        })
    };
    outcomes.iter().enumerate().filter_map(stop).collect()
}

/// What can be bought, measured or only predicted.
struct Choice<'a> {
    candidate: &'a str,
    option: PurchaseOption,
    odds: &'a RunOdds,
    is_measured: bool,
}

impl Choice<'_> {
    fn is_of(&self, outcome: &Outcome) -> bool {
        self.candidate == outcome.candidate && self.option == outcome.purchase_option
    }
}

fn choices(answer: &Recommendation) -> Vec<Choice<'_>> {
    let measured = answer.ranked.iter().filter_map(|row| {
        Some(Choice {
            candidate: &row.candidate,
            option: row.purchase_option,
            odds: row.odds.as_ref()?,
            is_measured: true,
        })
    });
    let predicted = answer.not_ranked.iter().filter_map(|row| {
        Some(Choice {
            candidate: &row.candidate,
            option: row.purchase_option,
            odds: row.odds.as_ref()?,
            is_measured: false,
        })
    });
    measured.chain(predicted).collect()
}

fn reason(own: &Choice<'_>, leader: &Choice<'_>, minimize: Minimize) -> String {
    let is_out = |within: Option<f64>| within.is_some_and(|within| within < OUT);
    if is_out(own.odds.p_within_deadline) {
        return format!(
            "its full run keeps the deadline with P < {OUT}: {}",
            range(own.odds, Minimize::Time)
        );
    }
    if is_out(own.odds.p_within_budget) {
        return format!(
            "its full run keeps the budget with P < {OUT}: {}",
            range(own.odds, Minimize::Cost)
        );
    }
    let basis = if own.is_measured {
        "measured"
    } else {
        "predicted"
    };
    format!(
        "its full run is the best with P < {OUT}: {} ({basis}), against {} of {}",
        range(own.odds, minimize),
        range(leader.odds, minimize),
        leader.candidate
    )
}

fn range(odds: &RunOdds, minimize: Minimize) -> String {
    match minimize {
        Minimize::Cost | Minimize::UsdPerMillionTokens => {
            format!("{} to {}", odds.cost_usd_low, odds.cost_usd_high)
        }
        Minimize::Time => format!("{:.1} to {:.1} h", odds.hours_low, odds.hours_high),
    }
}

/// The speed of a trial, once more minutes would hardly narrow it. What spot saves is known only at
/// the end.
pub(super) fn known_speed(outcome: &Outcome) -> Option<&Steady> {
    let is_on_demand = outcome.purchase_option == PurchaseOption::OnDemand;
    let is_known = |speed: &&Steady| is_on_demand && speed.half_width <= PROBED * speed.mean;
    outcome.tokens_per_second.as_ref().filter(is_known)
}

/// Whether another choice has been started to be compared with this one, and its figure is not known
/// yet.
fn is_measuring(other: &Outcome, own: &Outcome) -> bool {
    let is_same = other.candidate == own.candidate && other.purchase_option == own.purchase_option;
    !is_same && other.released_at.is_some() && awaits_figure(other)
}

/// Whether a trial may still run, and its figure is not known yet.
pub(super) fn awaits_figure(outcome: &Outcome) -> bool {
    let may_run = !outcome.state.is_terminal() && outcome.state != TrialState::Parked;
    may_run && known_speed(outcome).is_none()
}

/// Why a probe is done; `None` while it must go on.
fn probed(outcome: &Outcome, awaits_checkpoint: bool) -> Option<String> {
    let speed = known_speed(outcome)?;
    let is_saved = outcome
        .checkpoint_at
        .is_some_and(|saved| saved + UNSAVED >= speed.until_at);
    if awaits_checkpoint && !is_saved {
        return None;
    }
    Some(format!(
        "measured: {:.0} ± {:.0} tokens/s, which running on would hardly narrow",
        speed.mean, speed.half_width
    ))
}

#[cfg(test)]
mod tests;

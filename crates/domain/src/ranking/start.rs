//! What to measure next. A choice is started if the full run is expected to save more by its figure
//! than the figure costs, or if a cheap figure settles whether the leader can be bought; the likeliest
//! winner always is, and first: nothing is bought unmeasured. What runs is judged in [`crate::ranking::race`]; nothing is started here.
//!
//! It is the knowledge gradient per dollar (Frazier, Powell and Dayanik, 2008): one step ahead.

use chrono::{DateTime, TimeDelta, Utc};

use crate::lifecycle::state::TrialState;
use crate::measure::overhead::Overhead;
use crate::money::Usd;
use crate::number::{of_items, real};
use crate::ranking::outcome::{Outcome, Tokens};
use crate::ranking::posterior::{Beliefs, Contender, FIGURE_HOURS, WRONG_MAX};
use crate::ranking::race::awaits_figure;
use crate::ranking::recommend::contender;
use crate::ranking::repeats::{Pool, Repeats};
use crate::spec::{Minimize, ObjectiveSpec, PurchaseOption};

/// How long others wait for the figure of a trial that may start: for its capacity, its start-up,
/// its warm-up and its first batches.
const PATIENCE: TimeDelta = TimeDelta::hours(1);
/// Draws per contender: a saving is exact to about a tenth, which is nearer than its price.
const DRAWS: usize = 1024;
/// What a figure may cost of the full run that decides whether the leader can be bought at all, though
/// it is not expected to save as much.
const SETTLING_SHARE: f64 = 0.04;
/// P(limits hold) that the leader should have.
const LIMITS_HOLD: f64 = 0.95;

/// What happens to a trial that is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Now,
    /// Others have to be measured first.
    Later,
    /// Its figure is not worth its price.
    Never,
}

/// A decision about a trial that is held back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Of its outcome.
    pub index: usize,
    pub start: Start,
    pub reason: String,
}

/// What is decided of each trial that is held back.
pub fn starts(
    outcomes: &[Outcome],
    objective: &ObjectiveSpec,
    tokens: Tokens,
    now: DateTime<Utc>,
) -> Vec<Step> {
    // Beliefs are drawn, which takes milliseconds: of most experiments nothing is held back.
    if !outcomes.iter().any(is_held) {
        return Vec::new();
    }
    let repeats = Repeats::of(outcomes, tokens);
    let decided = Field::of(&repeats, objective, tokens, now).decided();
    let held = outcomes.iter().enumerate().filter(|(_, one)| is_held(one));
    held.filter_map(|(index, outcome)| {
        let place = repeats.pools.iter().position(|pool| {
            pool.trials
                .iter()
                .any(|trial| std::ptr::eq(*trial, outcome))
        })?;
        let (start, reason) = decided.get(place).cloned()?;
        Some(Step {
            index,
            start,
            reason,
        })
    })
    .collect()
}

fn is_held(outcome: &Outcome) -> bool {
    outcome.state == TrialState::Queued && outcome.released_at.is_none()
}

/// One choice, as far as it matters to what starts.
struct Choice<'a> {
    name: &'a str,
    option: PurchaseOption,
    /// Its place among the beliefs; empty where nothing is known of it.
    place: Option<usize>,
    is_measured: bool,
    is_held: bool,
    /// It was allowed to start not long ago, and its speed is not known yet.
    is_awaited: bool,
    /// The same, however long ago that was.
    is_under_way: bool,
    /// Estimated dollars of its figure.
    probe_usd: f64,
}

struct Field<'a> {
    minimize: Minimize,
    choices: Vec<Choice<'a>>,
    beliefs: Beliefs<'a>,
}

impl<'a> Field<'a> {
    fn of(
        repeats: &Repeats<'a>,
        objective: &'a ObjectiveSpec,
        tokens: Tokens,
        now: DateTime<Utc>,
    ) -> Self {
        let mut contenders: Vec<Contender> = Vec::new();
        let mut choices = Vec::new();
        for pool in &repeats.pools {
            let Some(first) = pool.trials.first().copied() else {
                continue;
            };
            let believed = contender(repeats, pool, objective, tokens);
            choices.push(Choice {
                name: &first.candidate,
                option: first.purchase_option,
                place: believed.as_ref().map(|_| contenders.len()),
                is_measured: believed.as_ref().is_some_and(|one| one.is_measured),
                is_held: pool.trials.iter().any(|one| is_held(one)),
                is_awaited: pool.trials.iter().any(|one| is_awaited(one, now)),
                is_under_way: pool.trials.iter().any(|one| is_under_way(one)),
                probe_usd: believed.as_ref().map_or(0.0, |one| {
                    let trial_share = real(tokens.trial) / real(tokens.total).max(1.0);
                    probe_usd(one, pool, repeats.overhead(pool), trial_share)
                }),
            });
            contenders.extend(believed);
        }
        Self {
            minimize: objective.minimize,
            choices,
            beliefs: Beliefs::of(&contenders, objective, DRAWS),
        }
    }

    /// The choice with the least expected objective of those that were measured or will be, and
    /// whether it keeps to the limits: one that does comes first. What spot saves is known last, so
    /// it leads only where nothing else can.
    fn leader(&self) -> Option<usize> {
        let runs = self.choices.iter().enumerate().filter_map(|(at, choice)| {
            let place = choice.place?;
            let is_spot = choice.option == PurchaseOption::Spot;
            let breaks = self.beliefs.within_limits(place) < LIMITS_HOLD;
            (choice.is_measured || choice.is_held || choice.is_awaited).then_some((
                at,
                (is_spot, breaks),
                self.beliefs.expected(place),
            ))
        });
        runs.min_by(|(_, a, left), (_, b, right)| a.cmp(b).then(left.total_cmp(right)))
            .map(|(at, ..)| at)
    }

    /// What becomes of each choice, were it held back.
    fn decided(&self) -> Vec<(Start, String)> {
        let first = self.first();
        let starts = |place: usize, choice: &Choice<'_>| {
            first == Some(place) || choice.is_held && choice.place.is_none()
        };
        let is_over = !self
            .choices
            .iter()
            .enumerate()
            .any(|(place, choice)| choice.is_under_way || starts(place, choice));
        let one = |(place, choice): (usize, &Choice<'_>)| {
            if starts(place, choice) {
                let saves = self.saved_usd(choice).unwrap_or(f64::INFINITY);
                (Start::Now, self.reason(choice, saves <= choice.probe_usd))
            } else if is_over {
                let why = format!(
                    "not started: {} (\"stopping_policy\": \"full\" runs it all the same)",
                    self.reason(choice, false)
                );
                (Start::Never, why)
            } else {
                // While figures are under way, the last word is not said.
                let why = "held back until likelier ones are measured: it starts if its figure is \
                           then still worth its price";
                (Start::Later, why.to_owned())
            }
        };
        self.choices.iter().enumerate().map(one).collect()
    }

    /// The choice to measure next, among those held back: the leader, or else the one that is
    /// expected to save the most for its price, if it saves more. One at a time, because each figure
    /// says something of the others. `None` while one is awaited, too.
    fn first(&self) -> Option<usize> {
        if self.choices.iter().any(|choice| choice.is_awaited) {
            return None;
        }
        let leader = self.leader()?;
        if !self.choices.get(leader)?.is_measured {
            return Some(leader);
        }
        let gains = self.choices.iter().enumerate().filter_map(|(at, choice)| {
            let gain = self.saved_usd(choice)? / choice.probe_usd;
            (choice.is_held && gain > 1.0).then_some((at, gain))
        });
        let best = gains.max_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or_else(|| self.settling(leader), |(at, _)| Some(at))
    }

    /// The choice that keeps a measured leader from being bought: where that may be a wrong buy, the
    /// likeliest rival, if its figure costs little of the full run.
    fn settling(&self, leader: usize) -> Option<usize> {
        let first = self.choices.get(leader)?;
        let place = first.place?;
        let odds = self.beliefs.odds();
        // A spot run is not bought on one observation, whatever is measured beside it.
        if odds.get(place)?.wrong <= WRONG_MAX || first.option == PurchaseOption::Spot {
            return None;
        }
        let most = SETTLING_SHARE * self.beliefs.expected_usd(place);
        let rivals = self.choices.iter().enumerate().filter_map(|(at, choice)| {
            let best = odds.get(choice.place?)?.best;
            (at != leader).then_some((at, best))
        });
        // Where the doubt is about one that was measured, other figures do not settle it.
        let (rival, _) = rivals.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let choice = self.choices.get(rival)?;
        (choice.is_held && choice.probe_usd <= most).then_some(rival)
    }

    /// Dollars of the leader's full run that measuring a choice is expected to save.
    fn saved_usd(&self, choice: &Choice<'_>) -> Option<f64> {
        let leader = self.choices.get(self.leader()?)?.place?;
        let saved = self.beliefs.saved_by_measuring(choice.place?, leader);
        Some(saved * self.beliefs.expected_usd(leader))
    }

    /// `is_settling`: it starts although its figure is expected to save less than it costs.
    fn reason(&self, choice: &Choice<'_>, is_settling: bool) -> String {
        let leader = self.leader().and_then(|place| self.choices.get(place));
        let (Some(leader), Some(saved)) = (leader, self.saved_usd(choice)) else {
            return "nothing was predicted of it: only a run can tell".to_owned();
        };
        if !leader.is_measured {
            let is_first = !self
                .choices
                .iter()
                .any(|one| one.is_measured || one.is_under_way);
            let place = if is_first { "first" } else { "next" };
            return format!(
                "as predicted, it is the likeliest to be bought: it is measured {place}"
            );
        }
        let usd = |usd: f64| Usd::from_f64(usd).unwrap_or(Usd::ZERO);
        if is_settling {
            return format!(
                "measuring it costs about {}, and settles whether {} can be bought: without it, that \
                 would be wrong by more than 5 % with P > {WRONG_MAX:.2}",
                usd(choice.probe_usd),
                leader.name
            );
        }
        let full = (leader.place).map_or(0.0, |place| self.beliefs.expected_usd(place));
        if let (Minimize::Time, Some(place)) = (self.minimize, leader.place) {
            let hours = self.beliefs.expected(place);
            return format!(
                "measuring it costs about {} and is expected to shorten the full run by {:.1} h, of {hours:.1} h on {}",
                usd(choice.probe_usd),
                hours * saved / full,
                leader.name
            );
        }
        format!(
            "measuring it costs about {} and is expected to save {} of the full run, {} on {}",
            usd(choice.probe_usd),
            usd(saved),
            usd(full),
            leader.name
        )
    }
}

fn is_under_way(outcome: &Outcome) -> bool {
    outcome.released_at.is_some() && awaits_figure(outcome)
}

fn is_awaited(outcome: &Outcome, now: DateTime<Utc>) -> bool {
    let is_recent = |released: DateTime<Utc>| now - released < PATIENCE;
    outcome.released_at.is_some_and(is_recent) && is_under_way(outcome)
}

/// Estimated dollars of a choice's figure, with all that a job is billed beside its steps. What spot saves is known only
/// at the end of a trial.
fn probe_usd(contender: &Contender, pool: &Pool<'_>, overhead: Overhead, trial_share: f64) -> f64 {
    let trial_hours = contender.hours * trial_share;
    let is_spot = (pool.trials.iter()).any(|one| one.purchase_option == PurchaseOption::Spot);
    let hours = if is_spot {
        trial_hours
    } else {
        trial_hours.min(FIGURE_HOURS)
    };
    let billed = overhead.seconds / 3600.0 + hours;
    contender.rate.likeliest() * billed * of_items(pool.trials.len())
}

#[cfg(test)]
mod tests;

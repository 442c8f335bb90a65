//! From an answer to its full run: which row is meant, the spec it becomes, and afterwards how the
//! run compares with what was projected of it. It starts nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{ExperimentId, TrialId};
use crate::lifecycle::state::TrialState;
use crate::money::Usd;
use crate::number::real;
use crate::ranking::outcome::{Outcome, Tokens};
use crate::ranking::purchase::{Conditions, Purchase, PurchaseChoice, RowName, may_buy, names};
use crate::ranking::recommendation::{Conclusion, Ranked, Recommendation, RunOdds};
use crate::spec::expectation::Expectation;
use crate::spec::full_run::FullRunSpec;
use crate::spec::{
    DEADLINE_HOURS_DEFAULT, ExperimentSpec, PurchaseOption, StoppingPolicy, WorkloadSpec,
};

/// The share of the projection's lower end below which a run was not faster, but shorter.
const EARLY: f64 = 0.8;

/// What a full run is the full run of, and what was projected of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FullRunOf {
    pub experiment_id: ExperimentId,
    /// The trial whose request it sends.
    pub trial_id: TrialId,
    /// Whether it writes to that trial's checkpoint folder, and goes on from what is there.
    pub from_checkpoint: bool,
    pub projected_hours: f64,
    /// The ends of its 90 % interval; empty where the answer had no odds.
    pub hours: Option<[f64; 2]>,
    pub projected_cost_usd: Usd,
    /// The ends of its 90 % interval; empty where the answer had no odds.
    pub cost_usd: Option<[Usd; 2]>,
    /// Of the trial, measured.
    pub tokens_per_second: f64,
    /// The checkpoint that it goes on from, if it is not the trial's newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<ChosenCheckpoint>,
    /// Hours that the trial trained, and what it cost: the head of this run, if it goes on from its newest
    /// checkpoint.
    pub trial_hours: f64,
    pub trial_cost_usd: Usd,
}

/// A checkpoint that a run goes on from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChosenCheckpoint {
    pub name: String,
    /// Its step over that of the trial's newest; 0 where they name no steps.
    pub share: f64,
}

impl FullRunOf {
    /// The full run of a ranked row, by one of its trials.
    pub fn of(
        experiment_id: ExperimentId,
        row: &Ranked,
        trial: &Outcome,
        from_checkpoint: bool,
    ) -> Self {
        let odds = row.odds.as_ref();
        Self {
            experiment_id,
            trial_id: trial.trial_id,
            from_checkpoint,
            projected_hours: row.projected_hours,
            hours: odds.map(|odds| [odds.hours_low, odds.hours_high]),
            projected_cost_usd: row.projected_cost_usd,
            cost_usd: odds.map(|odds| [odds.cost_usd_low, odds.cost_usd_high]),
            tokens_per_second: row.tokens_per_second,
            checkpoint: None,
            trial_hours: hours(trial),
            trial_cost_usd: trial.cost_usd,
        }
    }

    /// How much of the trial lies before the run's first step.
    fn head_share(&self) -> f64 {
        match &self.checkpoint {
            _ if !self.from_checkpoint => 0.0,
            Some(chosen) => chosen.share,
            None => 1.0,
        }
    }

    /// Hours of its projection that its trial has trained already.
    pub fn head_hours(&self) -> f64 {
        self.trial_hours * self.head_share()
    }

    /// Dollars of its projection that its trial has cost already.
    pub fn head_usd(&self) -> Usd {
        Usd::from_f64(self.trial_cost_usd.as_f64() * self.head_share()).unwrap_or(Usd::ZERO)
    }

    /// Whether a finished run came out as projected: faster, within the interval, or slower. What its
    /// trial had trained already may be missing from it.
    fn verdict(&self, run: &Outcome) -> &'static str {
        let took = hours(run);
        let [low, high] = self.hours.unwrap_or([self.projected_hours; 2]);
        let head = self.head_hours();
        match () {
            () if took > high => "slower than projected",
            () if took + head < low * EARLY => {
                "far sooner than projected: check that it trained all of its tokens"
            }
            () if took + head < low => "faster than projected",
            () => "as projected",
        }
    }
}

/// A row without its wait for instances: a full run's limits and hours begin with the first.
#[must_use]
pub fn while_training(row: &Ranked) -> Ranked {
    let waiting = row.waiting_hours.unwrap_or(0.0);
    let odds = row.odds.clone().map(|odds| RunOdds {
        hours_low: odds.hours_low - waiting,
        hours_high: odds.hours_high - waiting,
        ..odds
    });
    Ranked {
        projected_hours: row.projected_hours - waiting,
        waiting_hours: Some(0.0),
        odds,
        ..row.clone()
    }
}

/// The row that a choice means, or why there is none.
pub fn choose<'a>(
    answer: &'a Recommendation,
    candidate: Option<&str>,
    option: Option<PurchaseOption>,
) -> Result<&'a Ranked, String> {
    let wanted = match candidate {
        Some(candidate) => PurchaseChoice::Named(RowName {
            candidate,
            purchase_option: option,
        }),
        None => PurchaseChoice::First(option),
    };
    let conditions = Conditions {
        wanted,
        at_least: None,
    };
    match may_buy(answer, &conditions) {
        Purchase::Bought(row) => Ok(row),
        Purchase::Refused { why } => Err(why),
        Purchase::WaitsForPerson { why } => Err(format!(
            "{why}: name the candidate to run; {}",
            names(answer)
        )),
    }
}

/// Whether the script learns that it trains all tokens: one that takes no length from the plan must be
/// told by hyperparameters of its own, other than the `sent` ones of its trial.
pub fn is_told_its_length(
    workload: &WorkloadSpec,
    run: &FullRunSpec,
    sent: &BTreeMap<String, String>,
) -> Result<(), String> {
    let is_new = |(key, value): (&String, &String)| sent.get(key) != Some(value);
    if workload.omit_plan_hyperparameters && !run.hyperparameters.iter().any(is_new) {
        return Err(
            "the script sets its own length, and would train the trial's once more".to_owned(),
        );
    }
    Ok(())
}

/// Whether a run may end by itself: SageMaker ends it at its limit, and all of its cost is spent.
pub fn is_long_enough(of: &FullRunOf, max_runtime_seconds: u32) -> Result<(), String> {
    let limit = f64::from(max_runtime_seconds) / 3600.0;
    if limit < of.projected_hours - of.head_hours() {
        return Err(format!(
            "it may train for {limit:.1} h, and is projected to take {:.1} h: SageMaker would end it unfinished",
            of.projected_hours
        ));
    }
    Ok(())
}

/// The longest that SageMaker lets a job train: 28 days.
const RUNTIME_MAX_SECONDS: u32 = 2_419_200;
/// How much longer than the projection's upper end a run may take before SageMaker ends it.
const RUNTIME_ROOM: f64 = 1.25;
/// The longest part of an experiment's name that its full run's has.
const NAME_CHARS: usize = 80;

/// The spec of a full run: the experiment's, with the chosen candidate alone, all of its tokens or the most that it may
/// need to its target loss, and limits of its own.
pub fn spec(
    experiment: &ExperimentSpec,
    row: &Ranked,
    run: &FullRunSpec,
    tokens: Tokens,
) -> ExperimentSpec {
    let mut spec = experiment.clone();
    spec.candidates
        .retain(|candidate| candidate.name == row.candidate);
    for candidate in &mut spec.candidates {
        candidate.purchase_options = vec![row.purchase_option];
        candidate.repeats = 1;
    }
    let ends_at_loss = tokens.ends_at_loss();
    if !ends_at_loss {
        // It is watched to its end.
        spec.objective.target_loss = None;
    }
    if let Some(workload) = &mut spec.workload {
        workload.trial_tokens = if ends_at_loss {
            tokens.upper(workload.total_tokens)
        } else {
            workload.total_tokens
        };
        workload.hyperparameters.extend(run.hyperparameters.clone());
    }
    let hours = row
        .odds
        .as_ref()
        .map_or(row.projected_hours, |odds| odds.hours_high);
    let max_runtime_seconds = run.max_runtime_seconds.unwrap_or_else(|| runtime(hours));
    let twice = max_runtime_seconds
        .saturating_mul(2)
        .min(RUNTIME_MAX_SECONDS);
    let is_spot = row.purchase_option == PurchaseOption::Spot;
    // It may need another attempt at its end, and capacity for that.
    let runtime_hours = max_runtime_seconds.div_ceil(3600);
    let deadline_hours = experiment.deadline_hours.unwrap_or(DEADLINE_HOURS_DEFAULT);
    ExperimentSpec {
        deadline_hours: Some(deadline_hours.saturating_add(runtime_hours)),
        name: run.name.clone().unwrap_or_else(|| {
            let own: String = experiment.name.chars().take(NAME_CHARS).collect();
            format!("{own}: full run")
        }),
        // Alone in its race, it is stopped by nothing but the loss that it has reached.
        stopping_policy: Some(if ends_at_loss {
            StoppingPolicy::Race
        } else {
            StoppingPolicy::Full
        }),
        budget_usd: run.budget_usd,
        max_runtime_seconds,
        max_wait_seconds: is_spot.then(|| run.max_wait_seconds.unwrap_or(twice)),
        // Nothing follows it on its instances.
        keep_alive_seconds: None,
        expectations: vec![Expectation {
            candidate: None,
            column: "tokens_per_second".to_owned(),
            at_least: Some(
                row.tokens_per_second * row.projected_hours / hours.max(row.projected_hours),
            ),
            at_most: None,
            note: "as fast as its trial, less what another machine may take".to_owned(),
        }],
        claims: None,
        ..spec
    }
}

/// Whole hours, in seconds.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 28 days"
)]
fn runtime(hours: f64) -> u32 {
    let seconds = (hours * RUNTIME_ROOM).ceil() * 3600.0;
    seconds.clamp(3600.0, f64::from(RUNTIME_MAX_SECONDS)) as u32
}

/// Hours of a trial as they are projected: all that is billed, and on spot with the time that it waited.
pub fn hours(outcome: &Outcome) -> f64 {
    let seconds = match outcome.purchase_option {
        PurchaseOption::OnDemand => outcome.billable_seconds,
        PurchaseOption::Spot => outcome.wall_seconds,
    };
    real(seconds) / 3600.0
}

/// The answer of a full run's own experiment: nothing is decided any more, and what was projected
/// stands beside what is measured.
pub fn report(of: &FullRunOf, outcome: &Outcome, answer: Recommendation) -> Recommendation {
    Recommendation {
        conclusion: Conclusion::FullRun,
        headline: headline(of, outcome),
        // Both sides without the wait for instances.
        reasons: reasons(of, outcome, answer.ranked.first().map(while_training)),
        spend: None,
        ..answer
    }
}

fn headline(of: &FullRunOf, outcome: &Outcome) -> String {
    let (on, took) = (&outcome.instance_type, hours(outcome));
    let why = outcome.reason.as_deref();
    let why = why.unwrap_or("no reason was recorded");
    match outcome.state {
        TrialState::Completed => format!(
            "The full run on {on} took {took:.1} h and {}: {}.",
            outcome.cost_usd,
            of.verdict(outcome)
        ),
        state if state.is_terminal() => format!(
            "The full run on {on} {} after {took:.1} h and {}: {why}.",
            match state {
                TrialState::Failed => "failed",
                TrialState::Refused => "was refused",
                _ => "was stopped",
            },
            outcome.cost_usd
        ),
        TrialState::Parked => {
            format!("The full run on {on} waits for a person: {why}. Resume or cancel it.")
        }
        TrialState::Queued | TrialState::Submitting if outcome.cost_usd <= Usd::ZERO => {
            format!("The full run on {on} has not started yet.")
        }
        _ => format!("The full run on {on} goes on: {} so far.", outcome.cost_usd),
    }
}

fn reasons(of: &FullRunOf, outcome: &Outcome, row: Option<Ranked>) -> Vec<String> {
    let mut reasons = vec![format!(
        "projected from its trial: {:.1} h{}, {}{}, {:.0} tokens/s",
        of.projected_hours,
        of.hours.map_or_else(String::new, |[low, high]| format!(
            " ({low:.1} to {high:.1})"
        )),
        of.projected_cost_usd,
        of.cost_usd
            .map_or_else(String::new, |[low, high]| format!(" ({low} to {high})")),
        of.tokens_per_second,
    )];
    if let Some(row) = row {
        let faster = 100.0 * (row.tokens_per_second / of.tokens_per_second - 1.0);
        reasons.push(format!(
            "measured: {:.0} ± {:.0} tokens/s, {faster:+.1} % against its trial",
            row.tokens_per_second, row.tokens_per_second_half_width
        ));
        if !outcome.state.is_terminal() {
            reasons.push(format!(
                "at this speed the whole run takes {:.1} h and {}, its trial's part included",
                row.projected_hours, row.projected_cost_usd
            ));
        }
    }
    reasons.push(if let Some(chosen) = &of.checkpoint {
        format!(
            "it goes on from {} of its trial, {}, which took {:.1} h and {} until then",
            chosen.name,
            of.trial_id,
            of.head_hours(),
            of.head_usd()
        )
    } else if of.from_checkpoint {
        format!(
            "it goes on from the checkpoints of its trial, {}, which took {:.1} h and {}",
            of.trial_id, of.trial_hours, of.trial_cost_usd
        )
    } else {
        "it starts at its first step".to_owned()
    });
    reasons
}

#[cfg(test)]
mod tests;

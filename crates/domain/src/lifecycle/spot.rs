//! The effects of spot on a run: its interruptions, its savings, and how much work would be lost if
//! it were interrupted now.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::money::{Usd, cost};
use crate::sagemaker::observed::{Transition, seconds_between};
use crate::sagemaker::phase::JobPhase;

/// How long an upload may take before a checkpoint counts as missing.
const SYNC_ALLOWANCE: TimeDelta = TimeDelta::minutes(10);

/// The most that managed spot saves, according to SageMaker's developer guide: a spot job has cost
/// at least the rest.
pub const SAVING_PERCENT_MAX: u32 = 90;

/// An interruption: capacity was taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interruption {
    pub at: DateTime<Utc>,
    /// When training resumed; empty while it waits, or if it never did.
    pub resumed_at: Option<DateTime<Utc>>,
}

/// Extracts interruptions from SecondaryStatusTransitions, in their order.
pub fn interruptions(transitions: &[Transition]) -> Vec<Interruption> {
    let mut found: Vec<Interruption> = Vec::new();
    for transition in transitions {
        if transition.phase() == JobPhase::Interrupted {
            found.push(Interruption {
                at: transition.started_at,
                resumed_at: None,
            });
        } else if transition.phase() == JobPhase::Training
            && let Some(last) = found.last_mut()
        {
            last.resumed_at.get_or_insert(transition.started_at);
        }
    }
    found
}

/// Training seconds that interruptions lost: since the newest checkpoint in S3 before each, or since that stretch of
/// training began. They are billed, and done again.
pub fn lost_seconds(transitions: &[Transition], checkpoints: &[DateTime<Utc>]) -> u64 {
    let mut since: Option<DateTime<Utc>> = None;
    let mut lost = 0;
    for transition in transitions {
        match transition.phase() {
            JobPhase::Training => since = Some(transition.started_at),
            JobPhase::Interrupted => {
                let at = transition.started_at;
                if let Some(began) = since.take() {
                    let newest = before(checkpoints, at).map_or(began, |newest| newest.max(began));
                    lost += seconds_between(newest, at);
                }
            }
            JobPhase::Unreported
            | JobPhase::Starting
            | JobPhase::PullingImage
            | JobPhase::DownloadingData
            | JobPhase::Processing
            | JobPhase::UploadingModel
            | JobPhase::Stopping
            | JobPhase::RuntimeLimit
            | JobPhase::WaitLimit
            | JobPhase::Over
            | JobPhase::Other => {}
        }
    }
    lost
}

/// Of the times of checkpoints, those that [`lost_seconds`] may yet need: the newest before each interruption, and
/// the newest of all.
pub fn needed_checkpoints(
    transitions: &[Transition],
    mut checkpoints: Vec<DateTime<Utc>>,
) -> Vec<DateTime<Utc>> {
    checkpoints.sort_unstable();
    checkpoints.dedup();
    let mut needed: Vec<DateTime<Utc>> = interruptions(transitions)
        .iter()
        .filter_map(|interruption| before(&checkpoints, interruption.at))
        .chain(checkpoints.last().copied())
        .collect();
    needed.sort_unstable();
    needed.dedup();
    needed
}

fn before(checkpoints: &[DateTime<Utc>], at: DateTime<Utc>) -> Option<DateTime<Utc>> {
    checkpoints.iter().copied().filter(|one| *one <= at).max()
}

/// SageMaker's own figure: 100 × (1 − billable / training time).
pub fn savings_percent(training_seconds: u64, billable_seconds: u64) -> Option<f64> {
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "seconds of at most 28 days"
    )]
    let share = |part: u64, whole: u64| part as f64 / whole as f64;
    (training_seconds > 0).then(|| 100.0 * (1.0 - share(billable_seconds, training_seconds)))
}

/// What an interruption now would cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtRisk {
    /// Since the newest checkpoint, or the start.
    pub seconds: u64,
    /// At the full price: the work would be paid for again.
    pub usd: Usd,
    /// No checkpoint has arrived for twice the interval: the sync to S3, or the script, has
    /// stopped.
    pub is_stalled: bool,
}

/// Computes the work at risk since the newest checkpoint. `started_at` is when training (last)
/// began; `usd_per_hour` is per instance.
pub fn at_risk(
    started_at: DateTime<Utc>,
    newest: Option<DateTime<Utc>>,
    interval_seconds: u32,
    instance_count: u32,
    usd_per_hour: Usd,
    now: DateTime<Utc>,
) -> AtRisk {
    let since = newest.map_or(started_at, |newest| newest.max(started_at));
    let seconds = seconds_between(since, now);
    let patience = TimeDelta::seconds(i64::from(interval_seconds) * 2) + SYNC_ALLOWANCE;
    AtRisk {
        seconds,
        usd: cost::training(seconds, instance_count, usd_per_hour),
        is_stalled: now - since > patience,
    }
}

#[cfg(test)]
mod tests {
    use rust_decimal::Decimal;

    use super::*;

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap() + TimeDelta::minutes(minutes)
    }

    #[test]
    fn interruptions_end_when_training_resumes_however_it_gets_there() {
        let transition = |status: &str, minutes| Transition {
            status: status.into(),
            started_at: at(minutes),
            ended_at: None,
            message: String::new(),
        };
        // "Interrupted → Downloading" without Starting is in SageMaker's own guide.
        let history = [
            ("Training", 5),
            ("Interrupted", 60),
            ("Downloading", 70),
            ("Training", 72),
            ("Interrupted", 90),
        ];
        let found = interruptions(&history.map(|(status, minutes)| transition(status, minutes)));
        assert_eq!(
            found[0],
            Interruption {
                at: at(60),
                resumed_at: Some(at(72))
            }
        );
        assert_eq!(
            found[1],
            Interruption {
                at: at(90),
                resumed_at: None
            }
        );
    }

    #[test]
    fn an_interruption_loses_the_training_since_the_newest_checkpoint_before_it() {
        let transition = |status: &str, minutes| Transition {
            status: status.into(),
            started_at: at(minutes),
            ended_at: None,
            message: String::new(),
        };
        let history = [
            ("Downloading", 0),
            ("Training", 5),
            ("Interrupted", 60),
            ("Starting", 70),
            ("Training", 75),
            ("Interrupted", 95),
            ("Training", 100),
            ("Completed", 300),
        ];
        let history = history.map(|(status, minutes)| transition(status, minutes));
        let lost = |times: &[i64]| {
            let times: Vec<_> = times.iter().map(|minutes| at(*minutes)).collect();
            lost_seconds(&history, &times) / 60
        };
        assert_eq!(lost(&[]), 55 + 20, "it began again twice");
        assert_eq!(lost(&[35]), 25 + 20);
        assert_eq!(
            lost(&[35, 90, 130]),
            25 + 5,
            "a later one saves nothing earlier"
        );
        let all = [35, 20, 90, 130, 85, 35].map(at).to_vec();
        let needed = needed_checkpoints(&history, all.clone());
        assert_eq!(needed, [at(35), at(90), at(130)]);
        assert_eq!(
            lost_seconds(&history, &needed),
            lost_seconds(&history, &all)
        );
        assert_eq!(lost_seconds(&history[..2], &[]), 0, "it still trains");
    }

    #[test]
    fn the_saving_is_sagemakers_own() {
        assert_eq!(savings_percent(1000, 300), Some(70.0));
        assert_eq!(savings_percent(0, 0), None);
    }

    #[test]
    fn dollars_at_risk_grow_until_the_next_checkpoint_and_then_an_alarm() {
        let risk = |newest, now| at_risk(at(0), newest, 1800, 2, Usd(Decimal::from(60)), at(now));
        assert_eq!(
            (risk(None, 30).usd, risk(None, 30).is_stalled),
            (Usd(Decimal::from(60)), false)
        );
        assert_eq!(risk(Some(at(60)), 70).seconds, 600);
        assert!(!risk(Some(at(60)), 129).is_stalled && risk(Some(at(60)), 131).is_stalled);
        assert_eq!(
            risk(Some(at(-90)), 10).seconds,
            600,
            "an earlier attempt's checkpoint is before the start"
        );
    }
}

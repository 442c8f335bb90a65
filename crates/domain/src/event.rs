//! An event: what happened to an experiment or a trial, with its data. Sentences are rendered here
//! and nowhere else; who writes events, and in which order they are read, is the store's matter.

mod change;
mod charge;

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use self::change::Change;
pub use self::charge::{AttemptBill, Charge, Ended, OverReservation};
use crate::ci::gate::Verdict;
use crate::ci::wording::CiNews;
use crate::ids::PriceId;
use crate::lifecycle::state::{ExperimentState, TrialState};
use crate::money::Usd;
use crate::sagemaker::phase::JobPhase;
use crate::sagemaker::requested::Difference;
use crate::serving::{EndpointNews, EndpointState};

named! {
    /// How much attention an event needs
    EventSeverity {
        /// The ordinary course of things.
        Info = "info",
        /// Something was lost or changed; nobody has to act.
        Warning = "warning",
        /// A person should look.
        Alarm = "alarm",
    }
}

/// An experiment as it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    pub name: String,
    pub trials: u32,
    pub refused: u32,
    /// Trials that cannot change the answer, and do not start.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u32,
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            trials,
            refused,
            skipped,
        } = self;
        write!(f, "{name}: {trials} trials, {refused} refused")?;
        if *skipped > 0 {
            write!(f, ", {skipped} not started")?;
        }
        Ok(())
    }
}

/// How an experiment ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conclusion {
    pub state: ExperimentState,
    /// The recommendation in one sentence.
    pub headline: String,
    /// The recommended candidate, if the conclusion is clear.
    pub winner: Option<String>,
}

/// An attempt that is committed, with its reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedAttempt {
    pub attempt: u32,
    pub job_name: String,
    pub reserved_usd: Usd,
}

/// New prices applied to an experiment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repriced {
    /// What is billed more (or less, if negative) since the new prices apply.
    pub usd: Usd,
    pub attempts: u32,
    pub price_ids: Vec<PriceId>,
    /// Whether the recommendation has changed.
    pub is_decided_anew: bool,
    pub reason: String,
}

/// A job's new status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusNews {
    pub attempt: u32,
    /// TrainingJobStatus.
    pub status: String,
    /// SecondaryStatus; empty when SageMaker reported none.
    pub secondary_status: String,
}

/// A bill that a person corrected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillingCorrection {
    pub job_name: String,
    pub billed_seconds: u64,
    /// The correction.
    pub usd: Usd,
    pub reason: String,
}

/// Why an attempt's job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosed {
    pub attempt: u32,
    pub job_name: String,
    /// The likeliest cause and what to do.
    pub summary: String,
    /// Of the likeliest cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// A setting of a job that SageMaker did not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoredSetting {
    /// SageMaker's name for it.
    pub field: String,
    pub requested: String,
    pub actual: String,
}

/// What a warm pool cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledPool {
    /// The job that left it.
    pub job_name: String,
    pub instance_type: String,
    pub retained_seconds: u64,
    pub usd: Usd,
}

/// A checkpoint that has not come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalledCheckpoint {
    /// Since the newest checkpoint, or the start of training.
    pub since_seconds: u64,
    pub interval_seconds: u64,
    /// What an interruption now would lose.
    pub at_risk_usd: Usd,
    pub local_path: String,
}

/// What happened, with its data. The name of a variant's kind is part of the API and of stored
/// rows: rename neither.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum Event {
    #[serde(rename = "experiment.created")]
    ExperimentCreated(Created),
    #[serde(rename = "experiment.cancelling")]
    ExperimentCancelling,
    #[serde(rename = "experiment.paused")]
    ExperimentPaused,
    #[serde(rename = "experiment.resumed")]
    ExperimentResumed {
        /// Parked trials that were queued again.
        requeued: u64,
    },
    #[serde(rename = "experiment.changed")]
    ExperimentChanged(Change),
    #[serde(rename = "experiment.repriced")]
    ExperimentRepriced(Repriced),
    /// A gate has judged the commit that it measures.
    #[serde(rename = "ci.decided")]
    CiDecided(CiNews),
    #[serde(rename = "experiment.concluded")]
    ExperimentConcluded(Conclusion),
    #[serde(rename = "trial.planned")]
    TrialPlanned(PlannedAttempt),
    #[serde(rename = "trial.submitted")]
    TrialSubmitted { attempt: u32, job_name: String },
    #[serde(rename = "trial.status")]
    TrialStatus(StatusNews),
    /// A stop was decided.
    #[serde(rename = "trial.stopping")]
    TrialStopping { reason: String },
    /// A trial that was held back may start.
    #[serde(rename = "trial.released")]
    TrialReleased { reason: String },
    #[serde(rename = "trial.waiting")]
    TrialWaiting {
        reason: String,
        /// It has been waiting for so long that somebody should look.
        is_long: bool,
    },
    #[serde(rename = "trial.taken_over")]
    TrialTakenOver {
        /// The scheduler that held the trial: host, process id and a unique part.
        owner: String,
        /// Real time since its last renewal.
        seconds: f64,
    },
    #[serde(rename = "trial.setting_ignored")]
    TrialSettingIgnored(IgnoredSetting),
    #[serde(rename = "trial.completed")]
    TrialCompleted(Ended),
    #[serde(rename = "trial.failed")]
    TrialFailed(Ended),
    #[serde(rename = "trial.stopped")]
    TrialStopped(Ended),
    #[serde(rename = "trial.refused")]
    TrialRefused(Ended),
    /// An attempt has failed, and the trial waits for the next one.
    #[serde(rename = "trial.retrying")]
    TrialRetrying {
        again_at: DateTime<Utc>,
        #[serde(flatten)]
        ended: Ended,
    },
    /// The trial waits for a person.
    #[serde(rename = "trial.parked")]
    TrialParked(Ended),
    #[serde(rename = "trial.over_reservation")]
    TrialOverReservation(OverReservation),
    #[serde(rename = "trial.billing_corrected")]
    TrialBillingCorrected(BillingCorrection),
    #[serde(rename = "trial.orphaned_job")]
    TrialOrphanedJob { job_name: String },
    /// A job that names the trial is not in this database.
    #[serde(rename = "trial.unknown_job")]
    TrialUnknownJob { job_name: String },
    #[serde(rename = "trial.orphaned_pool")]
    TrialOrphanedPool { job_name: String },
    #[serde(rename = "trial.pool_settled")]
    TrialPoolSettled(SettledPool),
    #[serde(rename = "trial.checkpoint_stalled")]
    TrialCheckpointStalled(StalledCheckpoint),
    /// Why an attempt's job failed.
    #[serde(rename = "trial.diagnosed")]
    TrialDiagnosed(Diagnosed),
    /// What is stored of the trial cannot be read in full.
    #[serde(rename = "trial.unreadable")]
    TrialUnreadable,
    #[serde(rename = "endpoint.changed")]
    EndpointChanged(EndpointNews),
    /// Its time to live is over soon.
    #[serde(rename = "endpoint.expiring")]
    EndpointExpiring(EndpointNews),
}

impl From<&Difference> for Event {
    fn from(difference: &Difference) -> Self {
        Self::TrialSettingIgnored(IgnoredSetting {
            field: difference.field.to_owned(),
            requested: difference.requested.clone(),
            actual: difference.actual.clone(),
        })
    }
}

/// How a sentence names a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialName<'a> {
    pub candidate: &'a str,
    pub purchase_option: &'a str,
}

impl Event {
    /// The end of a trial, or its wait for a person. `None` for a state in which it goes on.
    pub fn trial_ended(state: TrialState, ended: Ended) -> Option<Self> {
        Some(match state {
            TrialState::Completed => Self::TrialCompleted(ended),
            TrialState::Failed => Self::TrialFailed(ended),
            TrialState::Stopped => Self::TrialStopped(ended),
            TrialState::Refused => Self::TrialRefused(ended),
            TrialState::Parked => Self::TrialParked(ended),
            TrialState::Queued
            | TrialState::Submitting
            | TrialState::Running
            | TrialState::Stopping => return None,
        })
    }

    /// Dotted name, such as `trial.completed`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ExperimentCreated(_) => "experiment.created",
            Self::ExperimentCancelling => "experiment.cancelling",
            Self::ExperimentPaused => "experiment.paused",
            Self::ExperimentResumed { .. } => "experiment.resumed",
            Self::ExperimentChanged(_) => "experiment.changed",
            Self::ExperimentRepriced(_) => "experiment.repriced",
            Self::CiDecided(_) => "ci.decided",
            Self::ExperimentConcluded(_) => "experiment.concluded",
            Self::TrialPlanned(_) => "trial.planned",
            Self::TrialSubmitted { .. } => "trial.submitted",
            Self::TrialStatus(_) => "trial.status",
            Self::TrialStopping { .. } => "trial.stopping",
            Self::TrialReleased { .. } => "trial.released",
            Self::TrialWaiting { .. } => "trial.waiting",
            Self::TrialTakenOver { .. } => "trial.taken_over",
            Self::TrialSettingIgnored(_) => "trial.setting_ignored",
            Self::TrialCompleted(_) => "trial.completed",
            Self::TrialFailed(_) => "trial.failed",
            Self::TrialStopped(_) => "trial.stopped",
            Self::TrialRefused(_) => "trial.refused",
            Self::TrialRetrying { .. } => "trial.retrying",
            Self::TrialParked(_) => "trial.parked",
            Self::TrialOverReservation(_) => "trial.over_reservation",
            Self::TrialBillingCorrected(_) => "trial.billing_corrected",
            Self::TrialOrphanedJob { .. } => "trial.orphaned_job",
            Self::TrialUnknownJob { .. } => "trial.unknown_job",
            Self::TrialOrphanedPool { .. } => "trial.orphaned_pool",
            Self::TrialPoolSettled(_) => "trial.pool_settled",
            Self::TrialCheckpointStalled(_) => "trial.checkpoint_stalled",
            Self::TrialDiagnosed(_) => "trial.diagnosed",
            Self::TrialUnreadable => "trial.unreadable",
            Self::EndpointChanged(_) => "endpoint.changed",
            Self::EndpointExpiring(_) => "endpoint.expiring",
        }
    }

    pub fn severity(&self) -> EventSeverity {
        match self {
            Self::TrialParked(_)
            | Self::TrialOverReservation(_)
            | Self::TrialOrphanedJob { .. }
            | Self::TrialUnknownJob { .. }
            | Self::TrialOrphanedPool { .. }
            | Self::TrialCheckpointStalled(_)
            | Self::TrialUnreadable
            | Self::EndpointExpiring(_)
            | Self::TrialWaiting { is_long: true, .. } => EventSeverity::Alarm,
            Self::TrialFailed(_)
            | Self::TrialRetrying { .. }
            | Self::TrialSettingIgnored(_)
            | Self::TrialDiagnosed(_)
            | Self::EndpointChanged(EndpointNews {
                state: EndpointState::Failed | EndpointState::RollingBack,
                ..
            })
            | Self::TrialBillingCorrected(_) => EventSeverity::Warning,
            Self::CiDecided(news) if news.verdict != Verdict::Passed => EventSeverity::Warning,
            Self::TrialStatus(StatusNews {
                secondary_status, ..
            }) if JobPhase::of(secondary_status) == JobPhase::Interrupted => EventSeverity::Warning,
            Self::ExperimentRepriced(repriced) if repriced.usd > Usd::ZERO => {
                EventSeverity::Warning
            }
            Self::ExperimentRepriced(_)
            | Self::CiDecided(_)
            | Self::ExperimentCreated(_)
            | Self::ExperimentCancelling
            | Self::ExperimentPaused
            | Self::ExperimentResumed { .. }
            | Self::ExperimentChanged(_)
            | Self::ExperimentConcluded(_)
            | Self::TrialPlanned(_)
            | Self::TrialSubmitted { .. }
            | Self::TrialStatus(_)
            | Self::TrialStopping { .. }
            | Self::TrialReleased { .. }
            | Self::TrialWaiting { .. }
            | Self::TrialTakenOver { .. }
            | Self::TrialCompleted(_)
            | Self::TrialStopped(_)
            | Self::TrialRefused(_)
            | Self::EndpointChanged(_)
            | Self::TrialPoolSettled(_) => EventSeverity::Info,
        }
    }

    /// What a person can do about an alarm; `None` for everything else.
    pub fn way_out(&self) -> Option<String> {
        Some(match self {
            Self::TrialParked(_) => {
                "Remove the cause, then resume the experiment: its parked trials are queued again."
                    .to_owned()
            }
            Self::TrialWaiting { is_long: true, .. } => {
                "It is still being tried. Remove the cause that the message names, or cancel the \
                 experiment."
                    .to_owned()
            }
            Self::TrialOverReservation(_) => {
                "The experiment is paused. Compare its ledger with the bill of AWS, then resume \
                 or cancel it."
                    .to_owned()
            }
            Self::TrialOrphanedJob { .. } => {
                "Nothing to do, unless it recurs: then see whether jobs are started by hand under \
                 our names."
                    .to_owned()
            }
            Self::TrialUnknownJob { .. } => {
                "Start Bakeoff with `--fence`: it can then tell whether another database of the \
                 same installation created the job. `--stop-unknown-jobs` stops it in any case."
                    .to_owned()
            }
            Self::TrialOrphanedPool { .. } => "Nothing to do: the pool is being ended.".to_owned(),
            Self::TrialCheckpointStalled(StalledCheckpoint { local_path, .. }) => {
                format!("Check that the script saves to {local_path}.")
            }
            Self::TrialUnreadable => {
                "A newer Bakeoff may have written it: go back to that version.".to_owned()
            }
            Self::EndpointExpiring(_) => {
                "Extend it if it is still needed: `PATCH /v1/endpoints/{endpoint_id}` with \
                 time_to_live_hours, or `bakeoff endpoints extend`."
                    .to_owned()
            }
            _ => return None,
        })
    }

    /// The event in one sentence; a trial's begins with its name.
    pub fn message(&self, trial: Option<TrialName<'_>>) -> String {
        match trial {
            Some(TrialName {
                candidate,
                purchase_option,
            }) => format!("{candidate} {purchase_option}: {self}"),
            None => self.to_string(),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn named<'a>(secondary_status: &'a str, status: &'a str) -> &'a str {
    let texts = [secondary_status, status, "no status"];
    texts
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or("")
}

impl fmt::Display for BillingCorrection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            job_name,
            billed_seconds,
            usd,
            reason,
        } = self;
        write!(
            f,
            "{job_name} was billed {billed_seconds} s, a correction of {usd}: {reason}"
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExperimentCreated(created) => created.fmt(f),
            Self::ExperimentCancelling => f.write_str("cancel requested"),
            Self::ExperimentPaused => f.write_str("paused by hand"),
            Self::ExperimentResumed { requeued } => {
                write!(f, "resumed; {requeued} parked trials requeued")
            }
            Self::ExperimentChanged(change) => change.fmt(f),
            Self::ExperimentConcluded(conclusion) => f.write_str(&conclusion.headline),
            Self::CiDecided(news) => news.fmt(f),
            Self::TrialPlanned(PlannedAttempt {
                attempt,
                job_name,
                reserved_usd,
            }) => write!(
                f,
                "attempt {attempt} planned as {job_name}, {reserved_usd} reserved"
            ),
            Self::TrialSubmitted { job_name, .. } => write!(f, "{job_name} submitted"),
            Self::TrialStatus(StatusNews {
                status,
                secondary_status,
                ..
            }) => f.write_str(named(secondary_status, status)),
            Self::ExperimentRepriced(Repriced { reason, .. })
            | Self::TrialStopping { reason }
            | Self::TrialReleased { reason }
            | Self::TrialWaiting { reason, .. } => f.write_str(reason),
            Self::TrialTakenOver { owner, seconds } => write!(
                f,
                "its scheduler {owner} did not come back; taken over {seconds:.1} s (real time) \
                 after its last renewal"
            ),
            Self::TrialSettingIgnored(IgnoredSetting {
                field,
                requested,
                actual,
            }) => write!(
                f,
                "SageMaker uses {field} {actual}, but {requested} was requested"
            ),
            Self::TrialCompleted(ended)
            | Self::TrialFailed(ended)
            | Self::TrialStopped(ended)
            | Self::TrialRefused(ended)
            | Self::TrialParked(ended)
            | Self::TrialRetrying { ended, .. } => f.write_str(&ended.reason),
            Self::TrialOverReservation(over) => over.fmt(f),
            Self::TrialBillingCorrected(correction) => correction.fmt(f),
            Self::TrialOrphanedJob { job_name } => write!(
                f,
                "{job_name} ran after its attempt had ended; it is stopped, and billed to the \
                 experiment"
            ),
            Self::TrialUnknownJob { job_name } => write!(
                f,
                "{job_name} is running for this trial but is not in this database. It is left \
                 alone: another database of the same installation may have created it"
            ),
            Self::TrialOrphanedPool { job_name } => write!(
                f,
                "{job_name} left a warm pool untracked; it is ended, and billed to the experiment"
            ),
            Self::TrialPoolSettled(SettledPool {
                instance_type,
                retained_seconds,
                usd,
                ..
            }) => write!(
                f,
                "warm pool of {instance_type} kept for {retained_seconds} s: {usd}"
            ),
            Self::TrialCheckpointStalled(StalledCheckpoint {
                since_seconds,
                interval_seconds,
                at_risk_usd,
                ..
            }) => write!(
                f,
                "no checkpoint for {} minutes, although one every {} was announced: an \
                 interruption now would lose {at_risk_usd} of work",
                since_seconds / 60,
                interval_seconds / 60
            ),
            Self::TrialDiagnosed(found) => write!(f, "why it failed: {}", found.summary),
            Self::TrialUnreadable => f.write_str(
                "its stored plan or job data cannot be read. A running job is watched, stopped \
                 and billed; nothing new is started",
            ),
            Self::EndpointChanged(news) => news.fmt(f),
            Self::EndpointExpiring(EndpointNews { name, reason, .. }) => {
                write!(f, "endpoint {name} runs out: it is deleted at {reason}")
            }
        }
    }
}

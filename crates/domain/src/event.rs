//! An event: what happened to an experiment or a trial, with its data. Sentences are rendered here
//! and nowhere else; who writes events, and in which order they are read, is the store's matter.

mod budget;
mod change;
mod charge;
mod purchase;
mod sentences;
mod webhook;

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use self::budget::BudgetNews;
pub use self::change::Change;
pub use self::charge::{
    AttemptBill, BillingCorrection, Charge, Ended, OverReservation, SettledPool,
};
pub use self::purchase::{DecidedPurchase, WaitingPurchase};
pub use self::webhook::DisabledWebhook;
use crate::ci::gate::Verdict;
use crate::ci::wording::CiNews;
use crate::diagnosis::fruitless::{
    DoubtfulUnit, IdleAccelerators, LossNotFinite, UnmatchedPatterns,
};
use crate::endpoint::{EndpointNews, EndpointState, scheduled_end};
use crate::ids::PriceId;
use crate::lifecycle::state::{ExperimentState, TrialState};
use crate::money::Usd;
use crate::sagemaker::phase::JobPhase;
use crate::sagemaker::requested::Difference;

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
    /// A job that names the trial is not in this database. If the trial is not there either, every project is told.
    #[serde(rename = "trial.unknown_job")]
    TrialUnknownJob {
        job_name: String,
        /// It is being stopped; its cost is in no ledger. Left out when false, as events from before it are.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_stopped: bool,
    },
    #[serde(rename = "trial.orphaned_pool")]
    TrialOrphanedPool { job_name: String },
    #[serde(rename = "trial.pool_settled")]
    TrialPoolSettled(SettledPool),
    #[serde(rename = "trial.checkpoint_stalled")]
    TrialCheckpointStalled(StalledCheckpoint),
    /// Why an attempt's job failed.
    #[serde(rename = "trial.diagnosed")]
    TrialDiagnosed(Diagnosed),
    /// No pattern of a speed meets a line of its log.
    #[serde(rename = "trial.no_readings")]
    TrialNoReadings(UnmatchedPatterns),
    #[serde(rename = "trial.loss_not_finite")]
    TrialLossNotFinite(LossNotFinite),
    #[serde(rename = "trial.unit_doubtful")]
    TrialUnitDoubtful(DoubtfulUnit),
    #[serde(rename = "trial.accelerators_idle")]
    TrialAcceleratorsIdle(IdleAccelerators),
    /// What is stored of the trial cannot be read in full.
    #[serde(rename = "trial.unreadable")]
    TrialUnreadable,
    /// A pipeline's step waits for a person to choose what it buys of the experiment's answer.
    #[serde(rename = "purchase.waiting")]
    PurchaseWaiting(WaitingPurchase),
    /// A person has chosen, or refused.
    #[serde(rename = "purchase.decided")]
    PurchaseDecided(DecidedPurchase),
    /// AWS refuses to schedule the end of its job.
    #[serde(rename = "trial.end_refused")]
    TrialEndRefused { job_name: String, reason: String },
    /// AWS does not stop its job, which goes on being billed.
    #[serde(rename = "trial.stop_refused")]
    TrialStopRefused { job_name: String, reason: String },
    #[serde(rename = "endpoint.changed")]
    EndpointChanged(EndpointNews),
    /// Its time to live is over soon.
    #[serde(rename = "endpoint.expiring")]
    EndpointExpiring(EndpointNews),
    /// A limit on dollars of which much is used.
    #[serde(rename = "budget.threshold")]
    BudgetThreshold(BudgetNews),
    /// An outgoing webhook is sent nothing more.
    #[serde(rename = "webhook.disabled")]
    WebhookDisabled(DisabledWebhook),
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
            Self::TrialNoReadings(_) => "trial.no_readings",
            Self::TrialLossNotFinite(_) => "trial.loss_not_finite",
            Self::TrialUnitDoubtful(_) => "trial.unit_doubtful",
            Self::TrialAcceleratorsIdle(_) => "trial.accelerators_idle",
            Self::TrialUnreadable => "trial.unreadable",
            Self::PurchaseWaiting(_) => "purchase.waiting",
            Self::PurchaseDecided(_) => "purchase.decided",
            Self::EndpointChanged(_) => "endpoint.changed",
            Self::EndpointExpiring(_) => "endpoint.expiring",
            Self::BudgetThreshold(_) => "budget.threshold",
            Self::WebhookDisabled(_) => "webhook.disabled",
            Self::TrialEndRefused { .. } => "trial.end_refused",
            Self::TrialStopRefused { .. } => "trial.stop_refused",
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
            | Self::PurchaseWaiting(_)
            | Self::TrialNoReadings(_)
            | Self::TrialLossNotFinite(_)
            | Self::TrialUnitDoubtful(_)
            | Self::TrialAcceleratorsIdle(_)
            | Self::EndpointExpiring(_)
            | Self::TrialEndRefused { .. }
            | Self::TrialStopRefused { .. }
            | Self::WebhookDisabled(_)
            | Self::TrialWaiting { is_long: true, .. } => EventSeverity::Alarm,
            Self::BudgetThreshold(news) if news.percent >= 100 => EventSeverity::Alarm,
            Self::BudgetThreshold(news) if news.percent >= 80 => EventSeverity::Warning,
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
            | Self::PurchaseDecided(_)
            | Self::BudgetThreshold(_)
            | Self::TrialPoolSettled(_) => EventSeverity::Info,
        }
    }

    /// What a person can do about an alarm; `None` for everything else.
    pub fn way_out(&self) -> Option<String> {
        Some(match self {
            Self::TrialParked(_) => {
                "Remove the cause, then resume its experiment, pipeline or endpoint: what is parked is queued again."
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
            Self::TrialUnknownJob {
                is_stopped: true, ..
            } => "Read its cost in AWS's own bill: no ledger here has it.".to_owned(),
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
            Self::PurchaseWaiting(waiting) => waiting.way_out(),
            Self::TrialNoReadings(none) if none.patch.is_empty() => {
                "Print a speed or the step number in the training log, with a pattern for it in workload.metrics, and \
                 create the experiment again."
                    .to_owned()
            }
            Self::TrialNoReadings(_) => {
                "Apply the patch to the spec, and create a new experiment.".to_owned()
            }
            Self::TrialLossNotFinite(_) => {
                "Lower the learning rate or clip gradients, then go on from a checkpoint before it."
                    .to_owned()
            }
            Self::TrialUnitDoubtful(_) => {
                "Correct the meaning of the metric, or what the script prints: its figures decide \
                 what is bought."
                    .to_owned()
            }
            Self::TrialAcceleratorsIdle(_) => {
                "Read the end of its log (`bakeoff logs`); if it hangs, stop it: `POST /v1/trials/{trial_id}/stop`."
                    .to_owned()
            }
            Self::EndpointExpiring(_) => {
                "Extend it if it is still needed: `PATCH /v1/endpoints/{endpoint_id}` with \
                 time_to_live_hours, or `bakeoff endpoints extend`."
                    .to_owned()
            }
            Self::BudgetThreshold(news) if news.percent >= 100 => news.way_out(),
            Self::WebhookDisabled(disabled) => disabled.way_out(),
            Self::TrialEndRefused { .. } => format!("{}.", scheduled_end::REFUSED),
            Self::TrialStopRefused { job_name, .. } => format!(
                "Stop {job_name} in SageMaker, and allow the service to (deploy/iam/control-plane.json; `bakeoff doctor`)."
            ),
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

/// The sentence of an event: of most kinds, that of its data. The rest is written out.
macro_rules! says {
    ($event:ident, $f:ident, [$($same:ident),* $(,)?], {$($rest:tt)*}) => {
        match $event {
            $(Self::$same(data) => data.fmt($f),)*
            $($rest)*
        }
    };
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        says!(self, f, [
            ExperimentCreated, ExperimentChanged, CiDecided, TrialPlanned, TrialSettingIgnored, TrialOverReservation, TrialBillingCorrected, TrialPoolSettled, TrialCheckpointStalled, TrialUnitDoubtful, TrialAcceleratorsIdle, PurchaseWaiting, PurchaseDecided, EndpointChanged, BudgetThreshold, WebhookDisabled,
        ], {
            Self::ExperimentCancelling => f.write_str("cancel requested"),
            Self::ExperimentPaused => f.write_str("paused by hand"),
            Self::ExperimentResumed { requeued } => {
                write!(f, "resumed; {requeued} parked trials requeued")
            }
            Self::ExperimentConcluded(conclusion) => f.write_str(&conclusion.headline),
            Self::TrialSubmitted { job_name, .. } => write!(f, "{job_name} submitted"),
            Self::TrialStatus(StatusNews {
                status,
                secondary_status,
                ..
            }) => f.write_str(named(secondary_status, status)),
            Self::ExperimentRepriced(Repriced { reason, .. })
            | Self::TrialEndRefused { reason, .. }
            | Self::TrialStopRefused { reason, .. }
            | Self::TrialStopping { reason }
            | Self::TrialReleased { reason }
            | Self::TrialWaiting { reason, .. } => f.write_str(reason),
            Self::TrialTakenOver { owner, seconds } => write!(
                f,
                "its scheduler {owner} did not come back; taken over {seconds:.1} s (real time) \
                 after its last renewal"
            ),
            Self::TrialCompleted(ended)
            | Self::TrialFailed(ended)
            | Self::TrialStopped(ended)
            | Self::TrialRefused(ended)
            | Self::TrialParked(ended)
            | Self::TrialRetrying { ended, .. } => f.write_str(&ended.reason),
            Self::TrialOrphanedJob { job_name } => write!(
                f,
                "{job_name} ran after its attempt had ended; it is stopped, and billed to the \
                 experiment"
            ),
            Self::TrialUnknownJob {
                job_name,
                is_stopped: true,
            } => write!(
                f,
                "{job_name} bears this installation's marker, but is not in this database, and there is no trial to \
                 charge for it. It is stopped, and its cost is booked nowhere"
            ),
            Self::TrialUnknownJob { job_name, .. } => write!(
                f,
                "{job_name} runs and bears this installation's marker, but is not in this database. It is left \
                 alone: another database of the same installation may have created it"
            ),
            Self::TrialOrphanedPool { job_name } => write!(
                f,
                "{job_name} left a warm pool untracked; it is ended, and billed to the experiment"
            ),
            Self::TrialDiagnosed(found) => write!(f, "why it failed: {}", found.summary),
            Self::TrialUnreadable => f.write_str(
                "its stored plan or job data cannot be read. A running job is watched, stopped \
                 and billed; nothing new is started",
            ),
            Self::TrialNoReadings(none) => write!(f, "it teaches nothing: {none}"),
            Self::TrialLossNotFinite(lost) => write!(f, "it teaches nothing: {lost}"),
            Self::EndpointExpiring(news) => news.expires(f),
        })
    }
}

//! API views of events.

use bakeoff_domain::endpoint::{EndpointNews, EndpointState};
use bakeoff_domain::event::{
    AttemptBill, Charge, Conclusion, Created, Diagnosed, Ended, Event, EventSeverity,
    IgnoredSetting, OverReservation, PlannedAttempt, Repriced, StalledCheckpoint, StatusNews,
};
use bakeoff_domain::ids::{ExperimentId, PriceId, TrialId};
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::phase::JobPhase;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::budgets::BudgetNewsView;
use crate::ci_runs::CiNewsView;
use crate::experiments;
use crate::money::{BillingCorrectionView, SettledPoolView};
use crate::purchases::{DecidedPurchaseView, WaitingPurchaseView};
use crate::troubles::{
    DoubtfulUnitView, IdleAcceleratorsView, LossNotFiniteView, UnmatchedPatternsView,
};
use crate::webhook_endpoints::DisabledWebhookView;
use bakeoff_store::events::FeedEntry;

/// One entry of a project's feed
///
/// Ids grow in the order in which entries appear: whoever has read up to an id has missed nothing
/// before it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    pub id: i64,
    /// Absent when the event is about a job that belongs to no known experiment; every project is then told.
    pub experiment_id: Option<ExperimentId>,
    pub trial_id: Option<TrialId>,
    /// The trial's candidate.
    pub candidate: Option<String>,
    /// The trial's purchase option.
    pub purchase_option: Option<String>,
    /// Dotted name, such as `trial.completed`.
    pub kind: String,
    pub severity: EventSeverity,
    /// One sentence, made of `data`.
    pub message: String,
    /// What a person can do about an alarm.
    pub way_out: Option<String>,
    /// Absent for events from before they had data.
    pub data: Option<EventData>,
    pub recorded_at: DateTime<Utc>,
}

/// The data of an event, by its kind
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind")]
pub enum EventData {
    #[serde(rename = "experiment.created")]
    ExperimentCreated(CreatedView),
    #[serde(rename = "experiment.cancelling")]
    ExperimentCancelling,
    #[serde(rename = "experiment.paused")]
    ExperimentPaused,
    #[serde(rename = "experiment.resumed")]
    ExperimentResumed {
        /// Parked trials that were queued again.
        requeued: u64,
    },
    /// It was changed, by a person or after a failure; what stays is absent.
    #[serde(rename = "experiment.changed")]
    ExperimentChanged(experiments::ExperimentChanged),
    #[serde(rename = "experiment.repriced")]
    ExperimentRepriced {
        /// Billed more since the new prices apply; negative for less.
        usd: Usd,
        attempts: u32,
        price_ids: Vec<PriceId>,
        /// Whether the recommendation has changed.
        is_decided_anew: bool,
    },
    #[serde(rename = "experiment.concluded")]
    ExperimentConcluded(ConclusionView),
    /// A gate has judged the commit that it measures.
    #[serde(rename = "ci.decided")]
    CiDecided(CiNewsView),
    /// An attempt is committed, with its reservation.
    #[serde(rename = "trial.planned")]
    TrialPlanned(PlannedAttemptView),
    /// The job exists.
    #[serde(rename = "trial.submitted")]
    TrialSubmitted { attempt: u32, job_name: String },
    #[serde(rename = "trial.status")]
    TrialStatus {
        attempt: u32,
        /// SageMaker's TrainingJobStatus.
        status: String,
        /// SageMaker's SecondaryStatus.
        secondary_status: String,
        phase: JobPhase,
    },
    /// A stop was decided: the trial can no longer change the answer, or has said what it can.
    #[serde(rename = "trial.stopping")]
    TrialStopping { reason: String },
    /// A trial that was held back may start: its figure is worth its price.
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
        /// The scheduler that held the trial.
        owner: String,
        /// Real time since its last renewal.
        seconds: f64,
    },
    #[serde(rename = "trial.setting_ignored")]
    TrialSettingIgnored(IgnoredSettingView),
    #[serde(rename = "trial.completed")]
    TrialCompleted(EndedView),
    #[serde(rename = "trial.failed")]
    TrialFailed(EndedView),
    #[serde(rename = "trial.stopped")]
    TrialStopped(EndedView),
    #[serde(rename = "trial.refused")]
    TrialRefused(EndedView),
    /// An attempt has failed, and the trial waits for the next one.
    #[serde(rename = "trial.retrying")]
    TrialRetrying {
        again_at: DateTime<Utc>,
        #[serde(flatten)]
        ended: EndedView,
    },
    /// The trial waits for a person.
    #[serde(rename = "trial.parked")]
    TrialParked(EndedView),
    #[serde(rename = "trial.over_reservation")]
    TrialOverReservation(OverReservationView),
    #[serde(rename = "trial.billing_corrected")]
    TrialBillingCorrected(BillingCorrectionView),
    /// A job ran after its attempt had ended.
    #[serde(rename = "trial.orphaned_job")]
    TrialOrphanedJob { job_name: String },
    /// A job of this installation is in no row of its database.
    #[serde(rename = "trial.unknown_job")]
    TrialUnknownJob {
        job_name: String,
        /// It is being stopped, and its cost is in no ledger; otherwise it is left alone.
        is_stopped: bool,
    },
    #[serde(rename = "trial.orphaned_pool")]
    TrialOrphanedPool { job_name: String },
    #[serde(rename = "trial.pool_settled")]
    TrialPoolSettled(SettledPoolView),
    #[serde(rename = "trial.checkpoint_stalled")]
    TrialCheckpointStalled(StalledCheckpointView),
    /// Why an attempt's job failed.
    #[serde(rename = "trial.diagnosed")]
    TrialDiagnosed(DiagnosedView),
    #[serde(rename = "trial.unreadable")]
    TrialUnreadable,
    /// No pattern of a speed meets a line of its log.
    #[serde(rename = "trial.no_readings")]
    TrialNoReadings(UnmatchedPatternsView),
    #[serde(rename = "trial.loss_not_finite")]
    TrialLossNotFinite(LossNotFiniteView),
    /// Its speed fits its prediction in another unit only.
    #[serde(rename = "trial.unit_doubtful")]
    TrialUnitDoubtful(DoubtfulUnitView),
    #[serde(rename = "trial.accelerators_idle")]
    TrialAcceleratorsIdle(IdleAcceleratorsView),
    /// A pipeline's step waits for a person to choose what it buys of the experiment's answer.
    #[serde(rename = "purchase.waiting")]
    PurchaseWaiting(WaitingPurchaseView),
    /// A person has chosen, or refused.
    #[serde(rename = "purchase.decided")]
    PurchaseDecided(DecidedPurchaseView),
    /// AWS refuses to schedule the end of its job.
    #[serde(rename = "trial.end_refused")]
    TrialEndRefused { job_name: String, reason: String },
    #[serde(rename = "trial.stop_refused")]
    TrialStopRefused { job_name: String, reason: String },
    #[serde(rename = "endpoint.changed")]
    EndpointChanged(EndpointNewsView),
    /// Its time to live is over soon.
    #[serde(rename = "endpoint.expiring")]
    EndpointExpiring(EndpointNewsView),
    /// A limit on dollars of which much is used: 50, 80 or 100 %.
    #[serde(rename = "budget.threshold")]
    BudgetThreshold(BudgetNewsView),
    /// An outgoing webhook is sent nothing more: its receiver asked for that, or was away for days.
    #[serde(rename = "webhook.disabled")]
    WebhookDisabled(DisabledWebhookView),
}

view! {
    /// An endpoint, and what is new about it
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct EndpointNewsView of EndpointNews {
        pub name: String,
        /// EndpointName.
        pub job_name: String,
        pub state: EndpointState,
        /// Why; of one that runs out, when it is deleted.
        pub reason: String,
    }
}

/// The end of a trial, or of one of its attempts
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndedView {
    pub reason: String,
    /// Absent when no attempt had been made.
    pub attempt: Option<AttemptBillView>,
}

view! {
    /// An experiment as it began
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct CreatedView of Created {
        pub name: String,
        pub trials: u32,
        pub refused: u32,
        /// Trials that cannot change the answer, and do not start.
        #[serde(default)]
        pub skipped: u32,
    }
}

view! {
    /// A setting of a job that SageMaker did not use
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct IgnoredSettingView of IgnoredSetting {
        /// SageMaker's name for the setting.
        pub field: String,
        pub requested: String,
        pub actual: String,
    }
}

view! {
    /// A checkpoint that has not come
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct StalledCheckpointView of StalledCheckpoint {
        pub since_seconds: u64,
        pub interval_seconds: u64,
        /// What an interruption now would lose.
        pub at_risk_usd: Usd,
        pub local_path: String,
    }
}

view! {
    /// The bill of an attempt when it ended
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    pub struct AttemptBillView of AttemptBill {
        pub number: u32,
        pub job_name: String,
        pub billed_seconds: u64,
        /// SageMaker did not report the seconds.
        pub is_estimated: bool,
        /// Training and storage.
        pub usd: Usd,
    }
}

view! {
    /// A charge above its reservation
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    pub struct OverReservationView of OverReservation {
        pub charge: Charge,
        pub job_name: String,
        pub usd: Usd,
        pub reserved_usd: Usd,
    }
}

impl From<Ended> for EndedView {
    fn from(Ended { reason, attempt }: Ended) -> Self {
        Self {
            reason,
            attempt: attempt.map(Into::into),
        }
    }
}

view! {
    /// How an experiment ended.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = ExperimentConclusion)]
    pub struct ConclusionView of Conclusion {
        pub state: ExperimentState,
        pub headline: String,
        /// The recommended candidate, if the conclusion is clear.
        pub winner: Option<String>,
    }
}

view! {
    /// An attempt that is committed, with its reservation.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = PlannedAttempt)]
    pub struct PlannedAttemptView of PlannedAttempt {
        pub attempt: u32,
        pub job_name: String,
        pub reserved_usd: Usd,
    }
}

view! {
    /// Why an attempt's job failed.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Diagnosed)]
    pub struct DiagnosedView of Diagnosed {
        pub attempt: u32,
        pub job_name: String,
        /// The likeliest cause and what to do.
        pub summary: String,
        /// Of the likeliest cause, such as `accelerator-memory-exhausted`.
        pub signature: Option<String>,
    }
}

impl EventData {
    fn trial_status(news: StatusNews) -> Self {
        Self::TrialStatus {
            attempt: news.attempt,
            status: news.status,
            phase: JobPhase::of(&news.secondary_status),
            secondary_status: news.secondary_status,
        }
    }

    fn retrying(again_at: DateTime<Utc>, ended: Ended) -> Self {
        Self::TrialRetrying {
            again_at,
            ended: ended.into(),
        }
    }

    fn repriced(repriced: Repriced) -> Self {
        Self::ExperimentRepriced {
            usd: repriced.usd,
            attempts: repriced.attempts,
            price_ids: repriced.price_ids,
            is_decided_anew: repriced.is_decided_anew,
        }
    }
}

/// The view of an event: of most kinds, that of its data. The rest is written out.
macro_rules! view {
    ($event:expr, same [$($same:ident),* $(,)?], bare [$($bare:ident),* $(,)?], {$($rest:tt)*}) => {
        match $event {
            $(Event::$same(data) => Self::$same(data.into()),)*
            $(Event::$bare => Self::$bare,)*
            $($rest)*
        }
    };
}

impl From<Event> for EventData {
    fn from(event: Event) -> Self {
        view!(
            event,
            same [
                ExperimentCreated, ExperimentChanged, ExperimentConcluded, CiDecided, TrialPlanned,
                TrialSettingIgnored, TrialBillingCorrected, TrialPoolSettled, TrialCheckpointStalled,
                TrialDiagnosed, TrialNoReadings, TrialLossNotFinite, TrialUnitDoubtful,
                TrialAcceleratorsIdle, PurchaseWaiting, PurchaseDecided, EndpointChanged,
                EndpointExpiring, TrialCompleted, TrialFailed, TrialStopped, TrialRefused, TrialParked,
                TrialOverReservation, BudgetThreshold, WebhookDisabled,
            ],
            bare [ExperimentCancelling, ExperimentPaused, TrialUnreadable],
            {
                Event::ExperimentResumed { requeued } => Self::ExperimentResumed { requeued },
                Event::TrialSubmitted { attempt, job_name } => Self::TrialSubmitted { attempt, job_name },
                Event::TrialWaiting { reason, is_long } => Self::TrialWaiting { reason, is_long },
                Event::TrialTakenOver { owner, seconds } => Self::TrialTakenOver { owner, seconds },
                Event::TrialOrphanedJob { job_name } => Self::TrialOrphanedJob { job_name },
                Event::TrialUnknownJob { job_name, is_stopped } => Self::TrialUnknownJob { job_name, is_stopped },
                Event::TrialOrphanedPool { job_name } => Self::TrialOrphanedPool { job_name },
                Event::TrialEndRefused { job_name, reason } => Self::TrialEndRefused { job_name, reason },
                Event::TrialStopRefused { job_name, reason } => Self::TrialStopRefused { job_name, reason },
                Event::TrialStopping { reason } => Self::TrialStopping { reason },
                Event::TrialReleased { reason } => Self::TrialReleased { reason },
                Event::TrialRetrying { again_at, ended } => Self::retrying(again_at, ended),
                Event::ExperimentRepriced(repriced) => Self::repriced(repriced),
                Event::TrialStatus(news) => Self::trial_status(news),
            }
        )
    }
}

impl From<FeedEntry> for EventView {
    fn from(entry: FeedEntry) -> Self {
        let FeedEntry {
            id,
            experiment_id,
            trial_id,
            candidate,
            purchase_option,
            kind,
            severity,
            message,
            event,
            recorded_at,
        } = entry;
        Self {
            id,
            experiment_id,
            trial_id,
            candidate,
            purchase_option,
            kind,
            severity,
            message,
            way_out: event.as_ref().and_then(Event::way_out),
            data: event.map(Into::into),
            recorded_at,
        }
    }
}

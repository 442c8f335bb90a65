//! Faults on demand: what the region does wrong, and how often. They are set on the command line
//! and can be changed at runtime (`POST /_sim/faults`); the record counts the injected faults by
//! kind.

use clap::Args;
use serde::{Deserialize, Serialize};

/// Default for how long a temporary fault lasts at most.
const SECONDS: f64 = 300.0;

/// Probabilities from 0 to 1.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Faults {
    /// Share of calls answered with ThrottlingException.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) throttle: f64,
    /// Share of CreateTrainingJob calls that create the job and answer with a 500.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) lost_reply: f64,
    /// Share of CreateModelPackage calls whose client token counts for nothing, as it does some time
    /// after.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) forgotten_token: f64,
    /// Share of new model package groups that the next CreateModelPackage does not find yet.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) late_group: f64,
    /// Share of CreateTrainingJob calls with a name already in use that are answered with
    /// AccessDeniedException, as after a change of permissions.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) deny_again: f64,
    /// Share of calls answered with a 500 and not carried out.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) server_error: f64,
    /// Share of calls that are not carried out and get no answer.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) hang_before: f64,
    /// Share of calls that are carried out and get no answer.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) hang_after: f64,
    /// Share of calls whose connection is closed and that are not carried out.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) reset_before: f64,
    /// Share of calls that are carried out, and whose connection is then closed.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) reset_after: f64,
    /// Share of replies that are cut off in the middle.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) truncate: f64,
    /// Share of replies that are slow, but within the timeout.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) slow: f64,
    /// Share of calls refused with ExpiredTokenException.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) expired_credentials: f64,
    /// Share of calls that are not carried out, and answered with an unknown error code and a
    /// status below 500.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) unknown_code: f64,
    /// Share of jobs that Describe and List learn of late, and show in an earlier state.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) lag: f64,
    /// Maximum lag of such jobs, in seconds.
    #[arg(long, default_value_t = SECONDS)]
    pub(crate) lag_seconds: f64,
    /// Share of Describe calls for a job described before that answer as if it did not exist.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) forgotten: f64,
    /// Share of jobs whose billing times are missing for a while after their end.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) billing_late: f64,
    /// Share of jobs whose billing times are too low for a while after their end.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) billing_low: f64,
    /// Maximum time that billing times stay missing or low, in seconds.
    #[arg(long, default_value_t = SECONDS)]
    pub(crate) billing_seconds: f64,
    /// Share of ListTrainingJobs pages that are cut short and continue on the next page.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) short_pages: f64,
    /// Share of calls with a NextToken that are refused because it has expired.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) expired_page: f64,
    /// Share of jobs that wait as Pending before they start.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) pending: f64,
    /// Share of spot jobs that are never launched.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) no_spot_capacity: f64,
    /// Share of Describe and List entries with statuses that no SDK knows.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) odd_status: f64,
    /// Share of Describe and List entries of training jobs that are over which show them as being deleted.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) deleting: f64,
    /// Share of jobs whose keep-alive and checkpoint settings are silently dropped.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) silent_drop: f64,
    /// Share of on-demand jobs that fail with CapacityError before they start.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) no_capacity: f64,
    /// Share of jobs that fail with InternalServerError in the middle of training.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) internal_error: f64,
    /// Share of jobs that fail with AlgorithmError in the middle of training.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) algorithm_error: f64,
    /// Share of pushed events that are lost.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) event_loss: f64,
    /// Share of pushed events that are delivered twice.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) event_duplicate: f64,
    /// Share of pushed events that are delayed, most of them past their successors.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) event_late: f64,
    /// Maximum delay of events, in seconds.
    #[arg(long, default_value_t = SECONDS)]
    pub(crate) event_late_seconds: f64,
    /// Share of GetMetricData answers with half of each series and StatusCode PartialData.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) partial_metrics: f64,
    /// Share of series that are returned empty, with StatusCode InternalError.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) failed_series: f64,
    /// Share of GetMetricData answers that are split into two pages.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) metric_pages: f64,
    /// Share of jobs whose checkpoints stop being synced to S3 after the first.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) checkpoint_stall: f64,
    /// Share of pages of log events that are empty and have a successor.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) empty_log_page: f64,
}

/// A fault in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallFault {
    ServerError,
    HangBefore,
    HangAfter,
    ResetBefore,
    ResetAfter,
    Truncate,
    Slow,
    ExpiredCredentials,
    UnknownCode,
}

impl CallFault {
    /// Whether it prevents the call from being carried out.
    pub(crate) fn is_before(self) -> bool {
        use CallFault::{ExpiredCredentials, HangBefore, ResetBefore, ServerError, UnknownCode};
        matches!(
            self,
            ServerError | HangBefore | ResetBefore | ExpiredCredentials | UnknownCode
        )
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ServerError => "server_error",
            Self::HangBefore => "timeout_before",
            Self::HangAfter => "done_then_timeout",
            Self::ResetBefore => "reset_before",
            Self::ResetAfter => "done_then_reset",
            Self::Truncate => "truncated_reply",
            Self::Slow => "slow_reply",
            Self::ExpiredCredentials => "expired_credentials",
            Self::UnknownCode => "unknown_code",
        }
    }
}

impl Faults {
    /// The fault that a roll between 0 and 1 stands for.
    pub(crate) fn on_call(&self, roll: f64) -> Option<CallFault> {
        let kinds = [
            (self.server_error, CallFault::ServerError),
            (self.hang_before, CallFault::HangBefore),
            (self.hang_after, CallFault::HangAfter),
            (self.reset_before, CallFault::ResetBefore),
            (self.reset_after, CallFault::ResetAfter),
            (self.truncate, CallFault::Truncate),
            (self.slow, CallFault::Slow),
            (self.expired_credentials, CallFault::ExpiredCredentials),
            (self.unknown_code, CallFault::UnknownCode),
        ];
        let mut sum = 0.0;
        kinds.into_iter().find_map(|(share, kind)| {
            sum += share;
            (roll < sum).then_some(kind)
        })
    }
}

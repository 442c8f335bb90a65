//! The sentences of what events carry.

use std::fmt;

use super::{IgnoredSetting, PlannedAttempt, SettledPool, StalledCheckpoint};

impl fmt::Display for PlannedAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            attempt,
            job_name,
            reserved_usd,
        } = self;
        write!(
            f,
            "attempt {attempt} planned as {job_name}, {reserved_usd} reserved"
        )
    }
}

impl fmt::Display for IgnoredSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            requested,
            actual,
        } = self;
        write!(
            f,
            "SageMaker uses {field} {actual}, but {requested} was requested"
        )
    }
}

impl fmt::Display for SettledPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            instance_type,
            retained_seconds,
            usd,
            ..
        } = self;
        write!(
            f,
            "warm pool of {instance_type} kept for {retained_seconds} s: {usd}"
        )
    }
}

impl fmt::Display for StalledCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            since_seconds,
            interval_seconds,
            at_risk_usd,
            ..
        } = self;
        write!(
            f,
            "no checkpoint for {} minutes, although one every {} was announced: an interruption now would lose \
             {at_risk_usd} of work",
            since_seconds / 60,
            interval_seconds / 60
        )
    }
}

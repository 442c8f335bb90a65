//! Dollars in events: the bill of an attempt, and charges above their reservation.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::money::Usd;

/// The bill of an attempt's job, as far as it is known when the attempt ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptBill {
    /// Of the attempt, from 1.
    pub number: u32,
    pub job_name: String,
    pub billed_seconds: u64,
    /// True when SageMaker did not report the seconds.
    pub is_estimated: bool,
    /// Training and storage; metrics are settled later.
    pub usd: Usd,
}

/// How a trial, or one of its attempts, came to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub reason: String,
    /// None when no attempt had been made.
    pub attempt: Option<AttemptBill>,
}

named! {
    /// What a charge was for
    Charge {
        Job = "job",
        WarmPool = "warm_pool",
        Metrics = "metrics",
    }
}

impl fmt::Display for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "the job",
            Self::WarmPool => "the warm pool",
            Self::Metrics => "reading the metrics",
        })
    }
}

/// A charge above its reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverReservation {
    pub charge: Charge,
    pub job_name: String,
    pub usd: Usd,
    pub reserved_usd: Usd,
}

impl fmt::Display for OverReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            charge,
            job_name,
            usd,
            reserved_usd,
        } = self;
        match charge {
            Charge::Job => f.write_str(job_name)?,
            Charge::WarmPool | Charge::Metrics => write!(f, "{charge} of {job_name}")?,
        }
        write!(
            f,
            " cost {usd}, more than the {reserved_usd} reserved for it"
        )
    }
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

/// What a warm pool cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledPool {
    /// The job that left it.
    pub job_name: String,
    pub instance_type: String,
    pub retained_seconds: u64,
    pub usd: Usd,
}

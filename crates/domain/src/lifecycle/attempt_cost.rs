//! What attempts cost and how their billed time divides, for tables: so far, wasted, saved by spot.
//! Nothing is booked from these figures; bills are in [`crate::money::bill`].

use chrono::{DateTime, Utc};

use crate::lifecycle::spot;
use crate::lifecycle::state::{AttemptEnd, AttemptPhase};
use crate::money::Usd;
use crate::money::bill::{self, Agreed, Usage};
use crate::money::price::Price;
use crate::number::real;
use crate::sagemaker::kind::JobKind;
use crate::sagemaker::observed::{self, Transition, seconds_between};
use crate::sagemaker::phase::JobPhase;
use crate::spec::PurchaseOption;

/// An attempt's job, as far as it has run.
#[derive(Debug, Clone, Copy)]
pub struct AttemptRun<'a> {
    pub instance_type: &'a str,
    pub region: &'a str,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    pub agreed: Agreed,
    pub phase: AttemptPhase,
    /// SageMaker's last word was `InProgress`.
    pub is_in_progress: bool,
    pub transitions: &'a [Transition],
    /// Per instance, as SageMaker reports them at the end.
    pub training_seconds: Option<u64>,
    pub billable_seconds: Option<u64>,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
    /// SageMaker's LastModifiedTime, as last seen.
    pub modified_at: Option<DateTime<Utc>>,
    /// Time of the last complete listing.
    pub listed_at: Option<DateTime<Utc>>,
    /// When its checkpoints were written, as far as [`spot::needed_checkpoints`] keeps them.
    pub checkpoints: &'a [DateTime<Utc>],
}

impl AttemptRun<'_> {
    fn has_failed(&self) -> bool {
        self.phase == AttemptPhase::Over(AttemptEnd::Failed)
    }

    /// Billed seconds of training that an interruption lost; managed spot bills each second in the same proportion.
    fn lost_seconds(&self) -> Option<u64> {
        let lost = spot::lost_seconds(self.transitions, self.checkpoints);
        let (trained, billed) = (self.training_seconds?, self.billable_seconds?);
        (lost * billed)
            .checked_div(trained)
            .map(|lost| lost.min(billed))
    }

    /// The cost of some of its seconds, at the prices in force while it ran.
    fn cost(&self, prices: &[Price], until: DateTime<Utc>, seconds: u64) -> Usd {
        let Some(from) = self.started_at else {
            return Usd::ZERO;
        };
        let usage = Usage {
            kind: JobKind::Training,
            instance_type: self.instance_type.to_owned(),
            region: self.region.to_owned(),
            count: self.instance_count,
            from,
            until: until.max(from),
            waits: observed::waits(self.transitions),
            billed_seconds: seconds,
            run_seconds: seconds,
            volume_gb: 0,
        };
        bill::lines(&usage, prices, &[], self.agreed)
            .iter()
            .map(|line| line.usd)
            .sum()
    }
}

/// The cost of attempts that failed, and of the work that interruptions lost in the others. Known at their end.
pub fn wasted(runs: &[AttemptRun<'_>], prices: &[Price]) -> Usd {
    let cost = runs.iter().filter_map(|run| {
        let seconds = if run.has_failed() {
            run.billable_seconds?
        } else {
            run.lost_seconds()?
        };
        Some(run.cost(prices, run.ended_at?, seconds))
    });
    cost.sum()
}

/// Lower bound on the cost of running attempts: from the start of billing to when they were last
/// known to run, without waiting time. It never exceeds what will be settled, so it never falls.
/// Spot savings are known only at the end, so spot counts its minimum cost.
pub fn so_far(runs: &[AttemptRun<'_>], prices: &[Price], now: DateTime<Utc>) -> Usd {
    let running = runs.iter().filter(|run| !run.phase.is_over());
    let cost = running.filter_map(|run| {
        let from = run.started_at?;
        let known = if run.is_in_progress {
            run.listed_at
        } else {
            run.modified_at
        };
        let until = run.ended_at.or(known)?.min(now).max(from);
        let ran = observed::ran(from, until, &observed::waits(run.transitions));
        let seconds = match run.purchase_option {
            PurchaseOption::OnDemand => ran,
            PurchaseOption::Spot => ran * u64::from(100 - spot::SAVING_PERCENT_MAX) / 100,
        };
        Some(run.cost(prices, until, seconds))
    });
    cost.sum()
}

/// How much more ended spot attempts would have cost on demand, for the time they ran.
pub fn spot_saved(runs: &[AttemptRun<'_>], prices: &[Price]) -> Usd {
    let spot = runs
        .iter()
        .filter(|run| run.purchase_option == PurchaseOption::Spot);
    spot.filter_map(|run| {
        let seconds = run.training_seconds?.checked_sub(run.billable_seconds?)?;
        Some(run.cost(prices, run.ended_at?, seconds))
    })
    .sum()
}

/// Seconds in SageMaker's phases, as far as they have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PhaseSeconds {
    /// Waiting for instances; not billed.
    pub starting: u64,
    pub pulling: u64,
    pub downloading: u64,
    pub training: u64,
    pub uploading: u64,
}

impl PhaseSeconds {
    /// Adds up the transitions of all attempts.
    pub fn of(runs: &[AttemptRun<'_>]) -> Self {
        let mut phases = Self::default();
        for transition in runs.iter().flat_map(|run| run.transitions) {
            let Some(ended_at) = transition.ended_at else {
                continue;
            };
            let seconds = seconds_between(transition.started_at, ended_at);
            match transition.phase() {
                JobPhase::Starting => phases.starting += seconds,
                JobPhase::PullingImage => phases.pulling += seconds,
                JobPhase::DownloadingData => phases.downloading += seconds,
                JobPhase::Training => phases.training += seconds,
                JobPhase::UploadingModel => phases.uploading += seconds,
                JobPhase::Unreported
                | JobPhase::Processing
                | JobPhase::Interrupted
                | JobPhase::Stopping
                | JobPhase::RuntimeLimit
                | JobPhase::WaitLimit
                | JobPhase::Over
                | JobPhase::Other => {}
            }
        }
        phases
    }

    /// Loading the image and the data.
    pub fn loading(&self) -> u64 {
        self.pulling + self.downloading
    }
}

/// How the billed seconds of ended attempts are divided; the shares add up to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BilledShares {
    /// From the start of billing: pulling the image, and time outside SageMaker's named phases.
    pub setup: f64,
    pub downloading: f64,
    pub training: f64,
    pub uploading: f64,
    /// Attempts that failed, in all their phases, and training that interruptions lost.
    pub wasted: f64,
}

impl BilledShares {
    /// Managed spot bills less than the running time; the billed time is assumed to divide in the
    /// same proportions. None while nothing has been billed.
    pub fn of(runs: &[AttemptRun<'_>]) -> Option<Self> {
        let total: u64 = runs.iter().filter_map(|run| run.billable_seconds).sum();
        if total == 0 {
            return None;
        }
        let mut sum = Self::default();
        for run in runs {
            let Some(share) = run.billable_seconds.map(|own| real(own) / real(total)) else {
                continue;
            };
            if run.has_failed() {
                sum.wasted += share;
                continue;
            }
            let phases = PhaseSeconds::of(&[*run]);
            let known = phases.loading() + phases.training + phases.uploading;
            let ran = run
                .started_at
                .zip(run.ended_at)
                .map_or(0, |(start, end)| seconds_between(start, end));
            let time = real(ran.max(known).max(1));
            let of = |seconds: u64| share * real(seconds) / time;
            sum.downloading += of(phases.downloading);
            let lost =
                of(spot::lost_seconds(run.transitions, run.checkpoints).min(phases.training));
            sum.wasted += lost;
            sum.training += of(phases.training) - lost;
            sum.uploading += of(phases.uploading);
            sum.setup += share - of(phases.downloading + phases.training + phases.uploading);
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use rust_decimal::Decimal;
    use uuid::Uuid;

    use super::*;
    use crate::ids::PriceId;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    /// A job at $36 an hour, which is a cent a second, that ran for an hour.
    fn run(transitions: &[Transition]) -> AttemptRun<'_> {
        AttemptRun {
            instance_type: "ml.p4d.24xlarge",
            region: "us-east-1",
            instance_count: 1,
            purchase_option: PurchaseOption::OnDemand,
            agreed: Agreed {
                price_id: PriceId(Uuid::nil()),
                usd_per_hour: Usd(Decimal::from(36)),
                estimated: false,
            },
            phase: AttemptPhase::Over(AttemptEnd::Completed),
            is_in_progress: false,
            transitions,
            training_seconds: Some(3600),
            billable_seconds: Some(3600),
            started_at: Some(at(0)),
            ended_at: Some(at(3600)),
            modified_at: Some(at(3600)),
            listed_at: None,
            checkpoints: &[],
        }
    }

    fn usd(cents: i64) -> Usd {
        Usd(Decimal::new(cents, 2))
    }

    #[test]
    fn a_running_job_costs_what_it_certainly_has_used() {
        let running = AttemptRun {
            phase: AttemptPhase::Running,
            is_in_progress: true,
            ended_at: None,
            modified_at: Some(at(60)),
            listed_at: Some(at(1000)),
            ..run(&[])
        };
        assert_eq!(so_far(&[running], &[], at(5000)), usd(1000));
        let silent = AttemptRun {
            is_in_progress: false,
            ..running
        };
        assert_eq!(so_far(&[silent], &[], at(5000)), usd(60));
        let spot = AttemptRun {
            purchase_option: PurchaseOption::Spot,
            ..running
        };
        let least = i64::from(100 - spot::SAVING_PERCENT_MAX) * 10;
        assert_eq!(so_far(&[spot], &[], at(5000)), usd(least));
        assert_eq!(so_far(&[run(&[])], &[], at(5000)), usd(0), "it is over");
    }

    #[test]
    fn only_failed_attempts_are_waste_and_only_spot_saves() {
        let failed = AttemptRun {
            phase: AttemptPhase::Over(AttemptEnd::Failed),
            billable_seconds: Some(100),
            ..run(&[])
        };
        assert_eq!(wasted(&[failed, run(&[])], &[]), usd(100));
        let spot = AttemptRun {
            purchase_option: PurchaseOption::Spot,
            billable_seconds: Some(1000),
            ..run(&[])
        };
        assert_eq!(spot_saved(&[spot, failed], &[]), usd(2600));
    }

    fn transition(status: &str, from: i64, until: i64) -> Transition {
        Transition {
            status: status.to_owned(),
            message: String::new(),
            started_at: at(from),
            ended_at: Some(at(until)),
        }
    }

    #[test]
    fn work_that_an_interruption_lost_is_waste_at_the_price_of_spot() {
        let transitions = [
            transition("Downloading", 0, 100),
            transition("Training", 100, 1100),
            transition("Interrupted", 1100, 1300),
            transition("Training", 1300, 3300),
        ];
        let spot = AttemptRun {
            purchase_option: PurchaseOption::Spot,
            training_seconds: Some(3000),
            billable_seconds: Some(900),
            ended_at: Some(at(3300)),
            ..run(&transitions)
        };
        assert_eq!(wasted(&[spot], &[]), usd(300), "1,000 seconds at 30 %");
        let checkpoints = [at(900)];
        let saved = AttemptRun {
            checkpoints: &checkpoints,
            ..spot
        };
        assert_eq!(wasted(&[saved], &[]), usd(60), "200 seconds at 30 %");
        let shares = BilledShares::of(&[saved]).unwrap();
        assert!((shares.wasted - 200.0 / 3300.0).abs() < 1e-9, "{shares:?}");
        assert!(
            (shares.training - 2800.0 / 3300.0).abs() < 1e-9,
            "{shares:?}"
        );
    }

    #[test]
    fn the_shares_of_billed_time_add_up_to_one() {
        let transitions = [
            transition("Downloading", 0, 360),
            transition("Training", 360, 3240),
            transition("Uploading", 3240, 3600),
        ];
        let failed = AttemptRun {
            phase: AttemptPhase::Over(AttemptEnd::Failed),
            billable_seconds: Some(1200),
            ..run(&[])
        };
        let shares = BilledShares::of(&[run(&transitions), failed]).unwrap();
        let all = [
            shares.setup,
            shares.downloading,
            shares.training,
            shares.uploading,
            shares.wasted,
        ];
        assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!((shares.wasted - 0.25).abs() < 1e-12);
        assert!((shares.training - 0.75 * 0.8).abs() < 1e-12);
        assert_eq!(BilledShares::of(&[]), None);
    }
}

//! API views of money: the ledger, spending, corrections.

use bakeoff_domain::event::{BillingCorrection, SettledPool};
use bakeoff_domain::ids::{ExperimentId, JobId, PriceId, TrialId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::{EntryComponent, EntryKind, EntryResource, EntryUnit};
use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use bakeoff_store::money::ledger::LedgerRow;

view! {
    /// One ledger entry.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    pub struct LedgerEntryView of LedgerRow {
        pub id: i64,
        /// The trial whose job it was, if it was a trial's.
        pub trial_id: Option<TrialId>,
        pub job_id: JobId,
        pub kind: EntryKind,
        pub resource: EntryResource,
        pub component: EntryComponent,
        pub usd: Usd,
        pub quantity: i64,
        /// Of `quantity`.
        pub unit: EntryUnit,
        pub price_id: Option<PriceId>,
        pub estimated: bool,
        /// Start of use, for settled and adjusted entries.
        pub used_from: Option<DateTime<Utc>>,
        pub used_until: Option<DateTime<Utc>>,
        pub recorded_at: DateTime<Utc>,
    }
}

/// Settled spending of one group.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct SpendingRow {
    pub day: Option<NaiveDate>,
    pub experiment_id: Option<ExperimentId>,
    /// The experiment's name, where rows are of an experiment or a trial.
    #[serde(default)]
    pub experiment_name: Option<String>,
    pub trial_id: Option<TrialId>,
    pub training_usd: Usd,
    /// Cost of processing jobs.
    pub processing_usd: Usd,
    /// Cost of the trials of tuning jobs.
    #[serde(default)]
    pub tuning_usd: Usd,
    /// Cost of batch transform jobs.
    #[serde(default)]
    pub transform_usd: Usd,
    /// Cost of endpoints.
    #[serde(default)]
    pub hosting_usd: Usd,
    pub warm_pool_usd: Usd,
    pub storage_usd: Usd,
    /// Cost of orphaned jobs.
    pub orphaned_jobs_usd: Usd,
    /// Cost of reading metrics.
    pub cloudwatch_usd: Usd,
    pub total_usd: Usd,
    /// True while part of it is an estimate.
    pub estimated: bool,
    /// Amount saved by managed spot. By day, it counts on the day the attempt ended.
    pub spot_saved_usd: Usd,
}

impl SpendingRow {
    /// Adds dollars of a component, to its column and to the total.
    pub fn add(&mut self, component: EntryComponent, usd: Usd) {
        self.total_usd += usd;
        match component {
            EntryComponent::Training => self.training_usd += usd,
            EntryComponent::Processing => self.processing_usd += usd,
            EntryComponent::Tuning => self.tuning_usd += usd,
            EntryComponent::Transform => self.transform_usd += usd,
            EntryComponent::Hosting => self.hosting_usd += usd,
            EntryComponent::WarmPool => self.warm_pool_usd += usd,
            EntryComponent::Storage => self.storage_usd += usd,
            EntryComponent::OrphanedJob => self.orphaned_jobs_usd += usd,
            EntryComponent::Cloudwatch => self.cloudwatch_usd += usd,
        }
    }
}

/// Spending over a period.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Spending {
    pub currency: String,
    pub from: DateTime<Utc>,
    pub until: DateTime<Utc>,
    pub rows: Vec<SpendingRow>,
    pub total: SpendingRow,
}

/// The result of a correction.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CorrectionView {
    pub job_id: JobId,
    /// By how much the attempt's cost rose over the booked amount; negative if it fell.
    pub adjusted_usd: Usd,
}

view! {
    /// The cost of a warm pool
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct SettledPoolView of SettledPool {
        /// The job that left it.
        pub job_name: String,
        pub instance_type: String,
        pub retained_seconds: u64,
        pub usd: Usd,
    }
}

view! {
    /// A bill that a person corrected.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = BillingCorrection)]
    pub struct BillingCorrectionView of BillingCorrection {
        pub job_name: String,
        pub billed_seconds: u64,
        /// The correction.
        pub usd: Usd,
        pub reason: String,
    }
}

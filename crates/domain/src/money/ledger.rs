//! The words of the ledger: what an entry is, what it pays for, and in which unit it is counted.

use crate::sagemaker::kind::JobKind;

named! {
    /// What an entry does.
    EntryKind {
        /// Holds a worst case against the budget.
        Reserved = "reserved",
        /// Gives a reservation back.
        Released = "released",
        /// A cost.
        Settled = "settled",
        /// A later correction of a cost; negative if it fell.
        Adjusted = "adjusted",
    }
}

named! {
    /// What ran, and has its own bill.
    EntryResource {
        /// The job of an attempt.
        Job = "job",
        /// The instances kept after it.
        WarmPool = "warm_pool",
        /// The same job, when it ran after its attempt had ended.
        OrphanedJob = "orphaned_job",
    }
}

impl EntryResource {
    /// The component of its instances, those of a job of a kind; its volumes are `storage`.
    pub fn instances(self, kind: JobKind) -> EntryComponent {
        match self {
            Self::Job => match kind {
                JobKind::Training => EntryComponent::Training,
                JobKind::Processing => EntryComponent::Processing,
                JobKind::Tuning => EntryComponent::Tuning,
                JobKind::Transform => EntryComponent::Transform,
                JobKind::Endpoint => EntryComponent::Hosting,
            },
            Self::WarmPool => EntryComponent::WarmPool,
            Self::OrphanedJob => EntryComponent::OrphanedJob,
        }
    }
}

named! {
    /// What an entry pays for.
    EntryComponent {
        /// The instances of an attempt's training job.
        Training = "training",
        /// The instances of a processing job.
        Processing = "processing",
        /// The instances of the trials of a tuning job.
        Tuning = "tuning",
        /// The instances of a batch transform job.
        Transform = "transform",
        /// The instances of an endpoint.
        Hosting = "hosting",
        /// Instances kept after a job.
        WarmPool = "warm_pool",
        /// The volumes of jobs and warm pools.
        Storage = "storage",
        /// Reading metrics.
        Cloudwatch = "cloudwatch",
        /// The instances of a job that ran after its attempt had ended.
        OrphanedJob = "orphaned_job",
    }
}

named! {
    /// What an entry's quantity counts.
    EntryUnit {
        InstanceSeconds = "instance_seconds",
        GbSeconds = "gb_seconds",
        MetricsRequested = "metrics_requested",
        /// Nothing: the amount is an upper bound.
        WorstCase = "worst_case",
    }
}

impl EntryComponent {
    /// The unit of its costs.
    pub fn unit(self) -> EntryUnit {
        match self {
            Self::Training
            | Self::Processing
            | Self::Tuning
            | Self::Transform
            | Self::Hosting
            | Self::WarmPool
            | Self::OrphanedJob => EntryUnit::InstanceSeconds,
            Self::Storage => EntryUnit::GbSeconds,
            Self::Cloudwatch => EntryUnit::MetricsRequested,
        }
    }
}

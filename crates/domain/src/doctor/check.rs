//! One check: what it is about, how it went, what was found and what mends it. How it is judged is in the
//! other files.

named! {
    /// What a check is about.
    CheckName {
        /// PostgreSQL: version, schema, answer time, clock.
        Database = "database",
        /// The background tasks of this process.
        Tasks = "tasks",
        /// This machine's clock against AWS's: requests are signed with the time.
        Clock = "clock",
        /// Who AWS says the service is, and whether the account is the installation's.
        Credentials = "credentials",
        /// Whether the service may create, watch and stop its jobs.
        OwnJobs = "own_jobs",
        /// Whether it may list jobs.
        JobList = "job_list",
        /// The execution role: exists, in the same account, may be assumed by SageMaker.
        Role = "role",
        /// Whether the service may pass that role to SageMaker.
        PassRole = "pass_role",
        /// What that role may do: read inputs, write output and logs, pull the image.
        RolePermissions = "role_permissions",
        /// Whether AWS itself ends endpoints and batch transforms, also if the service is away.
        ScheduledEnds = "scheduled_ends",
        /// A bucket: exists, in the region of the jobs, listable.
        Bucket = "bucket",
        /// The training image: exists, in the region of the jobs.
        Image = "image",
        /// How many instances may run; 0 in a new account.
        Quotas = "quotas",
        /// Whether the logs of jobs may be read.
        Logs = "logs",
        /// Whether their metrics may be read.
        Metrics = "metrics",
        /// Whether AWS's price list may be read.
        PriceList = "price_list",
        /// Whether what is to be used has a price; without one, nothing is started.
        Prices = "prices",
    }
}

named! {
    /// The result of a check.
    CheckState {
        Ok = "ok",
        /// Works, with a limit that somebody should know.
        Warning = "warning",
        /// Jobs will fail, or not be started or seen.
        Failed = "failed",
        /// Could not be looked at, or nothing was named to look at.
        Unknown = "unknown",
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: CheckName,
    /// Which bucket, role or image; empty where there is only one thing it can be.
    pub subject: String,
    pub state: CheckState,
    pub detail: String,
    /// The line that mends it.
    pub fix: Option<String>,
}

impl Check {
    pub(super) fn new(name: CheckName, state: CheckState, detail: impl Into<String>) -> Self {
        Self {
            name,
            subject: String::new(),
            state,
            detail: detail.into(),
            fix: None,
        }
    }

    pub(super) fn ok(name: CheckName, detail: impl Into<String>) -> Self {
        Self::new(name, CheckState::Ok, detail)
    }

    pub(super) fn warning(name: CheckName, detail: impl Into<String>) -> Self {
        Self::new(name, CheckState::Warning, detail)
    }

    pub(super) fn failed(name: CheckName, detail: impl Into<String>) -> Self {
        Self::new(name, CheckState::Failed, detail)
    }

    pub(super) fn unknown(name: CheckName, detail: impl Into<String>) -> Self {
        Self::new(name, CheckState::Unknown, detail)
    }

    pub(super) fn of(self, subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            ..self
        }
    }

    pub(super) fn fix(self, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..self
        }
    }
}

//! Decides who must be asked before money is reserved, and what they answer. Each limit is a level: the experiment's own
//! budget, its pipeline's, its CI template's, its project's, the installation's. The store locks their rows and asks
//! [`decide`] in the transaction that reserves; nothing else grants a reservation.

use std::fmt;

use chrono::{DateTime, Datelike, NaiveDate, TimeDelta, Utc};
use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{PipelineId, TemplateId};
use crate::money::Usd;

/// The largest amount that a limit may be.
pub const LIMIT_USD_MAX: u32 = 1_000_000_000;
/// Shares of a limit that are told once each, percent.
pub const ALARM_PERCENTS: [u32; 3] = [50, 80, 100];
/// A CI template that states no limits: runs at once, and how often its experiment's budget a day and a month.
const RUNS_AT_ONCE: u32 = 10;
const BUDGETS_PER_DAY: u32 = 10;
const BUDGETS_PER_MONTH: u32 = 100;
/// A forecast made earlier in its month would say nothing.
const FORECAST_AFTER: TimeDelta = TimeDelta::days(1);

named! {
    /// What a limit on dollars belongs to, in the order in which they are asked
    BudgetLevel {
        Experiment = "experiment",
        /// The installation's limit on any one experiment.
        ExperimentMax = "experiment_max",
        /// The installation's limit on any one endpoint, over its life.
        EndpointMax = "endpoint_max",
        Pipeline = "pipeline",
        /// Of a CI template, per UTC day.
        TemplateDay = "template_day",
        TemplateMonth = "template_month",
        Project = "project",
        /// Per calendar month, UTC.
        ProjectMonth = "project_month",
        InstallationMonth = "installation_month",
    }
}

/// A limit and how much of it is taken. What is settled is counted in the month (or day) in which it is settled; what is
/// reserved counts in every one in which it is held, so that settling it never exceeds the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// No limit when empty.
    pub budget_usd: Option<Usd>,
    pub reserved_usd: Usd,
    pub settled_usd: Usd,
}

impl Balance {
    pub fn used(&self) -> Usd {
        self.reserved_usd + self.settled_usd
    }

    pub fn left(&self) -> Option<Usd> {
        self.budget_usd.map(|budget| budget - self.used())
    }

    /// Shares of the limit, percent, that are used.
    pub fn shares_reached(&self) -> impl Iterator<Item = u32> {
        let (limit, used) = (self.budget_usd.unwrap_or_default(), self.used());
        let is_reached = move |percent: &u32| {
            limit > Usd::ZERO && used * Decimal::from(100) >= limit * Decimal::from(*percent)
        };
        ALARM_PERCENTS.into_iter().filter(is_reached)
    }
}

/// One of those who are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub level: BudgetLevel,
    pub balance: Balance,
    /// Whose budget is named in a sentence about it.
    pub pipeline: Option<PipelineId>,
    pub template: Option<TemplateId>,
}

impl Limit {
    pub fn new(level: BudgetLevel, balance: Balance) -> Self {
        Self {
            level,
            balance,
            pipeline: None,
            template: None,
        }
    }

    /// Why `amount` does not fit; `None` if it does.
    pub fn shortfall(&self, amount: Usd) -> Option<Shortfall> {
        let (limit, left) = self.balance.budget_usd.zip(self.balance.left())?;
        (amount > left).then(|| Shortfall {
            limit: *self,
            needed: amount,
            limit_usd: limit,
            left_usd: left.max(Usd::ZERO),
            // Even if all that is reserved were released.
            is_final: amount > limit - self.balance.settled_usd,
        })
    }
}

/// A reservation that a limit does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortfall {
    pub limit: Limit,
    pub needed: Usd,
    pub limit_usd: Usd,
    pub left_usd: Usd,
    /// It can never fit, or not before the next day or month; otherwise other reservations may be released.
    pub is_final: bool,
}

impl Shortfall {
    /// Whether the limit is used up, rather than less than this one thing alone.
    pub fn is_used_up(&self) -> bool {
        self.needed <= self.limit_usd
    }

    /// Whose budget it is, as the subject of a sentence.
    fn owner(&self) -> &'static str {
        match self.limit.level {
            BudgetLevel::Experiment => "the budget",
            BudgetLevel::ExperimentMax => "the installation's limit on an experiment",
            BudgetLevel::EndpointMax => "the installation's limit on an endpoint",
            BudgetLevel::Pipeline => "the pipeline's budget",
            BudgetLevel::TemplateDay => "the CI template's budget per day",
            BudgetLevel::TemplateMonth => "the CI template's budget per month",
            BudgetLevel::Project => "the project's budget",
            BudgetLevel::ProjectMonth => "the project's budget per month",
            BudgetLevel::InstallationMonth => "the installation's budget per month",
        }
    }

    /// What to do about it: which figure to raise, and where.
    pub fn fix(&self) -> String {
        let needs = Usd((self.limit.balance.used() + self.needed).0.ceil());
        let template = self.limit.template.map_or_else(
            || "/v1/ci-templates/{template_id}".to_owned(),
            |id| format!("/v1/ci-templates/{id}"),
        );
        match self.limit.level {
            BudgetLevel::Experiment => {
                "raise budget_usd (PATCH /v1/experiments/{experiment_id}) or lower max_runtime_seconds"
                    .to_owned()
            }
            BudgetLevel::ExperimentMax => {
                format!("ask for less, or have the operator raise --experiment-max-usd to {}", amount(needs))
            }
            BudgetLevel::EndpointMax => {
                format!("ask for fewer hours, or have the operator raise --endpoint-max-usd to {}", amount(needs))
            }
            BudgetLevel::Pipeline => {
                let path = self.limit.pipeline.map_or_else(
                    || "/v1/pipelines/{pipeline_id}".to_owned(),
                    |id| format!("/v1/pipelines/{id}"),
                );
                format!("raise the pipeline's budget: POST {path}/resume with {}", body("budget_usd", needs))
            }
            BudgetLevel::TemplateDay => format!(
                "raise settings.usd_per_day of the template to {} (PUT {template}), or wait for the next day (UTC)",
                amount(needs)
            ),
            BudgetLevel::TemplateMonth => format!(
                "raise settings.usd_per_month of the template to {} (PUT {template}), or wait for the next month (UTC)",
                amount(needs)
            ),
            BudgetLevel::Project => format!(
                "raise the project's budget: an admin sends PUT /v1/projects/current/budget with {}",
                body("budget_usd", needs)
            ),
            BudgetLevel::ProjectMonth => format!(
                "raise the project's budget per month: an admin sends PUT /v1/projects/current/budget with {}; or wait for the next month (UTC)",
                body("monthly_budget_usd", needs)
            ),
            BudgetLevel::InstallationMonth => {
                format!(
                    "have the operator raise --installation-budget-usd-per-month to {}, or wait for the next month (UTC)",
                    amount(needs)
                )
            }
        }
    }

    /// What does not fit, without what to do about it.
    pub fn detail(&self) -> String {
        let (owner, limit) = (self.owner(), self.limit_usd);
        if limit == Usd::ZERO {
            return format!("it may cost {}, and {owner} is {limit}", self.needed);
        }
        format!(
            "it may cost {}, and {} is left of {owner}, {limit}",
            self.needed, self.left_usd
        )
    }
}

/// A member of a JSON body.
fn body(name: &str, usd: Usd) -> String {
    format!("{{\"{name}\": {}}}", amount(usd))
}

/// As it is written in a body or an option.
fn amount(usd: Usd) -> String {
    usd.0.normalize().to_string()
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, left, owner) = (self.needed, self.left_usd, self.owner());
        if !self.is_final {
            return write!(
                f,
                "waiting for budget: the trial may cost {needed}, more than is free of {owner}; the rest is reserved"
            );
        }
        let is_own = self.limit.level == BudgetLevel::Experiment;
        let of = if is_own {
            String::new()
        } else {
            format!(" of {owner}")
        };
        write!(
            f,
            "over budget: the trial may cost {needed}, but {left} is left{of}; {}",
            self.fix()
        )
    }
}

/// Asks every level: `None` if all of them allow `amount`. One that can never allow it is named before one that may later.
pub fn decide(amount: Usd, limits: &[Limit]) -> Option<Shortfall> {
    let short = || limits.iter().filter_map(|limit| limit.shortfall(amount));
    short()
        .find(|short| short.is_final)
        .or_else(|| short().next())
}

/// What can never be allowed, asked before anything is written.
pub fn can_never(amount: Usd, limits: &[Limit]) -> Option<Shortfall> {
    decide(amount, limits).filter(|short| short.is_final)
}

/// A change of a cap, as a request names it: absent, null, or an amount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CapChange {
    #[default]
    Stays,
    Lifted,
    To(Usd),
}

impl CapChange {
    pub fn stays(&self) -> bool {
        *self == Self::Stays
    }

    /// The new cap, if it is one.
    pub fn usd(self) -> Option<Usd> {
        match self {
            Self::Stays | Self::Lifted => None,
            Self::To(usd) => Some(usd),
        }
    }
}

impl Serialize for CapChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.usd().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CapChange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let usd = Option::<Usd>::deserialize(deserializer)?;
        Ok(usd.map_or(Self::Lifted, Self::To))
    }
}

/// An operator's limits on the installation; none when empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstallationCaps {
    /// All projects together, per calendar month (UTC).
    pub month_usd: Option<Usd>,
    /// What one endpoint may cost over its life.
    pub endpoint_usd: Option<Usd>,
    pub experiment_usd: Option<Usd>,
}

/// What a CI template may have under way and spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateCaps {
    pub runs_at_once: u32,
    pub usd_per_day: Usd,
    pub usd_per_month: Usd,
}

impl TemplateCaps {
    /// Of a template that states none, by its experiment's budget.
    pub fn usual(budget: Usd) -> Self {
        let times = |factor: u32| {
            let most = Usd(LIMIT_USD_MAX.into());
            Usd(budget.0.saturating_mul(factor.into())).min(most)
        };
        Self {
            runs_at_once: RUNS_AT_ONCE,
            usd_per_day: times(BUDGETS_PER_DAY),
            usd_per_month: times(BUDGETS_PER_MONTH),
        }
    }
}

/// What is wrong with an amount as a limit. `least`: 0 only where nothing may start.
pub fn limit_flaw(usd: Usd, least: Usd) -> Option<String> {
    let most = Decimal::from(LIMIT_USD_MAX);
    let is_whole = usd == usd.rounded();
    (usd < least || usd.0 > most || !is_whole).then(|| {
        format!(
            "must be an amount in US dollars from {} to {most}, with at most six decimal places",
            least.0.normalize()
        )
    })
}

/// The least amount that a budget may be: a cent.
pub fn least_budget() -> Usd {
    Usd(Decimal::new(1, 2))
}

/// The first day of a time's month, UTC.
pub fn month_of(at: DateTime<Utc>) -> NaiveDate {
    let day = at.date_naive();
    day.with_day(1).unwrap_or(day)
}

/// When the month after one begins.
pub fn month_after(month: NaiveDate) -> NaiveDate {
    month
        .checked_add_months(chrono::Months::new(1))
        .unwrap_or(NaiveDate::MAX)
}

/// What a month will have cost at its end if it goes on as it began: a straight line, no more. `None` in its first day.
pub fn forecast(used: Usd, now: DateTime<Utc>) -> Option<Usd> {
    let midnight = |day: NaiveDate| day.and_time(chrono::NaiveTime::MIN).and_utc();
    let (begin, end) = (
        midnight(month_of(now)),
        midnight(month_after(month_of(now))),
    );
    let (past, whole) = (now - begin, end - begin);
    let share = Decimal::from(whole.num_seconds())
        .checked_div(Decimal::from(past.num_seconds()))
        .filter(|_| past >= FORECAST_AFTER)?;
    used.0.checked_mul(share).map(|usd| Usd(usd).rounded())
}

#[cfg(test)]
mod tests;

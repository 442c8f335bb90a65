//! API views of limits on dollars: how much of them is used, and what is forecast.

use bakeoff_domain::event::BudgetNews;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::BudgetLevel;
use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use bakeoff_store::money::caps::{BudgetAlarm, MonthOfProject};

view! {
    /// A share of a limit that was reached
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = BudgetNews)]
    pub struct BudgetNewsView of BudgetNews {
        pub level: BudgetLevel,
        /// 50, 80, or 100: something did not fit any more.
        pub percent: u32,
        pub limit_usd: Usd,
        /// Reserved and settled.
        pub used_usd: Usd,
        /// The first day of its month, or its day; none of a total.
        pub period: Option<NaiveDate>,
        /// The CI template's name, if it is a template's.
        pub template: Option<String>,
    }
}

/// A project's calendar month (UTC) so far
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ProjectMonth)]
pub struct ProjectMonthView {
    /// Its first day.
    pub begins: NaiveDate,
    /// Settled in it, whenever it was reserved.
    pub settled_usd: Usd,
    /// What the jobs that run now have cost so far, estimated at their prices.
    pub accrued_usd: Usd,
    /// A forecast of the whole month: a straight line through what is settled and accrued. None in its first day.
    pub forecast_usd: Option<Usd>,
}

impl From<MonthOfProject> for ProjectMonthView {
    fn from(month: MonthOfProject) -> Self {
        Self {
            begins: month.begins,
            settled_usd: month.settled_usd,
            accrued_usd: month.accrued_usd,
            forecast_usd: month.forecast_usd,
        }
    }
}

/// A share of one of the project's limits that was reached, told once
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = BudgetAlarm)]
pub struct BudgetAlarmView {
    pub level: BudgetLevel,
    pub percent: u32,
    pub limit_usd: Usd,
    pub used_usd: Usd,
    /// The first day of its month; none of the total.
    pub period: Option<NaiveDate>,
    pub at: DateTime<Utc>,
}

impl From<BudgetAlarm> for BudgetAlarmView {
    fn from(alarm: BudgetAlarm) -> Self {
        Self {
            level: alarm.level,
            percent: alarm.percent,
            limit_usd: alarm.limit_usd,
            used_usd: alarm.used_usd,
            period: alarm.period,
            at: alarm.at,
        }
    }
}

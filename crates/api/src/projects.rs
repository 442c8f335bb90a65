//! API views of projects.

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::money::Usd;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::budgets::{BudgetAlarmView, ProjectMonthView};

/// A project.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ProjectView {
    pub id: ProjectId,
    pub name: String,
    /// Hard spending cap over all experiments; none when empty.
    pub budget_usd: Option<Usd>,
    /// The same per calendar month (UTC): what is settled in it, and what is reserved now.
    pub monthly_budget_usd: Option<Usd>,
    /// Reserved for attempts that are not settled yet.
    pub reserved_usd: Usd,
    /// Spent and settled.
    pub settled_usd: Usd,
    /// Maximum number of concurrent trials; unlimited when empty.
    pub concurrent_trials_max: Option<u32>,
    pub month: ProjectMonthView,
    /// Shares of its caps, 50, 80 and 100 %, that were reached: of the total, and of this month.
    pub budget_alarms: Vec<BudgetAlarmView>,
}

//! A limit on dollars of which much is used, in an event.

use std::fmt;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

use crate::money::Usd;
use crate::money::budget::BudgetLevel;

/// A share of a limit that was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetNews {
    pub level: BudgetLevel,
    /// 50, 80, or 100: it is used up, or a reservation did not fit.
    pub percent: u32,
    pub limit_usd: Usd,
    /// Reserved and settled.
    pub used_usd: Usd,
    /// The first day of its month, or its day; none of a total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<NaiveDate>,
    /// The CI template's name, if it is a template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

impl BudgetNews {
    pub(super) fn way_out(&self) -> String {
        let call = match self.level {
            BudgetLevel::TemplateDay => {
                "settings.usd_per_day (`PUT /v1/ci-templates/{template_id}`)"
            }
            BudgetLevel::TemplateMonth => {
                "settings.usd_per_month (`PUT /v1/ci-templates/{template_id}`)"
            }
            BudgetLevel::InstallationMonth => "--installation-budget-usd-per-month",
            BudgetLevel::ProjectMonth => "monthly_budget_usd (`PUT /v1/projects/current/budget`)",
            BudgetLevel::Experiment
            | BudgetLevel::ExperimentMax
            | BudgetLevel::EndpointMax
            | BudgetLevel::Pipeline
            | BudgetLevel::Project => "budget_usd (`PUT /v1/projects/current/budget`)",
        };
        format!("Raise {call} if more is to be spent. Jobs that run go on.")
    }
}

impl fmt::Display for BudgetNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, used) = (self.limit_usd, self.used_usd);
        match self.level {
            BudgetLevel::TemplateDay | BudgetLevel::TemplateMonth => {
                let template = self.template.as_deref().unwrap_or_default();
                write!(f, "CI template {template}: ")?;
            }
            BudgetLevel::InstallationMonth => f.write_str("the installation: ")?,
            BudgetLevel::Experiment
            | BudgetLevel::ExperimentMax
            | BudgetLevel::EndpointMax
            | BudgetLevel::Pipeline
            | BudgetLevel::Project
            | BudgetLevel::ProjectMonth => f.write_str("the project: ")?,
        }
        let of = match self.level {
            BudgetLevel::TemplateDay => "of the day's budget",
            BudgetLevel::TemplateMonth
            | BudgetLevel::ProjectMonth
            | BudgetLevel::InstallationMonth => "of the month's budget",
            BudgetLevel::Experiment
            | BudgetLevel::ExperimentMax
            | BudgetLevel::EndpointMax
            | BudgetLevel::Pipeline
            | BudgetLevel::Project => "of the budget",
        };
        if self.percent >= 100 {
            let what = of.trim_start_matches("of ");
            if used >= limit {
                write!(f, "{what} is used up")?;
            } else {
                write!(f, "a reservation did not fit into what is left {of}")?;
            }
            return write!(f, ": {used} of {limit} is spent or reserved");
        }
        write!(
            f,
            "{} % {of} is used: {used} of {limit} is spent or reserved",
            self.percent
        )
    }
}

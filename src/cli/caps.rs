//! Limits in US dollars on the command line.

use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::{InstallationCaps, limit_flaw};
use clap::Args;

/// A limit in US dollars; 0 lets nothing start.
pub(super) fn cap(text: &str) -> Result<Usd, String> {
    let usd = text
        .parse()
        .map(Usd)
        .map_err(|_| "use a number of US dollars, such as 500")?;
    limit_flaw(usd, Usd::ZERO).map_or(Ok(usd), Err)
}

/// What the operator allows, whatever projects allow themselves; no limit when absent.
#[derive(Debug, Args)]
pub(super) struct Caps {
    /// Dollars that all projects together may have reserved and settled in a calendar month (UTC).
    #[arg(long, env = "BAKEOFF_INSTALLATION_BUDGET_USD_PER_MONTH", value_name = "USD", value_parser = cap)]
    installation_budget_usd_per_month: Option<Usd>,
    /// Dollars that one endpoint may cost over its life.
    #[arg(long, env = "BAKEOFF_ENDPOINT_MAX_USD", value_name = "USD", value_parser = cap)]
    endpoint_max_usd: Option<Usd>,
    /// Dollars that one experiment, full run or job of a step may cost.
    #[arg(long, env = "BAKEOFF_EXPERIMENT_MAX_USD", value_name = "USD", value_parser = cap)]
    experiment_max_usd: Option<Usd>,
}

impl From<&Caps> for InstallationCaps {
    fn from(caps: &Caps) -> Self {
        Self {
            month_usd: caps.installation_budget_usd_per_month,
            endpoint_usd: caps.endpoint_max_usd,
            experiment_usd: caps.experiment_max_usd,
        }
    }
}

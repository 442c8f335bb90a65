//! The price refresher: reads AWS's price list once a day, so that a plan's prices are never older
//! than that. The repricer handles the effects of a new price.

use chrono::TimeDelta;

use crate::app::App;
use crate::use_cases::refresh::{RefreshError, refresh_quietly};
use bakeoff_store::StoreError;

/// After a refresh that failed: AWS's list is seldom gone for longer.
const AGAIN: TimeDelta = TimeDelta::hours(1);

/// Runs one tick; returns how many prices are new.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let Some(every) = app.settings.price_refresh else {
        return Ok(0);
    };
    let (region, now) = (&app.place.region, app.clock.now());
    if !app
        .store
        .claim_price_refresh(region, now + every, now)
        .await?
    {
        return Ok(0);
    }
    match refresh_quietly(app, region).await {
        Ok(new) => {
            tracing::info!(region, new, "prices refreshed from AWS's list");
            Ok(new)
        }
        Err(RefreshError::Store(error)) => Err(error),
        // The prices known so far stay in force: nothing waits for this.
        Err(error) => {
            tracing::warn!(
                region,
                %error,
                "AWS's price list could not be read; allow pricing:GetProducts, or set --price-refresh-hours 0"
            );
            app.store
                .retry_price_refresh(region, now + AGAIN.min(every))
                .await?;
            Ok(0)
        }
    }
}

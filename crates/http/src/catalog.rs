//! Instance types and prices.

use axum::Json;
use axum::extract::{Path, State};
use bakeoff_domain::catalog::{self, InstanceType};
use bakeoff_domain::ids::PriceId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{self, Price, PriceStatus};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::is_region;
use chrono::{DateTime, Datelike, TimeDelta, Utc};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::plumbing::auth::{Admin, Caller};
use crate::plumbing::extract::{Params, Strict};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::catalog::{InstanceTypeView, PriceView, RateView};
use bakeoff_api::page::Page;
use bakeoff_api::prices::Refreshed;
use bakeoff_process::ids;
use bakeoff_service::app::App;
use bakeoff_service::use_cases::refresh::{RefreshError, refresh};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TypeParams {
    /// Family, for example `p5` for `ml.p5.48xlarge`.
    family: Option<String>,
    /// Only types with at least this many accelerators.
    accelerators_min: Option<u32>,
}

/// List instance types
#[utoipa::path(get, path = "/v1/instance-types", operation_id = "listInstanceTypes", tag = "catalog", params(TypeParams),
    responses((status = 200, description = "All of them", body = Page<InstanceTypeView>), Problems))]
pub(crate) async fn instance_types(
    _caller: Caller,
    Params(params): Params<TypeParams>,
) -> Result<Json<Page<InstanceTypeView>>, Problem> {
    let wanted = |kind: &&InstanceType| {
        params
            .family
            .as_deref()
            .is_none_or(|family| kind.family() == family)
            && params
                .accelerators_min
                .is_none_or(|least| kind.accelerator_count >= least)
    };
    Ok(Json(Page {
        items: catalog::all()
            .iter()
            .filter(wanted)
            .cloned()
            .map(InstanceTypeView::from)
            .collect(),
        next_page_token: None,
    }))
}

/// Get an instance type
#[utoipa::path(get, path = "/v1/instance-types/{instance_type}", operation_id = "getInstanceType", tag = "catalog",
    params(("instance_type" = String, Path, description = "ml.p5.48xlarge")),
    responses((status = 200, description = "Its hardware", body = InstanceTypeView), Problems))]
pub(crate) async fn instance_type(
    _caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<InstanceTypeView>, Problem> {
    catalog::find(&name)
        .cloned()
        .map(|kind| Json(kind.into()))
        .ok_or_else(|| unknown(&name))
}

fn unknown(name: &str) -> Problem {
    let near = catalog::nearest(name).join(", ");
    let hint = if near.is_empty() {
        "GET /v1/instance-types lists them".to_owned()
    } else {
        format!("did you mean {near}?")
    };
    Problem::not_found(format!(
        "`{name}` is not a SageMaker training instance type; {hint}"
    ))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PriceParams {
    /// Instance type; repeat for several.
    #[serde(default)]
    instance_type: Vec<String>,
    region: Option<String>,
    /// Only the price in force at this time, for each type and region.
    as_of: Option<DateTime<Utc>>,
}

/// List prices
#[utoipa::path(get, path = "/v1/prices", operation_id = "listPrices", tag = "catalog", params(PriceParams),
    responses((status = 200, description = "With their history, oldest first", body = Page<PriceView>), Problems))]
pub(crate) async fn prices(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PriceParams>,
) -> Result<Json<Page<PriceView>>, Problem> {
    let types = (!params.instance_type.is_empty()).then_some(params.instance_type.as_slice());
    let mut items = app
        .store
        .prices_of(caller.project, params.region.as_deref(), types)
        .await?;
    if let Some(at) = params.as_of {
        // Prices are sorted by type and region.
        let of_one =
            |a: &Price, b: &Price| (&a.instance_type, &a.region) == (&b.instance_type, &b.region);
        let chosen = items.chunk_by(of_one).filter_map(|prices| {
            let one = prices.first()?;
            price::in_force(prices, &one.instance_type, &one.region, at)
        });
        items = chosen.collect();
    }
    Ok(Json(Page {
        items: items.into_iter().map(PriceView::from).collect(),
        next_page_token: None,
    }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RateParams {
    region: Option<String>,
}

/// List rates
///
/// Rates that do not belong to an instance type: storage, and CloudWatch metric requests.
#[utoipa::path(get, path = "/v1/rates", operation_id = "listRates", tag = "catalog", params(RateParams),
    responses((status = 200, description = "With their history, oldest first", body = Page<RateView>), Problems))]
pub(crate) async fn rates(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<RateParams>,
) -> Result<Json<Page<RateView>>, Problem> {
    let items = app
        .store
        .rates(caller.project, params.region.as_deref())
        .await?;
    Ok(Json(Page {
        items: items.into_iter().map(RateView::from).collect(),
        next_page_token: None,
    }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RefreshParams {
    /// Region; the installation's when absent.
    region: Option<String>,
}

/// Refresh prices
///
/// Reads AWS's price list for training and stores new prices with AWS's effective dates.
/// Experiments that depend on a new price are repriced, and an event records it. Idempotent.
/// Requires the admin role.
#[utoipa::path(post, path = "/v1/prices/refresh", operation_id = "refreshPrices", tag = "catalog", params(RefreshParams),
    responses((status = 200, description = "New prices", body = Refreshed), Problems))]
pub(crate) async fn refresh_prices(
    State(app): State<App>,
    Admin(caller): Admin,
    Params(params): Params<RefreshParams>,
) -> Result<Json<Refreshed>, Problem> {
    let region = params
        .region
        .unwrap_or_else(|| app.settings.home().to_owned());
    if !is_region(&region) {
        return Err(page::parameter(
            "region",
            "must be a region such as us-east-1",
        ));
    }
    let refreshed = refresh(&app, caller.project, &region)
        .await
        .map_err(|error| match error {
            RefreshError::Store(error) => error.into(),
            RefreshError::Aws(AwsError::Denied(said)) => Problem::upstream(
                "aws_denied",
                format!("AWS denied access to its price list ({said}); allow pricing:GetProducts"),
            ),
            RefreshError::Aws(error) => {
                Problem::unavailable(&format!("AWS's price list is unavailable: {error}"))
            }
            error @ RefreshError::Empty(_) => {
                Problem::upstream("price_list_empty", error.to_string())
            }
        })?;
    Ok(Json(refreshed))
}

/// A negotiated rate must be at least this share of AWS's own.
const FLOOR_PERCENT: i64 = 30;
/// An effective date may lie this far in the past without a reason, because clocks differ.
const CLOCK_SLACK: TimeDelta = TimeDelta::minutes(5);
/// SageMaker began in November 2017.
const FIRST_YEAR: i32 = 2017;
const AHEAD_MAX: TimeDelta = TimeDelta::days(3 * 366);

/// A project's own rate for an instance type.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct NewPrice {
    region: String,
    /// On-demand rate in USD per hour, per instance.
    usd_per_hour: Usd,
    /// Effective from this time; now when absent. From 2017 to three years ahead.
    effective_from: Option<DateTime<Utc>>,
    /// Reason for a rate in the past, 1 to 500 characters: required when `effective_from` is in the
    /// past, since it changes what has been settled. Kept in the price's note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Where the rate comes from: a contract, a quote, a bill.
    source: String,
    #[serde(default)]
    note: String,
}

/// The criteria a rate is checked against.
struct Standard {
    now: DateTime<Utc>,
    effective_from: DateTime<Utc>,
    /// The highest of AWS's own prices from that day on.
    highest: Option<Usd>,
}

fn price_errors(new: &NewPrice, standard: &Standard) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut push = |pointer: &str, detail: &str, fix: &str| {
        errors.push(FieldError {
            pointer: pointer.to_owned(),
            detail: detail.to_owned(),
            fix: fix.to_owned(),
            rule: "price".to_owned(),
        });
    };
    let floor = standard
        .highest
        .map(|usd| Usd(usd.0 * Decimal::new(FLOOR_PERCENT, 2)).rounded());
    if new.usd_per_hour.0 <= Decimal::ZERO || new.usd_per_hour.0 > Decimal::from(100_000u32) {
        push(
            "/usd_per_hour",
            "must be above 0 and at most 100000 USD per hour",
            "give the hourly rate of one instance",
        );
    } else if let Some(floor) = floor.filter(|floor| new.usd_per_hour < *floor) {
        push(
            "/usd_per_hour",
            &format!(
                "must be at least {FLOOR_PERCENT} % of the highest price that AWS lists for the type, because budgets are enforced with it"
            ),
            &format!(
                "give the hourly rate of a whole instance, at least {}",
                floor.0.normalize()
            ),
        );
    }
    if !(1..=200).contains(&new.source.chars().count()) {
        push(
            "/source",
            "must have 1 to 200 characters",
            "say where the rate comes from",
        );
    }
    if new.note.chars().count() > 1000 {
        push("/note", "must have at most 1000 characters", "shorten it");
    }
    if !is_region(&new.region) {
        push(
            "/region",
            "not a valid region",
            "use a region such as us-east-1",
        );
    }
    let is_reason = |reason: &String| (1..=500).contains(&reason.chars().count());
    let is_past = standard.effective_from < standard.now - CLOCK_SLACK;
    if standard.effective_from.year() < FIRST_YEAR
        || standard.effective_from > standard.now + AHEAD_MAX
    {
        push(
            "/effective_from",
            "must be between 2017 and three years from now",
            "give the contract's date",
        );
    } else if is_past && new.reason.is_none() {
        push(
            "/reason",
            "the rate would apply to the past and change what is already settled",
            "give a `reason`",
        );
    } else if !new.reason.as_ref().is_none_or(is_reason) {
        push(
            "/reason",
            "must have 1 to 500 characters",
            "explain in a sentence why the rate applies to the past",
        );
    }
    errors
}

impl NewPrice {
    /// The price to store, after it has passed the checks.
    fn into_price(self, instance_type: String, standard: &Standard) -> Price {
        let reason = self.reason.map(|reason| format!("back-dated: {reason}"));
        let note: Vec<String> = [Some(self.note), reason]
            .into_iter()
            .flatten()
            .filter(|part| !part.is_empty())
            .collect();
        Price {
            id: PriceId(ids::fresh()),
            instance_type,
            region: self.region,
            usd_per_hour: self.usd_per_hour,
            usd_per_hour_max: None,
            effective_from: standard.effective_from,
            source: self.source,
            status: PriceStatus::Negotiated,
            note: note.join("; "),
            confirmed_at: Some(standard.now),
        }
    }
}

/// Set a negotiated rate
///
/// Overrides the catalog price for this project from its effective date on. Earlier prices are
/// kept. Requires the admin role, because budgets are enforced with it, and must be at least 30 %
/// of the highest price that AWS lists from that date on.
#[utoipa::path(put, path = "/v1/prices/{instance_type}", operation_id = "putPrice", tag = "catalog", request_body = NewPrice,
    params(("instance_type" = String, Path, description = "ml.p5e.48xlarge")),
    responses((status = 200, description = "The new price", body = PriceView), Problems))]
pub(crate) async fn put_price(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(name): Path<String>,
    Strict(new): Strict<NewPrice>,
) -> Result<Json<PriceView>, Problem> {
    if catalog::find(&name).is_none() {
        return Err(unknown(&name));
    }
    let now = app.clock.now();
    let effective_from = new.effective_from.unwrap_or(now);
    let known = app
        .store
        .prices_of(
            caller.project,
            Some(&new.region),
            Some(std::slice::from_ref(&name)),
        )
        .await?;
    let highest = price::highest_list_price(&known, &name, &new.region, effective_from);
    let standard = Standard {
        now,
        effective_from,
        highest,
    };
    let errors = price_errors(&new, &standard);
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let price = new.into_price(name, &standard);
    app.store.insert_price(caller.project, &price, now).await?;
    Ok(Json(price.into()))
}

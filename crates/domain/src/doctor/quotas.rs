//! Quotas and prices of the types that are to be used: what may run, and what could be started. The linter
//! holds one experiment against the quotas; this is about the account.

use std::collections::BTreeMap;

use super::check::{Check, CheckName};
use super::found::PriceFound;
use super::permissions;
use super::wanted::CheckScope;
use crate::catalog;
use crate::money::price::PriceStatus;
use crate::sagemaker::error::AwsError;
use crate::sagemaker::quota::{Quota, Usage};
use crate::spec::PurchaseOption;

/// Instances of a type that may run, under each purchase option; `None` where Service Quotas lists
/// none.
#[derive(Debug, Clone, Copy, Default)]
struct Allowed {
    on_demand: Option<u32>,
    spot: Option<u32>,
}

impl Allowed {
    fn is_nothing(self) -> bool {
        self.on_demand.unwrap_or(0) == 0 && self.spot.unwrap_or(0) == 0
    }

    /// Whether so many instances may run under each of these options, on demand if there are none.
    fn is_enough(self, instances: u32, options: &[PurchaseOption]) -> bool {
        let of = |option: PurchaseOption| match option {
            PurchaseOption::OnDemand => self.on_demand,
            PurchaseOption::Spot => self.spot,
        };
        let options = match options {
            [] => &[PurchaseOption::OnDemand][..],
            options => options,
        };
        options
            .iter()
            .all(|option| of(*option).unwrap_or(0) >= instances)
    }

    fn in_words(self, instance_type: &str) -> String {
        let number = |count: Option<u32>| count.map_or("none listed".to_owned(), |n| n.to_string());
        format!(
            "{instance_type} {} on demand and {} spot",
            number(self.on_demand),
            number(self.spot)
        )
    }
}

fn by_type(quotas: &[Quota]) -> BTreeMap<&str, Allowed> {
    let mut all: BTreeMap<&str, Allowed> = BTreeMap::new();
    for quota in quotas {
        let allowed = all.entry(&quota.instance_type).or_default();
        match quota.usage {
            Usage::OnDemand => allowed.on_demand = Some(quota.instances),
            Usage::Spot => allowed.spot = Some(quota.instances),
            Usage::WarmPool | Usage::Processing | Usage::Transform | Usage::Endpoint => {}
        }
    }
    all
}

pub(super) fn quotas(
    wanted: &CheckScope,
    read: &Result<Vec<Quota>, AwsError>,
    principal: &str,
) -> Check {
    let quotas = match read {
        Ok(quotas) => by_type(quotas),
        Err(error) => return permissions::QUOTAS.failed(error, principal),
    };
    if wanted.instance_types.is_empty() {
        of_account(&wanted.region, &quotas)
    } else {
        of_types(wanted, &quotas)
    }
}

/// The line that has a quota raised.
fn request(region: &str, kind: &str) -> String {
    format!(
        "request an increase of `{kind} for training job usage` (and `for spot training job usage`): \
         https://{region}.console.aws.amazon.com/servicequotas/home/services/sagemaker/quotas"
    )
}

fn of_account(region: &str, quotas: &BTreeMap<&str, Allowed>) -> Check {
    let name = CheckName::Quotas;
    let accelerated = catalog::all()
        .iter()
        .filter(|kind| kind.accelerator_count > 0)
        .map(|kind| kind.instance_type.as_str());
    let accelerated: Vec<&str> = accelerated.collect();
    let may_run = |kind: &&str| {
        quotas
            .get(kind)
            .is_some_and(|allowed| !allowed.is_nothing())
    };
    let usable: Vec<&str> = accelerated.iter().copied().filter(may_run).collect();
    let named = match usable.len() {
        0 => {
            return Check::failed(
                name,
                "0 for every type with accelerators, as in a new account: no trial can run",
            )
            .fix(request(region, "ml.g6.xlarge"));
        }
        1..=10 => format!(": {}", usable.join(", ")),
        _ => String::new(),
    };
    Check::ok(
        name,
        format!(
            "{} of {} types with accelerators may run{named}",
            usable.len(),
            accelerated.len()
        ),
    )
}

fn of_types(wanted: &CheckScope, quotas: &BTreeMap<&str, Allowed>) -> Check {
    let name = CheckName::Quotas;
    let allowed = |kind: &str| quotas.get(kind).copied().unwrap_or_default();
    let types = || wanted.instance_types.iter().map(String::as_str);
    let words: Vec<String> = types().map(|kind| allowed(kind).in_words(kind)).collect();
    let instances = wanted.instance_count.unwrap_or(1);
    let lacking: Vec<&str> = types()
        .filter(|kind| !allowed(kind).is_enough(instances, &wanted.purchase_options))
        .collect();
    match lacking.first() {
        Some(first) => Check::failed(
            name,
            format!(
                "not enough for {instances} of {}: {}",
                lacking.join(", "),
                words.join("; ")
            ),
        )
        .fix(request(&wanted.region, first)),
        None => Check::ok(name, words.join("; ")),
    }
}

pub(super) fn prices(wanted: &CheckScope, all: &[PriceFound]) -> Check {
    let is_wanted = |price: &&PriceFound| {
        wanted.instance_types.is_empty() || wanted.instance_types.contains(&price.instance_type)
    };
    let found: Vec<&PriceFound> = all.iter().filter(is_wanted).collect();
    let name = CheckName::Prices;
    let region = &wanted.region;
    let refresh = format!(
        "read AWS's list: curl -X POST -H \"authorization: Bearer $BAKEOFF_API_KEY\" \"$BAKEOFF_URL/v1/prices/refresh?region={region}\""
    );
    let of = |is_meant: fn(Option<PriceStatus>) -> bool| -> Vec<&str> {
        let those = found.iter().filter(|price| is_meant(price.status));
        those.map(|price| price.instance_type.as_str()).collect()
    };
    let missing = of(|status| status.is_none());
    let guessed = of(|status| {
        matches!(
            status,
            Some(PriceStatus::Estimated | PriceStatus::Unverified | PriceStatus::AssumedSameAs)
        )
    });
    if missing.len() == found.len() {
        return Check::failed(
            name,
            format!("none is known in {region}, and nothing is started without one"),
        )
        .fix(refresh);
    }
    if !missing.is_empty() && !wanted.instance_types.is_empty() {
        return Check::failed(
            name,
            format!(
                "none is known in {region} for {}, and nothing is started without one",
                missing.join(", ")
            ),
        )
        .fix(refresh);
    }
    if !guessed.is_empty() && !wanted.instance_types.is_empty() {
        let detail = format!(
            "{} of {} types have a price in {region}; AWS lists none of its own for training on {}, so theirs is assumed or estimated",
            found.len() - missing.len(),
            found.len(),
            guessed.join(", ")
        );
        return Check::warning(name, detail);
    }
    Check::ok(
        name,
        format!(
            "{} of {} types have a price in {region}",
            found.len() - missing.len(),
            found.len()
        ),
    )
}

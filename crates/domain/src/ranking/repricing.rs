//! A price change: which experiments it affects, and what it did to them, in words. What is billed
//! differently is computed in [`crate::money::bill`] and booked by the store.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};

use crate::ids::{ExperimentId, JobId, PriceId, ProjectId};
use crate::money::Usd;
use crate::money::price::{self, Price};
use crate::ranking::recommendation::Recommendation;
use crate::sagemaker::kind::JobKind;

/// A price that has taken effect but has not been applied yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceChange {
    pub price_id: PriceId,
    /// None for a price of everybody's.
    pub project_id: Option<ProjectId>,
    pub region: String,
    /// Only for training; storage has none.
    pub instance_type: Option<String>,
}

/// An experiment that uses something whose price has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependent {
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    /// Of its jobs, which are all of one kind; `None` if it has none, or it cannot be read.
    pub kind: Option<JobKind>,
    pub region: String,
    pub instance_types: Vec<String>,
}

impl Dependent {
    /// Whether a change affects this experiment.
    pub fn is_hit_by(&self, change: &PriceChange) -> bool {
        change
            .project_id
            .is_none_or(|project| project == self.project_id)
            && change.region == self.region
            && change
                .instance_type
                .as_ref()
                .is_none_or(|kind| self.instance_types.contains(kind))
    }
}

/// A recommendation and its replacement.
#[derive(Debug, Clone, Copy)]
pub struct Revision<'a> {
    pub before: &'a Recommendation,
    pub after: &'a Recommendation,
}

/// The effect of price changes on an experiment.
#[derive(Debug, Clone)]
pub struct Effect {
    /// What is billed more, or less if negative.
    pub usd: Usd,
    pub attempts: BTreeSet<JobId>,
    /// The changed prices that something was billed at.
    pub prices: BTreeSet<PriceId>,
    pub is_decided_anew: bool,
}

/// Why an experiment's bill or ranking has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    pub text: String,
    /// The prices that the text names.
    pub price_ids: Vec<PriceId>,
}

/// Describes an effect: the relevant prices, then the bill, then the ranking. `prices` holds the
/// changed ones and their predecessors.
pub fn reason(
    effect: &Effect,
    changes: &[&PriceChange],
    prices: &[Price],
    decided: Option<Revision<'_>>,
    now: DateTime<Utc>,
) -> Reason {
    let mut said: Vec<String> = Vec::new();
    let mut price_ids: Vec<PriceId> = Vec::new();
    for change in changes {
        let is_billed = effect.prices.contains(&change.price_id);
        let Some(new) = prices.iter().find(|price| price.id == change.price_id) else {
            if is_billed {
                said.push(format!(
                    "The price of a GB-month of storage in {} has changed.",
                    change.region
                ));
                price_ids.push(change.price_id);
            }
            continue;
        };
        let current = price::in_force(prices, &new.instance_type, &new.region, now);
        let is_ranked = effect.is_decided_anew && current.is_some_and(|price| price.id == new.id);
        if is_billed || is_ranked {
            said.push(describe(new, before(prices, new).as_ref()));
            price_ids.push(change.price_id);
        }
    }
    said.extend(billing(effect));
    if let Some(revision) = decided.filter(|_| effect.is_decided_anew) {
        said.push(ranking(revision));
    }
    Reason {
        text: said.join(" "),
        price_ids,
    }
}

/// The effect on the bill; `None` if it stays the same.
fn billing(effect: &Effect) -> Option<String> {
    let attempts = effect.attempts.len();
    let (difference, direction) = match effect.usd.cmp(&Usd::ZERO) {
        Ordering::Equal => return None,
        Ordering::Greater => (effect.usd, "more"),
        Ordering::Less => (Usd::ZERO - effect.usd, "less"),
    };
    Some(format!(
        "Usage since then by {attempts} {} is billed {difference} {direction}.",
        if attempts == 1 { "attempt" } else { "attempts" }
    ))
}

fn ranking(revision: Revision<'_>) -> String {
    let first = |one: &Recommendation| one.ranked.first().map(|row| row.candidate.clone());
    match (first(revision.before), first(revision.after)) {
        (Some(old), Some(new)) if old == new => format!("{new} remains first."),
        (Some(old), Some(new)) => format!("{new} is now first; {old} was."),
        _ => "The ranking has changed.".to_owned(),
    }
}

/// The price in force before this one began; otherwise the one assumed for it.
fn before(prices: &[Price], new: &Price) -> Option<Price> {
    let others: Vec<Price> = prices
        .iter()
        .filter(|price| price.id != new.id)
        .cloned()
        .collect();
    let in_force = |at| price::in_force(&others, &new.instance_type, &new.region, at);
    in_force(new.effective_from - TimeDelta::seconds(1)).or_else(|| in_force(new.effective_from))
}

fn describe(new: &Price, old: Option<&Price>) -> String {
    let rate = |price: &Price| format!("${}", price.usd_per_hour.0.round_dp(4).normalize());
    let was = old.map_or_else(
        || "no earlier price known".to_owned(),
        |old| {
            let share = (new.usd_per_hour.as_f64() / old.usd_per_hour.as_f64() - 1.0) * 100.0;
            format!("previously {}, {share:+.1} %", rate(old))
        },
    );
    let (kind, region, since) = (
        &new.instance_type,
        &new.region,
        new.effective_from.format("%Y-%m-%d"),
    );
    format!(
        "{kind} in {region} costs {} per hour from {since} ({was}; {}).",
        rate(new),
        new.label()
    )
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_change_affects_who_uses_its_type_in_its_region_and_project() {
        let ours = ProjectId(Uuid::from_u128(1));
        let dependent = Dependent {
            kind: Some(JobKind::Training),
            project_id: ours,
            experiment_id: ExperimentId(Uuid::nil()),
            region: "us-east-1".into(),
            instance_types: vec!["ml.p5.48xlarge".into()],
        };
        let change = PriceChange {
            price_id: PriceId(Uuid::nil()),
            project_id: None,
            region: "us-east-1".into(),
            instance_type: Some("ml.p5.48xlarge".into()),
        };
        assert!(dependent.is_hit_by(&change));
        let of_storage = PriceChange {
            instance_type: None,
            project_id: Some(ours),
            ..change.clone()
        };
        assert!(dependent.is_hit_by(&of_storage));
        for other in [
            PriceChange {
                project_id: Some(ProjectId(Uuid::from_u128(2))),
                ..change.clone()
            },
            PriceChange {
                region: "us-west-2".into(),
                ..change.clone()
            },
            PriceChange {
                instance_type: Some("ml.p4d.24xlarge".into()),
                ..change
            },
        ] {
            assert!(!dependent.is_hit_by(&other), "{other:?}");
        }
    }
}

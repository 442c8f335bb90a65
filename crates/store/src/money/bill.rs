//! Settlement: writes the lines of a bill to the ledger and moves their cost from reserved to
//! settled, in the caller's transaction. The domain computes the lines.

pub(crate) use bakeoff_domain::sagemaker::observed::waits;

use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::bill::{self, Agreed, Usage};
use bakeoff_domain::money::ledger::{EntryComponent, EntryKind, EntryResource};
use bakeoff_domain::money::price::Component;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::StoreError;
use crate::account::Account;
use crate::money::budget::{self, Booking};
use crate::money::ledger::{self, Entry};
use crate::money::prices::{self, PricesOf};

/// Time spans without instances.
pub(crate) type Waits = Vec<(DateTime<Utc>, DateTime<Utc>)>;

/// Locks the experiment's row, so that a price change is applied either before or after what the
/// caller books. The lock is as strong as an UPDATE's and no stronger, because referring rows have
/// already locked the key.
pub(crate) async fn lock(
    tx: &mut PgConnection,
    experiment: ExperimentId,
) -> Result<(), StoreError> {
    sqlx::query!(
        "SELECT FROM experiments WHERE id = $1 FOR NO KEY UPDATE",
        experiment.0
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Input of a settlement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Billed<'a> {
    pub(crate) resource: EntryResource,
    /// How often the resource was settled before.
    pub(crate) settlement: i32,
    pub(crate) usage: &'a Usage,
    pub(crate) agreed: Agreed,
    /// The reservation to release; none if nothing was reserved.
    pub(crate) held: Option<Usd>,
    /// Whether the seconds are an estimate instead of SageMaker's own figure.
    pub(crate) estimated: bool,
}

/// Books usage and releases its reservation; returns the cost.
pub(crate) async fn settle(
    tx: &mut PgConnection,
    account: &Account,
    billed: Billed<'_>,
    now: DateTime<Utc>,
) -> Result<Usd, StoreError> {
    let Billed {
        resource,
        settlement,
        usage,
        agreed,
        held,
        estimated,
    } = billed;
    lock(tx, account.experiment_id).await?;
    let of = PricesOf {
        kind: usage.kind,
        region: &usage.region,
        instance_types: std::slice::from_ref(&usage.instance_type),
    };
    let tariffs = prices::tariffs(&mut *tx, account.project_id, of).await?;
    let lines = bill::lines(usage, &tariffs.prices, &tariffs.rates, agreed);
    let total: Usd = lines.iter().map(|line| line.usd).sum();
    // The budget's row comes first: its lock orders the ledger's rows, so that a release precedes
    // the reservations it makes room for.
    let given_back = held.unwrap_or(Usd::ZERO);
    let (experiment, project) = (account.experiment_id, account.project_id);
    budget::settle(
        tx,
        Booking {
            experiment,
            project,
            released: given_back,
            settled: total,
        },
        now,
    )
    .await?;
    if let Some(held) = held {
        let component = resource.instances(usage.kind);
        let entry = Entry::worst_case(EntryKind::Released, resource, component, held);
        ledger::write(tx, account, &entry, now).await?;
    }
    for (number, line) in (0..).zip(&lines) {
        let component = match line.component {
            Component::Storage => EntryComponent::Storage,
            Component::Training
            | Component::Processing
            | Component::Transform
            | Component::Hosting
            | Component::Cloudwatch => resource.instances(usage.kind),
        };
        let entry = Entry {
            kind: EntryKind::Settled,
            resource,
            component,
            settlement,
            line: number,
            usd: line.usd,
            quantity: i64::try_from(line.quantity).unwrap_or(i64::MAX),
            unit: component.unit(),
            estimated: estimated || line.estimated,
            used: Some((line.from, line.until)),
        };
        let account = Account {
            price_id: line.price_id,
            ..*account
        };
        ledger::write(tx, &account, &entry, now).await?;
    }
    Ok(total)
}

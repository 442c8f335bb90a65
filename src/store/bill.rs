//! Settling: the lines of a bill become rows of the ledger, and what they cost goes from reserved
//! to spent, in the caller's transaction. What the lines are is the domain's business.

pub(super) use bakeoff_domain::bill::waits;
use bakeoff_domain::bill::{self, Agreed, Usage};
use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::price::Component;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::ledger::{self, Account, Entry};
use super::{StoreError, budget, prices};

/// Spans without instances.
pub(super) type Waits = Vec<(DateTime<Utc>, DateTime<Utc>)>;

/// What is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Job,
    Pool,
    /// The settlement's number: a stray may be settled again when it turns out to have run on.
    Stray(i32),
}

impl What {
    pub(super) fn component(self) -> &'static str {
        match self {
            Self::Job => "training",
            Self::Pool => "warm_pool",
            Self::Stray(_) => "stray",
        }
    }

    /// An attempt's volumes are lines of one component, whatever they belonged to: each has its own
    /// range of parts.
    fn first_part(self, component: Component) -> i32 {
        match (self, component) {
            (Self::Stray(number), Component::Training) => number * PARTS,
            (Self::Stray(number), _) => (2 + number) * PARTS,
            (Self::Pool, Component::Storage) => PARTS,
            _ => 0,
        }
    }
}

/// Lines that one settlement has at most: changes of price, and of the month, within the 28 days
/// that a job can run.
const PARTS: i32 = 100;

/// Locks the experiment's row, so that a change of price is applied either before or after what the
/// caller books. As an UPDATE would, and no stronger: rows that refer to it have locked its key
/// already.
pub(super) async fn lock(
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

/// Books some usage and gives back what was held for it; returns what it cost.
pub(super) async fn settle(
    tx: &mut PgConnection,
    account: &Account,
    (what, usage, agreed): (What, &Usage, Agreed),
    (held, estimated): (Option<Usd>, bool),
    now: DateTime<Utc>,
) -> Result<Usd, StoreError> {
    lock(tx, account.experiment_id).await?;
    let kind = std::slice::from_ref(&usage.instance_type);
    let tariffs = prices::tariffs(&mut *tx, account.project_id, &usage.region, kind).await?;
    let lines = bill::lines(usage, &tariffs.prices, &tariffs.rates, agreed);
    let total: Usd = lines.iter().map(|line| line.usd).sum();
    // The budget's row first: its lock puts the ledger's rows in order, and a release comes before
    // what it makes room for.
    budget::settle(
        tx,
        account.experiment_id,
        account.project_id,
        held.unwrap_or(Usd::ZERO),
        total,
    )
    .await?;
    if let Some(held) = held {
        ledger::write(
            tx,
            account,
            &Entry::worst_case("released", what.component(), held),
            now,
        )
        .await?;
    }
    let mut parts = [Component::Training, Component::Storage]
        .map(|component| (component, what.first_part(component)));
    for line in &lines {
        let is_storage = line.component == Component::Storage;
        let Some((_, part)) = parts
            .iter_mut()
            .find(|(component, _)| *component == line.component)
        else {
            continue;
        };
        let entry = Entry {
            kind: "settled",
            component: if is_storage {
                "storage"
            } else {
                what.component()
            },
            usd: line.usd,
            quantity: i64::try_from(line.quantity).unwrap_or(i64::MAX),
            unit: if is_storage {
                "gb_seconds"
            } else {
                "instance_seconds"
            },
            estimated: estimated || line.estimated,
            used: Some((line.from, line.until)),
        };
        let account = Account {
            price_id: line.price_id,
            ..*account
        };
        ledger::write_part(tx, &account, &entry, *part, now).await?;
        *part += 1;
    }
    Ok(total)
}

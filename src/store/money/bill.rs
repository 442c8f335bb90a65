//! Settling: the lines of a bill become rows of the ledger, and what they cost goes from reserved
//! to spent, in the caller's transaction. What the lines are is the domain's business.

pub(in crate::store) use bakeoff_domain::money::bill::waits;

use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::bill::{self, Agreed, Usage};
use bakeoff_domain::money::price::Component;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::StoreError;
use crate::store::money::ledger::{self, Account, Entry};
use crate::store::money::{budget, prices};

/// Spans without instances.
pub(in crate::store) type Waits = Vec<(DateTime<Utc>, DateTime<Utc>)>;

/// What is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum What {
    Job,
    Pool,
    /// The settlement's number: a stray may be settled again when it turns out to have run on.
    Stray(i32),
}

impl What {
    pub(in crate::store) fn component(self) -> &'static str {
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
pub(in crate::store) async fn lock(
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

/// What is booked at a settlement.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Billed<'a> {
    pub(in crate::store) what: What,
    pub(in crate::store) usage: &'a Usage,
    pub(in crate::store) agreed: Agreed,
    /// Given back; none where nothing was reserved for it.
    pub(in crate::store) held: Option<Usd>,
    /// Its seconds are not SageMaker's own figure.
    pub(in crate::store) estimated: bool,
}

/// Books some usage and gives back what was held for it; returns what it cost.
pub(in crate::store) async fn settle(
    tx: &mut PgConnection,
    account: &Account,
    billed: Billed<'_>,
    now: DateTime<Utc>,
) -> Result<Usd, StoreError> {
    let Billed {
        what,
        usage,
        agreed,
        held,
        estimated,
    } = billed;
    lock(tx, account.experiment_id).await?;
    let kind = std::slice::from_ref(&usage.instance_type);
    let tariffs = prices::tariffs(&mut *tx, account.project_id, &usage.region, kind).await?;
    let lines = bill::lines(usage, &tariffs.prices, &tariffs.rates, agreed);
    let total: Usd = lines.iter().map(|line| line.usd).sum();
    // The budget's row first: its lock puts the ledger's rows in order, and a release comes before
    // what it makes room for.
    let given_back = held.unwrap_or(Usd::ZERO);
    let (experiment, project) = (account.experiment_id, account.project_id);
    budget::settle(tx, experiment, project, given_back, total).await?;
    if let Some(held) = held {
        let entry = Entry::worst_case("released", what.component(), held);
        ledger::write(tx, account, &entry, now).await?;
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

//! Dollars in rows: prices, budgets, the ledger, what an attempt's end and a price's change write.

pub mod bill;
pub mod budget;
pub mod corrections;
pub mod ledger;
pub mod prices;
pub mod repricing;
pub(in crate::store) mod settled;
pub mod settling;
pub mod spending;

//! Money in the database: prices, budgets, the ledger, and the effects of settlements and price
//! changes.

pub mod bill;
pub mod budget;
pub mod caps;
pub mod corrections;
pub mod ledger;
pub mod prices;
pub mod refreshes;
pub mod repricing;
pub(crate) mod settled;
pub mod spending;

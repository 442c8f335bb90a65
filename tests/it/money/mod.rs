//! Money: bills, budgets, the ledger and prices.

pub(crate) mod bill;
pub(crate) mod budgets;
pub(crate) mod ledger;
pub(crate) mod prices;

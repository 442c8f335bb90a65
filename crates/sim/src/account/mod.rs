//! What the account has and allows: prices, bills, quotas, permissions, the rules for what it is asked, and what goes wrong on demand.

pub(crate) mod billing;
pub(crate) mod constraints;
pub(crate) mod epoch;
pub(crate) mod faults;
pub(crate) mod price_list;
pub(crate) mod quotas;
pub(crate) mod refusal;
pub(crate) mod request;
pub(crate) mod setup;

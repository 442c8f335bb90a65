//! Commands that look: lists, one thing by its id, several side by side, prices, spending, the dashboard.

mod compare;
mod list;
mod open;
mod prices;
mod show;
mod spend;

pub(super) use compare::CompareOptions;
pub(super) use list::ListOptions;
pub(super) use open::OpenOptions;
pub(super) use prices::PricesOptions;
pub(super) use show::{ShowOptions, WatchOptions};
pub(super) use spend::SpendOptions;

pub(super) use compare::run as compare;
pub(super) use list::run as list;
pub(super) use open::run as open;
pub(super) use prices::run as prices;
pub(super) use show::{run as show, watch};
pub(super) use spend::run as spend;

//! Which candidate to buy, and why.

pub mod outcome;
pub mod posterior;
pub mod race;
pub mod recommend;
pub mod recommendation;
mod repeats;
mod spend;
pub mod start;
mod wording;

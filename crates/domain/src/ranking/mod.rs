//! Which candidate to buy, and why.

pub mod outcome;
pub mod posterior;
pub mod recommend;
pub mod recommendation;
mod repeats;
mod wording;

//! Which candidate to buy, and why.

pub mod full_run;
mod headline;
pub mod looks;
pub mod outcome;
pub mod posterior;
pub mod purchase;
pub mod race;
pub mod recommend;
pub mod recommendation;
mod repeats;
pub mod repricing;
#[cfg(test)]
mod samples;
mod spend;
pub mod start;
mod wording;

//! Which candidate to buy, and why.

pub mod recommend;

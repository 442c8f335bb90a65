//! Everything before a dollar is spent: whether a spec makes sense, what its candidates need and
//! how fast they will be, which trials it becomes, and the requests that are sent.
//!
//! Pure, as `bakeoff-domain` is, whose nouns it works on. Neither the AWS crate nor the simulated
//! region knows it.

pub mod comparison;
pub mod lint;
pub mod plan;
pub mod predict;
pub mod preview;
pub mod render;
pub mod setup;

/// Reads every data file and pattern that is compiled into this crate. Panics, naming the file, if
/// one cannot be read.
pub fn read_embedded() {
    predict::fit::Coefficients::shipped();
    predict::Model::shipped();
    lint::read_embedded();
}

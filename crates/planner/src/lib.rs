//! Everything before money is spent: whether a spec makes sense, what its candidates need and how
//! fast they will be, which trials it becomes, and which requests are sent.
//!
//! Pure, like `bakeoff-domain`, whose types it works on. It knows neither the AWS crate nor the
//! simulated region.

pub mod comparison;
pub mod import;
mod learnt;
pub mod lint;
pub mod plan;
pub mod predict;
pub mod preview;
mod recurring;
pub mod render;
pub mod rules;
pub mod setup;

/// Reads every data file and compiles every pattern embedded in this crate. Panics, naming the
/// file, if one cannot be read.
pub fn read_embedded() {
    predict::fit::Coefficients::shipped();
    predict::Model::shipped();
    lint::read_embedded();
    render::estimator::read_embedded();
}

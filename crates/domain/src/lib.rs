//! Bakeoff's nouns and rules.
//!
//! Pure: no I/O, no clock, no randomness, no async runtime, no SQL, no AWS type. Time and ids are
//! parameters; what must reach AWS goes through the port traits in [`ports`]. Money is
//! [`money::Usd`], a decimal.

pub mod attempt;
pub mod bill;
pub mod body;
pub mod budget;
pub mod catalog;
pub mod claim;
pub mod clock;
pub mod comparison;
pub mod convergence;
pub mod cost;
pub mod decide;
pub mod deepspeed;
pub mod embedded;
pub mod estimator;
pub mod eta;
pub mod fence;
pub mod finding;
pub mod fit;
pub mod forecast;
pub mod ids;
pub mod job;
pub mod limiter;
pub mod lint;
pub mod metric;
pub mod model;
pub mod money;
pub mod plan;
pub mod pool;
pub mod ports;
pub mod predict;
pub mod preview;
pub mod price;
pub mod price_list;
pub mod queue;
pub mod quota;
pub mod recommend;
pub mod request;
pub mod requested;
pub mod rollup;
pub mod run;
pub mod samples;
pub mod sdk;
pub mod spec;
pub mod spot;
pub mod steady;
pub mod strategy;
pub mod stray;
pub mod technique;
pub mod watch;

/// Reads every data file and pattern that is compiled in. Panics, naming the file, if one cannot be
/// read: called first, it ends a program that would decide about money without them.
pub fn read_embedded() {
    catalog::all();
    price::catalog();
    fit::Coefficients::shipped();
    predict::Model::shipped();
    lint::read_embedded();
}

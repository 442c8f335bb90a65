//! Bakeoff's nouns and rules.
//!
//! Pure: no I/O, no clock, no randomness, no async runtime, no SQL, no AWS type. Time and ids are parameters; what
//! must reach AWS goes through the port traits in [`ports`]. Money is [`money::Usd`], a decimal.

pub mod attempt;
pub mod bill;
pub mod budget;
pub mod catalog;
pub mod clock;
pub mod comparison;
pub mod convergence;
pub mod cost;
pub mod decide;
pub mod eta;
pub mod finding;
pub mod fit;
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
pub mod price;
pub mod price_list;
pub mod queue;
pub mod quota;
pub mod recommend;
pub mod requested;
pub mod rollup;
pub mod run;
pub mod samples;
pub mod spec;
pub mod spot;
pub mod steady;
pub mod stray;
pub mod watch;

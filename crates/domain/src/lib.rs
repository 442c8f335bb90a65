//! Bakeoff's nouns and rules.
//!
//! Pure: no I/O, no clock, no randomness, no async runtime, no SQL, no AWS type. Time and ids are
//! parameters; what must reach AWS goes through the port traits in [`sagemaker::ports`]. Money is
//! [`money::Usd`], a decimal.

pub mod catalog;
pub mod clock;
pub mod embedded;
pub mod finding;
pub mod ids;
pub mod lifecycle;
pub mod measure;
pub mod money;
pub mod ranking;
pub mod sagemaker;
pub mod spec;

/// Reads every data file and pattern that is compiled in. Panics, naming the file, if one cannot be
/// read: called first, it ends a program that would decide about money without them.
pub fn read_embedded() {
    catalog::all();
    money::price::catalog();
}

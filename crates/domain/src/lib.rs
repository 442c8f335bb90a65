//! The domain model of Bakeoff: its types and rules.
//!
//! Pure: no I/O, no clock, no randomness, no async runtime, no SQL, no AWS types. Time and ids are
//! parameters; calls to AWS go through the port traits in [`ports`]. Money is
//! [`money::Usd`], a decimal.

#[macro_use]
mod named;

pub mod catalog;
pub mod checkpoint;
pub mod ci;
pub mod clock;
pub mod delivery;
pub mod diagnosis;
pub mod doctor;
pub mod embedded;
pub mod endpoint;
pub mod event;
pub mod finding;
pub mod ids;
pub mod lifecycle;
pub mod measure;
pub mod model_package;
pub mod money;
pub mod number;
pub mod pipeline;
pub mod ports;
pub mod ranking;
pub mod sagemaker;
pub mod spec;
pub mod webhook_endpoint;

/// Reads every data file that is compiled in. Panics, naming the file, if one cannot be read.
/// Called first, it ends a program that would otherwise make decisions about money without its
/// data.
pub fn read_embedded() {
    catalog::all();
    catalog::regions::read_embedded();
    catalog::known_models::read_embedded();
    catalog::serving::Serving::Endpoint.types();
    money::price::catalog();
    diagnosis::signatures::all();
    measure::samples::read_embedded();
    spec::metric_definitions::read_embedded();
}

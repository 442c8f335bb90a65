//! SageMaker in domain terms: requests, observed jobs, and the nouns that both are written with.

pub mod endpoint;
pub mod error;
pub mod image;
pub mod job;
pub mod kind;
pub mod limiter;
pub mod links;
pub mod locations;
pub mod log;
pub mod metrics;
pub mod observed;
pub mod phase;
pub mod processing;
pub mod purchase_option;
pub mod quota;
pub mod request;
pub mod requested;
pub mod schedule;
pub mod tuning;

/// Whether a text looks like the name of a region, such as `us-east-1`.
pub fn is_region(text: &str) -> bool {
    (5..=40).contains(&text.len())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

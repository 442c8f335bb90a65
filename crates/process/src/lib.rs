//! What every process of the service has of its own: its clock, its ids, its TLS, and the points at which tests kill it.

pub mod clock;
pub mod crash;
pub mod ids;
pub mod tls;

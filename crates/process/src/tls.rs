//! TLS for outgoing requests: every HTTP client of the program is built here, with one crypto
//! library. AWS's client is built in `bakeoff-aws`, Postgres's by sqlx; both use the same library.

use rustls::crypto::{CryptoProvider, ring};

/// A builder of HTTP clients. The first call chooses the process's crypto library, which reqwest
/// requires.
pub fn http_client() -> reqwest::ClientBuilder {
    if CryptoProvider::get_default().is_none() {
        // An error says that another thread was first, with the same library.
        let _ = ring::default_provider().install_default();
    }
    #[expect(clippy::disallowed_methods, reason = "the place where it is allowed")]
    reqwest::Client::builder()
}

//! A resolver that hands over only addresses that may be called. The connection goes to one of those it hands over, so
//! that nothing can change between the check and the call.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address;

/// The machine's own resolver.
#[derive(Debug, Clone, Copy)]
pub struct System;

impl Resolve for System {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(Box::new(found.collect::<Vec<_>>().into_iter()) as Addrs)
        })
    }
}

/// Another resolver, without the addresses that may not be called.
pub(super) struct Guarded {
    inner: Arc<dyn Resolve>,
    takes_public: bool,
    allowed: Arc<[IpNet]>,
}

impl Guarded {
    pub(super) fn new(inner: Arc<dyn Resolve>, takes_public: bool, allowed: Arc<[IpNet]>) -> Self {
        Self {
            inner,
            takes_public,
            allowed,
        }
    }
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let asked = name.as_str().to_owned();
        let found = self.inner.resolve(name);
        let (takes_public, allowed) = (self.takes_public, Arc::clone(&self.allowed));
        Box::pin(async move {
            let may_be_called = |found: &SocketAddr| {
                let ip = found.ip();
                address::is_in(&allowed, ip) || takes_public && address::is_public(ip)
            };
            // What a name stands for inside of a network, or whether it is there, is not told outside.
            let found = found
                .await
                .inspect_err(|error| tracing::info!(%error, asked, "not looked up"));
            let left: Vec<SocketAddr> = found.into_iter().flatten().filter(may_be_called).collect();
            if left.is_empty() {
                let why = format!("{asked} has no address that may be called");
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why).into());
            }
            Ok(Box::new(left.into_iter()) as Addrs)
        })
    }
}

//! Leadership over work that one replica does for all. Local belief in a lease only justifies an
//! attempt: a write checks the term in its own transaction, and an effect on AWS needs a
//! recently confirmed lease.

use std::time::Duration;

use tokio::sync::Mutex;

use crate::replica::pulse::meanwhile;
use bakeoff_process::clock::Stopwatch;
use bakeoff_store::leases::Term;
use bakeoff_store::{Store, StoreError};

/// A candidate for one lease, by name and region.
#[derive(Debug)]
pub struct Leader {
    name: &'static str,
    region: String,
    owner: String,
    ttl: Duration,
    held: Mutex<Option<HeldLease>>,
}

#[derive(Debug, Clone)]
struct HeldLease {
    term: Term,
    /// Started before the confirming statement was sent: the lease cannot have begun earlier.
    confirmed: Stopwatch,
}

impl Leader {
    pub fn new(name: &'static str, region: &str, owner: &str, ttl: Duration) -> Self {
        Self {
            name,
            region: region.to_owned(),
            owner: owner.to_owned(),
            ttl,
            held: Mutex::new(None),
        }
    }

    /// The term, renewed or newly acquired; `None` while another replica holds it. A refused
    /// renewal ends the term; a renewal without an answer leaves it in doubt, and the age of the
    /// last confirmation counts.
    pub async fn term(&self, store: &Store) -> Result<Option<Term>, StoreError> {
        let mut held = self.held.lock().await;
        let confirmed = Stopwatch::start();
        if let Some(HeldLease { term, .. }) = held.clone() {
            if store.renew_lease(&term, self.ttl).await? {
                *held = Some(HeldLease {
                    term: term.clone(),
                    confirmed,
                });
                return Ok(Some(term));
            }
            *held = None;
            tracing::info!(lease = self.name, "lease lost; stepping down");
        }
        *held = store
            .acquire_lease(self.name, &self.region, &self.owner, self.ttl)
            .await?
            .map(|term| HeldLease { term, confirmed });
        Ok(held.as_ref().map(|held| held.term.clone()))
    }

    /// The term, renewed only after a third of it has passed: for the steps of long work.
    pub async fn still(&self, store: &Store) -> Result<Option<Term>, StoreError> {
        {
            let held = self.held.lock().await;
            if let Some(current) = held
                .as_ref()
                .filter(|held| held.confirmed.elapsed() * 3 < self.ttl)
            {
                return Ok(Some(current.term.clone()));
            }
        }
        self.term(store).await
    }

    /// Does some work while renewing the lease, so that one unanswered call does not cost the
    /// lease. A lost lease stays lost here: a new term begins with [`Self::term`].
    pub async fn keep<T>(&self, store: &Store, work: impl Future<Output = T>) -> T {
        meanwhile(self.ttl / 3, work, || self.renew(store)).await
    }

    /// Renews the lease unless its row is locked. The work's own transactions lock it; then the
    /// lease is safe, and the next renewal will do.
    async fn renew(&self, store: &Store) {
        let confirmed = Stopwatch::start();
        let Some(HeldLease { term, .. }) = self.held.lock().await.clone() else {
            return;
        };
        match store.renew_lease_unless_locked(&term, self.ttl).await {
            Ok(true) => {
                let mut held = self.held.lock().await;
                if let Some(held) = held.as_mut().filter(|held| held.term == term) {
                    held.confirmed = confirmed;
                }
            }
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, lease = self.name, "lease renewal failed");
            }
        }
    }

    /// Whether an effect on AWS may be sent now: at least half of the lease is left, counting any
    /// time this process was suspended.
    pub async fn is_trusted(&self) -> bool {
        self.held
            .lock()
            .await
            .as_ref()
            .is_some_and(|held| held.confirmed.elapsed() * 2 < self.ttl)
    }

    /// Releases the lease, so that no other replica has to wait for it.
    pub async fn resign(&self, store: &Store) {
        if let Some(held) = self.held.lock().await.take()
            && let Err(error) = store.resign_lease(&held.term).await
        {
            tracing::debug!(%error, lease = self.name, "lease release failed; it will expire");
        }
    }
}

//! Leadership over work that one replica does for all. What is believed here is only a reason to
//! try: a write is fenced by the term in its own transaction, and an effect on AWS needs a lease
//! that was confirmed a moment ago.

use std::time::Duration;

use tokio::sync::Mutex;

use crate::clock::Stopwatch;
use crate::pulse::meanwhile;
use crate::store::leases::Term;
use crate::store::{Store, StoreError};

/// A candidate for one named lease.
#[derive(Debug)]
pub struct Leader {
    name: &'static str,
    owner: String,
    ttl: Duration,
    held: Mutex<Option<Held>>,
}

#[derive(Debug, Clone)]
struct Held {
    term: Term,
    /// Before the statement that confirmed it was sent: the lease cannot have begun earlier.
    confirmed: Stopwatch,
}

impl Leader {
    pub fn new(name: &'static str, owner: String, ttl: Duration) -> Self {
        Self {
            name,
            owner,
            ttl,
            held: Mutex::new(None),
        }
    }

    /// The term, renewed or newly taken; `None` while another replica has it. A renewal that is
    /// refused is an end; one without an answer is a doubt, and what was confirmed before counts by
    /// its age.
    pub async fn term(&self, store: &Store) -> Result<Option<Term>, StoreError> {
        let mut held = self.held.lock().await;
        let confirmed = Stopwatch::start();
        if let Some(Held { term, .. }) = held.clone() {
            if store.renew_lease(&term, self.ttl).await? {
                *held = Some(Held {
                    term: term.clone(),
                    confirmed,
                });
                return Ok(Some(term));
            }
            *held = None;
            tracing::info!(lease = self.name, "the lease is lost; stepping down");
        }
        *held = store
            .acquire_lease(self.name, &self.owner, self.ttl)
            .await?
            .map(|term| Held { term, confirmed });
        Ok(held.as_ref().map(|held| held.term.clone()))
    }

    /// The term, renewed only when a third of it has passed: for long work, step by step.
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

    /// Does some work, and renews the lease meanwhile: one call that gets no answer must not cost
    /// it. A lease that is lost stays lost here: a new term begins with [`Self::term`].
    pub async fn keep<T>(&self, store: &Store, work: impl Future<Output = T>) -> T {
        meanwhile(self.ttl / 3, work, || self.renew(store)).await
    }

    /// The work's own transactions lock the lease's row: then it is safe, and renewed the next
    /// time.
    async fn renew(&self, store: &Store) {
        let confirmed = Stopwatch::start();
        let Some(Held { term, .. }) = self.held.lock().await.clone() else {
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
                tracing::debug!(%error, lease = self.name, "the lease could not be renewed");
            }
        }
    }

    /// Whether an effect on AWS may be sent now: half of the lease is left, however long this
    /// process slept.
    pub async fn is_trusted(&self) -> bool {
        self.held
            .lock()
            .await
            .as_ref()
            .is_some_and(|held| held.confirmed.elapsed() * 2 < self.ttl)
    }

    /// Gives the lease back, so that nobody waits for it.
    pub async fn resign(&self, store: &Store) {
        if let Some(held) = self.held.lock().await.take()
            && let Err(error) = store.resign_lease(&held.term).await
        {
            tracing::debug!(%error, lease = self.name, "the lease could not be given back; it will run out");
        }
    }
}

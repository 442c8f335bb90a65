//! Who waits for events of which experiment: long polls and streams of this process. A wake carries
//! nothing, and whoever is woken reads again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bakeoff_domain::ids::{ApiKeyId, ExperimentId};
use tokio::sync::watch;

/// Streams that may be open with one key, in one process.
pub const STREAMS_OF_KEY_MAX: u32 = 50;

/// Wakes those who wait for events of one experiment, and no others.
#[derive(Debug, Clone, Default)]
pub struct EventBoard(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    waiting: HashMap<ExperimentId, watch::Sender<()>>,
    streams: HashMap<ApiKeyId, u32>,
}

impl EventBoard {
    /// To be told of events of an experiment from now on.
    pub fn subscribe(&self, experiment: ExperimentId) -> Subscription {
        let told = self
            .entries()
            .waiting
            .entry(experiment)
            .or_default()
            .subscribe();
        Subscription {
            told,
            experiment,
            board: self.clone(),
        }
    }

    /// Something has happened in an experiment.
    pub fn wake(&self, experiment: ExperimentId) {
        if let Some(waiting) = self.entries().waiting.get(&experiment) {
            waiting.send_replace(());
        }
    }

    /// Anything may have happened anywhere: the connection that tells was lost.
    pub fn wake_all(&self) {
        for waiting in self.entries().waiting.values() {
            waiting.send_replace(());
        }
    }

    /// A place for one more stream; none when the key has too many.
    pub fn open_stream(&self, key: ApiKeyId) -> Option<StreamPlace> {
        let mut entries = self.entries();
        let open = entries.streams.entry(key).or_default();
        if *open >= STREAMS_OF_KEY_MAX {
            return None;
        }
        *open += 1;
        Some(StreamPlace {
            key,
            board: self.clone(),
        })
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiter's ear.
#[derive(Debug)]
pub struct Subscription {
    told: watch::Receiver<()>,
    experiment: ExperimentId,
    board: EventBoard,
}

impl Subscription {
    /// Returns when something has happened since the last call, or since it was subscribed.
    pub async fn changed(&mut self) {
        if self.told.changed().await.is_err() {
            // The board keeps the sender for as long as somebody listens.
            std::future::pending::<()>().await;
        }
    }

    /// What has happened until now is known: it is about to be read.
    pub fn mark_unchanged(&mut self) {
        self.told.mark_unchanged();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut entries = self.board.entries();
        // This one still counts.
        if entries
            .waiting
            .get(&self.experiment)
            .is_some_and(|waiting| waiting.receiver_count() <= 1)
        {
            entries.waiting.remove(&self.experiment);
        }
    }
}

/// Counts as a stream of its key until it is dropped.
#[derive(Debug)]
pub struct StreamPlace {
    key: ApiKeyId,
    board: EventBoard,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut entries = self.board.entries();
        let open = entries
            .streams
            .remove(&self.key)
            .unwrap_or_default()
            .saturating_sub(1);
        if open > 0 {
            entries.streams.insert(self.key, open);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn only_those_who_wait_for_an_experiment_are_woken() {
        let board = EventBoard::default();
        let [one, other] = [1, 2].map(|number| ExperimentId(Uuid::from_u128(number)));
        let (mut first, mut second, mut third) = (
            board.subscribe(one),
            board.subscribe(one),
            board.subscribe(other),
        );
        board.wake(one);
        assert!(
            first.changed().now_or_never().is_some() && second.changed().now_or_never().is_some()
        );
        assert!(first.changed().now_or_never().is_none(), "once");
        assert!(
            third.changed().now_or_never().is_none(),
            "it waits for another"
        );
        board.wake_all();
        assert!(
            third.changed().now_or_never().is_some() && first.changed().now_or_never().is_some()
        );
    }

    #[test]
    fn nothing_is_kept_of_those_who_have_gone() {
        let board = EventBoard::default();
        let one = ExperimentId(Uuid::from_u128(1));
        let (first, second) = (board.subscribe(one), board.subscribe(one));
        drop(first);
        assert_eq!(board.entries().waiting.len(), 1);
        drop(second);
        assert!(board.entries().waiting.is_empty());
        let key = ApiKeyId(Uuid::from_u128(1));
        let places: Vec<_> = (0..STREAMS_OF_KEY_MAX)
            .map(|_| board.open_stream(key).unwrap())
            .collect();
        assert!(board.open_stream(key).is_none());
        drop(places);
        assert!(board.open_stream(key).is_some());
        assert!(board.entries().streams.is_empty());
    }
}

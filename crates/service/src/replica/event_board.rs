//! Tracks which long polls and streams of this process wait for events of which experiment or
//! project. A wake carries no data: the waiter reads again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bakeoff_domain::ids::{ApiKeyId, ExperimentId, ProjectId};
use tokio::sync::watch;

/// Maximum number of open streams per key and process.
pub const STREAMS_OF_KEY_MAX: u32 = 50;

/// What a waiter waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    Experiment(ExperimentId),
    /// All experiments of a project.
    Project(ProjectId),
}

/// Wakes the waiters of a topic, and no others.
#[derive(Debug, Clone, Default)]
pub struct EventBoard(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    waiting: HashMap<Topic, watch::Sender<()>>,
    streams: HashMap<ApiKeyId, u32>,
}

impl EventBoard {
    /// Subscribes to a topic's events from now on.
    pub fn subscribe(&self, topic: Topic) -> Subscription {
        let told = self.entries().waiting.entry(topic).or_default().subscribe();
        Subscription {
            told,
            topic,
            board: self.clone(),
        }
    }

    /// Wakes the waiters of a topic.
    pub fn wake(&self, topic: Topic) {
        if let Some(waiting) = self.entries().waiting.get(&topic) {
            waiting.send_replace(());
        }
    }

    /// Wakes all waiters: the notification connection was lost, so any event may have been missed.
    pub fn wake_all(&self) {
        for waiting in self.entries().waiting.values() {
            waiting.send_replace(());
        }
    }

    /// Reserves a place for one more stream; `None` if the key has too many.
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

/// A waiter's subscription to one topic.
#[derive(Debug)]
pub struct Subscription {
    told: watch::Receiver<()>,
    topic: Topic,
    board: EventBoard,
}

impl Subscription {
    /// Returns when something has happened since the last call, or since the subscription.
    pub async fn changed(&mut self) {
        if self.told.changed().await.is_err() {
            // The board keeps the sender as long as anyone is subscribed.
            std::future::pending::<()>().await;
        }
    }

    /// Marks all changes so far as seen: the caller is about to read them.
    pub fn mark_unchanged(&mut self) {
        self.told.mark_unchanged();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut entries = self.board.entries();
        // The count still includes this subscription.
        if entries
            .waiting
            .get(&self.topic)
            .is_some_and(|waiting| waiting.receiver_count() <= 1)
        {
            entries.waiting.remove(&self.topic);
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
        let [one, other] =
            [1, 2].map(|number| Topic::Experiment(ExperimentId(Uuid::from_u128(number))));
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
        let one = Topic::Project(ProjectId(Uuid::from_u128(1)));
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

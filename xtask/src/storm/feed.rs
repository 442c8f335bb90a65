//! A reader of the project's feed of events, as a dashboard is one: it reads a stream until that breaks, goes to the next
//! replica, and asks for what comes after the last event that it has read. At the end it has read each event once, in
//! order.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::stage::Stage;
use bakeoff_demo::http::{agent_within, pages};

/// A stream is read for so long at most.
const STREAM_MAX: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Read {
    ids: Vec<i64>,
    /// Streams that went on where another one had ended.
    resumed: u64,
}

pub(super) struct Feed {
    read: Arc<Mutex<Read>>,
    is_over: Arc<AtomicBool>,
    is_idle: bool,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

impl Feed {
    pub(super) fn start(stage: &Stage, is_idle: bool) -> Self {
        let (read, is_over) = (
            Arc::new(Mutex::default()),
            Arc::new(AtomicBool::new(is_idle)),
        );
        let (urls, key) = (stage.all_urls(), stage.api_key.clone());
        let (kept, over) = (read.clone(), is_over.clone());
        std::thread::spawn(move || {
            for url in urls.iter().cycle() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                follow(url, &key, &kept, &over);
                std::thread::sleep(PAUSE);
            }
        });
        Self {
            read,
            is_over,
            is_idle,
        }
    }

    pub(super) fn resumed(&self) -> u64 {
        self.read
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .resumed
    }

    /// What the reader has missed, or read twice; nothing while it is merely behind.
    pub(super) fn compare(&self, url: &str, key: &str) -> Result<Vec<String>, String> {
        if self.is_idle {
            return Ok(Vec::new());
        }
        let written = pages(&format!("{url}/v1/events?page_size=500"), key)?;
        let written: Vec<i64> = written
            .iter()
            .filter_map(|one| one["id"].as_i64())
            .collect();
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let place = written
            .iter()
            .zip(&read.ids)
            .position(|(one, other)| one != other);
        Ok(place.map_or_else(Vec::new, |place| {
            let all =
                |ids: &[i64]| format!("{:?}", ids.iter().skip(place).take(5).collect::<Vec<_>>());
            vec![format!(
                "a reader of the feed has, after {place} events, {} where {} was written",
                all(&read.ids),
                all(&written)
            )]
        }))
    }

    /// Whether it has read everything.
    pub(super) fn has_read_all(&self, url: &str, key: &str) -> bool {
        let newest = pages(&format!("{url}/v1/events?page_size=500"), key);
        let newest = newest.ok().and_then(|all| all.last()?["id"].as_i64());
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_idle || newest.is_some() && read.ids.last().copied() >= newest
    }
}

/// Reads one stream until it breaks.
fn follow(url: &str, key: &str, kept: &Mutex<Read>, is_over: &AtomicBool) {
    let last = {
        let read = kept.lock().unwrap_or_else(PoisonError::into_inner);
        read.ids.last().copied().unwrap_or(0)
    };
    let request = agent_within(STREAM_MAX)
        .get(format!("{url}/v1/events"))
        .header("authorization", format!("Bearer {key}"))
        .header("accept", "text/event-stream")
        .header("last-event-id", last.to_string());
    let Ok(answer) = request.call() else { return };
    if answer.status() != 200 {
        return;
    }
    let (mut id, mut has_news) = (None, false);
    for line in BufReader::new(answer.into_body().into_reader()).lines() {
        let Ok(line) = line else { return };
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        if let Some(number) = line.strip_prefix("id:") {
            id = number.trim().parse::<i64>().ok();
        }
        // An event counts once it has come whole.
        if line.is_empty()
            && let Some(id) = id.take()
        {
            let mut read = kept.lock().unwrap_or_else(PoisonError::into_inner);
            read.resumed += u64::from(last > 0 && !has_news);
            has_news = true;
            read.ids.push(id);
        }
    }
}

//! A webhook endpoint that is often in trouble: it refuses, asks for patience, hangs up before it reads, and hangs up
//! after it has read. At the end, every event that its project had since it was created must have arrived, each under
//! one id. A second one says that it is gone, and is never called again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::stage::Stage;
use bakeoff_demo::http::{get, pages, post};

/// The events that it hears of.
const KINDS: [&str; 3] = [
    "experiment.created",
    "experiment.concluded",
    "trial.submitted",
];
/// A request that does not come to its end in this time is given up, so that no thread is left.
const PATIENCE: Duration = Duration::from_secs(10);
/// A message is tried ten times: one that meets trouble each time is rightly given up.
const TROUBLES_MAX: u32 = 5;
/// More than a message ever has.
const BODY_MAX: usize = 1 << 20;

/// An endpoint, and what it hears of. Its whole address is a secret, so that it is known by its kinds.
#[derive(Clone, Copy)]
struct Door {
    path: &'static str,
    kinds: &'static [&'static str],
}

const HOOKS: Door = Door {
    path: "/hooks",
    kinds: &KINDS,
};
/// Answers 410.
const GONE: Door = Door {
    path: "/gone",
    kinds: &["trial.submitted"],
};

/// What has come.
#[derive(Default)]
struct Arrived {
    /// Ids under which each event has come, by the event's number.
    ids: BTreeMap<i64, BTreeSet<String>>,
    /// Requests that were asked to come later.
    put_off: u64,
    /// How often each message has met trouble.
    troubles: BTreeMap<String, u32>,
    /// Messages that came to the one that is gone.
    came_to_gone: BTreeSet<String>,
}

type Taken = Arc<Mutex<Arrived>>;

pub(super) struct Hooks {
    taken: Taken,
    port: u16,
    is_over: Arc<AtomicBool>,
    /// No more trouble.
    is_calm: Arc<AtomicBool>,
    is_set: bool,
    is_gone_set: bool,
    /// A restored backup knows neither the endpoint nor what was on its way.
    is_idle: bool,
}

impl Drop for Hooks {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the listener, which then ends.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl Hooks {
    pub(super) fn start(is_idle: bool) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?;
        let (taken, is_over) = (Taken::default(), Arc::new(AtomicBool::new(false)));
        let is_calm = Arc::new(AtomicBool::new(false));
        let (kept, over, calm) = (taken.clone(), is_over.clone(), is_calm.clone());
        std::thread::spawn(move || {
            for (number, stream) in (0_u64..).zip(listener.incoming().flatten()) {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let kept = kept.clone();
                let trouble = (!calm.load(Ordering::SeqCst)).then(|| Trouble::of(number));
                let trouble = trouble.flatten();
                std::thread::spawn(move || drop(answer(&stream, &kept, trouble)));
            }
        });
        Ok(Self {
            taken,
            port: port.port(),
            is_over,
            is_calm,
            is_set: false,
            is_gone_set: false,
            is_idle,
        })
    }

    /// From now on, whatever comes is taken.
    pub(super) fn calm(&self) {
        self.is_calm.store(true, Ordering::SeqCst);
    }

    /// Creates both endpoints, once: whether an answer that was lost has done it is looked up first.
    pub(super) fn set(&mut self, stage: &Stage) {
        let is_set = self.is_idle || self.is_set && self.is_gone_set;
        let Some(url) = stage.urls().into_iter().next().filter(|_| !is_set) else {
            return;
        };
        let all = format!("{url}/v1/webhook-endpoints");
        let Ok(found) = pages(&all, &stage.api_key) else {
            return;
        };
        self.is_set = found.iter().any(|one| leads_to(one, HOOKS));
        self.is_gone_set = found.iter().any(|one| leads_to(one, GONE));
        for (door, is_set) in [(HOOKS, self.is_set), (GONE, self.is_gone_set)] {
            if !is_set {
                let own = format!("http://127.0.0.1:{}{}", self.port, door.path);
                let asked = json!({"url": own, "kinds": door.kinds});
                drop(post(&all, &stage.api_key, &asked));
            }
        }
    }

    /// Requests that were asked to come later.
    pub(super) fn put_off(&self) -> u64 {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.put_off
    }

    /// Whether the one that is gone was called; if it was called again after its answer was heard, that is wrong.
    pub(super) fn judge_gone(&self, url: &str, key: &str) -> Result<(u64, Option<String>), String> {
        let endpoints = pages(&format!("{url}/v1/webhook-endpoints"), key)?;
        let Some(one) = endpoints.iter().find(|one| leads_to(one, GONE)) else {
            return Ok((0, None));
        };
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let was_called = !taken.came_to_gone.is_empty();
        let is_disabled = !one["disabled_at"].is_null();
        let wrong = was_called != is_disabled;
        Ok((
            u64::from(is_disabled),
            wrong.then(|| {
                format!(
                    "a webhook endpoint that answers 410 was called: {was_called}, and is {one}"
                )
            }),
        ))
    }

    /// Whether nothing is on its way any more.
    pub(super) fn are_delivered(&self, url: &str, key: &str) -> bool {
        self.is_idle
            || [HOOKS, GONE].into_iter().all(|door| {
                deliveries_of(url, key, door)
                    .is_ok_and(|all| all.iter().all(|one| one["state"] != "pending"))
            })
    }

    /// How many have arrived, and what is wrong.
    pub(super) fn compare(&self, url: &str, key: &str) -> Result<(u64, Vec<String>), String> {
        if self.is_idle {
            return Ok((0, Vec::new()));
        }
        let sent = deliveries_of(url, key, HOOKS)?;
        let first = sent.iter().filter_map(|one| one["event_id"].as_i64()).min();
        let first = first.unwrap_or(i64::MAX);
        let mut wrong = Vec::new();
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for one in &sent {
            let (id, event) = (one["id"].as_str().unwrap_or_default(), &one["event_id"]);
            let ids = event.as_i64().and_then(|event| taken.ids.get(&event));
            let is_right = ids.is_some_and(|ids| ids.iter().eq([id]));
            if one["state"] != "delivered" || !is_right {
                wrong.push(format!(
                    "{id} of event {event} is {}: {ids:?}",
                    one["state"]
                ));
            }
        }
        let written: BTreeSet<i64> = sent
            .iter()
            .filter_map(|one| one["event_id"].as_i64())
            .collect();
        let events = pages(&format!("{url}/v1/events?page_size=500"), key)?;
        let heard = |event: &&Value| KINDS.iter().any(|kind| event["kind"] == *kind);
        let missing = events
            .iter()
            .filter(heard)
            .filter_map(|one| one["id"].as_i64());
        let missing = missing.filter(|id| *id >= first && !written.contains(id));
        wrong.extend(missing.map(|id| format!("event {id} has no delivery")));
        Ok((taken.ids.len().try_into().unwrap_or(u64::MAX), wrong))
    }
}

fn leads_to(endpoint: &Value, door: Door) -> bool {
    let kinds = endpoint["kinds"].as_array();
    kinds.is_some_and(|kinds| kinds.len() == door.kinds.len())
}

fn deliveries_of(url: &str, key: &str, door: Door) -> Result<Vec<Value>, String> {
    let endpoints = pages(&format!("{url}/v1/webhook-endpoints"), key)?;
    let mut all = Vec::new();
    for one in endpoints.iter().filter(|one| leads_to(one, door)) {
        let id = one["id"].as_str().unwrap_or_default();
        // One that was disabled would be an end of it, too.
        get(&format!("{url}/v1/webhook-endpoints/{id}"), key)?;
        let path = format!("{url}/v1/webhook-endpoints/{id}/deliveries?page_size=500");
        all.extend(pages(&path, key)?);
    }
    Ok(all)
}

/// What goes wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Its body is not read.
    Deaf,
    Refuses,
    /// It asks for patience.
    Busy,
    /// It is taken, and nobody hears of it.
    Mute,
}

impl Trouble {
    fn of(number: u64) -> Option<Self> {
        match number % 7 {
            1 => Some(Self::Refuses),
            2 => Some(Self::Busy),
            3 => Some(Self::Deaf),
            5 => Some(Self::Mute),
            _ => None,
        }
    }
}

/// Whether a message may meet trouble once more.
fn may_meet_trouble(taken: &Taken, id: &str) -> bool {
    let mut kept = taken.lock().unwrap_or_else(PoisonError::into_inner);
    let times = kept.troubles.entry(id.to_owned()).or_default();
    *times += 1;
    *times <= TROUBLES_MAX
}

/// Reads a request and answers it, or does not.
fn answer(stream: &TcpStream, taken: &Taken, trouble: Option<Trouble>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let (mut id, mut length) = (String::new(), 0);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(": ") else {
            if line.trim().is_empty() {
                break;
            }
            continue;
        };
        match name {
            "webhook-id" => value.clone_into(&mut id),
            "content-length" => length = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    let trouble = trouble.filter(|_| may_meet_trouble(taken, &id));
    if trouble == Some(Trouble::Deaf) {
        return Ok(());
    }
    let mut body = vec![0; length.min(BODY_MAX)];
    reader.read_exact(&mut body)?;
    let mut stream = stream;
    if trouble == Some(Trouble::Refuses) {
        return stream
            .write_all(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    let mut kept = taken.lock().unwrap_or_else(PoisonError::into_inner);
    if request.contains(GONE.path) {
        kept.came_to_gone.insert(id);
        drop(kept);
        return stream
            .write_all(b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    if trouble == Some(Trouble::Busy) {
        kept.put_off += 1;
        drop(kept);
        return stream.write_all(
            b"HTTP/1.1 429 Busy\r\nretry-after: 60\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        );
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(event) = body["data"]["id"].as_i64() {
        kept.ids.entry(event).or_default().insert(id);
    }
    drop(kept);
    if trouble == Some(Trouble::Mute) {
        return Ok(());
    }
    stream.write_all(b"HTTP/1.1 204 Yes\r\nconnection: close\r\n\r\n")
}

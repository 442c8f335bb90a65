//! CloudWatch Logs: DescribeLogStreams, GetLogEvents and FilterLogEvents of the groups of training jobs (tuning jobs' trials among
//! them) and processing jobs (awsJson1_1).

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::account::refusal::{Refusal, invalid};
use crate::output::logs::{self, Stream};
use crate::world::World;
use crate::world::region::Region;

const TRAINING: &str = "/aws/sagemaker/TrainingJobs";
const PROCESSING: &str = "/aws/sagemaker/ProcessingJobs";
/// A page has at most so many bytes of messages and envelopes.
const PAGE_BYTES: usize = 1_048_576;
const ENVELOPE_BYTES: usize = 26;
const LINES_MAX: u64 = 10_000;
const STREAMS_MAX: u64 = 50;
/// Places of streams that one call of FilterLogEvents looks at, and characters of its pattern.
const SEARCHED_MAX: usize = 20_000;
const PATTERN_MAX: usize = 1_024;

pub(super) fn call(region: &Region, operation: &str, body: &Value) -> Result<Value, Refusal> {
    region.with_time(|world, now| {
        if world.throttles(operation, now) {
            return Err(Refusal {
                code: "ThrottlingException",
                message: "Rate exceeded".to_owned(),
            });
        }
        // A group appears with the account's first line.
        let exists = match body["logGroupName"].as_str() {
            Some(TRAINING) => {
                let mut jobs = world.jobs.iter();
                let mut tunings = world.tunings.iter();
                jobs.any(|job| !logs::streams(job, now).is_empty())
                    || tunings.any(|job| !logs::of_tuning(job, now).is_empty())
            }
            Some(PROCESSING) => {
                let mut jobs = world.processing.iter();
                jobs.any(|job| !logs::of_processing(job, now).is_empty())
            }
            _ => false,
        };
        if !exists {
            return Err(not_found("The specified log group does not exist."));
        }
        match operation {
            "DescribeLogStreams" => describe(world, body, now),
            "GetLogEvents" => events(world, body, now),
            "FilterLogEvents" => search(world, body, now),
            other => Err(invalid(format!(
                "the simulated region does not know {other}"
            ))),
        }
    })
}

fn not_found(message: &str) -> Refusal {
    Refusal {
        code: "ResourceNotFoundException",
        message: message.to_owned(),
    }
}

fn job_of(name: &str) -> &str {
    name.split('/').next().unwrap_or_default()
}

/// The streams of the group that is asked for, of the jobs that a prefix may belong to, by name.
fn streams<'a>(
    world: &'a World,
    body: &Value,
    prefix: &str,
    now: DateTime<Utc>,
) -> Vec<Stream<'a>> {
    let is_asked = |account: &str, name: &str| {
        account == world.account && (prefix.starts_with(name) || name.starts_with(prefix))
    };
    let mut streams: Vec<Stream<'_>> = match body["logGroupName"].as_str() {
        Some(TRAINING) => {
            let jobs = world.jobs.iter();
            let jobs = jobs.filter(|job| is_asked(&job.account, &job.name));
            let tunings = world.tunings.iter();
            // Names of trials begin with that of their tuning job.
            let tunings = tunings.filter(|job| is_asked(&job.account, &job.name));
            jobs.flat_map(|job| logs::streams(job, now))
                .chain(tunings.flat_map(|job| logs::of_tuning(job, now)))
                .collect()
        }
        Some(PROCESSING) => {
            let jobs = world.processing.iter();
            let jobs = jobs.filter(|job| is_asked(&job.account, &job.name));
            jobs.flat_map(|job| logs::of_processing(job, now)).collect()
        }
        _ => Vec::new(),
    };
    streams.retain(|stream| stream.name().starts_with(prefix));
    streams.sort_by_key(Stream::name);
    streams
}

fn describe(world: &World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let prefix = body["logStreamNamePrefix"].as_str().unwrap_or("");
    let limit = body["limit"].as_u64().unwrap_or(STREAMS_MAX);
    if !(1..=STREAMS_MAX).contains(&limit) {
        return Err(invalid("limit must be between 1 and 50"));
    }
    let streams = streams(world, body, prefix, now);
    let after = body["nextToken"].as_str().unwrap_or("");
    let mut left = streams
        .iter()
        .map(Stream::name)
        .filter(|name| name.as_str() > after);
    let limit = usize::try_from(limit).unwrap_or(1);
    let page: Vec<String> = left.by_ref().take(limit).collect();
    let next = left.next().and(page.last());
    let mut answer = json!({
        "logStreams": page.iter().map(|name| json!({ "logStreamName": name, "storedBytes": 0 })).collect::<Vec<_>>(),
    });
    if let Some(next) = next {
        answer["nextToken"] = json!(next);
    }
    Ok(answer)
}

/// A token is a direction, a place, and how many empty pages came before: real pages may be empty and
/// still have successors.
struct Token {
    is_forward: bool,
    place: usize,
    empties: u32,
}

impl Token {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let direction = parts.next()?;
        Some(Self {
            is_forward: direction == "f",
            place: parts.next()?.parse().ok()?,
            empties: parts.next()?.parse().ok()?,
        })
    }
}

fn events(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let name = body["logStreamName"].as_str().unwrap_or("").to_owned();
    let token = match body["nextToken"].as_str() {
        Some(text) => {
            Some(Token::parse(text).ok_or_else(|| invalid("The specified nextToken is invalid."))?)
        }
        None => None,
    };
    let is_empty = world.happens(world.faults.empty_log_page, "empty_log_page");
    let streams = streams(world, body, job_of(&name), now);
    let stream = streams
        .iter()
        .find(|stream| stream.name() == name)
        .ok_or_else(|| not_found("The specified log stream does not exist."))?;
    let moment = |key: &str| body[key].as_i64().and_then(DateTime::from_timestamp_millis);
    let first = moment("startTime").map_or(0, |since| stream.place_at(since, now));
    let end = moment("endTime").map_or(usize::MAX, |until| stream.place_at(until, now));
    let last = stream.places(now).min(end);
    let limit = body["limit"].as_u64().unwrap_or(LINES_MAX);
    if !(1..=LINES_MAX).contains(&limit) {
        return Err(invalid("limit must be between 1 and 10000"));
    }
    let page = Page {
        stream,
        now,
        limit: usize::try_from(limit).unwrap_or(1),
    };
    let empties = token.as_ref().map_or(0, |token| token.empties);
    let is_forward = match &token {
        Some(token) => token.is_forward,
        None => body["startFromHead"] == true,
    };
    let from = match &token {
        Some(token) => token.place.clamp(first, last.max(first)),
        None if is_forward => first,
        None => last,
    };
    if is_empty && empties < 3 {
        let empties = empties + 1;
        let edge = Edge {
            place: from,
            empties,
        };
        return Ok(answer(&[], edge, edge));
    }
    let (lines, begin, finish) = if is_forward {
        page.after(from, last)
    } else {
        page.before(from, first)
    };
    // A page at the end leads back to itself.
    let edge = |place: usize| Edge {
        place,
        empties: if lines.is_empty() && place == from {
            empties
        } else {
            0
        },
    };
    Ok(answer(&lines, edge(finish), edge(begin)))
}

/// (time, message).
type Line = (DateTime<Utc>, String);

struct Page<'a> {
    stream: &'a Stream<'a>,
    now: DateTime<Utc>,
    limit: usize,
}

impl Page<'_> {
    /// Lines from a place on, with the places where the page begins and ends.
    fn after(&self, from: usize, last: usize) -> (Vec<Line>, usize, usize) {
        let (mut lines, mut place, mut bytes) = (Vec::new(), from, 0);
        while place < last && lines.len() < self.limit {
            if let Some(line) = self.stream.line(place, self.now) {
                bytes += line.1.len() + ENVELOPE_BYTES;
                if bytes > PAGE_BYTES {
                    break;
                }
                lines.push(line);
            }
            place += 1;
        }
        (lines, from, place)
    }

    /// Lines before a place.
    fn before(&self, from: usize, first: usize) -> (Vec<Line>, usize, usize) {
        let (mut lines, mut place, mut bytes) = (Vec::new(), from, 0);
        while place > first && lines.len() < self.limit {
            if let Some(line) = self.stream.line(place - 1, self.now) {
                bytes += line.1.len() + ENVELOPE_BYTES;
                if bytes > PAGE_BYTES {
                    break;
                }
                lines.push(line);
            }
            place -= 1;
        }
        lines.reverse();
        (lines, place, from)
    }
}

/// Where a page begins or ends.
#[derive(Clone, Copy)]
struct Edge {
    place: usize,
    empties: u32,
}

fn answer(lines: &[Line], forward: Edge, backward: Edge) -> Value {
    let events: Vec<Value> = lines
        .iter()
        .map(|(at, message)| {
            json!({ "timestamp": at.timestamp_millis(), "message": message, "ingestionTime": at.timestamp_millis() })
        })
        .collect();
    json!({
        "events": events,
        "nextForwardToken": format!("f/{}/{}", forward.place, forward.empties),
        "nextBackwardToken": format!("b/{}/{}", backward.place, backward.empties),
    })
}

/// Lines of all streams with a prefix that contain one of the pattern's optional terms. As many places are looked at as
/// one call may, found or not: a page may be empty and have a successor. Streams come one after the other, so that lines
/// are in no order of time.
fn search(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let prefix = body["logStreamNamePrefix"]
        .as_str()
        .unwrap_or("")
        .to_owned();
    let terms = terms(body["filterPattern"].as_str().unwrap_or(""))?;
    let (mut index, mut place) = match body["nextToken"].as_str() {
        Some(text) => {
            let token = Token::parse(text);
            let token = token.ok_or_else(|| invalid("The specified nextToken is invalid."))?;
            (usize::try_from(token.empties).unwrap_or(0), token.place)
        }
        None => (0, 0),
    };
    let is_empty = world.happens(world.faults.empty_log_page, "empty_log_page");
    let streams = streams(world, body, &prefix, now);
    let (mut events, mut bytes) = (Vec::new(), 0);
    let mut left = if is_empty && index + place == 0 {
        1
    } else {
        SEARCHED_MAX
    };
    while let Some(stream) = streams
        .get(index)
        .filter(|_| left > 0 && bytes < PAGE_BYTES)
    {
        if place >= stream.places(now) {
            (index, place) = (index + 1, 0);
            continue;
        }
        let line = stream.line(place, now);
        (place, left) = (place + 1, left - 1);
        let is_found = |(_, message): &Line| terms.iter().any(|term| message.contains(term));
        if let Some((at, message)) = line.filter(is_found) {
            bytes += message.len() + ENVELOPE_BYTES;
            events.push(json!({
                "timestamp": at.timestamp_millis(), "message": message, "logStreamName": stream.name(),
                "ingestionTime": at.timestamp_millis(), "eventId": format!("{index}-{place}"),
            }));
        }
    }
    let mut answer = json!({ "events": events, "searchedLogStreams": [] });
    if index < streams.len() {
        answer["nextToken"] = json!(format!("f/{place}/{index}"));
    }
    Ok(answer)
}

/// The terms of `?"out of memory" ?Killed`: a line with one of them is found. Other patterns are not known here.
fn terms(pattern: &str) -> Result<Vec<String>, Refusal> {
    let unknown = || invalid("Invalid filter pattern");
    if pattern.len() > PATTERN_MAX {
        return Err(invalid("filterPattern must have at most 1024 characters"));
    }
    let (mut terms, mut rest) = (Vec::new(), pattern.trim());
    while !rest.is_empty() {
        rest = rest.strip_prefix('?').ok_or_else(unknown)?;
        let (term, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or_else(unknown)?,
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        terms.push(term.to_owned());
        rest = after.trim_start();
    }
    if terms.is_empty() {
        return Err(unknown());
    }
    Ok(terms)
}

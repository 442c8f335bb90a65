//! Reads a job's log from CloudWatch: the streams of its hosts merged by time, a bounded part at a time,
//! from a place that survives restarts. Nothing is stored here.
//!
//! CloudWatch has traps: a page may be empty and still have a successor (only a token that leads back to
//! itself ends a stream), tokens expire, and a restart of the job begins new streams. So a place is not a
//! token, but for each stream the last line's time and how many lines of that time were read.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write};

use bakeoff_domain::ports::LogRequest;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::log::{LogLine, host, last_bytes};
use chrono::{DateTime, Utc};
use regex::Regex;

use crate::aws::Aws;

/// Lines requested per page. AWS bounds a page to a megabyte; one page of each stream is held.
const PAGE_LINES: u32 = 5_000;
/// Pages read for one part, at most: a search that finds nothing must end, and goes on from its place.
const PAGES_MAX: u32 = 60;
/// Pages of a search. AWS bounds one to a megabyte, and to what it looks at in a second.
const SEARCH_PAGES_MAX: u32 = 60;
/// Bytes of messages in one part.
const PART_BYTES: usize = 4 * 1024 * 1024;
/// Streams of one job: 64 hosts, restarted a few times.
const STREAMS_MAX: usize = 512;

/// The job whose log is read.
#[derive(Debug, Clone, Copy)]
pub struct LoggedJob<'a> {
    pub kind: JobKind,
    pub name: &'a str,
}

/// Which lines are wanted.
#[derive(Debug, Clone, Default)]
pub struct LogQuery {
    /// Only of this host, such as `algo-1`.
    pub host: Option<String>,
    pub since: Option<DateTime<Utc>>,
    /// Before this moment.
    pub until: Option<DateTime<Utc>>,
    pub grep: Option<Regex>,
}

impl LogQuery {
    fn takes(&self, line: &LogLine) -> bool {
        self.until.is_none_or(|until| line.at < until)
            && self.since.is_none_or(|since| line.at >= since)
            && self
                .grep
                .as_ref()
                .is_none_or(|grep| grep.is_match(&line.message))
    }

    fn has_stream(&self, stream: &str) -> bool {
        self.host.as_deref().is_none_or(|own| host(stream) == own)
    }
}

/// What was read of one stream: the last line's time, in milliseconds, and the lines of that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StreamPosition {
    at: i64,
    lines: usize,
}

/// A place in a job's log: what was read of each stream, by the part of its name after the job's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPlace(BTreeMap<String, StreamPosition>);

impl LogPlace {
    /// Reads what `Display` wrote; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let mut seen = BTreeMap::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (stream, place) = part.rsplit_once(':')?;
            let (at, lines) = place.split_once('.')?;
            let place = StreamPosition {
                at: at.parse().ok()?,
                lines: lines.parse().ok()?,
            };
            // It is sent back in a line of its own.
            let is_name = !stream.is_empty() && !stream.chars().any(char::is_control);
            if !is_name || seen.len() >= STREAMS_MAX {
                return None;
            }
            seen.insert(stream.to_owned(), place);
        }
        Some(Self(seen))
    }

    fn of(&self, stream: &str) -> Option<StreamPosition> {
        self.0.get(own_part(stream)).copied()
    }

    fn pass(&mut self, line: &LogLine) {
        let at = line.at.timestamp_millis();
        let seen = self
            .0
            .entry(own_part(&line.stream).to_owned())
            .or_insert(StreamPosition { at, lines: 0 });
        if seen.at == at {
            seen.lines += 1;
        } else {
            *seen = StreamPosition { at, lines: 1 };
        }
    }
}

fn own_part(stream: &str) -> &str {
    stream.rsplit_once('/').map_or(stream, |(_, own)| own)
}

impl fmt::Display for LogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (stream, StreamPosition { at, lines })) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            write!(f, "{stream}:{at}.{lines}")?;
        }
        Ok(())
    }
}

/// A part of a log.
#[derive(Debug)]
pub struct LogPart {
    /// By time.
    pub lines: Vec<LogLine>,
    /// Where to go on.
    pub place: LogPlace,
    /// Whether everything that there is by now was read.
    pub is_at_end: bool,
    /// Of an end of a log: nothing stands before it.
    pub is_whole: bool,
    /// Streams that were not read, because there are too many.
    pub left_out: usize,
}

/// One stream, a page at a time.
struct Reader {
    kind: JobKind,
    stream: String,
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
    token: Option<String>,
    /// Pages that may still be read for this part.
    pages: u32,
    /// Lines of its first moment that were read before.
    skip: usize,
    lines: VecDeque<LogLine>,
    is_at_end: bool,
}

impl Reader {
    fn new(
        kind: JobKind,
        stream: String,
        seen: Option<StreamPosition>,
        wanted: &LogQuery,
        pages: u32,
    ) -> Self {
        let from = seen.and_then(|seen| DateTime::from_timestamp_millis(seen.at));
        Self {
            kind,
            stream,
            since: from.or(wanted.since),
            until: wanted.until,
            token: None,
            pages,
            skip: seen.map_or(0, |seen| seen.lines),
            lines: VecDeque::new(),
            is_at_end: false,
        }
    }

    /// Reads pages until there is a line, the stream ends for now, or no more pages may be read.
    async fn fill(&mut self, aws: &Aws) -> Result<(), AwsError> {
        while self.lines.is_empty() && !self.is_at_end && self.pages > 0 {
            self.pages -= 1;
            let request = LogRequest {
                kind: self.kind,
                stream: self.stream.clone(),
                since: self.since,
                until: self.until,
                from_start: true,
                limit: PAGE_LINES,
                token: self.token.clone(),
            };
            let page = aws.log_page(&request).await?;
            self.is_at_end = page.forward.is_none() || page.forward == self.token;
            self.token = page.forward;
            self.lines = page.lines.into();
            let first = self.since.map(|since| since.timestamp_millis());
            while self.skip > 0
                && self
                    .lines
                    .front()
                    .is_some_and(|line| Some(line.at.timestamp_millis()) == first)
            {
                self.lines.pop_front();
                self.skip -= 1;
            }
            if !self.lines.is_empty() {
                self.skip = 0;
            }
        }
        Ok(())
    }
}

/// Reads up to `most` wanted lines after a place.
pub async fn after(
    aws: &Aws,
    job: LoggedJob<'_>,
    wanted: &LogQuery,
    place: LogPlace,
    most: usize,
) -> Result<LogPart, AwsError> {
    let (streams, left_out) = streams(aws, job, wanted).await?;
    let pages = pages_each(streams.len());
    let readers = streams.into_iter().map(|stream| {
        let seen = place.of(&stream);
        Reader::new(job.kind, stream, seen, wanted, pages)
    });
    let mut readers: Vec<Reader> = readers.collect();
    let mut part = LogPart {
        lines: Vec::new(),
        place,
        is_at_end: false,
        is_whole: false,
        left_out,
    };
    let mut bytes = 0;
    while part.lines.len() < most && bytes < PART_BYTES {
        for reader in &mut readers {
            reader.fill(aws).await?;
        }
        let is_unread = |reader: &Reader| reader.lines.is_empty() && !reader.is_at_end;
        if readers.iter().any(is_unread) {
            // What a stream that was not read holds may come first.
            break;
        }
        let next = readers
            .iter_mut()
            .filter(|reader| !reader.lines.is_empty())
            .min_by(|a, b| a.lines.front().cmp(&b.lines.front()));
        let Some(line) = next.and_then(|reader| reader.lines.pop_front()) else {
            part.is_at_end = true;
            break;
        };
        part.place.pass(&line);
        if wanted.takes(&line) {
            bytes += line.message.len();
            part.lines.push(line);
        }
    }
    Ok(part)
}

/// The streams that are wanted, and how many are left out.
async fn streams(
    aws: &Aws,
    job: LoggedJob<'_>,
    wanted: &LogQuery,
) -> Result<(Vec<String>, usize), AwsError> {
    let mut streams = aws.log_streams(job.kind, job.name).await?;
    streams.retain(|stream| wanted.has_stream(stream));
    let left_out = streams.len().saturating_sub(STREAMS_MAX);
    streams.truncate(STREAMS_MAX);
    Ok((streams, left_out))
}

/// Pages that may be read of each stream: at least a few, since some are empty.
fn pages_each(streams: usize) -> u32 {
    let streams = u32::try_from(streams).unwrap_or(u32::MAX);
    (PAGES_MAX / streams.max(1)).max(4)
}

/// Reads the last `most` wanted lines; going on from its place continues with what comes after them.
pub async fn tail(
    aws: &Aws,
    job: LoggedJob<'_>,
    wanted: &LogQuery,
    most: usize,
) -> Result<LogPart, AwsError> {
    let mut part = tails(aws, job, wanted, most).await?;
    let surplus = part.lines.len().saturating_sub(most);
    part.lines.drain(..surplus);
    Ok(part)
}

/// Reads the last `most` wanted lines of each stream, by time.
pub async fn tails(
    aws: &Aws,
    job: LoggedJob<'_>,
    wanted: &LogQuery,
    most: usize,
) -> Result<LogPart, AwsError> {
    let (streams, left_out) = streams(aws, job, wanted).await?;
    let (pages, bytes) = (pages_each(streams.len()), PART_BYTES / streams.len().max(1));
    let mut part = LogPart {
        lines: Vec::new(),
        place: LogPlace::default(),
        is_at_end: true,
        is_whole: left_out == 0,
        left_out,
    };
    for stream in streams {
        let end = end_of(aws, job.kind, stream, wanted, most, pages).await?;
        if let Some((stream, seen)) = end.seen {
            part.place.0.insert(stream, seen);
        }
        let last = last_bytes(&end.lines, bytes);
        part.is_whole &= end.is_whole && last.len() == end.lines.len();
        part.lines.extend(last);
    }
    part.lines.sort();
    Ok(part)
}

/// The last `most` lines of all streams that contain one of some words, by time: of a log that is too long to be read.
/// The words are in their own case.
pub async fn search(
    aws: &Aws,
    job: LoggedJob<'_>,
    words: &[&str],
    most: usize,
) -> Result<Vec<LogLine>, AwsError> {
    let (mut lines, mut token) = (Vec::new(), None);
    for _ in 0..SEARCH_PAGES_MAX {
        let page = aws.log_search(job.kind, job.name, words, token).await?;
        lines.extend(page.items);
        token = page.next;
        if token.is_none() {
            break;
        }
    }
    lines.sort();
    let surplus = lines.len().saturating_sub(most);
    lines.drain(..surplus);
    Ok(lines)
}

/// The end of a stream.
#[derive(Default)]
struct End {
    /// The wanted lines.
    lines: Vec<LogLine>,
    /// How far it was read.
    seen: Option<(String, StreamPosition)>,
    /// All wanted lines from the first on are in it.
    is_whole: bool,
}

async fn end_of(
    aws: &Aws,
    kind: JobKind,
    stream: String,
    wanted: &LogQuery,
    most: usize,
    pages: u32,
) -> Result<End, AwsError> {
    let mut request = LogRequest {
        kind,
        stream,
        since: wanted.since,
        until: wanted.until,
        from_start: false,
        limit: PAGE_LINES,
        token: None,
    };
    let mut end = End::default();
    for _ in 0..pages {
        let page = aws.log_page(&request).await?;
        // Pages come newest first: the last moment may go on in an earlier one.
        let is_whole = end.count(&page.lines);
        let taken: Vec<LogLine> = page
            .lines
            .into_iter()
            .filter(|line| wanted.takes(line))
            .collect();
        end.lines.splice(0..0, taken);
        let surplus = end.lines.len().saturating_sub(most);
        end.lines.drain(..surplus);
        let is_first = page.backward.is_none() || page.backward == request.token;
        end.is_whole = is_first && surplus == 0;
        if is_first || is_whole && end.lines.len() >= most {
            break;
        }
        request.token = page.backward;
    }
    Ok(end)
}

impl End {
    /// Counts the lines of the stream's last moment in the next earlier page; true once there can be no
    /// more of them.
    fn count(&mut self, page: &[LogLine]) -> bool {
        let Some(last) = page.last() else {
            return false;
        };
        let millis = |line: &LogLine| line.at.timestamp_millis();
        let own = own_part(&last.stream).to_owned();
        let (_, seen) = self.seen.get_or_insert((
            own,
            StreamPosition {
                at: millis(last),
                lines: 0,
            },
        ));
        let at = seen.at;
        seen.lines += page
            .iter()
            .rev()
            .take_while(|line| millis(line) == at)
            .count();
        page.first().is_some_and(|first| millis(first) != at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(millis: i64, stream: &str) -> LogLine {
        LogLine {
            at: DateTime::from_timestamp_millis(millis).unwrap(),
            stream: format!("bakeoff-x-1/{stream}"),
            message: String::new(),
        }
    }

    #[test]
    fn a_place_counts_the_lines_of_its_last_moment_and_reads_what_it_wrote() {
        let mut place = LogPlace::default();
        for (millis, stream) in [
            (5, "algo-1-9"),
            (7, "algo-1-9"),
            (7, "algo-1-9"),
            (6, "algo-2-9"),
        ] {
            place.pass(&line(millis, stream));
        }
        assert_eq!(place.to_string(), "algo-1-9:7.2,algo-2-9:6.1");
        assert_eq!(LogPlace::parse(&place.to_string()), Some(place));
        assert_eq!(LogPlace::parse(""), Some(LogPlace::default()));
        for bad in ["x", "a:b.c", ":1.2", "a:1", "a:99999999999999999999.1"] {
            assert_eq!(LogPlace::parse(bad), None, "{bad}");
        }
    }
}

//! Lines of a job's log: their order, and what is kept of them. Reading them is the service's matter.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::kind::JobKind;

/// The log group of the jobs of a kind.
pub fn group(kind: JobKind) -> &'static str {
    match kind {
        // A tuning job has no log; its trials are training jobs.
        JobKind::Training | JobKind::Tuning => "/aws/sagemaker/TrainingJobs",
        JobKind::Processing => "/aws/sagemaker/ProcessingJobs",
        JobKind::Transform => "/aws/sagemaker/TransformJobs",
        // Each endpoint has a group of its own below it.
        JobKind::Endpoint => "/aws/sagemaker/Endpoints",
    }
}

/// One event of a CloudWatch log stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogLine {
    pub at: DateTime<Utc>,
    /// `<job>/algo-<n>-<epoch>`.
    pub stream: String,
    pub message: String,
}

impl LogLine {
    /// The host that wrote it, such as `algo-1`; the whole stream's name where it has none.
    pub fn host(&self) -> &str {
        host(&self.stream)
    }
}

/// The host in a stream's name, `<job>/algo-<n>-<epoch>`.
pub fn host(stream: &str) -> &str {
    let last = stream.rsplit_once('/').map_or(stream, |(_, last)| last);
    last.rsplit_once('-').map_or(last, |(host, _)| host)
}

/// Characters that are kept of a line for a person to read.
const SHOWN: usize = 400;

/// The first line of a text that is not empty, cut to a length that is read at a glance.
pub fn one_line(text: &str) -> String {
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("");
    let mut shown: String = first.chars().take(SHOWN).collect();
    if shown.len() < first.len() {
        shown.push('…');
    }
    shown
}

/// The last lines of a log that fit into so many bytes, oldest first; a line that is longer than all of
/// them is cut.
pub fn last_bytes(lines: &[LogLine], bytes: usize) -> Vec<LogLine> {
    let (mut kept, mut size) = (Vec::new(), 0);
    for line in lines.iter().rev() {
        size += line.message.len() + 1;
        if size > bytes {
            break;
        }
        kept.push(line.clone());
    }
    if kept.is_empty()
        && let Some(line) = lines.last()
    {
        let cut = line.message.floor_char_boundary(bytes);
        kept.push(LogLine {
            message: line.message.get(..cut).unwrap_or_default().to_owned(),
            ..line.clone()
        });
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: &str) -> LogLine {
        LogLine {
            at: DateTime::UNIX_EPOCH,
            stream: "bakeoff-x-1/algo-1-1790000000".to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn a_stream_names_its_host() {
        assert_eq!(line("").host(), "algo-1");
        assert_eq!(host("odd"), "odd");
    }

    #[test]
    fn the_end_of_a_log_is_kept() {
        let lines = [line("one"), line("two"), line("three")];
        let kept = |bytes| -> Vec<String> {
            let kept = last_bytes(&lines, bytes);
            kept.into_iter().map(|line| line.message).collect()
        };
        assert_eq!(kept(10), ["two", "three"]);
        assert_eq!(kept(6), ["three"]);
        assert_eq!(kept(2), ["th"]);
        assert_eq!(last_bytes(&[], 10), []);
        assert_eq!(last_bytes(&[line("ää")], 3), [line("ä")]);
    }

    #[test]
    fn a_line_is_cut_at_a_character() {
        assert_eq!(one_line("\n  a\nb"), "a");
        let long = "ü".repeat(500);
        assert_eq!(one_line(&long).chars().count(), 401);
    }
}

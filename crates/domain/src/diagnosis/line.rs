//! A line of a log, without what launchers and loggers put before it: MPI's and torchrun's ranks, Ray's workers, times
//! and levels. Patterns are matched against what the program itself wrote.

use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};

use crate::embedded;
use crate::sagemaker::log::LogLine;

/// How loud a line is, as its logger says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Info,
    Warning,
    Error,
}

impl Level {
    fn of(word: &str) -> Self {
        match word.to_ascii_uppercase().as_str() {
            "ERROR" | "CRITICAL" | "FATAL" | "E" | "F" => Self::Error,
            "WARN" | "WARNING" | "W" => Self::Warning,
            _ => Self::Info,
        }
    }
}

/// A line, taken apart.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) log: &'a LogLine,
    pub(super) text: String,
    /// The rank or the process that wrote it, where that is said.
    pub(super) rank: Option<String>,
    pub(super) host: Option<String>,
    pub(super) level: Option<Level>,
}

/// Most prefixes that a line has.
const PREFIXES_MAX: usize = 8;

const TIME: &str = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?";
const LEVEL: &str = "(?P<level>DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)";
const LETTER: &str = "(?P<level>[EWIF])";

/// Prefixes of a line. Each matches exactly one separator, which preserves the indentation of traceback frames.
const PREFIXES: [&str; 25] = [
    // MPI: SageMaker's own and mpirun's.
    r"(?:\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})?\[\d+,(?:mpirank:)?(?P<rank>\d+)(?:,(?P<host>[\w.-]+))?\]<(?:stdout|stderr|stddiag)>: ?",
    r"\[(?:prterun-)?[\w.-]+@\d+,(?P<rank>\d+)\]<(?:stdout|stderr)>: ?",
    // torchrun and Lightning.
    r"\[rank:? ?(?P<rank>\d+)\]:? ?",
    r"\[default(?P<rank>\d+)\]: ?",
    // Ray.
    r"\([A-Za-z_][\w.:<>]*(?:\(\w*\))? pid=(?P<rank>\d+)(?:, ip=(?P<host>[\d.]+))?\) ?",
    r"\((?:raylet|autoscaler)(?:, ip=(?P<host>[\d.]+))?\) ?",
    // Hosts, srun, the kernel.
    r"(?P<host>algo-\d+|ip-\d+-\d+-\d+-\d+(?:\.[\w.-]+)?|\d+\.\d+\.\d+\.\d+): ",
    r"\s{0,3}(?P<rank>\d{1,4}): ",
    r"\[\s*\d+\.\d{6}\] ",
    // glog's letters.
    r"{letter}\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+:\d+\] ?",
    r"\[{letter}\d{3,4} \d\d:\d\d:\d\d\.\d+ [\w./-]+:\d+\] ?",
    r"\[{letter} [\w./-]+:\d+\] ?",
    r"\[{time} {letter} \d+ \d+\] (?:\(\w+\) )?[\w./-]+:\d+: ",
    r"(?:{time}: )?{letter} [\w./-]+\.(?:cc|h|cpp|cu):\d+\] ?",
    // Loggers with a time and a level.
    r"\[\d{4}-\d\d-\d\d:\d\d:\d\d:\d\d:{level}\] ?",
    r"{level} \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]+:\d+\] ?",
    r"\[?{time}\]?(?: - | \| |: | ?)",
    r"\[\d\d:\d\d:\d\d\] ?",
    r"\[{level}\|[\w./-]+:\d+\] (?:{time})? ?>> ",
    r"\[(?:NeMo )?{letter} [^\]]*\] ?",
    r"\[[\w.]+\]\[{level}\] - ?",
    r"{level}:[\w.]+:(?:\d+:)? ?",
    r"(?:[\w.]+ - )?\[?{level}\]?(?:\s+-\s|\s*\|\s*[\w.]+:[\w<>.]+:\d+\s+-\s|\s*:\s|\s)(?:\[[\w./-]+:\d+:\w+\] )?",
    r"(?:sagemaker-[\w-]+|sagemaker_\w+\.\w+) {level}\s+",
    // Frames that rich draws.
    r"(?:[│┃|]\s|[╭╰]─+)",
];

/// Compiles a pattern that is part of this program.
pub(super) fn compiled(pattern: &str) -> Regex {
    let built = RegexBuilder::new(pattern).multi_line(true).build();
    built.unwrap_or_else(|error| embedded::unreadable(pattern, &error))
}

static COMPILED: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let of = |pattern: &&str| {
        let pattern = pattern
            .replace("{time}", TIME)
            .replace("{level}", LEVEL)
            .replace("{letter}", LETTER);
        compiled(&format!("^(?:{pattern})"))
    };
    PREFIXES.iter().map(of).collect()
});

static COLOUR: LazyLock<Regex> = LazyLock::new(|| compiled("\u{1b}\\[[0-9;]*[A-Za-z]"));
/// Ray's note that it left out the same line of other workers.
static REPEATED: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"\s*\[repeated \d+x across cluster\].*$"));

impl<'a> Line<'a> {
    pub(super) fn of(log: &'a LogLine) -> Self {
        let shown = log.message.trim_end_matches('\r');
        let shown = shown.rsplit('\r').next().unwrap_or(shown);
        let text = COLOUR.replace_all(shown, "");
        let text = REPEATED.replace(&text, "").into_owned();
        let mut line = Self {
            log,
            text: String::new(),
            rank: None,
            host: None,
            level: None,
        };
        let (text, level) = unwrapped(&text).unwrap_or((text, None));
        line.level = level;
        let rest = line.peel(&text);
        text.get(rest..)
            .unwrap_or_default()
            .clone_into(&mut line.text);
        line
    }

    /// Takes prefixes off until there is none; returns where the rest begins.
    fn peel(&mut self, text: &str) -> usize {
        let mut at = 0;
        for _ in 0..PREFIXES_MAX {
            let rest = text.get(at..).unwrap_or_default();
            let found = COMPILED.iter().find_map(|prefix| prefix.captures(rest));
            let Some(found) = found else { break };
            let named = |name: &str| found.name(name).map(|group| group.as_str().to_owned());
            self.rank = self.rank.take().or_else(|| named("rank"));
            self.host = self.host.take().or_else(|| named("host"));
            if let Some(level) = named("level") {
                self.level = Some(Level::of(&level));
            }
            at += found.get(0).map_or(0, |whole| whole.end());
        }
        at
    }

    /// One process, where the prefix says which; otherwise a stream, which several may share.
    pub(super) fn lane(&self) -> (&str, Option<&str>, Option<&str>) {
        (&self.log.stream, self.host.as_deref(), self.rank.as_deref())
    }
}

/// The message of a line that a logger wrote as JSON.
fn unwrapped(text: &str) -> Option<(String, Option<Level>)> {
    if !text.starts_with('{') || !(text.contains("\"message\"") || text.contains("\"msg\"")) {
        return None;
    }
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let word = |names: &[&str]| {
        let mut found = names.iter().filter_map(|name| value.get(name)?.as_str());
        found.next().map(str::to_owned)
    };
    let message = word(&["message", "msg"])?;
    let level = word(&["level", "levelname", "severity"]).map(|word| Level::of(&word));
    Some((message, level))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peeled(message: &str) -> (String, Option<String>, Option<String>, Option<Level>) {
        let log = LogLine {
            at: chrono::DateTime::UNIX_EPOCH,
            stream: "job/algo-1".to_owned(),
            message: message.to_owned(),
        };
        let line = Line::of(&log);
        (line.text, line.rank, line.host, line.level)
    }

    #[test]
    fn what_launchers_and_loggers_put_before_a_line_is_taken_off() {
        for prefix in [
            "[1,mpirank:3,algo-2]<stderr>:",
            "[1,8]<stdout>:",
            "[rank3]: ",
            "[default3]:",
            "(RayTrainWorker pid=1234, ip=10.0.0.1) ",
            "algo-1: ",
            "2026-11-20 12:00:00,123 - ERROR - ",
            "[2026-11-20:12:00:00:ERROR] ",
            "ERROR:root:",
            "E1120 12:00:01.123456 1359 torch/x.py:719] ",
            "0: [rank0]: ",
            "\u{1b}[31m",
        ] {
            let (text, ..) = peeled(&format!("{prefix}ValueError: 3 labels"));
            assert_eq!(text, "ValueError: 3 labels", "{prefix}");
        }
        let (text, rank, host, _) = peeled("[1,mpirank:3,algo-2]<stderr>:  File \"a.py\", line 1");
        assert_eq!(
            (text.as_str(), rank.as_deref(), host.as_deref()),
            (" File \"a.py\", line 1", Some("3"), Some("algo-2")),
            "a frame stays indented"
        );
        let (text, _, _, level) =
            peeled(r#"{"message": "CUDA out of memory", "level": "WARNING"}"#);
        assert_eq!(
            (text.as_str(), level),
            ("CUDA out of memory", Some(Level::Warning))
        );
        let (text, ..) = peeled(" 10%|#  | 1/10 [00:01<00:09]\rstep 1 done");
        assert_eq!(text, "step 1 done");
    }
}

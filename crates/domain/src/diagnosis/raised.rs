//! Exceptions and tracebacks of a log, each in the process that raised it, and the lines that show that it went on.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;

use super::line::{Level, Line, compiled};

/// The kind of a log line, for finding out what failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// A part of a traceback or of a launcher's table.
    Frame,
    Exception,
    /// A step, an epoch or a loss.
    Progress,
    /// What libraries print when something else has failed.
    Noise,
}

/// One exception.
#[derive(Debug, Clone)]
pub(super) struct Raised {
    /// Its own line, and the one on which its traceback begins.
    pub(super) line: usize,
    pub(super) from: usize,
    pub(super) has_traceback: bool,
    /// The last line of code in its traceback.
    pub(super) code: Option<String>,
    /// The exception that was raised while this one was handled, or because of it.
    pub(super) followed_by: Option<usize>,
    /// The one that followed was raised while this one was handled.
    pub(super) was_handled: bool,
    /// It says only that a process failed.
    pub(super) is_launchers: bool,
    /// It was raised beside the script: in a thread that lost its queue, or while Python ended.
    pub(super) is_aside: bool,
}

static PROGRESS: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(?i)\b(?:global_?step|step|iter(?:ation)?|epoch|batch|round)s?\b\W{0,12}(\d+)|'(?:loss|epoch)': ?'?(\d[\d.]*)|\bloss\w*\W{1,3}\d|\d(?:it/s|s/it)|^\[(\d+)\]\s*(?:#011|\t|\s)*[\w-]+:\d",
    )
});
static FRAME: LazyLock<Regex> = LazyLock::new(|| {
    compiled(r"^(?:\s+\S|\^|~)|^\s*$|^frame #\d+|^Exception raised from|^#\d+ 0x")
});
static NOISE: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"^\S+ FAILED$|^(?:Other )?Failures|^Root Cause|^\s+(?:time|host|rank|exitcode|error_file|traceback)\s*:|^\[\d+\]:$|<NO_OTHER_FAILURES>|ProcessGroupNCCL|c10d::|NCCL (?:INFO|WARN)|frame #\d+|Watchdog|elastic|^\W*$|^=+$|^-+$|^\*+$|terminate called|Aborted|core dumped|sagemaker|ErrorMessage|ExitCode|Command |resource_tracker|UserWarning|warnings\.warn|NVRM|libfabric|exited on signal|MPI_|mpirun|errorcode|srun|slurmstepd|Fatal Python error|Thread 0x|Current thread|Extension modules|CUDA kernel errors|For debugging consider|Compile with|Killing subprocess",
    )
});
static LAUNCHERS: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"Caught \w+ in (?:DataLoader worker process|replica) \d+|ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException|RayTaskError|RayActorError|WorkerCrashedError|ActorDiedError|TrainingFailedError|ExecuteUserScriptError|MPI_ABORT|SystemExit",
    )
});
static ASIDE: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"^(?:Exception in thread |Exception ignored in|Error in atexit\._run_exitfuncs|Task exception was never retrieved|future: <Task)",
    )
});
static GOES_ON: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(?i)\b(?:fall(?:ing|s)? back|skipping|skipped|ignoring|continuing|going on|retrying|thrown while requesting|trying (?:again|another|\d)|from scratch|starting from (?:epoch|step) 0)\b",
    )
});
const TRACEBACK: [&str; 2] = [
    "Traceback (most recent call last)",
    "Original Traceback (most recent call last)",
];
const WHILE_HANDLED: &str = "During handling of the above exception";
const BECAUSE_OF: &str = "The above exception was the direct cause";

/// Whether a line is a library's outcry about a failure, and not the script's.
pub(super) fn is_noise(text: &str) -> bool {
    NOISE.is_match(text)
}

/// What shows that a step was done: its number, or the line itself where it has none.
pub(super) fn step_of(text: &str) -> Option<String> {
    let found = PROGRESS.captures(text)?;
    let number = found.iter().skip(1).flatten().next();
    Some(number.map_or_else(|| text.to_owned(), |number| number.as_str().to_owned()))
}

/// Whether a line says that the script went on from what it tells.
pub(super) fn goes_on(text: &str) -> bool {
    GOES_ON.is_match(text)
}

/// Parser state of one process: its open traceback, and what the next exception follows.
#[derive(Debug, Default)]
struct Open {
    traceback: Option<usize>,
    code: Option<String>,
    last: Option<usize>,
    /// What comes next was raised beside the script.
    is_aside: bool,
    /// The exception that the next one follows, and whether that was being handled.
    follows: Option<(usize, bool)>,
}

impl Open {
    /// Keeps the last line of code of a traceback.
    fn see_code(&mut self, code: &str) {
        let is_code = !code.is_empty() && !code.starts_with("File ");
        if is_code && !code.chars().all(|letter| matches!(letter, '^' | '~')) {
            self.code = Some(code.to_owned());
        }
    }
}

/// The kind of each line, and all exceptions. `is_exception` and `is_cause` say what signatures match on a line.
pub(super) fn structure(
    lines: &[Line<'_>],
    is_exception: impl Fn(usize) -> bool,
    is_cause: impl Fn(usize) -> bool,
) -> (Vec<Kind>, Vec<Raised>) {
    let mut raised: Vec<Raised> = Vec::new();
    let mut processes = HashMap::new();
    let mut kinds = Vec::with_capacity(lines.len());
    for (at, line) in lines.iter().enumerate() {
        let open: &mut Open = processes.entry(line.lane()).or_default();
        let text = line.text.as_str();
        let is_handled = text.starts_with(WHILE_HANDLED);
        let kind = if TRACEBACK.iter().any(|begin| text.starts_with(begin)) {
            (open.traceback, open.code) = (Some(at), None);
            Kind::Frame
        } else if is_handled || text.starts_with(BECAUSE_OF) {
            open.follows = open.last.map(|last| (last, is_handled));
            Kind::Frame
        } else if ASIDE.is_match(text) {
            open.is_aside = true;
            Kind::Noise
        } else if open.traceback.is_some() && FRAME.is_match(text) {
            open.see_code(text.trim());
            Kind::Frame
        } else if open.traceback.is_some() || is_exception(at) {
            let from = open.traceback.take();
            let own = raised.len();
            if let Some((before, was_handled)) = open.follows.take()
                && let Some(before) = raised.get_mut(before)
            {
                (before.followed_by, before.was_handled) = (Some(own), was_handled);
            }
            raised.push(Raised {
                line: at,
                from: from.unwrap_or(at),
                has_traceback: from.is_some(),
                code: open.code.take().filter(|_| from.is_some()),
                followed_by: None,
                was_handled: false,
                is_launchers: LAUNCHERS.is_match(text),
                is_aside: std::mem::take(&mut open.is_aside),
            });
            open.last = Some(own);
            Kind::Exception
        } else if line.level == Some(Level::Error) {
            Kind::Plain
        } else if PROGRESS.is_match(text) && !is_cause(at) {
            Kind::Progress
        } else if is_noise(text) || FRAME.is_match(text) {
            Kind::Noise
        } else {
            Kind::Plain
        };
        kinds.push(kind);
    }
    (kinds, raised)
}

//! What a launcher reports about its processes: which one failed first, and which ones it killed itself.

use std::sync::LazyLock;

use regex::Regex;

use super::line::{Line, compiled};

static CODE: LazyLock<Regex> = LazyLock::new(|| compiled(r"exitcode\s*:\s*(-?\d+)"));
static RANK: LazyLock<Regex> = LazyLock::new(|| compiled(r"^\s*rank\s*:\s*(\d+)"));
static CLEANS_UP: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"closing signal SIG|forcefully exit\w* via (?:9|Signals\.SIGKILL)|Killing subprocess|Terminating job step|shutting down workers|Killing local vLLM worker|job has been aborted",
    )
});
static FIRST: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"MPI_ABORT was invoked on rank (\d+)|(?:mpirun|mpiexec|prterun) noticed that process rank (\d+)|Process name: \[\[\d+,\d+\],(\d+)\]",
    )
});

/// Where a row stands in torchrun's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableRow {
    Root,
    Other,
}

/// The launcher's word.
#[derive(Debug, Default)]
pub(super) struct Launcher {
    /// The rank that failed first.
    pub(super) root_rank: Option<String>,
    pub(super) root_code: Option<i64>,
    /// Rows with an exit code, by line.
    rows: Vec<(usize, TableRow)>,
    /// The first line of its clean-up.
    pub(super) cleans_up_from: Option<usize>,
}

impl Launcher {
    pub(super) fn of(lines: &[Line<'_>]) -> Self {
        let mut launcher = Self::default();
        let (mut table, mut rank) = (None, None);
        for (at, line) in lines.iter().enumerate() {
            let text = line.text.as_str();
            if launcher.cleans_up_from.is_none() && CLEANS_UP.is_match(text) {
                launcher.cleans_up_from = Some(at);
            }
            if text.contains("Root Cause (first observed failure)") {
                table = Some(TableRow::Root);
                continue;
            }
            if text.contains("Other Failures") || text.trim() == "Failures:" {
                table = Some(TableRow::Other);
                continue;
            }
            let number = |pattern: &Regex| {
                let found = pattern.captures(text)?;
                let group = found.iter().skip(1).flatten().next()?;
                Some(group.as_str().to_owned())
            };
            rank = number(&RANK).or(rank);
            if let Some((row, code)) = table.zip(number(&CODE)) {
                if row == TableRow::Root {
                    launcher.root_rank.clone_from(&rank);
                    launcher.root_code = code.parse().ok();
                }
                launcher.rows.push((at, row));
            }
            if launcher.root_rank.is_none() {
                launcher.root_rank = number(&FIRST);
            }
        }
        launcher
    }

    /// The table's row on a line.
    pub(super) fn row(&self, line: usize) -> Option<TableRow> {
        let found = self.rows.iter().find(|(at, _)| *at == line);
        found.map(|(_, row)| *row)
    }

    /// Whether a line tells a process's end by its exit code.
    pub(super) fn is_exit(text: &str) -> bool {
        CODE.is_match(text) || text.contains("exits with return code")
    }
}

//! How far a storm is.

use std::io::IsTerminal;

/// Without a terminal, progress is said once in so many seeds.
const SEEDS_OF_LINE: usize = 10;
const WIDTH: usize = 40;

/// A bar on one line; without a terminal, a line now and then.
pub(super) struct Bar {
    seeds: usize,
    is_terminal: bool,
}

impl Bar {
    pub(super) fn new(seeds: usize) -> Self {
        Self {
            seeds,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    pub(super) fn show(&self, played: usize, failed: usize) {
        let said = format!("{played}/{} seeds, {failed} failed or late", self.seeds);
        if !self.is_terminal {
            if played.is_multiple_of(SEEDS_OF_LINE) {
                eprintln!("{said}");
            }
            return;
        }
        let filled = "#".repeat(played * WIDTH / self.seeds.max(1));
        eprint!("\r[{filled:<WIDTH$}] {said}");
        if played == self.seeds {
            eprintln!();
        }
    }
}

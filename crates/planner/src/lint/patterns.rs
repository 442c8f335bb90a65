//! Regular expressions that read metrics from a log.

use regex::{Regex, RegexBuilder};

/// SageMaker's limit on a pattern's length (CreateTrainingJob API model, botocore 1.44.8).
const LENGTH_MAX: usize = 500;
/// Limit on the size of a compiled pattern: repetitions of large classes (`(\w{50}){8}`) take
/// megabytes.
const COMPILED_BYTES_MAX: usize = 1 << 20;

fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern)
        .size_limit(COMPILED_BYTES_MAX)
        .dfa_size_limit(COMPILED_BYTES_MAX)
        .build()
}

/// A pattern with a group around the number, within SageMaker's limit.
pub(super) fn compiled(pattern: &str) -> Option<Regex> {
    let within = (pattern.len() <= LENGTH_MAX).then(|| compile(pattern))?;
    within.ok().filter(|regex| regex.captures_len() > 1)
}

/// Whether a pattern can read nothing in any engine: it has no group, or one that is not closed. Others know more than
/// the one here, such as looking ahead.
pub(super) fn is_broken(pattern: &str) -> bool {
    match compile(pattern) {
        Ok(regex) => regex.captures_len() == 1,
        Err(_) => !has_closed_group(pattern),
    }
}

/// Whether there is a group, and as many parentheses are closed as opened.
fn has_closed_group(pattern: &str) -> bool {
    let (mut depth, mut has_group, mut is_in_class) = (0_i32, false, false);
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            '(' if !is_in_class => {
                has_group = true;
                depth += 1;
            }
            ')' if !is_in_class => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return false;
        }
    }
    has_group && depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_engine_reads_is_broken() {
        for broken in [
            "eval_loss",
            "loss: ([0-9.]+",
            "loss: [0-9.]+)",
            r"\(loss: [0-9]+",
        ] {
            assert!(is_broken(broken), "{broken}");
        }
        let long = format!("{}([0-9.]+)", "x".repeat(LENGTH_MAX));
        for other in [
            "loss: ([0-9.]+)",
            "(?<=loss: )([0-9.]+)",
            "{'loss': ([0-9.]+)",
            r#"(['"])loss\1: ([0-9.]+)"#,
            r"step [^[]+ loss ([0-9.]+)\Z",
            &long,
        ] {
            assert!(!is_broken(other), "{other}");
        }
        assert!(compiled(&long).is_none() && compiled("loss: ([0-9.]+)").is_some());
    }
}

//! Reads the data files and patterns that are compiled into the program.
//!
//! An unreadable one is a build defect and ends the process: with half a price table, or a model
//! without its covariance, every answer would look right and be wrong. [`crate::read_embedded`]
//! detects this before a program does anything.

use regex::Regex;
use serde::de::DeserializeOwned;

/// Reads a JSON document.
pub fn json<T: DeserializeOwned>(name: &str, text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|error| unreadable(name, &error))
}

/// Reads every row of a CSV table with a header; lines that begin with `#` are comments.
pub fn csv<T: DeserializeOwned>(name: &str, text: &str) -> Vec<T> {
    let mut reader = csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .from_reader(text.as_bytes());
    let rows = reader
        .deserialize()
        .map(|row| row.unwrap_or_else(|error| unreadable(name, &error)));
    rows.collect()
}

/// Compiles a pattern that must match the whole text.
pub fn pattern(of: &str) -> Regex {
    Regex::new(&format!("^(?:{of})$")).unwrap_or_else(|error| unreadable(of, &error))
}

/// Compiles a pattern that matches anywhere in a text.
pub fn pattern_within(of: &str) -> Regex {
    Regex::new(of).unwrap_or_else(|error| unreadable(of, &error))
}

/// Panics: unreadable embedded data is a build defect.
#[expect(
    clippy::panic,
    reason = "no answer is better than one from data that is not there"
)]
pub fn unreadable(what: &str, error: &dyn std::fmt::Display) -> ! {
    panic!("{what} is part of this program and cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Row {
        #[expect(dead_code, reason = "only whether it can be read counts")]
        usd: u32,
    }

    #[test]
    #[should_panic(expected = "prices.csv is part of this program and cannot be read")]
    fn a_row_that_cannot_be_read_is_not_left_out() {
        csv::<Row>("prices.csv", "# dollars\nusd\n3\nthree\n");
    }

    #[test]
    #[should_panic(expected = "coefficients.json is part of this program and cannot be read")]
    fn a_document_that_cannot_be_read_has_no_substitute() {
        json::<Row>("coefficients.json", r#"{"eur": 3}"#);
    }

    #[test]
    #[should_panic(expected = "cannot be read: regex parse error")]
    fn a_pattern_that_cannot_be_compiled_does_not_let_everything_pass() {
        pattern("[a-");
    }
}

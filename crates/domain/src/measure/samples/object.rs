//! One JSON object as a record, with the numbers that JSON lacks.

use std::borrow::Cow;

use super::cell::Record;
use super::encoding::contains;

/// One object.
pub(super) fn record(bytes: &[u8]) -> Result<Record<'_>, String> {
    // Python writes NaN and Infinity, which JSON lacks: only then is a line parsed twice.
    serde_json::from_slice(bytes).or_else(|_| {
        serde_json::from_slice::<Record<'_>>(&quoted_numbers(bytes))
            .map(Record::into_owned)
            .map_err(|error| error.to_string())
    })
}

/// Quotes bare `NaN`, `Infinity` and `-Infinity` outside strings.
pub(super) fn quoted_numbers(body: &[u8]) -> Cow<'_, [u8]> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    if !WORDS.iter().any(|word| contains(body, word)) {
        return Cow::Borrowed(body);
    }
    let mut out = Vec::with_capacity(body.len() + 64);
    let (mut at, mut in_string) = (0, false);
    while let Some(byte) = body.get(at) {
        let rest = body.get(at..).unwrap_or_default();
        if in_string && *byte == b'\\' {
            out.extend_from_slice(rest.get(..2).unwrap_or(rest));
            at += 2;
            continue;
        }
        if *byte == b'"' {
            in_string = !in_string;
        }
        if let Some(word) = WORDS
            .iter()
            .find(|word| !in_string && rest.starts_with(word))
        {
            out.push(b'"');
            out.extend_from_slice(word);
            out.push(b'"');
            at += word.len();
            continue;
        }
        out.push(*byte);
        at += 1;
    }
    Cow::Owned(out)
}

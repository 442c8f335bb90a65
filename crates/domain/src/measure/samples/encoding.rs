//! Bytes that become text: UTF-8 and UTF-16. What is no text at all is named, with the way to make text of it.

use std::borrow::Cow;

/// How files begin that hold metrics and are no text, and what to do with each.
const NO_TEXT: [(&[u8], &str); 9] = [
    (
        b"\x1f\x8b",
        "it is compressed with gzip: unpack it (gunzip) and send the text",
    ),
    (
        b"\x28\xb5\x2f\xfd",
        "it is compressed with zstd: unpack it (unzstd) and send the text",
    ),
    (
        b"BZh",
        "it is compressed with bzip2: unpack it (bunzip2) and send the text",
    ),
    (
        b"PK\x03\x04",
        "it is a zip archive, as workbooks of Excel and NumPy's .npz are: save its table as CSV, or unpack it, and send \
         the text",
    ),
    (
        b"PAR1",
        "it is Parquet: write it as JSON lines with pandas.read_parquet(…).to_json(…, orient=\"records\", lines=True)",
    ),
    (
        b"ARROW1",
        "it is Arrow's file form: write it as JSON lines or CSV, for example with pandas",
    ),
    (
        b"SQLite format 3\0",
        "it is a database of SQLite, as MLflow's is: export the run's metrics, for example with \
         MlflowClient().get_metric_history",
    ),
    (
        b":W&B",
        "it is W&B's own file of a run: export its history with wandb.Api().run(…).history(), or run `wandb sync` first",
    ),
    (
        b"\x89HDF",
        "it is HDF5: write the table in it as JSON lines or CSV",
    ),
];
/// The first record of an event file names its version; a length and a checksum come before it.
const EVENT_FILE: &[u8] = b"brain.Event:";
const EVENT_FILE_WITHIN: usize = 64;

pub(super) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

/// The body as UTF-8, without a byte-order mark; otherwise why it is no text.
pub(super) fn utf8(body: &[u8]) -> Result<Cow<'_, [u8]>, &'static str> {
    if let Some((_, why)) = NO_TEXT.iter().find(|(begin, _)| body.starts_with(begin)) {
        return Err(why);
    }
    let begin = body.get(..EVENT_FILE_WITHIN).unwrap_or(body);
    if contains(begin, EVENT_FILE) {
        return Err(
            "it is TensorBoard's event file: export its scalars as CSV, in TensorBoard or with tbparse's SummaryReader",
        );
    }
    if let Some(rest) = body.strip_prefix(b"\xff\xfe") {
        return of_utf16(rest, u16::from_le_bytes);
    }
    if let Some(rest) = body.strip_prefix(b"\xfe\xff") {
        return of_utf16(rest, u16::from_be_bytes);
    }
    Ok(Cow::Borrowed(
        body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body),
    ))
}

/// PowerShell's `>` and Excel's "Unicode text" write UTF-16.
fn of_utf16(body: &[u8], unit: fn([u8; 2]) -> u16) -> Result<Cow<'_, [u8]>, &'static str> {
    let (pairs, _) = body.as_chunks::<2>();
    let units = pairs.iter().map(|pair| unit(*pair));
    let text: Result<String, _> = char::decode_utf16(units).collect();
    let text = text.map_err(|_| "it begins as UTF-16 and is none: send it as UTF-8")?;
    Ok(Cow::Owned(text.into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_of_utf16_are_text() {
        let little: Vec<u8> = "step,loß\n"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let big: Vec<u8> = "step,loß\n"
            .encode_utf16()
            .flat_map(u16::to_be_bytes)
            .collect();
        let text = |mark: &[u8], body: &[u8]| {
            let body = [mark, body].concat();
            utf8(&body).map(|text| String::from_utf8_lossy(&text).into_owned())
        };
        assert_eq!(text(b"\xff\xfe", &little).unwrap(), "step,loß\n");
        assert_eq!(text(b"\xfe\xff", &big).unwrap(), "step,loß\n");
        assert!(text(b"\xff\xfe", b"\x00\xd8a\0").is_err(), "half a letter");
        assert_eq!(text("\u{feff}".as_bytes(), b"step").unwrap(), "step");
    }

    #[test]
    fn what_is_no_text_is_named() {
        for (begin, why) in NO_TEXT {
            assert_eq!(utf8(&[begin, b"\0\0"].concat()), Err(why));
        }
        assert!(utf8(b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x1a\x0dbrain.Event:2").is_err());
        assert!(utf8(b"PKI,step\n1,2\n").is_ok());
    }
}

//! The AWS query protocol of STS and IAM: forms in, XML out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// A form's fields.
pub(super) struct Form(BTreeMap<String, String>);

impl Form {
    pub(super) fn of(body: &Bytes) -> Self {
        let text = String::from_utf8_lossy(body);
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        Self(
            pairs
                .map(|(key, value)| (key.to_owned(), percent_decoded(value)))
                .collect(),
        )
    }

    /// Empty when absent.
    pub(super) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    /// `Name.member.1`, `Name.member.2`, …
    pub(super) fn list<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        (1..)
            .map(move |number| self.0.get(&format!("{name}.member.{number}")))
            .map_while(|value| value.map(String::as_str))
    }
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = (first == b'%').then(|| tail.get(..2)).flatten();
        let decoded = hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        rest = if decoded.is_some() {
            tail.get(2..).unwrap_or_default()
        } else {
            tail
        };
        bytes.push(decoded.unwrap_or(if first == b'+' { b' ' } else { first }));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Everything but letters and digits, as `%XX`.
pub(super) fn percent_encoded(text: &str) -> String {
    let mut all = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            all.push(char::from(byte));
        } else {
            let _ = write!(all, "%{byte:02X}");
        }
    }
    all
}

pub(super) fn answer(operation: &str, namespace: &str, result: &str) -> Response {
    xml(
        StatusCode::OK,
        format!(
            "<{operation}Response xmlns=\"{namespace}\"><{operation}Result>{result}</{operation}Result><ResponseMetadata>\
             <RequestId>simulated</RequestId></ResponseMetadata></{operation}Response>"
        ),
    )
}

pub(super) fn error(status: u16, code: &str, message: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    xml(
        status,
        format!(
            "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>\
             <RequestId>simulated</RequestId></ErrorResponse>"
        ),
    )
}

fn xml(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "text/xml")], body).into_response()
}

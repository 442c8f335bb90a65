//! Keyset pages: `{items, next_page_token}`. A token contains the last id and the filter it belongs
//! to, so that it cannot be used with another filter.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::plumbing::problem::{FieldError, Problem};
use bakeoff_api::page::Page;

pub(crate) const PAGE_SIZE_DEFAULT: u32 = 50;
pub(crate) const PAGE_SIZE_MAX: u32 = 500;

pub(crate) fn size(asked: Option<u32>) -> Result<usize, Problem> {
    let size = asked.unwrap_or(PAGE_SIZE_DEFAULT);
    if (1..=PAGE_SIZE_MAX).contains(&size) {
        return Ok(usize::try_from(size).unwrap_or(usize::MAX));
    }
    Err(parameter(
        "page_size",
        format!("must be 1 to {PAGE_SIZE_MAX}, not {size}"),
    ))
}

pub(crate) fn parameter(name: &str, detail: impl Into<String>) -> Problem {
    let detail = detail.into();
    let error = FieldError {
        pointer: name.to_owned(),
        detail: detail.clone(),
        fix: String::new(),
        rule: "parameter".to_owned(),
    };
    Problem::bad_parameter(format!("{name}: {detail}"), vec![error])
}

fn tag(filter: &str) -> [u8; 8] {
    let digest: [u8; 32] = Sha256::digest(filter.as_bytes()).into();
    let mut short = [0; 8];
    short.copy_from_slice(digest.split_at(8).0);
    short
}

pub(crate) fn token(last: Uuid, filter: &str) -> String {
    let mut bytes = last.as_bytes().to_vec();
    bytes.extend_from_slice(&tag(filter));
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn read_token(text: Option<&str>, filter: &str) -> Result<Option<Uuid>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    let halves = bytes.as_ref().and_then(|bytes| bytes.split_at_checked(16));
    match halves.map(|(id, own)| (Uuid::from_slice(id), own)) {
        Some((Ok(id), own)) if own == tag(filter) => Ok(Some(id)),
        _ => Err(parameter(
            "page_token",
            "malformed, or from a list with other filters",
        )),
    }
}

/// Turns one row more than a page into a page with its token.
pub(crate) fn cut<T: ToSchema, R>(
    mut rows: Vec<R>,
    size: usize,
    filter: &str,
    id: impl Fn(&R) -> Uuid,
    show: impl Fn(R) -> T,
) -> Page<T> {
    let has_more = rows.len() > size;
    rows.truncate(size);
    let next_page_token = rows
        .last()
        .filter(|_| has_more)
        .map(|last| token(id(last), filter));
    Page {
        items: rows.into_iter().map(show).collect(),
        next_page_token,
    }
}

/// The same for numbered rows: the token is the last number.
pub(crate) fn cut_by_number<T: ToSchema, R>(
    mut rows: Vec<R>,
    size: usize,
    number: impl Fn(&R) -> i64,
    show: impl Fn(R) -> T,
) -> Page<T> {
    let has_more = rows.len() > size;
    rows.truncate(size);
    let next_page_token = rows
        .last()
        .filter(|_| has_more)
        .map(|last| number(last).to_string());
    Page {
        items: rows.into_iter().map(show).collect(),
        next_page_token,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_only_with_its_own_filter() {
        let id = Uuid::from_u128(42);
        let made = token(id, "state=running");
        assert_eq!(read_token(Some(&made), "state=running").unwrap(), Some(id));
        assert!(read_token(Some(&made), "state=completed").is_err());
        assert!(read_token(Some("nonsense"), "").is_err());
    }
}

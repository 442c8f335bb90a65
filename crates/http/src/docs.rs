//! The documentation at `/docs`: the Markdown of `docs/`, embedded, and rendered when it is asked for. The paths are the
//! files' own, so that links between pages hold here as they do in the repository; the API's reference is at `/docs/api`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};
use rust_embed::RustEmbed;

use crate::plumbing::problem::Problem;

#[derive(RustEmbed)]
#[folder = "../../docs"]
#[include = "*.md"]
struct Pages;

const INDEX: &str = "README.md";
const STYLE: &str = include_str!("docs.css");

/// Nothing runs on these pages, and the style comes from here.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; \
    frame-ancestors 'none'; form-action 'none'";

/// Folders in the order in which the contents list them, with what they are called there.
const KINDS: [(&str, &str); 5] = [
    ("tutorial/", "Tutorial"),
    ("how-to/", "How-to"),
    ("reference/", "Reference"),
    ("explanation/", "Explanation"),
    ("architecture/", "Architecture"),
];

pub(crate) async fn index() -> Response {
    page(INDEX)
}

/// Without its slash, the links of the first page would lead elsewhere.
pub(crate) async fn to_index() -> Redirect {
    Redirect::permanent("/docs/")
}

pub(crate) async fn style() -> Response {
    let kind = HeaderValue::from_static("text/css; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], STYLE).into_response()
}

pub(crate) async fn one(Path(path): Path<String>) -> Response {
    page(&path)
}

fn page(path: &str) -> Response {
    let Some(text) = text(path) else {
        return Problem::not_found("there is no such page; /docs/ lists all of them")
            .into_response();
    };
    let headers: [(HeaderName, HeaderValue); 3] = [
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (StatusCode::OK, headers, Html(whole(path, &text))).into_response()
}

fn text(path: &str) -> Option<String> {
    let file = Pages::get(path)?;
    String::from_utf8(file.data.into_owned()).ok()
}

fn title(text: &str) -> &str {
    let first = text.lines().find_map(|line| line.strip_prefix("# "));
    first.unwrap_or("Documentation")
}

fn whole(path: &str, text: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title} · Bakeoff</title><link rel=\"stylesheet\" href=\"/docs/style.css\">\
         <nav><p><a href=\"/\">Dashboard</a> <a href=\"/docs/\">Documentation</a></p>{contents}</nav>\
         <main>{body}</main></html>",
        title = escaped(title(text)),
        contents = contents(path),
        body = rendered(text),
    )
}

/// Links to all pages; this one is marked.
fn contents(here: &str) -> String {
    static TITLES: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    let titles = TITLES.get_or_init(|| {
        let all = Pages::iter().filter_map(|path| {
            let title = title(&text(&path)?).to_owned();
            Some((path.into_owned(), title))
        });
        all.collect()
    });
    let mut list = String::new();
    for (folder, kind) in KINDS {
        let _ = write!(list, "<h2>{kind}</h2><ul>");
        for (path, title) in titles.iter().filter(|(path, _)| path.starts_with(folder)) {
            let mark = if path == here {
                " aria-current=\"page\""
            } else {
                ""
            };
            let title = escaped(title);
            let _ = write!(list, "<li><a href=\"/docs/{path}\"{mark}>{title}</a>");
        }
        if folder == "reference/" {
            list.push_str("<li><a href=\"/docs/api/\">Every operation of the API</a>");
        }
        list.push_str("</ul>");
    }
    list
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    let _ = pulldown_cmark_escape::escape_html(&mut out, text);
    out
}

/// Markdown as HTML; each heading can be linked to.
fn rendered(text: &str) -> String {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
    let mut events: Vec<Event<'_>> = Parser::new_ext(text, options).collect();
    let mut name = String::new();
    let mut opened: Option<usize> = None;
    let mut names: Vec<(usize, String)> = Vec::new();
    for (place, event) in events.iter().enumerate() {
        match event {
            Event::Start(Tag::Heading { level, .. }) if *level > HeadingLevel::H1 => {
                opened = Some(place);
                name.clear();
            }
            Event::Text(text) | Event::Code(text) if opened.is_some() => name.push_str(text),
            Event::End(TagEnd::Heading(_)) => {
                names.extend(opened.take().map(|place| (place, slug(&name))));
            }
            _ => {}
        }
    }
    for (place, name) in names {
        if let Some(Event::Start(Tag::Heading { id, .. })) = events.get_mut(place) {
            *id = Some(CowStr::from(name));
        }
    }
    let mut out = String::new();
    html::push_html(&mut out, events.into_iter());
    out
}

/// A heading's text as the end of an address, as GitHub makes it.
fn slug(text: &str) -> String {
    let kept = text.to_lowercase();
    let kept = kept.chars().filter_map(|one| match one {
        ' ' => Some('-'),
        one if one.is_alphanumeric() || one == '-' || one == '_' => Some(one),
        _ => None,
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_can_be_linked_to() {
        let body =
            rendered("# Page\n\n## What `it` means: *all*\n\n| a | b |\n|---|---|\n| 1 | <2> |\n");
        assert!(body.contains("<h1>Page</h1>"), "{body}");
        assert!(
            body.contains("<h2 id=\"what-it-means-all\">What <code>it</code> means"),
            "{body}"
        );
        assert!(body.contains("<td>1</td>"), "{body}");
    }

    #[test]
    fn each_page_is_in_the_contents_and_has_a_title() {
        let contents = contents("how-to/ci.md");
        for path in Pages::iter().filter(|path| path != INDEX) {
            assert!(contents.contains(&format!("\"/docs/{path}\"")), "{path}");
            assert_ne!(title(&text(&path).unwrap()), "Documentation", "{path}");
        }
        assert!(contents.contains("/docs/how-to/ci.md\" aria-current=\"page\">"));
        assert!(Pages::iter().count() > 15);
    }
}

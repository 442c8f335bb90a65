//! The documentation at `/docs`: the Markdown and the pictures of `docs/`, embedded; pages are rendered when they are asked
//! for. The paths are the files' own, so that links between pages hold here as they do in the repository; the API's reference is at `/docs/api`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use pulldown_cmark::{
    CodeBlockKind, CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html,
};
use rust_embed::RustEmbed;

use crate::plumbing::problem::Problem;

#[derive(RustEmbed)]
#[folder = "../../docs"]
#[include = "*.md"]
#[include = "pictures/*.svg"]
struct Pages;

const PICTURES: &str = "pictures/";
const INDEX: &str = "README.md";
const STYLE: &str = include_str!("docs.css");

/// Nothing runs on these pages, and the style comes from here.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; \
    frame-ancestors 'none'; form-action 'none'";

/// A picture has its own style in it.
const PICTURE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

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
    if path.starts_with(PICTURES) {
        return picture(&path);
    }
    page(&path)
}

fn picture(path: &str) -> Response {
    let Some(text) = text(path) else {
        return Problem::not_found("there is no such picture").into_response();
    };
    let kind = HeaderValue::from_static("image/svg+xml");
    let policy = HeaderValue::from_static(PICTURE_POLICY);
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
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

/// The paths of all pages.
fn markdown() -> impl Iterator<Item = Cow<'static, str>> {
    Pages::iter().filter(|path| !path.starts_with(PICTURES))
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
        body = rendered(text, path),
    )
}

/// Links to all pages; this one is marked.
fn contents(here: &str) -> String {
    static TITLES: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    let titles = TITLES.get_or_init(|| {
        let all = markdown().filter_map(|path| {
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

/// Markdown as HTML: each heading can be linked to, and a diagram is a picture, with its source below.
fn rendered(text: &str, path: &str) -> String {
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
    show_diagrams(&mut events, path);
    let mut out = String::new();
    html::push_html(&mut out, events.into_iter());
    out
}

/// Puts the picture that `cargo xtask docs` has drawn of each diagram above its source, which can be opened.
fn show_diagrams(events: &mut [Event<'_>], path: &str) {
    let page = path.rsplit('/').next().unwrap_or(path);
    let page = page.trim_end_matches(".md");
    let mut count = 0;
    let mut is_open = false;
    for event in events {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language)))
                if &**language == "mermaid" =>
            {
                (count, is_open) = (count + 1, true);
                *event = Event::Html(CowStr::from(format!(
                    "<figure><img src=\"/docs/{PICTURES}{page}-{count}.svg\" alt=\"A diagram; its text is below\">\
                     <details><summary>As text</summary><pre>"
                )));
            }
            Event::End(TagEnd::CodeBlock) if is_open => {
                is_open = false;
                *event = Event::Html(CowStr::from("</pre></details></figure>"));
            }
            _ => {}
        }
    }
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
        let body = rendered(
            "# Page\n\n## What `it` means: *all*\n\n| a | b |\n|---|---|\n| 1 | <2> |\n",
            "page.md",
        );
        assert!(body.contains("<h1>Page</h1>"), "{body}");
        assert!(
            body.contains("<h2 id=\"what-it-means-all\">What <code>it</code> means"),
            "{body}"
        );
        assert!(body.contains("<td>1</td>"), "{body}");
    }

    #[test]
    fn each_diagram_has_its_picture() {
        let mut count = 0;
        for path in markdown() {
            let body = rendered(&text(&path).unwrap(), &path);
            assert!(!body.contains("language-mermaid"), "{path}");
            for rest in body.split("<img src=\"/docs/pictures/").skip(1) {
                let (file, _) = rest.split_once('"').unwrap();
                assert!(
                    text(&format!("pictures/{file}")).is_some(),
                    "{path}: {file}"
                );
                count += 1;
            }
        }
        assert_eq!(count, 3);
    }

    #[test]
    fn each_page_is_in_the_contents_and_has_a_title() {
        let contents = contents("how-to/ci.md");
        for path in markdown().filter(|path| path != INDEX) {
            assert!(contents.contains(&format!("\"/docs/{path}\"")), "{path}");
            assert_ne!(title(&text(&path).unwrap()), "Documentation", "{path}");
        }
        assert!(contents.contains("/docs/how-to/ci.md\" aria-current=\"page\">"));
        assert!(Pages::iter().count() > 15);
    }
}

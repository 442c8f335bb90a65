//! The diagrams of `docs/` as pictures, for `/docs`, where no script runs: `docs/pictures`. Mermaid itself draws them, in a
//! browser, and only those whose source has changed.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::browser::browser;
use crate::process::{printed, root, target};

const FOLDER: &str = "docs/pictures";
const PACKAGE: &str = "mermaid@11.17.2";
const FENCE: &str = "```mermaid\n";

/// A diagram in a page, and the file of its picture.
struct Diagram {
    source: String,
    file: PathBuf,
}

impl Diagram {
    /// The first line of its picture.
    fn mark(&self) -> String {
        let digest = hex::encode(Sha256::digest(&self.source));
        format!("<!-- drawn from the diagram of SHA-256 {digest} -->\n")
    }

    fn is_drawn(&self) -> bool {
        let picture = fs::read_to_string(&self.file).unwrap_or_default();
        picture.starts_with(&self.mark())
    }
}

/// Draws what has changed; with `is_check`, an error instead.
pub(crate) fn run(is_check: bool) -> Result<(), String> {
    let mut missing = Vec::new();
    for page in pages(&root().join("docs"))? {
        let diagrams = diagrams(&page)?.into_iter();
        missing.extend(diagrams.filter(|diagram| !diagram.is_drawn()));
    }
    match missing.first() {
        None => Ok(()),
        Some(first) if is_check => Err(format!(
            "{} does not show its diagram; `cargo xtask docs` draws it",
            first.file.display()
        )),
        Some(_) => draw(&missing),
    }
}

/// The Markdown files of a folder, and of those in it.
fn pages(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let unread = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        if path.is_dir() {
            pages.extend(self::pages(&path)?);
        } else if path.extension().is_some_and(|end| end == "md") {
            pages.push(path);
        }
    }
    Ok(pages)
}

/// The diagrams of a page: the second one of `states.md` is `states-2.svg`.
fn diagrams(page: &Path) -> Result<Vec<Diagram>, String> {
    let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    let stem = page.file_stem().unwrap_or_default().to_string_lossy();
    let sources = text.split(FENCE).skip(1);
    let sources = sources.filter_map(|rest| rest.split_once("```"));
    let diagrams = sources.enumerate().map(|(place, (source, _))| Diagram {
        source: source.to_owned(),
        file: root()
            .join(FOLDER)
            .join(format!("{stem}-{}.svg", place + 1)),
    });
    Ok(diagrams.collect())
}

/// A page of all diagrams, as a browser leaves it.
fn draw(diagrams: &[Diagram]) -> Result<(), String> {
    let folder = target().join("mermaid");
    let written = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(written)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund"]);
    printed(npm.arg("--prefix").arg(&folder).arg(PACKAGE))?;
    let page = folder.join("page.html");
    let sources: Vec<&str> = diagrams.iter().map(|one| one.source.as_str()).collect();
    fs::write(&page, drawing(&serde_json::json!(sources).to_string())).map_err(written)?;
    let browser = browser()?;
    let mut command = Command::new(&browser.program);
    browser.provide_for(&mut command);
    command.args(["--headless", "--no-sandbox", "--disable-gpu"]);
    command.args(["--virtual-time-budget=30000", "--dump-dom"]);
    let drawn = printed(command.arg(format!("file://{}", page.display())))?;
    let drawn = String::from_utf8_lossy(&drawn);
    let pictures: Vec<&str> = drawn.split("<svg").skip(1).collect();
    if pictures.len() != diagrams.len() {
        return Err(format!(
            "{PACKAGE} drew {} of {} diagrams",
            pictures.len(),
            diagrams.len()
        ));
    }
    fs::create_dir_all(root().join(FOLDER)).map_err(written)?;
    for (diagram, picture) in diagrams.iter().zip(pictures) {
        let (picture, _) = picture.split_once("</svg>").unwrap_or((picture, ""));
        let mut text = diagram.mark();
        writeln!(text, "<svg{picture}</svg>").map_err(|error| error.to_string())?;
        fs::write(&diagram.file, text)
            .map_err(|error| format!("{}: {error}", diagram.file.display()))?;
    }
    Ok(())
}

/// Labels are text, not HTML, which a picture does not show.
fn drawing(sources: &str) -> String {
    format!(
        r#"<!doctype html><meta charset="utf-8"><body>
<script src="node_modules/mermaid/dist/mermaid.min.js"></script>
<script type="module">
const labels = {{ htmlLabels: false }};
mermaid.initialize({{ startOnLoad: false, theme: "neutral", deterministicIds: true, flowchart: labels, state: labels, ...labels }});
const pictures = [];
for (const source of {sources}) {{
  pictures.push((await mermaid.render("picture", source)).svg);
}}
document.body.innerHTML = pictures.join("\n");
</script></body>"#
    )
}

//! `cargo xtask browser`: the dashboard in a real browser, on a service with the examples' experiments. Screenshots of every
//! page are left in `target/dashboard`. Flags other than `--built` are Playwright's (`-g keys --repeat-each 20`).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dashboard;
use crate::process::{build, root, scratch_dir};
use bakeoff_demo::demo::{FAILS, negotiated_price};
use bakeoff_demo::stack::{Setup, Stack};

const EXAMPLES: [&str; 2] = ["examples/hebrew-p4-p5.json", "examples/vision-g6.json"];

const BUILT: &str = "--built";

/// Where a browser may be.
const BROWSERS: [&str; 4] = [
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
    "/usr/bin/google-chrome-stable",
];

fn browser() -> Option<PathBuf> {
    let named = std::env::var_os("BAKEOFF_CHROMIUM").map(PathBuf::from);
    named.or_else(|| {
        let mut all = BROWSERS.iter().map(Path::new);
        all.find(|path| path.exists()).map(Path::to_owned)
    })
}

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    dashboard::build()?;
    let Some(browser) = browser() else {
        println!(
            "skipped: no browser (install Debian's package chromium, or name one in BAKEOFF_CHROMIUM)"
        );
        return Ok(());
    };
    if !flags.contains(&BUILT) {
        build(&["--bins"])?;
    }
    let mut setup = Setup::below(scratch_dir()?);
    setup.region.push(FAILS.to_owned());
    let stack = Stack::start(&setup)?;
    let outcome = journeys(&stack, &browser, flags);
    let stopped = stack.stop();
    outcome.and(stopped)
}

fn journeys(stack: &Stack, browser: &Path, flags: &[&str]) -> Result<(), String> {
    negotiated_price(stack)?;
    let mut run = stack.bakeoff()?;
    let ran = run
        .arg("run")
        .args(EXAMPLES)
        .arg("--watch")
        .current_dir(root())
        .output();
    let ran = ran.map_err(|error| error.to_string())?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        return Err(format!("the examples did not run: {said}"));
    }
    let second = stack.another_key()?;
    let mut command = Command::new("npx");
    command
        .args(["--no-install", "playwright", "test"])
        .args(flags.iter().filter(|flag| **flag != BUILT))
        .current_dir(root().join("dashboard"))
        .env("BAKEOFF_URL", &stack.url)
        .env("BAKEOFF_API_KEY", &stack.api_key)
        .env("BAKEOFF_SECOND_KEY", second)
        .env("BAKEOFF_CHROMIUM", browser);
    // Its environment has keys, which a failure must not print.
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the browser's journeys ended with {status}")),
        Err(error) => Err(format!("npx could not be run: {error}")),
    }
}

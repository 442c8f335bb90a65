//! `cargo xtask browser`: the dashboard in a real browser, on a service with the examples' experiments. Screenshots of every
//! page are left in `target/dashboard`. Flags other than `--built` are Playwright's (`-g keys --repeat-each 20`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dashboard;
use crate::process::{build, printed, root, scratch_dir, target};
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

/// The package that brings one where the machine has none: its version and checksum are in its lock file.
const PACKAGE: &str = "dashboard/chromium";
/// Unpacks it into `TMPDIR`, with the libraries that it brings for machines without them, and prints where it is.
const UNPACK: &str = "import('@sparticuz/chromium').then(async (own) => console.log(await own.default.executablePath()))";
/// Only on machines of this kind does the package unpack its libraries.
const WITH_LIBRARIES: (&str, &str) = ("AWS_EXECUTION_ENV", "AWS_Lambda_nodejs20.x");

/// Where the fonts are that it brings.
const FONTS: &str = "fonts.conf";

pub(crate) struct Browser {
    pub(crate) program: PathBuf,
    /// Where the package's fonts and libraries are; `None` of a browser of the machine.
    unpacked: Option<PathBuf>,
}

impl Browser {
    /// What a command needs that runs it.
    pub(crate) fn provide_for(&self, command: &mut Command) {
        if let Some(unpacked) = &self.unpacked {
            command
                .env("LD_LIBRARY_PATH", unpacked.join("al2023/lib"))
                .env("FONTCONFIG_FILE", unpacked.join(FONTS));
        }
    }
}

pub(crate) fn browser() -> Result<Browser, String> {
    let named = std::env::var_os("BAKEOFF_CHROMIUM").map(PathBuf::from);
    let installed = named.or_else(|| {
        let mut all = BROWSERS.iter().map(Path::new);
        all.find(|path| path.exists()).map(Path::to_owned)
    });
    match installed {
        Some(program) => Ok(Browser {
            program,
            unpacked: None,
        }),
        None => from_package(),
    }
}

/// Downloads a browser once, 66 MB, without root.
fn from_package() -> Result<Browser, String> {
    let folder = target().join("chromium");
    let unpacked = folder.join("unpacked");
    let written = |error: std::io::Error| format!("{}: {error}", folder.display());
    let lock = fs::read(root().join(PACKAGE).join("package-lock.json")).map_err(written)?;
    let mark = folder.join("unpacked.json");
    if fs::read(&mark).ok().as_ref() != Some(&lock) {
        // Of another version, or half of one.
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&unpacked).map_err(written)?;
        for name in [".npmrc", "package.json", "package-lock.json"] {
            fs::copy(root().join(PACKAGE).join(name), folder.join(name)).map_err(written)?;
        }
        println!("  no browser is installed: downloading Chromium from npm …");
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        printed(npm.current_dir(&folder))?;
    }
    let mut node = Command::new("node");
    node.args(["--input-type=module", "-e", UNPACK])
        .current_dir(&folder)
        .env("TMPDIR", &unpacked)
        .env(WITH_LIBRARIES.0, WITH_LIBRARIES.1);
    let program = String::from_utf8_lossy(&printed(&mut node)?).trim().into();
    // Its own configuration looks for its fonts elsewhere, and without any the browser ends.
    let fonts = format!(
        "<?xml version=\"1.0\"?>\n<fontconfig><dir>{0}/fonts</dir><cachedir>{0}/cache</cachedir></fontconfig>\n",
        unpacked.display()
    );
    fs::write(unpacked.join(FONTS), fonts).map_err(written)?;
    fs::write(&mark, lock).map_err(written)?;
    Ok(Browser {
        program,
        unpacked: Some(unpacked),
    })
}

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    dashboard::build()?;
    let browser = match browser() {
        Ok(browser) => browser,
        Err(why) => {
            println!(
                "skipped: no browser (install Debian's package chromium, or name one in BAKEOFF_CHROMIUM), and npm brought none: {why}"
            );
            return Ok(());
        }
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

fn journeys(stack: &Stack, browser: &Browser, flags: &[&str]) -> Result<(), String> {
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
        .env("BAKEOFF_CHROMIUM", &browser.program);
    browser.provide_for(&mut command);
    // Its environment has keys, which a failure must not print.
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the browser's journeys ended with {status}")),
        Err(error) => Err(format!("npx could not be run: {error}")),
    }
}

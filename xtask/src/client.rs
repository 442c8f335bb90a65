//! `cargo xtask client`: the Python client, linted, typed and tested against a real service on a simulated region; and the
//! example notebook, from top to bottom.

use std::env::join_paths;
use std::process::Command;

use crate::process::{build, root, run as run_program, scratch_dir};
use crate::python;
use bakeoff_demo::stack::{Setup, Stack};

const BUILT: &str = "--built";

/// What the client needs, and what checks it.
const PACKAGES: [&str; 11] = [
    "httpx==0.28.1",
    "pandas==3.1.1",
    "pyarrow==26.0.1",
    "matplotlib==3.11.2",
    "tqdm==4.70.1",
    "mypy==2.4.1",
    "ruff==0.17.6",
    "pytest==9.2.0",
    "nbclient==0.11.0",
    "nbformat==5.11.1",
    "ipykernel==7.4.0",
];
/// Virtual seconds per real second: a day in half a minute.
const FACTOR: u32 = 3000;
const NOTEBOOK: &str = "examples/compare.ipynb";

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let modules = python::packages(&PACKAGES, "client")?;
    let client = root().join("clients/python");
    let path = join_paths([&modules, &client.join("src")]).map_err(|error| error.to_string())?;
    let python = |arguments: &[&str]| {
        let mut command = Command::new("python3");
        command
            .args(arguments)
            .current_dir(&client)
            .env("PYTHONPATH", &path)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("JUPYTER_PATH", modules.join("share/jupyter"))
            .env("MPLBACKEND", "Agg");
        command
    };
    let cache = root().join("target/python");
    let cached = |tool: &str| format!("--cache-dir={}", cache.join(tool).display());
    let notebook = root().join(NOTEBOOK).display().to_string();
    run_program(&mut python(&[
        "-m",
        "ruff",
        "format",
        "--check",
        "--quiet",
        &cached("ruff"),
        ".",
    ]))?;
    run_program(&mut python(&[
        "-m",
        "ruff",
        "check",
        "--quiet",
        &cached("ruff"),
        ".",
    ]))?;
    run_program(&mut python(&["-m", "mypy", &cached("mypy"), "src"]))?;
    if !flags.contains(&BUILT) {
        build(&["--bins"])?;
    }
    let setup = Setup {
        factor: FACTOR,
        ..Setup::below(scratch_dir()?)
    };
    let stack = Stack::start(&setup)?;
    let on_service = |command: &mut Command| {
        // Its environment has a key, which a failure must not print.
        command
            .env("BAKEOFF_URL", &stack.url)
            .env("BAKEOFF_API_KEY", &stack.api_key);
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("the client's tests ended with {status}")),
            Err(error) => Err(format!("python3 could not be run: {error}")),
        }
    };
    let tested = on_service(&mut python(&[
        "-m",
        "pytest",
        "-q",
        "-rs",
        "--durations=5",
        "-p",
        "no:cacheprovider",
        "tests",
    ]))
    .and_then(|()| on_service(&mut python(&["tests/notebook.py", &notebook])));
    tested.and(stack.stop())
}

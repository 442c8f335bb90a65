//! `cargo xtask wheel [--try]`: one wheel with the Python client and the programs, so that `pipx run` starts them without a
//! Rust toolchain. `--try` installs it into an empty environment, and times the first answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{
    build, interrupt, release, root, run as run_program, scratch, spawn, target, wait_gone,
};
use crate::{dashboard, python};

const TOOLS: [&str; 2] = ["hatchling==1.27.0", "wheel==0.45.1"];
/// The service, what shows it, and the region that it is shown on.
const PROGRAMS: [&str; 3] = ["bakeoff", "bakeoff-demo", "bakeoff-sim"];
/// For the service to answer after it was installed, its PostgreSQL fetched.
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    dashboard::build()?;
    build(&["--release", "--bins"])?;
    let wheel = made()?;
    let size = fs::metadata(&wheel).map_err(|error| error.to_string())?;
    println!("{} ({} MB)", wheel.display(), size.len() / 1_000_000);
    if flags.contains(&"--try") {
        return tried(&wheel);
    }
    println!("next: pipx run --spec {} bakeoff demo", wheel.display());
    Ok(())
}

/// The client's wheel with the programs among its scripts, for this platform.
fn made() -> Result<PathBuf, String> {
    let tools = python::packages(&TOOLS, "wheel")?;
    let python = |arguments: &[&str]| {
        let mut command = Command::new("python3");
        command
            .args(arguments)
            .env("PYTHONPATH", &tools)
            .current_dir(root().join("clients/python"))
            .stdout(Stdio::null());
        command
    };
    let scratch = scratch("wheel")?;
    let [plain, opened, packed] = ["plain", "opened", "packed"].map(|name| scratch.0.join(name));
    fs::create_dir_all(&packed).map_err(|error| error.to_string())?;
    let shown = |path: &Path| path.display().to_string();
    let building = ["-m", "hatchling", "build", "-t", "wheel", "-d"];
    run_program(python(&building).arg(&plain))?;
    let opening = ["-m", "wheel", "unpack", "-d", &shown(&opened)];
    run_program(python(&opening).arg(only(&plain)?))?;
    let package = only(&opened)?;
    add_programs(&package)?;
    let packing = ["-m", "wheel", "pack", "-d", &shown(&packed)];
    run_program(python(&packing).arg(&package))?;
    let platform = platform()?;
    let tagging = ["-m", "wheel", "tags", "--remove", "--python-tag", "py3"];
    let tagged = ["--platform-tag", &platform, &shown(&only(&packed)?)];
    run_program(python(&tagging).args(tagged))?;
    let made = only(&packed)?;
    let wheels = target().join("wheels");
    fs::create_dir_all(&wheels).map_err(|error| error.to_string())?;
    let to = wheels.join(made.file_name().unwrap_or_default());
    fs::copy(&made, &to).map_err(|error| error.to_string())?;
    Ok(to)
}

/// Puts the programs where pip installs scripts from, without what only a debugger reads.
fn add_programs(package: &Path) -> Result<(), String> {
    let name = package.file_name().unwrap_or_default();
    let data = format!("{}.data", name.display());
    let scripts = package.join(data).join("scripts");
    fs::create_dir_all(&scripts).map_err(|error| error.to_string())?;
    for program in PROGRAMS {
        let to = scripts.join(program);
        fs::copy(release(program), &to).map_err(|error| format!("{program}: {error}"))?;
        run_program(Command::new("strip").arg(&to))?;
    }
    Ok(())
}

/// The oldest Linux that the programs run on: the one whose C library they were built with.
fn platform() -> Result<String, String> {
    let asked = "import platform; print('manylinux_' + platform.libc_ver()[1].replace('.', '_') + '_' + platform.machine())";
    let output = Command::new("python3").args(["-c", asked]).output();
    let output = output.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn only(folder: &Path) -> Result<PathBuf, String> {
    let mut all = fs::read_dir(folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?
        .flatten();
    match (all.next(), all.next()) {
        (Some(one), None) => Ok(one.path()),
        _ => Err(format!("{} has not one entry", folder.display())),
    }
}

/// As somebody who has just installed it.
fn tried(wheel: &Path) -> Result<(), String> {
    let scratch = scratch("wheel-tried")?;
    let home = scratch.0.join("environment");
    run_program(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let bin = home.join("bin");
    let started = Instant::now();
    let mut pip = Command::new(bin.join("pip"));
    run_program(
        pip.args(["install", "--quiet", "--disable-pip-version-check"])
            .arg(wheel),
    )?;
    println!("installed in {:.1} s", started.elapsed().as_secs_f64());
    let bakeoff = bin.join("bakeoff");
    serves(&bakeoff, &scratch.0)?;
    let started = Instant::now();
    let demo = Command::new(&bakeoff)
        .args(["demo", "--once", "--json"])
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&demo.stderr).into_owned();
    let found: Value = serde_json::from_slice(&demo.stdout).map_err(|_| said.clone())?;
    if !demo.status.success() {
        return Err(said);
    }
    let first = &found["experiments"][0]["recommendation"]["headline"];
    println!(
        "`bakeoff demo` answered after {:.0} s: {}",
        started.elapsed().as_secs_f64(),
        first.as_str().unwrap_or_default()
    );
    let mut client = Command::new(bin.join("python"));
    run_program(client.args([
        "-c",
        "import bakeoff; print('the client is there:', bakeoff.Client.__name__)",
    ]))
}

/// Measures how long the service takes to answer, from nothing.
fn serves(bakeoff: &Path, folder: &Path) -> Result<(), String> {
    let (ready, started) = (folder.join("ready"), Instant::now());
    let mut command = Command::new(bakeoff);
    command
        .args([
            "serve",
            "--embedded",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(folder.join("data"))
        .arg("--ready-file")
        .arg(&ready)
        .stderr(Stdio::null());
    // There is no AWS here: it looks again now and then, and answers all the same.
    bakeoff_demo::stack::simulated_aws(&mut command, "http://127.0.0.1:1", "http://127.0.0.1:1");
    let mut service = spawn(&mut command)?;
    while !ready.exists() && started.elapsed() < ANSWERS_WITHIN {
        std::thread::sleep(LOOK_EVERY);
    }
    let took = started.elapsed();
    interrupt(&service);
    wait_gone(&mut service, Duration::from_secs(30));
    if !ready.exists() {
        return Err(format!(
            "the service did not answer within {} s",
            took.as_secs()
        ));
    }
    println!(
        "`bakeoff serve --embedded` answered after {:.1} s",
        took.as_secs_f64()
    );
    Ok(())
}

//! From nothing to a recommendation: starts a [`Stack`], sets the one price that no list contains, runs the examples, and
//! compares the ledger with the region's own bill.

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::chaos;
use crate::process::wait_gone;
use crate::stack::{Setup, Stack};
use crate::verify::{self, Verdict};

/// Names and texts.
const EXAMPLES: [(&str, &str); 3] = [
    (
        "hebrew-p4-p5.json",
        include_str!("../../../examples/hebrew-p4-p5.json"),
    ),
    (
        "legal-g5-spot.json",
        include_str!("../../../examples/legal-g5-spot.json"),
    ),
    (
        "vision-g6.json",
        include_str!("../../../examples/vision-g6.json"),
    ),
];
/// The third example's model is said not to fit there: one job of the demo fails.
pub const FAILS: &str = "--fails=ml.g6.12xlarge=cuda-out-of-memory";

/// Options of the demo.
pub struct Flags {
    /// End when the answers are there.
    once: bool,
    /// Print the result for machines.
    pub json: bool,
    /// How often the service and Postgres are killed.
    kills: u32,
}

impl Flags {
    /// `--once`, `--json`, `--kills N`.
    pub fn parse(flags: &[&str]) -> Result<Self, String> {
        let mut parsed = Self {
            once: false,
            json: false,
            kills: 0,
        };
        let mut rest = flags.iter();
        while let Some(flag) = rest.next() {
            match *flag {
                "--once" => parsed.once = true,
                "--json" => parsed.json = true,
                "--kills" => {
                    let count = rest.next().and_then(|count| count.parse().ok());
                    parsed.kills = count.ok_or("--kills wants a number")?;
                }
                other => return Err(format!("demo does not know {other}")),
            }
        }
        if parsed.json && !parsed.once {
            return Err("--json goes with --once".to_owned());
        }
        Ok(parsed)
    }
}

/// Plays it in a folder below this one.
pub fn run(flags: &Flags, folder: PathBuf) -> Result<(), String> {
    let say = |text: &str| {
        if !flags.json {
            println!("{text}");
        }
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    ctrlc::set_handler(move || flag.store(true, Ordering::SeqCst))
        .map_err(|error| error.to_string())?;
    say("Starting a simulated AWS region, PostgreSQL and the service …");
    let started = Instant::now();
    let mut setup = Setup::below(folder);
    setup.region.push(FAILS.to_owned());
    let mut stack = Stack::start(&setup)?;
    let outcome = play(&mut stack, flags, &interrupted, started);
    if outcome.is_ok() && !flags.once && !interrupted.load(Ordering::SeqCst) {
        stay(&stack, &interrupted);
    }
    let stopped = stack.stop();
    if interrupted.load(Ordering::SeqCst) {
        eprintln!("\nStopped; nothing is left running.");
        let ended = if flags.once {
            Err("it was interrupted".to_owned())
        } else {
            Ok(())
        };
        return stopped.and(ended);
    }
    outcome.and(stopped)
}

fn play(
    stack: &mut Stack,
    flags: &Flags,
    interrupted: &AtomicBool,
    started: Instant,
) -> Result<(), String> {
    negotiated_price(stack)?;
    if !flags.json {
        println!(
            "P5e has no list price: it is set through the API as 68 USD/h, `negotiated (example)`.\n"
        );
    }
    let mut command = stack.bakeoff()?;
    command.arg("run").arg("--watch");
    for (name, text) in EXAMPLES {
        let file = stack.folder().join(name);
        fs::write(&file, text).map_err(|error| error.to_string())?;
        command.arg(file);
    }
    if flags.json {
        command.arg("--json").stdout(Stdio::piped());
    } else if !std::io::stdout().is_terminal() {
        println!(
            "Three experiments run side by side, a minute and a half for a day of the region's time …\n"
        );
    }
    let child = command.spawn().map_err(|error| error.to_string())?;
    let (status, output, kills) = chaos::follow(stack, child, flags.kills, interrupted)?;
    if interrupted.load(Ordering::SeqCst) {
        return Ok(());
    }
    let verdict = verify::verify(stack)?;
    report(flags, status, &output, &verdict, kills, started)
}

/// The examples name P5e, whose price is in no list: sets a made-up rate, marked as such.
pub fn negotiated_price(stack: &Stack) -> Result<(), String> {
    let body = json!({
        "region": "us-east-1",
        "usd_per_hour": 68,
        "source": "negotiated (example)",
        "note": "made up for the demo: AWS sells P5e by capacity block only",
    });
    let url = format!("{}/v1/prices/ml.p5e.48xlarge", stack.url);
    let authorization = format!("Bearer {}", stack.api_key);
    let sent = ureq::put(&url)
        .header("authorization", &authorization)
        .send_json(&body);
    sent.map(drop)
        .map_err(|error| format!("PUT {url}: {error}"))
}

fn report(
    flags: &Flags,
    status: ExitStatus,
    output: &str,
    verdict: &Verdict,
    kills: Value,
    started: Instant,
) -> Result<(), String> {
    if flags.json {
        let mut result: Value =
            serde_json::from_str(output).map_err(|error| format!("{error}: {output}"))?;
        result["verification"] = verdict.json.clone();
        result["kills"] = kills;
        result["took_seconds"] = json!(started.elapsed().as_secs());
        println!(
            "{}",
            serde_json::to_string_pretty(&result).unwrap_or_default()
        );
    } else {
        println!("{}", verdict.text);
        println!("took {} s", started.elapsed().as_secs());
    }
    if !status.success() {
        return Err(format!("`bakeoff run` ended with {status}"));
    }
    if verdict.holds {
        Ok(())
    } else {
        Err("the verification failed".to_owned())
    }
}

/// Trials of days that all run to their end, so that something runs while the dashboard is looked at: a quarter of an hour
/// of real time.
fn live_trials(stack: &Stack) -> Result<(), String> {
    let [(_, text), ..] = EXAMPLES;
    let mut spec: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    spec["name"] = json!("hebrew-live");
    spec["stopping_policy"] = json!("full");
    spec["workload"]["trial_tokens"] = json!(60_000_000_000_u64);
    spec["workload"]["total_tokens"] = json!(120_000_000_000_u64);
    spec["max_runtime_seconds"] = json!(20 * 24 * 3600);
    spec["budget_usd"] = json!(200_000);
    spec["objective"] = json!({"minimize": "cost"});
    stack.post("/v1/experiments", &spec).map(drop)
}

/// Keeps everything running for inspection, until Ctrl-C.
fn stay(stack: &Stack, interrupted: &AtomicBool) {
    if let Err(error) = live_trials(stack) {
        eprintln!("The trials to look at did not start: {error}");
    }
    match stack.post("/v1/login-links", &json!({})) {
        Ok(link) => println!(
            "\nThe dashboard, with trials that are still running (this link logs in once, within ten minutes):\n  {}{}",
            stack.url,
            link["path"].as_str().unwrap_or_default()
        ),
        Err(error) => eprintln!("No login link: {error}"),
    }
    println!(
        "Afterwards: {}/ with the key below; documentation and the API are at {}/docs/",
        stack.url, stack.url
    );
    println!(
        "  export BAKEOFF_URL={} BAKEOFF_API_KEY={}",
        stack.url, stack.api_key
    );
    println!(
        "  curl -s -H \"Authorization: Bearer $BAKEOFF_API_KEY\" $BAKEOFF_URL/v1/experiments | head -c 400"
    );
    println!("Ctrl-C stops everything.");
    while !interrupted.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits for a child while watching for Ctrl-C.
pub fn is_over(child: &mut std::process::Child) -> bool {
    wait_gone(child, Duration::from_millis(60))
}

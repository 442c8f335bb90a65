//! `bakeoff-eval` evaluates the product's predictions on reference tables (`eval`) and fits the
//! coefficients that it ships (`fit`). It feeds rows to the domain's own code; `cargo xtask eval`
//! and `cargo xtask fit` call it. `signals` reads other people's files. `plans` measures the CPU cost of a plan.

#![expect(
    clippy::indexing_slicing,
    reason = "indices come from the same table, and matrices are of fixed size"
)]
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "row counts"
)]

mod choice;
mod eta;
mod least_squares;
mod memory;
mod memory_published;
mod mlperf;
mod plans;
mod published;
mod race;
mod signals;
mod steady;
mod table;
mod throughput;
mod trial;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bakeoff_planner::predict;
use serde_json::{Map, Value, json};

const SKIPPED: &str = "skipped: no reference data";

const PUBLISHED: &str = "throughput_published/table.csv";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).map(PathBuf::from)
    };
    if arguments.first().map(String::as_str) == Some("plans") {
        println!("{:#}", plans::measure());
        return ExitCode::SUCCESS;
    }
    let Some(data) = value("--data") else {
        eprintln!(
            "bakeoff-eval eval|signals|fit --data DIR [--json] [--out FILE], or bakeoff-eval plans"
        );
        return ExitCode::from(2);
    };
    let outcome = match arguments.first().map(String::as_str) {
        Some("eval") => evaluate(&data).map(|found| show(&found, flag("--json"))),
        Some("signals") => signals::judge(&data).map(|found| show(&found, flag("--json"))),
        Some("fit") => fit(&data, value("--out").as_deref()),
        _ => Err("the first argument is eval, signals or fit".to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn evaluate(data: &Path) -> Result<Value, String> {
    let speeds = table::read::<table::Throughput>(data, "throughput_mosaic/table.csv")?;
    let memories = table::read::<table::Memory>(data, "memory_bigscience/table.csv")?;
    let published = table::read::<published::Published>(data, PUBLISHED)?;
    let taken = table::read::<memory_published::Row>(data, "memory_published/table.csv")?;
    let skipped = || json!(SKIPPED);
    Ok(json!({
        "formulas": speeds.as_deref().map_or_else(skipped, throughput::formulas),
        "throughput": speeds.as_deref().map(throughput::judge).transpose()?.unwrap_or_else(skipped),
        "steady": steady::judge(data)?.unwrap_or_else(skipped),
        "eta": eta::judge(data)?.unwrap_or_else(skipped),
        "mlperf": mlperf::judge(data)?.unwrap_or_else(skipped),
        "race": race::judge(data)?.unwrap_or_else(skipped),
        "choice": speeds.as_deref().map(choice::judge).transpose()?.unwrap_or_else(skipped),
        "published": published.as_deref().map_or_else(skipped, published::judge),
        "memory_published": taken.as_deref().map_or_else(skipped, |rows| {
            memory_published::judge(rows, published.as_deref().unwrap_or_default())
        }),
        "memory": memories.as_deref().map(memory::judge).transpose()?.unwrap_or_else(skipped),
        "memory_of_throughput_rows": speeds.as_deref().map(throughput::memory_of).transpose()?.unwrap_or_else(skipped),
    }))
}

fn show(found: &Value, as_json: bool) {
    if as_json {
        println!("{found:#}");
        return;
    }
    for (group, figures) in found.as_object().into_iter().flatten() {
        println!("{group}");
        print(figures, 1);
    }
}

fn print(figures: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    let Some(entries) = figures.as_object() else {
        println!("{indent}{}", figures.as_str().unwrap_or_default());
        return;
    };
    for (key, value) in entries {
        match value {
            Value::Object(_) => {
                println!("{indent}{key}");
                print(value, depth + 1);
            }
            Value::Number(number) if number.is_f64() => {
                println!(
                    "{indent}{key:<32} {:.4}",
                    number.as_f64().unwrap_or(f64::NAN)
                );
            }
            other => println!(
                "{indent}{key:<32} {}",
                other
                    .as_str()
                    .map_or_else(|| other.to_string(), str::to_owned)
            ),
        }
    }
}

/// Significant digits of shipped figures: more would be noise.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn fit(data: &Path, out: Option<&Path>) -> Result<(), String> {
    let missing = |name: &str| format!("{name}: {SKIPPED}");
    let speeds = table::read::<table::Throughput>(data, "throughput_mosaic/table.csv")?;
    let speeds = speeds.ok_or_else(|| missing("throughput_mosaic"))?;
    let memories = table::read::<table::Memory>(data, "memory_bigscience/table.csv")?;
    let memories = memories.ok_or_else(|| missing("memory_bigscience"))?;
    let published = table::read::<published::Published>(data, PUBLISHED)?;
    let published = published.ok_or_else(|| missing("throughput_published"))?;
    let model = throughput::fit(&speeds)?;
    let effects = published::effects(&model, &published);
    let means: Map<String, Value> = predict::EFFECT_NAMES
        .iter()
        .zip(effects.mean)
        .map(|(name, mean)| ((*name).to_owned(), json!(rounded(mean))))
        .collect();
    let coefficients: Map<String, Value> = predict::NAMES
        .iter()
        .zip(model.theta)
        .map(|(name, theta)| ((*name).to_owned(), json!(rounded(theta.exp()))))
        .collect();
    let memory = bakeoff_planner::predict::fit::Coefficients::from_array(
        memory::fit(&memories)?.to_array().map(rounded),
    );
    let shipped = json!({
        "made_by": "cargo xtask fit",
        "throughput": {
            "source": "mosaicml/llm-foundry scripts/train/benchmarking/README.md @ 8c8dd48f (Apache-2.0)",
            "rows": speeds.len(),
            "coefficients": coefficients,
            "covariance": model.covariance.map(|row| row.map(rounded)),
        },
        "effects": {
            "source": "published runs of other codes, gathered from their sources' own pages and logs",
            "sources": published::sources(&published),
            "rows": published.len(),
            "means": means,
            "covariance": effects.covariance.map(|row| row.map(rounded)),
        },
        "memory": memory,
        "memory_source": "bigscience-workshop/bigscience chronicles-prequel.md, tr3m-1B3.md @ 9e64edec (Apache-2.0)",
        "memory_rows": memories.len(),
    });
    let text = serde_json::to_string_pretty(&shipped).map_err(|error| error.to_string())? + "\n";
    match out {
        None => print!("{text}"),
        Some(path) => {
            std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
            println!(
                "wrote {} from {} and {} rows",
                path.display(),
                speeds.len(),
                memories.len()
            );
        }
    }
    Ok(())
}

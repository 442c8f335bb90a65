//! `bakeoff init`: an experiment from what people have, without a service, at the shipped prices. In a terminal it asks
//! what only a person knows; elsewhere it takes each proposal, and says what is open. A job is described with the
//! caller's own credentials: if the service did it, every project could see the jobs of every other project.

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use bakeoff_domain::catalog::known_models;
use bakeoff_planner::import::{self, Import, ImportQuestion, Known};
use bakeoff_planner::predict::Calibration;
use clap::Args;
use serde_json::Value;

use super::input;
use super::lint::shipped_prices;
use bakeoff_process::clock::real_now;
use bakeoff_service::document;

/// Where jobs run if nothing names a region.
const HOME: &str = "us-east-1";
/// Proposals longer than this are shown by what they are for.
const SHOWN_MAX: usize = 100;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff init --job my-training-job --region us-east-1
  bakeoff init my-estimator.json Qwen/Qwen2.5-7B --answer /workload/total_tokens=500000000 --file experiment.json

Exits with 1 while something is left that only you know.")]
pub(super) struct InitOptions {
    /// Files of JSON or YAML (an estimator's or a ModelTrainer's arguments, a CreateTrainingJob body, what DescribeTrainingJob answers, a
    /// model's config.json, a configuration of DeepSpeed, Axolotl, LLaMA-Factory, TRL or accelerate, a W&B run's config.yaml and wandb-metadata.json), and names of models, such as Qwen/Qwen2.5-7B.
    #[arg(required_unless_present = "job")]
    documents: Vec<String>,
    /// A training job of your own AWS account, by its name: it is described with your credentials, and nothing else.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// The region of that job.
    #[arg(long, env = "AWS_REGION", default_value = HOME)]
    region: String,
    /// An answer: POINTER=JSON, such as /budget_usd=200; may be repeated.
    #[arg(long = "answer", value_parser = super::pair)]
    answers: Vec<(String, String)>,
    /// Take every proposal without asking.
    #[arg(long)]
    yes: bool,
    /// Where the experiment is written.
    #[arg(long, default_value = "experiment.json")]
    file: PathBuf,
    /// Write it over a file that is there.
    #[arg(long)]
    force: bool,
    /// Print the whole import as JSON, and write no file.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(options: &InitOptions) -> anyhow::Result<ExitCode> {
    // Before anybody is asked anything.
    if !options.json && !options.force && options.file.exists() {
        bail!(
            "{} is there already: --force writes over it, --file names another",
            options.file.display()
        );
    }
    let documents = options.documents.iter().map(|name| given(name));
    let mut documents = documents.collect::<anyhow::Result<Vec<Value>>>()?;
    if let Some(job) = &options.job {
        let described = super::aws::description(&options.region, job).await;
        let described = described.with_context(|| format!("{job} in {}", options.region))?;
        documents.insert(0, described);
    }
    let mut answers: BTreeMap<String, Value> = options
        .answers
        .iter()
        .map(|(pointer, text)| (pointer.clone(), value(text)))
        .collect();
    let mut made = imported(&documents, &answers)?;
    let asks = stdin().is_terminal() && stdout().is_terminal() && !options.yes && !options.json;
    // An answer may change what is proposed for the rest: the model decides which types hold it.
    while let Some(question) = made.questions.first().filter(|_| asks).cloned() {
        let answer = ask(&question)?;
        answers.insert(question.pointer.clone(), answer);
        match imported(&documents, &answers) {
            Ok(next) => made = next,
            // The other answers stay.
            Err(error) => {
                println!("{error}");
                answers.remove(&question.pointer);
            }
        }
    }
    if let Some(wrong) = document::wrong_answer(&made.spec, made.is_complete, &answers) {
        bail!(
            "--answer {}: {}\n  → {}",
            wrong.pointer,
            wrong.message,
            wrong.fix
        );
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&made)?);
        return Ok(exit(&made));
    }
    let written = serde_json::to_string_pretty(&made.spec)? + "\n";
    std::fs::write(&options.file, written).with_context(|| options.file.display().to_string())?;
    report(&made, &options.file);
    Ok(exit(&made))
}

fn exit(made: &Import) -> ExitCode {
    if made.is_complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// A file's document, or the name of a model.
fn given(name: &str) -> anyhow::Result<Value> {
    let path = Path::new(name);
    if path.exists() || input::is_document(path) {
        return super::lint::read(path);
    }
    if known_models::find(name).is_none() {
        bail!("{name} is neither a file nor a model that is known here: pass its config.json");
    }
    Ok(name.into())
}

/// An answer is JSON, or else text.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn imported(documents: &[Value], answers: &BTreeMap<String, Value>) -> anyhow::Result<Import> {
    let region = import::region(documents, answers);
    let region = region.as_deref().unwrap_or(HOME);
    let made = import::import(Known {
        documents,
        answers,
        prices: &shipped_prices(region),
        home: region,
        calibration: &Calibration::shipped(),
        stamp: &real_now().format("%Y-%m-%d-%H-%M-%S-%3f").to_string(),
    });
    made.map_err(|errors| {
        let lines = errors
            .iter()
            .map(|error| format!("{}: {}\n  → {}", error.pointer, error.why, error.fix));
        anyhow::anyhow!(lines.collect::<Vec<String>>().join("\n"))
    })
}

fn ask(question: &ImportQuestion) -> anyhow::Result<Value> {
    println!("\n{}  ({})", question.question, question.why);
    loop {
        match &question.proposal {
            Some(proposal) => print!("[{}] ", shown(proposal)),
            None => print!("> "),
        }
        stdout().flush()?;
        let mut line = String::new();
        if stdin().lock().read_line(&mut line)? == 0 {
            bail!("no answer was given; --yes takes every proposal");
        }
        match (line.trim(), &question.proposal) {
            ("", Some(proposal)) => return Ok(proposal.clone()),
            ("", None) => println!("An answer is needed."),
            (text, _) => return Ok(value(text)),
        }
    }
}

fn shown(proposal: &Value) -> String {
    let text = match proposal {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_object) => {
            let names = items.iter().filter_map(|item| item.get("name")?.as_str());
            names.collect::<Vec<&str>>().join(", ")
        }
        other => other.to_string(),
    };
    if text.chars().count() <= SHOWN_MAX {
        return text;
    }
    let begin: String = text.chars().take(SHOWN_MAX).collect();
    format!("{begin} …")
}

fn report(made: &Import, output: &Path) {
    println!("{} is written, from:", output.display());
    for field in &made.read {
        println!("  {}  ←  {}", field.pointer, field.from);
    }
    let (proposed, open): (Vec<_>, Vec<_>) = made
        .questions
        .iter()
        .partition(|one| one.proposal.is_some());
    if !proposed.is_empty() {
        println!("\nProposed; change what is wrong:");
    }
    for question in proposed {
        let proposal = question.proposal.as_ref().map(shown).unwrap_or_default();
        println!("  {} = {proposal}", question.pointer);
        for reason in question.why.split("; ") {
            println!("      {reason}");
        }
    }
    if !made.left_out.is_empty() {
        println!("\nLeft out:");
    }
    for field in &made.left_out {
        println!("  {}: {}", field.member, field.why);
    }
    if open.is_empty() {
        println!("\nNext: bakeoff plan {}", output.display());
        return;
    }
    println!("\nStill needed:");
    for question in open {
        println!(
            "  {}: {} ({})",
            question.pointer, question.question, question.why
        );
    }
    println!("\nNext: the same again, with --answer POINTER=JSON for each of these");
}

//! `bakeoff doctor`: shows what a first job needs and what is missing, each with the line that mends it;
//! with `--job`, runs the one proof of everything.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bakeoff_domain::doctor::{CheckScope, CheckState, S3Use};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::spec::{ExperimentSpec, PurchaseOption};
use clap::Args;
use serde::Serialize;

use super::client::{Client, Target};
use super::{lint, run};
use bakeoff_api::comparison::{Comparison, ComparisonRow};
use bakeoff_api::doctor::{CheckView, Checkup};
use bakeoff_api::experiments::CreatedExperiment;
use bakeoff_api::specs::WorkloadView;
use bakeoff_process::ids;
use bakeoff_service::document;

/// Reading all quotas of an account takes some seconds.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff doctor examples/hebrew-p4-p5.json

Exits with 1 if a check fails.")]
pub(super) struct DoctorOptions {
    /// An experiment, as JSON or YAML: its role, image, buckets and types are checked. With no file and nothing
    /// named, those of the project's newest experiment. Exits with 1 if a check or the job fails.
    file: Option<PathBuf>,
    /// Region of the jobs; the service's first one when absent.
    #[arg(long)]
    region: Option<String>,
    /// Execution role of the jobs.
    #[arg(long, value_name = "ARN")]
    role_arn: Option<String>,
    /// Training image.
    #[arg(long)]
    image: Option<String>,
    /// A prefix that jobs read; may be repeated.
    #[arg(long = "input", value_name = "S3_URI")]
    inputs: Vec<String>,
    /// A prefix that jobs write their output to; may be repeated.
    #[arg(long = "output", value_name = "S3_URI")]
    outputs: Vec<String>,
    /// A prefix of checkpoints; may be repeated.
    #[arg(long = "checkpoints", value_name = "S3_URI")]
    checkpoints: Vec<String>,
    /// A type that is to be used; may be repeated.
    #[arg(long = "instance-type", value_name = "TYPE")]
    instance_types: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// If no check fails, also run a job that proves that jobs run: one command in the image, on the cheapest
    /// type with accelerators that may run, for some cents.
    #[arg(long)]
    job: bool,
    /// The type of that job.
    #[arg(long, value_name = "TYPE", requires = "job")]
    job_instance_type: Option<String>,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
}

/// The query of `GET /v1/doctor`.
#[derive(Debug, Default, Serialize)]
struct Query {
    region: Option<String>,
    role_arn: Option<String>,
    image: Option<String>,
    input_s3_uri: Vec<String>,
    output_s3_uri: Vec<String>,
    checkpoint_s3_uri: Vec<String>,
    instance_type: Vec<String>,
    instance_count: Option<u32>,
    purchase_option: Vec<PurchaseOption>,
    max_runtime_seconds: Option<u32>,
    job_instance_type: Option<String>,
}

impl Query {
    fn of(wanted: CheckScope) -> Self {
        let uris = |usage| -> Vec<String> {
            let those = wanted.places.iter();
            those
                .filter(|place| place.usage == usage)
                .map(|place| place.uri.clone())
                .collect()
        };
        Self {
            input_s3_uri: uris(S3Use::Input),
            output_s3_uri: uris(S3Use::Output),
            checkpoint_s3_uri: uris(S3Use::Checkpoints),
            region: Some(wanted.region),
            role_arn: wanted.role_arn,
            image: wanted.image.map(|image| image.0),
            instance_type: wanted.instance_types,
            instance_count: wanted.instance_count,
            purchase_option: wanted.purchase_options,
            max_runtime_seconds: wanted.max_runtime_seconds,
            job_instance_type: None,
        }
    }

    /// What is named on the command line wins over the file.
    fn with(self, options: &DoctorOptions) -> Self {
        let or = |own: &[String], of_file: Vec<String>| {
            if own.is_empty() {
                of_file
            } else {
                own.to_vec()
            }
        };
        Self {
            region: options.region.clone().or(self.region),
            role_arn: options.role_arn.clone().or(self.role_arn),
            image: options.image.clone().or(self.image),
            input_s3_uri: or(&options.inputs, self.input_s3_uri),
            output_s3_uri: or(&options.outputs, self.output_s3_uri),
            checkpoint_s3_uri: or(&options.checkpoints, self.checkpoint_s3_uri),
            instance_type: or(&options.instance_types, self.instance_type),
            job_instance_type: options.job_instance_type.clone(),
            ..self
        }
    }
}

pub(super) async fn run(options: DoctorOptions) -> anyhow::Result<ExitCode> {
    let client = Client::patient(&options.target, PATIENCE)?;
    let of_file = match &options.file {
        Some(file) => Query::of(wanted(&client, file).await?),
        None => Query::default(),
    };
    let query = serde_html_form::to_string(of_file.with(&options))?;
    let checkup: Checkup = client.get(&format!("/v1/doctor?{query}")).await?;
    let is_proof_due = options.job && checkup.ok;
    if options.json && !is_proof_due {
        println!("{}", serde_json::to_string_pretty(&checkup)?);
    } else if !options.json {
        print(&checkup);
    }
    if options.job && !checkup.ok {
        anyhow::bail!("no job was started: mend what fails first");
    }
    let is_proven = !is_proof_due || prove(&client, &checkup, options.json).await?;
    Ok(if checkup.ok && is_proven {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What an experiment's file names; a workload that it names by its id is the service's.
async fn wanted(client: &Client, file: &Path) -> anyhow::Result<CheckScope> {
    let (spec, _) = document::read::<ExperimentSpec>(&lint::read(file)?);
    let spec = spec.map_err(|error| {
        anyhow::anyhow!("{}: {} {}", file.display(), error.pointer, error.message)
    })?;
    let Some(id) = spec.workload_id.filter(|_| spec.workload.is_none()) else {
        return Ok(CheckScope::of(&spec, spec.workload.as_ref()));
    };
    let stored: WorkloadView = client.get(&format!("/v1/workloads/{id}")).await?;
    Ok(CheckScope::of(&spec, Some(&stored.spec)))
}

/// Runs the job to its end; returns whether it completed.
async fn prove(client: &Client, checkup: &Checkup, as_json: bool) -> anyhow::Result<bool> {
    let Some(job) = &checkup.job else {
        anyhow::bail!(
            "there is no job to run: it needs --role-arn, --image and --output (or an experiment's file), and a type \
             with a quota and a price"
        );
    };
    let body = serde_json::to_vec(job)?;
    let key = ids::fresh().to_string();
    let created: CreatedExperiment = client.post_once("/v1/experiments", &body, &key).await?;
    if !as_json {
        println!(
            "\n{}: a job, for at most {}",
            created.id, created.worst_case_usd
        );
    }
    // One that only a person could let go on has shown what it is for.
    let is_over = |table: &Comparison| {
        let mut states = table.rows.iter().map(|row| row.state);
        table.state.is_over() || states.all(|s| s.is_terminal() || s == TrialState::Parked)
    };
    run::follow(client, &[created.id], !as_json, is_over).await?;
    let place = format!("/v1/experiments/{}", created.id);
    let table: Comparison = client.get(&format!("{place}/comparison")).await?;
    if !table.state.is_over() && table.rows.iter().any(|row| row.state == TrialState::Parked) {
        let _: serde_json::Value = client.post(&format!("{place}/cancel"), b"").await?;
    }
    let Some(row) = table.rows.first() else {
        anyhow::bail!("{} has no trial", created.id);
    };
    if as_json {
        let both = serde_json::json!({ "checkup": checkup, "job": row });
        println!("{}", serde_json::to_string_pretty(&both)?);
    } else {
        println!("{}", outcome(row));
    }
    Ok(row.state == TrialState::Completed)
}

fn outcome(row: &ComparisonRow) -> String {
    let kind = &row.instance_type;
    let cost = row.total_usd.unwrap_or_default();
    if row.state == TrialState::Completed {
        return format!(
            "  ✔ job               {kind}: started after {} s, ran in the image, stored its output; {} s billed, {cost}",
            row.starting_seconds, row.billable_seconds
        );
    }
    let why = row
        .diagnosis
        .as_deref()
        .or(row.reason.as_deref())
        .unwrap_or("AWS gave no reason");
    format!(
        "  ✘ job               {kind}: {}: {why}\n      it cost {cost}",
        row.state.as_str()
    )
}

fn print(checkup: &Checkup) {
    let count = |state| {
        let those = checkup.checks.iter().filter(|check| check.state == state);
        those.count()
    };
    for check in &checkup.checks {
        println!("{}", line(check));
        if let Some(fix) = &check.fix {
            println!("      to fix it: {fix}");
        }
    }
    let of = checkup
        .of_experiment
        .map_or_else(String::new, |id| format!(" (what {id} uses)"));
    println!(
        "\n{}{of}: {} checks passed, {} failed, {} with a warning, {} could not be made",
        checkup.region,
        count(CheckState::Ok),
        count(CheckState::Failed),
        count(CheckState::Warning),
        count(CheckState::Unknown),
    );
}

fn line(check: &CheckView) -> String {
    let mark = match check.state {
        CheckState::Ok => "✔",
        CheckState::Warning => "!",
        CheckState::Failed => "✘",
        CheckState::Unknown => "?",
    };
    let name = check.name.as_str().replace('_', " ");
    let subject = if check.subject.is_empty() {
        String::new()
    } else {
        format!("{}: ", check.subject)
    };
    format!("  {mark} {name:<17} {subject}{}", check.detail)
}

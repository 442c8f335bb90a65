//! `bakeoff doctor`: shows what a first job needs and what is missing, each with the line that mends it;
//! with `--job`, runs the one proof of everything.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bakeoff_domain::doctor::{CheckState, Wanted};
use bakeoff_domain::spec::ExperimentSpec;
use clap::Args;
use serde::Serialize;

use super::client::{Client, Target};
use super::{lint, report, run};
use crate::api::doctor::{CheckView, Checkup};
use crate::api::experiments::CreatedExperiment;
use crate::{document, ids};

/// Reading all quotas of an account takes some seconds.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
pub(super) struct DoctorOptions {
    /// An experiment, as JSON: its role, image, buckets and types are checked. Without one, and with
    /// nothing named, those of the project's newest experiment.
    file: Option<PathBuf>,
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
    /// A prefix that jobs write; may be repeated.
    #[arg(long = "output", value_name = "S3_URI")]
    outputs: Vec<String>,
    /// A type that is to be used; may be repeated.
    #[arg(long = "instance-type", value_name = "TYPE")]
    instance_types: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// Also run a job that proves that jobs run: one command in the image, on the cheapest type that may
    /// run, for some cents.
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
    instance_type: Vec<String>,
    job_instance_type: Option<String>,
}

impl Query {
    fn of(wanted: Wanted) -> Self {
        let uris = |is_written| -> Vec<String> {
            let those = wanted.places.iter();
            those
                .filter(|place| place.is_written == is_written)
                .map(|place| place.uri.clone())
                .collect()
        };
        Self {
            input_s3_uri: uris(false),
            output_s3_uri: uris(true),
            region: Some(wanted.region),
            role_arn: wanted.role_arn,
            image: wanted.image.map(|image| image.0),
            instance_type: wanted.instance_types,
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
            instance_type: or(&options.instance_types, self.instance_type),
            job_instance_type: options.job_instance_type.clone(),
        }
    }
}

pub(super) async fn run(options: DoctorOptions) -> anyhow::Result<ExitCode> {
    let of_file = match &options.file {
        Some(file) => {
            let (spec, _) = document::read::<ExperimentSpec>(&lint::read(file)?);
            let spec = spec.map_err(|error| {
                anyhow::anyhow!("{}: {} {}", file.display(), error.pointer, error.message)
            })?;
            Query::of(Wanted::of(&spec, spec.workload.as_ref()))
        }
        None => Query::default(),
    };
    let query = serde_html_form::to_string(of_file.with(&options))?;
    let client = Client::patient(&options.target, PATIENCE)?;
    let checkup: Checkup = client.get(&format!("/v1/doctor?{query}")).await?;
    if options.json && !options.job {
        println!("{}", serde_json::to_string_pretty(&checkup)?);
    } else if !options.json {
        print(&checkup);
    }
    if options.job {
        return prove(&client, &checkup, options.json).await;
    }
    Ok(if checkup.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the job to its end.
async fn prove(client: &Client, checkup: &Checkup, as_json: bool) -> anyhow::Result<ExitCode> {
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
        println!();
        report::created(&created);
    }
    run::to_the_end(client, &[created.id], as_json).await
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
    println!(
        "\n{}: {} checks passed, {} failed, {} with a warning, {} not known",
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

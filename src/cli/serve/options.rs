//! The flags of `bakeoff serve`, and how they are read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use bakeoff_domain::clock::Timescale;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::is_region;
use bakeoff_process::crash;
use bakeoff_store::CONNECTIONS_MAX;
use clap::Args;
use ipnet::IpNet;

use crate::cli::caps::{Caps, cap};
use crate::cli::{aws, database};

#[derive(Debug, Args)]
pub(in crate::cli) struct ServeOptions {
    #[command(flatten)]
    pub(super) database: database::DatabaseOptions,
    /// Run a private PostgreSQL in the data directory.
    #[arg(long)]
    pub(super) embedded: bool,
    /// Maximum number of database connections.
    #[arg(long, default_value_t = CONNECTIONS_MAX)]
    pub(super) database_connections: u32,
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(super) listen: SocketAddr,
    /// Regions that experiments may run in, separated by commas. The first one is used where none is
    /// named, for the fence and the price list.
    #[arg(
        long = "region",
        env = "AWS_REGION",
        default_value = "us-east-1",
        value_delimiter = ',',
        value_name = "REGION"
    )]
    pub(super) regions: Vec<String>,
    /// For simulation only: `<virtual origin>,<real origin>,<factor>`, the same as the region's.
    #[arg(long, env = "BAKEOFF_CLOCK")]
    pub(super) clock: Option<Timescale>,
    /// Seconds between listings of all jobs while they fit on one page, on the domain clock; with
    /// more pages the interval grows, up to five minutes.
    #[arg(long, default_value_t = 30)]
    pub(super) poll_seconds: u32,
    /// Expect AWS to push state changes to /v1/aws-events: jobs are then listed only every ten
    /// minutes, to catch lost events.
    #[arg(long)]
    pub(super) aws_push: bool,
    /// SNS topic that may deliver these state changes instead; its SignatureVersion must be 2.
    #[arg(long, env = "BAKEOFF_SNS_TOPIC", value_name = "ARN")]
    pub(super) sns_topic: Option<String>,
    /// PEM file of the CAs that may issue SNS's signing certificates; certificates from any other
    /// issuer are rejected. SNS does not send its issuers along; Amazon's are at
    /// https://www.amazontrust.com/repository/.
    #[arg(
        long,
        env = "BAKEOFF_SNS_ISSUERS",
        value_name = "FILE",
        requires = "sns_topic"
    )]
    pub(super) sns_issuers: Option<PathBuf>,
    /// Seconds between reads of a running job's metrics (domain clock); 0 reads them at its end.
    #[arg(long, default_value_t = 300)]
    pub(super) metrics_interval_seconds: u32,
    /// Also read SageMaker's own time series of the script's metrics (BatchGetMetrics), once, when
    /// a job is over: every iteration instead of every minute. Off by default, since AWS publishes
    /// no price for it.
    #[arg(long, env = "BAKEOFF_SAGEMAKER_METRICS")]
    pub(super) sagemaker_metrics: bool,
    /// Hours between reads of AWS's price list, on the domain clock; 0: only when asked.
    #[arg(long, default_value_t = 24)]
    pub(super) price_refresh_hours: u16,
    /// Days to keep points after their trial or run has ended; forever when absent. Five-minute
    /// rollups are always kept.
    #[arg(long)]
    pub(super) keep_points_days: Option<u32>,
    /// Seconds that a scheduler's lease on a trial lasts, in real time.
    #[arg(long, default_value_t = 30)]
    pub(super) lease_seconds: u32,
    /// URL where training jobs reach this service (https://…). Each job then finds BAKEOFF_URL and
    /// BAKEOFF_PUSH_TOKEN in its environment, which let it send the metrics of its own trial and do
    /// nothing else.
    #[arg(long, env = "BAKEOFF_PUBLIC_URL", value_name = "URL", value_parser = public_url)]
    pub(super) public_url: Option<String>,
    /// Dollars that a new project may spend in all, until an admin sets its budget.
    #[arg(
        long,
        env = "BAKEOFF_DEFAULT_PROJECT_BUDGET_USD",
        value_name = "USD",
        default_value = "0",
        value_parser = cap
    )]
    pub(super) default_project_budget_usd: Usd,
    #[command(flatten)]
    pub(super) caps: Caps,
    /// Role that EventBridge Scheduler assumes to delete endpoints and to stop batch transforms at their end, also
    /// when this service is away (deploy/iam/scheduler.json). Without it no such end is scheduled.
    #[arg(
        long,
        env = "BAKEOFF_SCHEDULER_ROLE_ARN",
        value_name = "ARN",
        value_parser = aws::role_arn
    )]
    pub(super) scheduler_role_arn: Option<String>,
    /// Refuse endpoints and batch transforms that have no end at AWS: without --scheduler-role-arn, or if AWS
    /// denies the schedule.
    #[arg(long, env = "BAKEOFF_REQUIRE_SCHEDULED_END")]
    pub(super) require_scheduled_end: bool,
    /// Origins whose pages may use this service in a browser: `https://portal.example.com`. They are trusted: may be
    /// repeated. The service's own dashboard needs none.
    #[arg(
        long = "web-origin",
        env = "BAKEOFF_WEB_ORIGINS",
        value_name = "ORIGIN",
        value_delimiter = ',',
        value_parser = web_origin
    )]
    pub(super) web_origins: Vec<String>,
    /// Networks that webhooks may go to although they are not public: `10.20.0.0/16`. May be repeated.
    #[arg(
        long,
        env = "BAKEOFF_OUTGOING_ALLOW",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub(super) outgoing_allow: Vec<IpNet>,
    /// Secret key, 64 hexadecimal digits; CI webhook secrets are derived from it. Generated and
    /// kept in the data directory with --embedded.
    #[arg(long, env = "BAKEOFF_SECRET_KEY", hide_env_values = true)]
    pub(super) secret_key: Option<String>,
    /// S3 object (s3://bucket/key) that distinguishes this database from a copy of it; remembered.
    /// Read every 30 seconds and rewritten every minute; a copy cannot keep up, and stops acting.
    #[arg(long, env = "BAKEOFF_FENCE", value_name = "S3_URI", value_parser = s3_object)]
    pub(super) fence: Option<String>,
    /// Without a fence: stop jobs that carry this installation's marker but are not in the
    /// database, as after a restore from a backup. Use it only if no other database of this
    /// installation is live.
    #[arg(long, env = "BAKEOFF_STOP_UNKNOWN_JOBS")]
    pub(super) stop_unknown_jobs: bool,
    /// Timeout of a call to AWS, in seconds of real time.
    #[arg(long, default_value_t = aws::TIMEOUT.as_secs_f64(), hide = true)]
    pub(super) aws_timeout_seconds: f64,
    /// For simulation only: kill or freeze this process at a named point, `kill@after_create:3`.
    #[arg(long, env = "BAKEOFF_FAULT", hide = true)]
    pub(super) fault: Option<crash::Armed>,
    /// File to write the service's URL to once it listens.
    #[arg(long)]
    pub(super) ready_file: Option<PathBuf>,
}

impl ServeOptions {
    /// The regions, each once and well-formed: calls to another one would only ever fail.
    pub(super) fn regions(&self) -> anyhow::Result<Vec<String>> {
        let mut regions: Vec<String> = Vec::new();
        for region in &self.regions {
            let region = region.trim();
            ensure!(
                is_region(region),
                "--region: `{region}` is not a region such as us-east-1"
            );
            if !regions.iter().any(|known| known == region) {
                regions.push(region.to_owned());
            }
        }
        Ok(regions)
    }

    pub(super) fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_seconds.max(1).into())
    }

    pub(super) fn aws_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.aws_timeout_seconds.clamp(0.1, 300.0))
    }
}

/// Removes trailing slashes, because paths are appended.
fn public_url(text: &str) -> Result<String, String> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .unwrap_or_default();
    let is_whole = !rest.trim_matches('/').is_empty()
        && !text.contains(char::is_whitespace)
        && text.len() <= 400;
    if is_whole {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err("expected a URL such as https://bakeoff.example.com".to_owned())
    }
}

/// Accepts an origin as browsers send it: a scheme and a host, in lower case, and a port that is not the scheme's own.
fn web_origin(text: &str) -> Result<String, String> {
    let refused = || {
        format!("`{text}` is not an origin as browsers send it, such as https://portal.example.com")
    };
    let url = url::Url::parse(text).map_err(|_| refused())?;
    let is_web = ["http", "https"].contains(&url.scheme());
    if is_web && url.origin().ascii_serialization() == text {
        Ok(text.to_owned())
    } else {
        Err(refused())
    }
}

/// Accepts only a complete `s3://bucket/key`.
fn s3_object(text: &str) -> Result<String, String> {
    let parts = text
        .strip_prefix("s3://")
        .and_then(|rest| rest.split_once('/'));
    let is_whole = parts.is_some_and(|(bucket, key)| {
        (3..=63).contains(&bucket.len()) && !key.is_empty() && !key.ends_with('/')
    });
    if is_whole {
        Ok(text.to_owned())
    } else {
        Err("expected an S3 object such as s3://my-bucket/bakeoff/fence.json".to_owned())
    }
}

//! `bakeoff logs`: a trial's log, merged over its hosts; with `-f`, as it is written.

use std::fmt::Write as _;
use std::time::Duration;

use bakeoff_domain::ids::TrialId;
use chrono::{DateTime, Utc};
use clap::Args;

use super::client::{Client, Target};
use super::tables::plain;
use bakeoff_api::logs::{LogLineView, LogPartView};
use bakeoff_api::trials::TrialView;
use bakeoff_process::clock::real_sleep;

const LOOK_EVERY: Duration = Duration::from_secs(2);
const PART: u32 = 5_000;
const TAIL: u32 = 100;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff logs -f trl_0190…
  bakeoff logs trl_0190… --tail 0 --grep 'loss|error' | less")]
pub(super) struct LogsOptions {
    /// Id of the trial.
    trial: TrialId,
    /// Go on as lines are written, until the trial is over.
    #[arg(short, long)]
    follow: bool,
    /// The last so many lines, 0 for all; 100 when absent, unless --since is given.
    #[arg(long)]
    tail: Option<u32>,
    /// Only lines from this moment on (RFC 3339).
    #[arg(long)]
    since: Option<DateTime<Utc>>,
    /// Only lines that match this regular expression.
    #[arg(long)]
    grep: Option<String>,
    /// Only lines of this host, such as algo-1.
    #[arg(long)]
    host: Option<String>,
    /// Number of the attempt; the latest when absent.
    #[arg(long)]
    attempt: Option<u32>,
    /// Of a tuning: the name of the training job whose log is wanted.
    #[arg(long)]
    training_job: Option<String>,
    /// Print each line as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(options: LogsOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let mut attempt = options.attempt;
    if options.follow {
        // A trial that waits has no log yet.
        while let Next::Wait = next_attempt(&client, &options, 0).await? {
            real_sleep(LOOK_EVERY).await;
        }
    }
    let mut token: Option<String> = None;
    let mut is_first = true;
    loop {
        let path = path(&options, attempt, token.as_deref(), is_first);
        let part: LogPartView = client.get(&path).await?;
        for line in &part.lines {
            show(&options, line)?;
        }
        is_first = false;
        let has_more = part.next_page_token.is_some() && !part.is_at_end;
        if !has_more && !options.follow {
            return Ok(());
        }
        if part.lines.is_empty() || !has_more {
            real_sleep(LOOK_EVERY).await;
        }
        token = part.next_page_token;
        if token.is_none() {
            // Everything was read of a job that is over: only another one has more.
            match wait_for_next(&client, &options, part.attempt).await? {
                Some(next) => attempt = Some(next),
                None => return Ok(()),
            }
        }
    }
}

async fn wait_for_next(
    client: &Client,
    options: &LogsOptions,
    after: u32,
) -> anyhow::Result<Option<u32>> {
    loop {
        match next_attempt(client, options, after).await? {
            Next::Attempt(number) => return Ok(Some(number)),
            Next::End => return Ok(None),
            Next::Wait => real_sleep(LOOK_EVERY).await,
        }
    }
}

enum Next {
    Attempt(u32),
    Wait,
    End,
}

/// What follows an attempt whose log was read to its end.
async fn next_attempt(client: &Client, options: &LogsOptions, after: u32) -> anyhow::Result<Next> {
    if options.attempt.is_some() && after > 0 {
        return Ok(Next::End);
    }
    let trial: TrialView = client.get(&format!("/v1/trials/{}", options.trial)).await?;
    let mut later = trial.attempts.iter().map(|attempt| attempt.number);
    Ok(match later.find(|number| *number > after) {
        Some(number) => Next::Attempt(number),
        None if trial.state.is_terminal() => Next::End,
        None => Next::Wait,
    })
}

fn path(
    options: &LogsOptions,
    attempt: Option<u32>,
    token: Option<&str>,
    is_first: bool,
) -> String {
    let mut query = reqwest::Url::parse("http://x/").map(|mut url| {
        {
            let mut pairs = url.query_pairs_mut();
            let mut pair = |name: &str, value: Option<String>| {
                if let Some(value) = value {
                    pairs.append_pair(name, &value);
                }
            };
            pair("attempt", attempt.map(|number| number.to_string()));
            pair("training_job", options.training_job.clone());
            pair("host", options.host.clone());
            pair("grep", options.grep.clone());
            pair("since", options.since.map(|since| since.to_rfc3339()));
            pair("page_token", token.map(str::to_owned));
            let usual = if options.since.is_some() { 0 } else { TAIL };
            let tail = options.tail.unwrap_or(usual);
            let tail = (is_first && tail > 0).then(|| tail.to_string());
            let size = tail.is_none().then(|| PART.to_string());
            pair("tail", tail);
            pair("page_size", size);
        }
        url.query().unwrap_or_default().to_owned()
    });
    let query = query.as_deref_mut().map_or("", |query| query);
    format!("/v1/trials/{}/logs?{query}", options.trial)
}

#[expect(clippy::print_stdout, reason = "this is what was asked for")]
fn show(options: &LogsOptions, line: &LogLineView) -> anyhow::Result<()> {
    let mut text = String::new();
    if options.json {
        text = serde_json::to_string(line)?;
    } else {
        let at = line.at.format("%Y-%m-%dT%H:%M:%SZ");
        write!(
            text,
            "{at} {} {}",
            line.host,
            plain(line.message.trim_end())
        )?;
    }
    println!("{text}");
    Ok(())
}

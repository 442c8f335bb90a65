//! `bakeoff run FILE… --watch`: submits experiments, follows them with progress bars and live cost,
//! and finally prints their tables. A file that is a pipeline is handed to [`super::pipelines`].

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::client::{Client, Target};
use super::input;
use super::pipelines;
use super::report::{self, FinalTables};
use bakeoff_api::comparison::{Comparison, ComparisonRow};
use bakeoff_api::experiments::CreatedExperiment;
use bakeoff_process::clock::real_sleep;
use bakeoff_process::ids;

const LOOK_EVERY: Duration = Duration::from_millis(500);
const BAR_LENGTH: u64 = 1000;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff run experiment.json --watch
  bakeoff run examples/*.json --json | jq '.experiments[].recommendation.headline'

With --watch or --json, exits with 1 if an experiment or the pipeline did not complete.")]
pub(super) struct RunOptions {
    /// Experiments, or one pipeline, as JSON or YAML.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    target: Target,
    /// Follow them until they end.
    #[arg(long)]
    watch: bool,
    /// Print the result as JSON instead of tables (implies --watch).
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(options: RunOptions) -> anyhow::Result<ExitCode> {
    let client = Client::new(&options.target)?;
    let follows = options.watch || options.json;
    let mut bodies = Vec::new();
    for file in &options.files {
        let body = input::json(file)?;
        bodies.push((file, body));
    }
    let pipelines = bodies.iter().filter(|(_, body)| {
        serde_json::from_slice(body).is_ok_and(|one| pipelines::is_pipeline(&one))
    });
    match (pipelines.collect::<Vec<_>>().as_slice(), bodies.len()) {
        ([], _) => {}
        ([(file, body)], 1) => {
            return pipelines::submit(&client, file, body, follows, options.json).await;
        }
        _ => bail!("a pipeline is run alone: give one file, or experiments only"),
    }
    let mut created = Vec::new();
    for (file, body) in &bodies {
        let experiment = submit(&client, file, body).await?;
        if options.json {
            // It runs, and costs, whatever becomes of the next file.
            eprintln!("{} started: {}", experiment.id, experiment.name);
        } else {
            report::created(&experiment);
        }
        created.push(experiment.id);
    }
    if !follows {
        return Ok(ExitCode::SUCCESS);
    }
    to_the_end(&client, &created, options.json).await
}

/// Follows experiments until they end, and prints their tables.
pub(super) async fn to_the_end(
    client: &Client,
    experiments: &[ExperimentId],
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    follow(client, experiments, !as_json, |table| table.state.is_over()).await?;
    let mut ended = Vec::new();
    for id in experiments {
        ended.push(FinalTables {
            comparison: client
                .get(&format!("/v1/experiments/{id}/comparison"))
                .await?,
            recommendation: client
                .get(&format!("/v1/experiments/{id}/recommendation"))
                .await?,
        });
    }
    if as_json {
        println!(
            "{}",
            serde_json::to_string_pretty(&serde_json::json!({ "experiments": ended }))?
        );
    } else {
        ended.iter().for_each(report::ended);
    }
    let all_completed = ended
        .iter()
        .all(|one| one.comparison.state == ExperimentState::Completed);
    Ok(if all_completed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn submit(client: &Client, file: &Path, body: &[u8]) -> anyhow::Result<CreatedExperiment> {
    let key = ids::fresh().to_string();
    client
        .post_once("/v1/experiments", body, &key)
        .await
        .with_context(|| file.display().to_string())
}

/// Shows one bar per trial and one line per experiment until all are over.
pub(super) async fn follow(
    client: &Client,
    experiments: &[ExperimentId],
    is_shown: bool,
    is_over: impl Fn(&Comparison) -> bool,
) -> anyhow::Result<()> {
    let bars = MultiProgress::new();
    if !is_shown {
        bars.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let mut boards: Vec<Board> = experiments.iter().map(|_| Board::default()).collect();
    loop {
        let mut running = 0;
        for (id, board) in experiments.iter().zip(&mut boards) {
            let table: Comparison = client
                .get(&format!("/v1/experiments/{id}/comparison"))
                .await?;
            running += usize::from(!is_over(&table));
            board.show(&bars, &table);
        }
        if running == 0 {
            boards.iter().for_each(Board::finish);
            return Ok(());
        }
        real_sleep(LOOK_EVERY).await;
    }
}

#[derive(Default)]
struct Board {
    head: Option<ProgressBar>,
    trials: Vec<ProgressBar>,
}

impl Board {
    fn show(&mut self, bars: &MultiProgress, table: &Comparison) {
        let line = || {
            ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar())
        };
        let bar = || {
            ProgressStyle::with_template("  {prefix:<34} {bar:24.green} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar())
        };
        let head = self
            .head
            .get_or_insert_with(|| bars.add(ProgressBar::new(1).with_style(line())));
        let spent: bakeoff_domain::money::Usd =
            table.rows.iter().filter_map(|row| row.total_usd).sum();
        head.set_message(format!(
            "{} — {} spent so far, {} reserved, budget {}",
            table.name, spent, table.reserved_usd, table.budget_usd
        ));
        while self.trials.len() < table.rows.len() {
            self.trials
                .push(bars.add(ProgressBar::new(BAR_LENGTH).with_style(bar())));
        }
        for (bar, row) in self.trials.iter().zip(&table.rows) {
            bar.set_prefix(format!(
                "{} {}",
                row.candidate,
                row.purchase_option.map_or("", |option| option.as_str())
            ));
            bar.set_position(position(row));
            bar.set_message(message(row));
        }
    }

    fn finish(&self) {
        self.head
            .iter()
            .chain(&self.trials)
            .for_each(ProgressBar::abandon);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "progress is clamped to 0..=1"
)]
fn position(row: &ComparisonRow) -> u64 {
    (row.progress.unwrap_or(0.0).clamp(0.0, 1.0) * 1000.0) as u64
}

fn message(row: &ComparisonRow) -> String {
    let status = match row.state {
        TrialState::Running | TrialState::Stopping => {
            row.secondary_status.as_deref().unwrap_or("Submitted")
        }
        state => state.as_str(),
    };
    let speed = row
        .tokens_per_second
        .map_or_else(String::new, |mean| format!(" {mean:.0} tokens/s"));
    let approximately = if row.cost_estimated && !row.state.is_terminal() {
        "≥"
    } else {
        ""
    };
    format!(
        "{status:<12} {approximately}{}{speed}",
        row.cost_usd.unwrap_or_default()
    )
}

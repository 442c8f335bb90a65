//! `bakeoff show ID` and `bakeoff watch ID…`: one thing by its id, whatever it is.

use std::process::ExitCode;

use anyhow::bail;
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_api::diagnosis::TrialDiagnosisView;
use bakeoff_api::endpoints::EndpointView;
use bakeoff_api::experiments::ExperimentView;
use bakeoff_api::model_packages::ModelPackageView;
use bakeoff_api::pipelines::PipelineView;
use bakeoff_api::runs::RunView;
use bakeoff_api::trials::TrialView;
use bakeoff_domain::ids::{CiRunId, ExperimentId, RunId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use clap::Args;
use serde::Serialize;

use crate::cli::any_id::AnyId;
use crate::cli::client::{Client, Target};
use crate::cli::report::{self, FinalTables};
use crate::cli::tables::plain;
use crate::cli::{endpoints, models, pipelines, run};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff show exp_0190…                          # the answer and its tables
  bakeoff show trl_0190… --json | jq .reason      # why it ended as it did")]
pub(in crate::cli) struct ShowOptions {
    /// Its id: exp_, trl_, run_, pip_, end_, mpk_ or cir_.
    id: AnyId,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff watch exp_0190… exp_0191…

Exits with 1 if an experiment or the pipeline did not complete.")]
pub(in crate::cli) struct WatchOptions {
    /// Experiments, or one pipeline.
    #[arg(required = true)]
    ids: Vec<AnyId>,
    /// Print the result as JSON instead of tables.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(in crate::cli) async fn watch(options: WatchOptions) -> anyhow::Result<ExitCode> {
    let client = Client::new(&options.target)?;
    if let [AnyId::Pipeline(id)] = options.ids.as_slice() {
        return pipelines::follow(&client, *id, options.json).await;
    }
    let ids = options.ids.iter().map(|id| match id {
        AnyId::Experiment(id) => Ok(*id),
        AnyId::Pipeline(id) => bail!("{id} is watched alone: a pipeline has a view of its own"),
        AnyId::Trial(id) => bail!("a trial is followed by its log: bakeoff logs -f {id}"),
        other => bail!("{other} is not watched; bakeoff show {other}"),
    });
    let ids: Vec<ExperimentId> = ids.collect::<anyhow::Result<_>>()?;
    run::to_the_end(&client, &ids, options.json).await
}

pub(in crate::cli) async fn run(options: ShowOptions) -> anyhow::Result<()> {
    let client = Client::new(&options.target)?;
    let is_json = options.json;
    match options.id {
        AnyId::Experiment(id) => experiment(&client, id, is_json).await,
        AnyId::Trial(id) => trial(&client, id, is_json).await,
        AnyId::Run(id) => external(&client, id, is_json).await,
        AnyId::CiRun(id) => ci_run(&client, id, is_json).await,
        AnyId::Pipeline(id) => {
            let found: PipelineView = client.get(&format!("/v1/pipelines/{id}")).await?;
            pipelines::show(&found, is_json)
        }
        AnyId::Endpoint(id) => {
            let found: EndpointView = client.get(&format!("/v1/endpoints/{id}")).await?;
            endpoints::show(&found, is_json)
        }
        AnyId::Model(id) => {
            let found: ModelPackageView = client.get(&format!("/v1/model-packages/{id}")).await?;
            models::show(&found, is_json)
        }
    }
}

fn json(found: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(found)?);
    Ok(())
}

async fn experiment(client: &Client, id: ExperimentId, is_json: bool) -> anyhow::Result<()> {
    let place = format!("/v1/experiments/{id}");
    let found: ExperimentView = client.get(&place).await?;
    let tables = FinalTables {
        comparison: client.get(&format!("{place}/comparison")).await?,
        recommendation: client.get(&format!("{place}/recommendation")).await?,
    };
    if is_json {
        return json(&serde_json::json!({ "experiment": found, "result": tables }));
    }
    println!(
        "{} ({id}) is {}: {} settled and {} reserved of {}",
        plain(&found.name),
        found.state.as_str(),
        found.settled_usd,
        found.reserved_usd,
        found.budget_usd
    );
    if let Some(reason) = &found.paused_reason {
        println!("  nothing new is started: {}", plain(reason));
    }
    report::ended(&tables);
    let has_answer = !tables.recommendation.recommendation.ranked.is_empty();
    println!(
        "next: {}",
        if !found.state.is_over() {
            format!("bakeoff watch {id}")
        } else if has_answer && found.full_run_of.is_none() {
            format!("bakeoff buy {id} shows the full run; bakeoff open {id}")
        } else {
            format!("bakeoff open {id}")
        }
    );
    Ok(())
}

async fn trial(client: &Client, id: TrialId, is_json: bool) -> anyhow::Result<()> {
    let found: TrialView = client.get(&format!("/v1/trials/{id}")).await?;
    if is_json {
        return json(&found);
    }
    let plan = found.plan.as_ref();
    let what = plan.map_or_else(String::new, |plan| {
        format!(
            "{} on {} × {}, ",
            plain(&plan.candidate),
            plan.instance_count,
            plan.instance_type
        )
    });
    println!("{id}: {what}{}", found.state.as_str());
    let said = found.reason.as_deref();
    if let Some(reason) = said.filter(|reason| *reason != found.state.as_str()) {
        println!("  {}", plain(reason));
    }
    for attempt in &found.attempts {
        let status = attempt.secondary_status.as_deref().unwrap_or_default();
        let billed = attempt.billable_seconds.unwrap_or_default();
        println!(
            "  attempt {}: {} {status}, {billed} s billed at {}/h",
            attempt.number, attempt.job_name, attempt.usd_per_hour
        );
    }
    if found.state == TrialState::Failed {
        let why: TrialDiagnosisView = client.get(&format!("/v1/trials/{id}/diagnosis")).await?;
        let last = why
            .attempts
            .iter()
            .filter_map(|one| one.diagnosis.as_ref())
            .next_back();
        for cause in last.iter().flat_map(|why| &why.causes) {
            println!("  {}", plain(&cause.cause));
            println!("      {}", plain(cause.clue.text.trim()));
            println!(
                "      to fix it: {}",
                plain(cause.change.as_ref().unwrap_or(&cause.advice))
            );
        }
    }
    println!(
        "next: {}",
        match found.state {
            TrialState::Failed | TrialState::Stopped | TrialState::Refused => {
                format!("bakeoff retry {id}; bakeoff show {}", found.experiment_id)
            }
            TrialState::Parked => format!(
                "mend that, then POST /v1/experiments/{}/resume",
                found.experiment_id
            ),
            state if state.is_terminal() => format!("bakeoff show {}", found.experiment_id),
            _ => format!("bakeoff logs -f {id}; bakeoff stop {id}"),
        }
    );
    Ok(())
}

async fn external(client: &Client, id: RunId, is_json: bool) -> anyhow::Result<()> {
    let found: RunView = client.get(&format!("/v1/runs/{id}")).await?;
    if is_json {
        return json(&found);
    }
    println!(
        "{} ({id}) on {} is {}",
        plain(&found.spec.name),
        plain(&found.spec.hardware),
        found.state.as_str()
    );
    if let Some(row) = &found.figures {
        let number = |value: Option<f64>| {
            value.map_or_else(|| "unknown".to_owned(), |value| format!("{value:.1}"))
        };
        let usd = row
            .cost_usd
            .map_or_else(|| "unknown".to_owned(), |usd| usd.to_string());
        println!("  tokens/s    {}", number(row.tokens_per_second));
        println!(
            "  step        {} of {}",
            text(row.step),
            text(row.planned_steps)
        );
        println!("  cost        {usd}");
        println!("  hours left  {}", number(row.remaining_hours));
    }
    println!("next: bakeoff compare {id} exp_…");
    Ok(())
}

fn text(number: Option<i64>) -> String {
    number.map_or_else(|| "unknown".to_owned(), |number| number.to_string())
}

async fn ci_run(client: &Client, id: CiRunId, is_json: bool) -> anyhow::Result<()> {
    let found: CiRunView = client.get(&format!("/v1/ci-runs/{id}")).await?;
    if is_json {
        return json(&found);
    }
    print!(
        "{}",
        client.text(&format!("/v1/ci-runs/{id}/report")).await?
    );
    Ok(())
}

//! `bakeoff ls`: what there is, the newest first.

use std::fmt::Write as _;

use anyhow::ensure;
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_api::endpoints::EndpointView;
use bakeoff_api::experiments::{ExperimentSummary, TrialCounts};
use bakeoff_api::looks::BriefView;
use bakeoff_api::model_packages::ModelPackageView;
use bakeoff_api::page::Page;
use bakeoff_api::pipelines::PipelineView;
use bakeoff_api::runs::RunView;
use bakeoff_domain::ranking::recommendation::Conclusion;
use bakeoff_domain::spec::PurchaseOption;
use clap::{Args, ValueEnum};
use comfy_table::{Cell, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use crate::cli::client::{Client, Target};
use crate::cli::output::Output;
use crate::cli::tables::{right, table};
use crate::cli::{endpoints, models, pipelines};

/// Rows of a page of the API.
const PAGE_MAX: usize = 500;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Experiments,
    Pipelines,
    Endpoints,
    Models,
    Runs,
    CiRuns,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff ls
  bakeoff ls --state running --label team=legal
  bakeoff ls endpoints --output json | jq '.[].expires_at'")]
pub(in crate::cli) struct ListOptions {
    /// What to list.
    #[arg(value_enum, default_value = "experiments")]
    kind: Kind,
    /// Only experiments in this state; repeat for several.
    #[arg(long)]
    state: Vec<String>,
    /// Only experiments with this label, `key=value`; repeat for several.
    #[arg(long)]
    label: Vec<String>,
    /// Only experiments whose name has this in it.
    #[arg(long)]
    name: Option<String>,
    /// The most rows to list.
    #[arg(long, short = 'n', default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    target: Target,
}

pub(in crate::cli) async fn run(options: ListOptions) -> anyhow::Result<()> {
    let has_filter =
        !options.state.is_empty() || !options.label.is_empty() || options.name.is_some();
    ensure!(
        matches!(options.kind, Kind::Experiments) || !has_filter,
        "--state, --label and --name choose among experiments only"
    );
    let client = Client::new(&options.target)?;
    let list = Lister {
        client: &client,
        options: &options,
    };
    match options.kind {
        Kind::Experiments => {
            let next = "bakeoff show ID; bakeoff run FILE starts one";
            list.experiments(next).await
        }
        Kind::Pipelines => {
            let next = "bakeoff show ID; bakeoff run FILE starts one";
            list.of::<PipelineView>("/v1/pipelines?", pipelines::listed, next)
                .await
        }
        Kind::Endpoints => {
            let next = "bakeoff show ID; bakeoff endpoints deploy makes one";
            list.of::<EndpointView>("/v1/endpoints?", endpoints::listed, next)
                .await
        }
        Kind::Models => {
            let next = "bakeoff show ID; bakeoff models register makes one";
            list.of::<ModelPackageView>("/v1/model-packages?", models::listed, next)
                .await
        }
        Kind::Runs => {
            let next = "bakeoff show ID; POST /v1/runs records one";
            list.of::<RunView>("/v1/runs?", runs, next).await
        }
        Kind::CiRuns => {
            let next = "bakeoff show ID; bakeoff gate starts one";
            list.of::<CiRunView>("/v1/ci-runs?", ci_runs, next).await
        }
    }
}

struct Lister<'a> {
    client: &'a Client,
    options: &'a ListOptions,
}

impl Lister<'_> {
    async fn experiments(&self, next: &str) -> anyhow::Result<()> {
        let ListOptions {
            state, label, name, ..
        } = self.options;
        let mut query: Vec<(&str, &str)> = vec![("sort", "-created_at")];
        query.extend(state.iter().map(|one| ("state", one.as_str())));
        query.extend(label.iter().map(|one| ("label", one.as_str())));
        query.extend(name.iter().map(|one| ("name_contains", one.as_str())));
        let query = serde_html_form::to_string(query)?;
        let path = format!("/v1/experiments?{query}&");
        self.of::<ExperimentSummary>(&path, experiments, next).await
    }

    /// Prints as many as are wanted; that there are more is said, and not left out in silence.
    async fn of<T>(
        &self,
        path: &str,
        rows: impl FnOnce(&[T]) -> Table,
        next: &str,
    ) -> anyhow::Result<()>
    where
        T: Serialize + DeserializeOwned + ToSchema,
    {
        let limit = usize::try_from(self.options.limit).unwrap_or(usize::MAX);
        let (mut found, mut token) = (Vec::<T>::new(), Some(String::new()));
        while let Some(place) = token.take_if(|_| found.len() < limit) {
            let size = PAGE_MAX.min(limit - found.len());
            let path = format!("{path}page_size={size}{place}");
            let page: Page<T> = self.client.get(&path).await?;
            found.extend(page.items);
            token = page
                .next_page_token
                .map(|next| format!("&page_token={next}"));
        }
        let output = self.options.output;
        if output.is_table() && found.is_empty() {
            println!("none found\nnext: {next}");
            return Ok(());
        }
        output.print(&found, || rows(&found))?;
        if token.is_some() {
            eprintln!(
                "there are more: --limit {}",
                self.options.limit.saturating_mul(2)
            );
        }
        if output.is_table() {
            println!("next: {next}");
        }
        Ok(())
    }
}

fn experiments(found: &[ExperimentSummary]) -> Table {
    let mut rows = table(&["experiment", "state", "trials", "spent", "answer", "id"]);
    for one in found {
        let state = match &one.paused_reason {
            Some(_) if !one.state.is_over() => format!("{}, paused", one.state.as_str()),
            _ => one.state.as_str().to_owned(),
        };
        rows.add_row(vec![
            Cell::new(&one.name),
            Cell::new(state),
            Cell::new(progress(one.trials)),
            right(format!("{} of {}", one.settled_usd, one.budget_usd)),
            Cell::new(one.answer.as_ref().map_or_else(String::new, brief)),
            Cell::new(one.id),
        ]);
    }
    rows
}

/// An answer in as many words as a table has room for.
fn brief(answer: &BriefView) -> String {
    let verb = match answer.conclusion {
        Conclusion::Clear => "buy",
        Conclusion::Leading => "lean towards",
        Conclusion::Reached => "reached by",
        Conclusion::Infeasible => return "none meets the limits".to_owned(),
        Conclusion::NotEnoughEvidence => return "not enough evidence".to_owned(),
        Conclusion::FullRun => return "a full run".to_owned(),
    };
    let Some(first) = &answer.first else {
        return answer.headline.clone();
    };
    let so_far = if answer.provisional { "so far: " } else { "" };
    let spot = match first.purchase_option {
        PurchaseOption::Spot => " on spot",
        PurchaseOption::OnDemand => "",
    };
    format!(
        "{so_far}{verb} {}{spot}, {} in {:.1} h",
        first.candidate, first.projected_cost_usd, first.projected_hours
    )
}

/// `3 of 5, 1 failed`.
fn progress(trials: TrialCounts) -> String {
    let TrialCounts {
        waiting,
        running,
        parked,
        completed,
        stopped,
        failed,
        refused,
    } = trials;
    let over = completed + stopped + failed + refused;
    let mut text = format!("{over} of {}", over + waiting + running + parked);
    for (count, what) in [(failed, "failed"), (parked, "parked")] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

fn runs(found: &[RunView]) -> Table {
    let mut rows = table(&["run", "state", "hardware", "step", "tokens/s", "cost", "id"]);
    for one in found {
        let figures = one.figures.as_ref();
        let step = figures.and_then(|row| row.step);
        let speed = figures.and_then(|row| row.tokens_per_second);
        let cost = figures.and_then(|row| row.cost_usd);
        rows.add_row(vec![
            Cell::new(&one.spec.name),
            Cell::new(one.state.as_str()),
            Cell::new(&one.spec.hardware),
            right(step.map_or_else(String::new, |step| step.to_string())),
            right(speed.map_or_else(String::new, |speed| format!("{speed:.0}"))),
            right(cost.map_or_else(String::new, |usd| usd.to_string())),
            Cell::new(one.id),
        ]);
    }
    rows
}

fn ci_runs(found: &[CiRunView]) -> Table {
    let mut rows = table(&["commit", "branch", "template", "verdict", "summary", "id"]);
    for one in found {
        let verdict = one.verdict.map_or("pending", |verdict| verdict.as_str());
        rows.add_row([
            one.commit.chars().take(12).collect(),
            one.branch.clone().unwrap_or_default(),
            one.template_name.clone(),
            verdict.to_owned(),
            one.summary.clone(),
            one.id.to_string(),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_that_failed_or_wait_for_a_person_are_told() {
        let trials = TrialCounts {
            waiting: 1,
            running: 1,
            parked: 1,
            completed: 2,
            failed: 1,
            ..TrialCounts::default()
        };
        assert_eq!(progress(trials), "3 of 6, 1 failed, 1 parked");
        assert_eq!(progress(TrialCounts::default()), "0 of 0");
    }
}

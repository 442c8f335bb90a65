//! The gate: judges CI runs whose experiment is over, and measures an inconclusive commit again. It decides nothing by
//! itself: [`bakeoff_domain::ci::gate`] does.

use bakeoff_domain::ci::Event;
use bakeoff_domain::ci::gate::{self, Baseline, Judgement};
use bakeoff_domain::finding::Finding;
use bakeoff_domain::ids::{CiRunId, ProjectId};
use bakeoff_domain::spec::ExperimentSpec;

use crate::app::App;
use crate::read;
use crate::read::gate::Measured;
use crate::use_cases::intake;
use bakeoff_process::crash;
use bakeoff_store::StoreError;
use bakeoff_store::ci::runs::CiRun;
use bakeoff_store::ci::verdicts::NewVerdict;
use bakeoff_store::requests::Once;

/// Runs read per page.
const PAGE: usize = 20;
/// Characters of an experiment's name.
const NAME_MAX: usize = 100;

/// Runs one tick; returns how many runs were judged or are measured again.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let (mut done, mut after) = (0, None);
    loop {
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let page = app.store.ci_runs_to_judge(after, limit).await?;
        for (project, id) in &page {
            app.pulse.beat();
            // A run that cannot be read must not hold up the others.
            match carry_on(app, *project, *id).await {
                Ok(is_done) => done += usize::from(is_done),
                Err(error) => tracing::error!(%error, run = %id, "judging a CI run failed"),
            }
        }
        after = page.last().map(|(_, id)| *id);
        if page.len() < PAGE {
            return Ok(done);
        }
    }
}

async fn carry_on(app: &App, project: ProjectId, id: CiRunId) -> Result<bool, StoreError> {
    let Some(run) = app.store.ci_run(project, id).await? else {
        return Ok(false);
    };
    let now = app.clock.now();
    let spec = app.store.spec_of_run(&run).await?;
    let measured = read::gate::measured(&app.store, &run, &spec, now).await?;
    let judgement = judgement(app, &run, &measured).await?;
    let settings = run.settings.gate.as_ref();
    let rounds = settings.map_or(1, |settings| settings.rounds);
    let round = u32::try_from(run.experiments.len()).unwrap_or(u32::MAX);
    if judgement.is_worth_another && !run.is_template_deleted && round < rounds {
        match measure_again(app, &run, round + 1).await? {
            Ok(is_begun) => return Ok(is_begun),
            Err(findings) => {
                let rules = findings
                    .iter()
                    .map(|one| one.rule.as_str())
                    .collect::<Vec<_>>();
                tracing::warn!(run = %id, ?rules, "the commit cannot be measured again");
            }
        }
    }
    crash::point("before_verdict");
    let new = NewVerdict {
        readings: &measured.readings,
        judgement: &judgement,
        is_accepted: settings.is_some_and(|gate| {
            let is_merged = run.event != Event::PullRequest && run.pull_request.is_none();
            let own = run.branch.as_deref().filter(|_| is_merged);
            let mut branches = run.other_branches.iter().map(String::as_str).chain(own);
            branches.any(|branch| gate.accepts(judgement.verdict, Some(branch), true))
        }),
        is_of_measured: true,
    };
    let is_decided = app.store.decide_ci_run(&run, new, now).await?;
    if is_decided {
        app.wake_schedulers();
    }
    Ok(is_decided)
}

async fn judgement(app: &App, run: &CiRun, measured: &Measured) -> Result<Judgement, StoreError> {
    let settings = run.settings.gate.as_ref();
    let baseline = match settings {
        Some(settings) => {
            let branch = &settings.baseline_branch;
            let accepted = app.store.accepted_runs(run.template_id, branch).await?;
            let release = app.store.release_readings(run.template_id).await?;
            Baseline::of(accepted, settings.baseline_trials, release)
        }
        None => Baseline::default(),
    };
    let unmeasured = measured.unmeasured.clone();
    Ok(gate::judge(
        settings,
        &measured.readings,
        unmeasured,
        &baseline,
    ))
}

/// Starts the same experiment once more; the findings if it is refused by now.
async fn measure_again(
    app: &App,
    run: &CiRun,
    round: u32,
) -> Result<Result<bool, Vec<Finding>>, StoreError> {
    let Some(spec) = spec_of_round(app, run, round).await? else {
        return Ok(Ok(false));
    };
    let loaded = intake::load(app, run.project_id, spec).await?;
    // Off the workers that answer requests; if it panics, the run ends with what is known.
    let prepared = match tokio::task::spawn_blocking(move || loaded.prepare()).await {
        Ok(Ok(prepared)) => prepared,
        Ok(Err(findings)) => return Ok(Err(findings)),
        Err(error) => {
            tracing::error!(%error, run = %run.id, "planning another round failed");
            return Ok(Err(Vec::new()));
        }
    };
    let once = Once::Round { run: run.id, round };
    let by = run.template_id.to_string();
    match prepared.start(app, run.project_id, &by, &once).await {
        Ok(()) => Ok(Ok(true)),
        // Another replica was faster.
        Err(StoreError::Missing {
            table: "ci_runs", ..
        }) => Ok(Ok(false)),
        Err(error) => Err(error),
    }
}

/// The experiment of the first round, under a name that says which round it is.
async fn spec_of_round(
    app: &App,
    run: &CiRun,
    round: u32,
) -> Result<Option<ExperimentSpec>, StoreError> {
    let Some(first) = run.experiments.first() else {
        return Ok(None);
    };
    let Some(experiment) = app.store.experiment(run.project_id, *first).await? else {
        return Ok(None);
    };
    let mut spec = experiment.resolved.spec().clone();
    let suffix = format!(" ({round})");
    let kept = NAME_MAX - suffix.len();
    spec.name = spec.name.chars().take(kept).chain(suffix.chars()).collect();
    Ok(Some(spec))
}

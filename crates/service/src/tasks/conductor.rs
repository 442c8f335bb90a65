//! The conductor: starts, stops and ends the steps of pipelines, one claimed pipeline at a time. What happens next
//! is decided by [`bakeoff_domain::pipeline::decide`]; what a step begins is prepared by [`crate::use_cases::pipelines`].

use std::collections::BTreeMap;
use std::fmt::Display;

use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::ids::PipelineId;
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::model_package::RegistryState;
use bakeoff_domain::pipeline::decide::{Act, PipelineFunds, StepFacts, Work, decide};
use bakeoff_domain::pipeline::{StepKind, StepState, check};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::app::App;
use crate::tasks::due::{self, Due, HOLD};
use crate::use_cases::pipelines::purchase::{Guard, guard};
use crate::use_cases::pipelines::{self, NotReady, PreparedStep};
use bakeoff_process::crash;
use bakeoff_process::ids;
use bakeoff_store::StoreError;
use bakeoff_store::endpoints::WhichEndpoints;
use bakeoff_store::experiments::lifecycle::ExperimentCommand;
use bakeoff_store::pipelines::{Pipeline, Step, StepEnd, StepWork, WriteOutcome};

/// How long a pipeline whose steps run is left alone; the end of a step's work makes it due at once.
const PAUSE: TimeDelta = TimeDelta::seconds(30);

/// Runs one tick; returns how many were worked on.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    due::tick::<Pipeline>(app).await
}

impl Due for Pipeline {
    const WHAT: &'static str = "pipeline";

    fn id(&self) -> impl Display {
        self.id
    }

    async fn claim(app: &App, now: DateTime<Utc>) -> Result<Option<Self>, StoreError> {
        let region = &app.place.region;
        app.store.claim_due_pipeline(region, now, HOLD).await
    }

    async fn work(&self, app: &App) -> Result<(), StoreError> {
        work(app, self).await
    }
}

async fn work(app: &App, pipeline: &Pipeline) -> Result<(), StoreError> {
    let steps = app.store.pipeline_steps(&[pipeline.id.0]).await?;
    let corrupt = || StoreError::corrupt("pipelines", pipeline.id, "spec");
    let graph = check::check(&pipeline.spec).map_err(|_| corrupt())?;
    let mut facts = Vec::with_capacity(steps.len());
    for (step, needs) in steps.iter().zip(&graph.needs) {
        let spec = pipeline.spec.steps.get(step.place).ok_or_else(corrupt)?;
        facts.push(StepFacts {
            state: step.state,
            needs: needs.clone(),
            tries: step.tries,
            retries: spec.retries,
            work: work_of(app, pipeline, step).await?,
        });
    }
    let acts = decide(pipeline.state, &facts);
    crash::point("before_steps");
    let mut hand = ClaimedPipeline {
        app,
        pipeline,
        outputs: outputs(&steps),
        means: means(pipeline, &steps),
        steps,
        is_changed: false,
    };
    for act in acts {
        app.pulse.beat();
        if hand.carry_out(act).await? == WriteOutcome::Stale {
            return Ok(());
        }
    }
    let now = app.clock.now();
    let next = if hand.is_changed { now } else { now + PAUSE };
    app.store.release_pipeline(pipeline, next, now).await
}

/// How the work of a running step stands.
async fn work_of(app: &App, pipeline: &Pipeline, step: &Step) -> Result<Option<Work>, StoreError> {
    if step.state != StepState::Running {
        return Ok(None);
    }
    if let Some(id) = step.model_package_id {
        let package = app.store.model_package(pipeline.project_id, id).await?;
        return Ok(Some(match package.map(|one| (one.state, one.reason)) {
            Some((RegistryState::Registered, _)) => Work::Completed,
            Some((RegistryState::Registering, _)) => Work::UnderWay,
            Some((RegistryState::Failed, why)) => Work::Failed(why.unwrap_or_default()),
            None => Work::Failed("its model package is gone".to_owned()),
        }));
    }
    if step.kind == StepKind::Endpoint {
        return Ok(Some(work_of_endpoint(app, pipeline, step).await?));
    }
    let why = || why_ended(app, step);
    Ok(Some(match step.experiment_state {
        Some(ExperimentState::Running | ExperimentState::Cancelling) => Work::UnderWay,
        Some(ExperimentState::Completed) => Work::Completed,
        Some(ExperimentState::Failed) => Work::Failed(why().await?),
        Some(ExperimentState::Cancelled) => Work::Stopped(why().await?),
        None => Work::Failed("its experiment is gone".to_owned()),
    }))
}

/// An endpoint has done its step's work once it serves.
async fn work_of_endpoint(app: &App, pipeline: &Pipeline, step: &Step) -> Result<Work, StoreError> {
    let of = WhichEndpoints::OfExperiments(step.experiment_id.iter().map(|id| id.0).collect());
    let found = app.store.endpoints(pipeline.project_id, of, 1).await?;
    let Some(endpoint) = found.into_iter().next() else {
        return Ok(Work::Failed("its endpoint is gone".to_owned()));
    };
    let why = endpoint.reason.unwrap_or_default();
    Ok(match endpoint.state {
        EndpointState::Creating | EndpointState::Deleting => Work::UnderWay,
        EndpointState::InService | EndpointState::Updating | EndpointState::RollingBack => {
            Work::Completed
        }
        EndpointState::Deleted => Work::Stopped(why),
        EndpointState::Failed if step.experiment_state == Some(ExperimentState::Cancelled) => {
            Work::Stopped(why)
        }
        EndpointState::Failed => Work::Failed(why),
    })
}

async fn why_ended(app: &App, step: &Step) -> Result<String, StoreError> {
    let Some(id) = step.experiment_id else {
        return Ok(String::new());
    };
    let trials = app.store.step_trials(&[id.0]).await?;
    if let Some((_, trial)) = trials.into_iter().next() {
        let mut aftermath = app.store.aftermath(&[trial.id.0]).await?;
        let of_last = trial.job_id.and_then(|job| aftermath.remove(&job));
        let cause = of_last.and_then(|found| found.diagnosis);
        let parts = [
            trial.reason,
            trial.exit_message,
            cause.map(|cause| cause.summary),
        ];
        return Ok(parts.into_iter().flatten().collect::<Vec<_>>().join(": "));
    }
    let answer = app.store.recommendation(id).await?;
    Ok(answer.map_or_else(String::new, |answer| answer.headline))
}

/// The outputs of completed steps, by name.
fn outputs(steps: &[Step]) -> BTreeMap<String, Value> {
    let done = steps.iter();
    done.filter_map(|step| Some((step.name.clone(), step.outputs.clone()?)))
        .collect()
}

fn means(pipeline: &Pipeline, steps: &[Step]) -> PipelineFunds {
    PipelineFunds {
        budget_usd: pipeline.budget_usd,
        spent_usd: steps.iter().map(|step| step.spent_usd).sum(),
        held_usd: steps.iter().map(|step| step.held_usd).sum(),
    }
}

/// The state in the course of one claim.
struct ClaimedPipeline<'a> {
    app: &'a App,
    pipeline: &'a Pipeline,
    steps: Vec<Step>,
    outputs: BTreeMap<String, Value>,
    means: PipelineFunds,
    /// Whether something was written that may let another step begin.
    is_changed: bool,
}

impl ClaimedPipeline<'_> {
    async fn carry_out(&mut self, act: Act) -> Result<WriteOutcome, StoreError> {
        let (store, now) = (&self.app.store, self.app.clock.now());
        match act {
            Act::Start(place) => self.start(place).await,
            Act::Stop(place) => self.stop(place).await,
            Act::Again(place, why) => {
                self.is_changed = true;
                store.try_step_again(self.pipeline, place, &why).await
            }
            Act::End(place, StepState::Completed, _) => {
                let Some(step) = self.steps.get(place) else {
                    return Ok(WriteOutcome::Done);
                };
                let outputs = pipelines::outputs::of_step(self.app, self.pipeline, step).await?;
                let name = step.name.clone();
                let written = self.completed(place, &outputs, None).await?;
                self.outputs.insert(name, outputs);
                Ok(written)
            }
            Act::End(place, state, why) => self.end(place, state, why.as_deref()).await,
            Act::EndPipeline(state) => {
                store.end_pipeline(self.pipeline, state, now).await?;
                tracing::info!(pipeline = %self.pipeline.id, state = state.as_str(), "a pipeline is over");
                // What is over is not claimed any more.
                Ok(WriteOutcome::Stale)
            }
        }
    }

    async fn completed(
        &mut self,
        place: usize,
        outputs: &Value,
        reused_from: Option<PipelineId>,
    ) -> Result<WriteOutcome, StoreError> {
        self.is_changed = true;
        let end = StepEnd {
            state: StepState::Completed,
            reason: None,
            outputs: Some(outputs),
            reused_from,
        };
        let now = self.app.clock.now();
        let store = &self.app.store;
        match store.end_step(self.pipeline, place, &end, now).await {
            // Otherwise it would be tried for ever.
            Err(StoreError::Refused { what }) => {
                let why = format!("its outputs cannot be stored: {what}");
                self.end(place, StepState::Failed, Some(&why)).await
            }
            written => written,
        }
    }

    async fn end(
        &mut self,
        place: usize,
        state: StepState,
        why: Option<&str>,
    ) -> Result<WriteOutcome, StoreError> {
        self.is_changed = true;
        let end = StepEnd {
            state,
            reason: why,
            outputs: None,
            reused_from: None,
        };
        let now = self.app.clock.now();
        self.app
            .store
            .end_step(self.pipeline, place, &end, now)
            .await
    }

    async fn stop(&mut self, place: usize) -> Result<WriteOutcome, StoreError> {
        let step = self.steps.get(place);
        let Some(experiment) = step.and_then(|step| step.experiment_id) else {
            // A registration takes seconds, and is not taken back.
            return self.end(place, StepState::Cancelled, None).await;
        };
        let (store, now) = (&self.app.store, self.app.clock.now());
        let project = self.pipeline.project_id;
        store
            .command(project, experiment, ExperimentCommand::Cancel, now)
            .await?;
        Ok(WriteOutcome::Done)
    }

    async fn start(&mut self, place: usize) -> Result<WriteOutcome, StoreError> {
        let Some(spec) = self.pipeline.spec.steps.get(place) else {
            return Ok(WriteOutcome::Done);
        };
        let (app, pipeline) = (self.app, self.pipeline);
        let passed = guard(app, pipeline, place, &self.steps, &self.outputs).await;
        let prepared = match passed {
            Ok(Guard::Passed { outputs, row }) => {
                pipelines::prepare(app, pipeline, spec, &outputs, row.as_deref(), self.means).await
            }
            Ok(Guard::Asks {
                experiment,
                waiting,
            }) => {
                let now = app.clock.now();
                let store = &app.store;
                return store
                    .ask_purchase(pipeline, place, experiment, waiting, now)
                    .await;
            }
            Err(not_ready) => Err(not_ready),
        };
        match prepared {
            Ok(ready) => self.begin(place, &spec.name, ready).await,
            Err(NotReady::Never(why)) => self.end(place, StepState::Failed, Some(&why)).await,
            Err(NotReady::Later(why)) => {
                app.store.step_waits(pipeline, place, &why).await?;
                Ok(WriteOutcome::Done)
            }
            Err(NotReady::Store(error)) => Err(error),
        }
    }

    async fn begin(
        &mut self,
        place: usize,
        name: &str,
        ready: PreparedStep,
    ) -> Result<WriteOutcome, StoreError> {
        let pipeline = self.pipeline;
        let fresh_workload_id = ids::fresh();
        let by = pipeline.id.to_string();
        let work =
            match &ready {
                PreparedStep::Reused { from, outputs } => {
                    let written = self.completed(place, outputs, Some(*from)).await?;
                    self.outputs.insert(name.to_owned(), outputs.clone());
                    return Ok(written);
                }
                PreparedStep::Job(job) => StepWork::Job(job.work(pipeline, name)),
                PreparedStep::Endpoint {
                    endpoint,
                    budget_usd,
                } => StepWork::Job(endpoint.work(
                    pipeline.project_id,
                    &pipeline.region,
                    *budget_usd,
                    &pipeline.spec.labels,
                )),
                PreparedStep::Experiment(prepared) => StepWork::Experiment(
                    prepared.new_experiment(pipeline.project_id, &by, fresh_workload_id),
                ),
                PreparedStep::Model(id) => StepWork::Model(*id),
                PreparedStep::NewModel(model) => model.work(pipeline),
            };
        let (store, now) = (&self.app.store, self.app.clock.now());
        let started = store.start_step(pipeline, place, &work, ready.fingerprint(), now);
        let written = match started.await {
            Err(error) if error.is_full_run_alive() => {
                // The other steps go on; this one is looked at again with them.
                let why = "another full run of this experiment is under way";
                store.step_waits(pipeline, place, why).await?;
                return Ok(WriteOutcome::Done);
            }
            written => written?,
        };
        self.means.held_usd += ready.budget_usd();
        crash::point("after_step");
        self.app.wake_schedulers();
        Ok(written)
    }
}

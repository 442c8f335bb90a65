//! From a spec to an experiment: resolve references, lint, plan, write. Used by `POST
//! /v1/experiments` and by CI.

use std::collections::BTreeSet;
use std::sync::Arc;

use bakeoff_domain::finding::{Finding, Severity, capped};
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::measure::derived::TrainingShape;
use bakeoff_domain::measure::overhead::EndedJob;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{self, Price};
use bakeoff_domain::number::real;
use bakeoff_domain::ranking::full_run::FullRunOf;
use bakeoff_domain::sagemaker::quota::Quota;
use bakeoff_domain::spec::measurement::Measurement;
use bakeoff_domain::spec::{Candidate, ExperimentSpec, ResolvedExperiment};
use bakeoff_planner::lint;
use bakeoff_planner::plan::{
    Measured, PlanContext, TrialPlan, choose_starts, plan, refuse_above_budget, send_as_measured,
};
use bakeoff_planner::predict::{Calibration, forecast};
use bakeoff_planner::preview::{self, Preview};
use bakeoff_planner::rules::found;
use chrono::{DateTime, Utc};

use crate::app::{App, Settings};
use crate::read::figures::Figures;
use bakeoff_api::experiments::{CreatedExperiment, PlannedTrial};
use bakeoff_process::ids;
use bakeoff_store::experiments::NewExperiment;
use bakeoff_store::experiments::measured::Measured as MeasuredTrial;
use bakeoff_store::experiments::specs::StoredProfile;
use bakeoff_store::experiments::waits::Waits;
use bakeoff_store::money::prices::{PricesOf, Tariffs};
use bakeoff_store::requests::Once;
use bakeoff_store::{Store, StoreError};

/// An experiment that is ready to start, with its ids, but not yet written.
#[derive(Debug)]
pub struct PreparedExperiment {
    pub id: ExperimentId,
    pub resolved: ResolvedExperiment,
    pub findings: Vec<Finding>,
    pub trials: Vec<(TrialId, TrialPlan)>,
    /// Of which answer it is the full run, if of any.
    pub full_run: Option<FullRunOf>,
}

/// Trials that are ready to be added to an experiment.
#[derive(Debug)]
pub struct PreparedTrials {
    pub spec: ExperimentSpec,
    /// Of their candidate.
    pub findings: Vec<Finding>,
    pub trials: Vec<(TrialId, TrialPlan)>,
}

/// A spec with its references and everything needed to judge it. The remaining work is pure but
/// takes a while, so it must not run on the workers that answer requests. Nothing is written.
#[derive(Debug)]
pub struct LoadedSpec {
    spec: ExperimentSpec,
    /// Stored profiles used on an instance type they were not stored for.
    misplaced: Vec<Finding>,
    /// Every known speed of this workload: used for predictions, not stored.
    measurements: Vec<Measurement>,
    /// Includes future prices, because a reservation looks ahead.
    tariffs: Tariffs,
    /// As Service Quotas last reported them.
    quotas: Vec<Quota>,
    /// Of this project's earlier starts.
    waits: Waits,
    settings: Arc<Settings>,
    now: DateTime<Utc>,
    /// Set for a full run.
    full_run: Option<(FullRunOf, Measured)>,
}

/// A spec with the linter's findings and its trials.
struct Checked {
    spec: ExperimentSpec,
    /// The same spec with every known speed.
    informed: ExperimentSpec,
    /// Of its speeds.
    calibration: Calibration,
    findings: Vec<Finding>,
    plans: Vec<TrialPlan>,
    full_run: Option<FullRunOf>,
}

/// Resolves a spec's references, and reads what is needed to judge it.
pub async fn load(
    app: &App,
    project: ProjectId,
    spec: ExperimentSpec,
) -> Result<LoadedSpec, StoreError> {
    let now = app.clock.now();
    let (mut spec, misplaced) = fill(&app.store, project, spec).await?;
    spec.stopping_policy.get_or_insert_default();
    let types = types(&spec);
    let (tariffs, quotas, waits, measurements) = tokio::try_join!(
        app.store
            .tariffs(project, PricesOf::training(&spec.region, &types)),
        app.store.quotas_of(&spec.region, &types),
        app.store.waits(project, &spec.region, &types),
        measurements(&app.store, project, &spec),
    )?;
    Ok(LoadedSpec {
        spec,
        misplaced,
        measurements,
        tariffs,
        quotas,
        waits,
        settings: Arc::clone(&app.settings),
        now,
        full_run: None,
    })
}

/// The instance types that a spec names, each once.
fn types(spec: &ExperimentSpec) -> Vec<String> {
    let claimed = spec
        .claims
        .iter()
        .flat_map(|claims| &claims.hardware)
        .map(|claim| &claim.instance_type);
    let types = spec
        .candidates
        .iter()
        .map(|candidate| &candidate.instance_type)
        .chain(claimed);
    types
        .collect::<BTreeSet<_>>()
        .into_iter()
        .cloned()
        .collect()
}

impl LoadedSpec {
    pub fn spec(&self) -> &ExperimentSpec {
        &self.spec
    }

    /// Makes it the full run of an answer, which sends what was measured.
    #[must_use]
    pub fn full_run(self, of: FullRunOf, measured: Measured) -> Self {
        Self {
            full_run: Some((of, measured)),
            ..self
        }
    }

    fn check(self) -> Checked {
        let Self {
            spec,
            misplaced,
            measurements,
            tariffs,
            quotas,
            waits,
            settings,
            now,
            full_run,
        } = self;
        let in_force: Vec<Price> = types(&spec)
            .iter()
            .filter_map(|kind| price::in_force(&tariffs.prices, kind, &spec.region, now))
            .collect();
        let informed = ExperimentSpec {
            measurements,
            ..spec.clone()
        };
        let calibration = forecast::calibrated(&informed);
        let mut findings = lint::lint_with(
            &spec,
            lint::LintContext {
                prices: &in_force,
                calibration: &calibration,
            },
        );
        findings.extend(misplaced);
        findings.extend(lint::above_quota(&spec, &quotas));
        if !settings.regions.contains(&spec.region) {
            let regions = settings.regions.join(", ");
            findings.push(
                found("region-not-allowed", "/region")
                    .says(format!("this installation runs jobs in {regions} only"))
                    .fix(format!("use \"region\": \"{}\"", settings.home())),
            );
        }
        let context = PlanContext {
            tariff: tariffs.as_ref(),
            calibration: &calibration,
            metrics_interval: settings.metrics_spacing(),
            now,
        };
        let mut plans = plan(&informed, &findings, context);
        for plan in &mut plans {
            plan.expected_wait = waits.of(&plan.instance_type, plan.purchase_option);
        }
        let full_run = full_run.map(|(of, measured)| {
            for plan in &mut plans {
                send_as_measured(plan, &spec, &measured, context);
            }
            of
        });
        findings.extend(refuse_above_budget(&spec, &mut plans));
        choose_starts(&spec, &mut plans, now);
        Checked {
            spec,
            informed,
            calibration,
            findings,
            plans,
            full_run,
        }
    }

    /// What is wrong with references that the filled spec does not show any more.
    pub fn misplaced(&self) -> &[Finding] {
        &self.misplaced
    }

    /// Lints and plans. `Err` contains all blocking findings.
    pub fn prepare(self) -> Result<PreparedExperiment, Vec<Finding>> {
        let Checked {
            spec,
            findings,
            plans,
            full_run,
            ..
        } = self.check();
        let stops = |finding: &Finding| finding.severity == Severity::Error;
        let resolved = ResolvedExperiment::of(spec).filter(|_| !findings.iter().any(stops));
        let Some(resolved) = resolved else {
            return Err(findings.into_iter().filter(stops).collect());
        };
        if plans.iter().all(|trial| trial.refused) {
            return Err(findings
                .into_iter()
                .filter(|finding| finding.severity >= Severity::Refused)
                .collect());
        }
        let trials = plans
            .into_iter()
            .map(|plan| (TrialId(ids::fresh()), plan))
            .collect();
        Ok(PreparedExperiment {
            id: ExperimentId(ids::fresh()),
            resolved,
            findings,
            trials,
            full_run,
        })
    }

    /// Plans the wanted trials of one candidate, of an experiment that has begun. Findings on other candidates do not
    /// matter. `is_asked_for`: a person wants them to start, whatever the odds. `Err`: why none of them can.
    pub fn more(
        self,
        index: usize,
        is_asked_for: bool,
        is_wanted: impl Fn(&TrialPlan) -> bool,
    ) -> Result<PreparedTrials, Vec<Finding>> {
        let Checked {
            spec,
            mut findings,
            plans,
            ..
        } = self.check();
        let name = spec.candidates.get(index).map(|one| one.name.clone());
        let mut trials = plans;
        trials.retain(|plan| Some(&plan.candidate) == name.as_ref() && is_wanted(plan));
        findings.retain(|finding| finding.concerns(index));
        let stops = |finding: &Finding| finding.severity == Severity::Error;
        if findings.iter().any(stops) || trials.iter().all(|plan| plan.refused) {
            findings.retain(|finding| finding.severity >= Severity::Refused);
            return Err(findings);
        }
        for plan in trials.iter_mut().filter(|_| is_asked_for) {
            (plan.held, plan.skipped) = (None, None);
        }
        findings.retain(|finding| finding.candidate().is_some());
        let trials = trials.into_iter().map(|plan| (TrialId(ids::fresh()), plan));
        Ok(PreparedTrials {
            spec,
            findings,
            trials: trials.collect(),
        })
    }

    /// Shows what would happen, without writing anything.
    pub fn preview(self) -> Preview {
        let settings = Arc::clone(&self.settings);
        let Checked {
            informed,
            calibration,
            findings,
            plans,
            ..
        } = self.check();
        let mut preview = preview::preview(
            &informed,
            findings,
            plans,
            &calibration,
            &settings.installation,
        );
        preview.findings = capped(preview.findings);
        preview
    }
}

/// Known speeds of the workload: those the spec states, and those measured by trials of the same
/// model, also under other versions of the code.
async fn measurements(
    store: &Store,
    project: ProjectId,
    spec: &ExperimentSpec,
) -> Result<Vec<Measurement>, StoreError> {
    let mut all = spec.measurements.clone();
    let Some(workload) = &spec.workload else {
        return Ok(all);
    };
    let trials = store.measured(project, &workload.name).await?;
    let ids: Vec<uuid::Uuid> = trials.iter().map(|trial| trial.trial_id).collect();
    let figures = Figures::load(store, &ids).await?;
    for trial in &trials {
        let own = trial.experiment.workload();
        let is_same = (&own.model, own.precision) == (&workload.model, workload.precision);
        let mut candidates = trial.experiment.candidates();
        let candidate = candidates.find(|candidate| candidate.spec.name == trial.candidate);
        if let (true, Some(candidate)) = (is_same, candidate) {
            all.extend(measurement(trial, candidate, &figures));
        }
    }
    Ok(all)
}

/// What a trial has measured, as a spec would state it; `None` without a speed.
fn measurement(
    trial: &MeasuredTrial,
    candidate: Candidate<'_>,
    figures: &Figures,
) -> Option<Measurement> {
    let shape = TrainingShape::of_candidate(candidate);
    let tokens_per_second = figures.speed(trial.trial_id, &shape)?.steady.mean;
    Some(Measurement {
        instance_type: candidate.spec.instance_type.clone(),
        instance_count: candidate.spec.instance_count,
        profile: candidate.profile.clone(),
        tokens_per_second,
        overhead_seconds: overhead_seconds(trial, candidate, figures, tokens_per_second),
        code_version: Some(candidate.workload.code_version.clone()),
        source: format!("measured by {}", TrialId(trial.trial_id)),
    })
}

/// What a trial's job was billed beside its steps; `None` if that cannot be told.
fn overhead_seconds(
    trial: &MeasuredTrial,
    candidate: Candidate<'_>,
    figures: &Figures,
    tokens_per_second: f64,
) -> Option<f64> {
    let shape = TrainingShape::of_candidate(candidate);
    // It may have done more often what recurs: any share that is one will do.
    let pauses = figures.pauses(trial.trial_id, &shape, Some(1.0));
    let steps = figures.step(trial.trial_id);
    let job = EndedJob {
        billable_seconds: u64::try_from(trial.billable_seconds).ok()?,
        is_completed: trial.state == TrialState::Completed,
        trial_tokens: real(candidate.workload.trial_tokens),
        tokens_done: steps
            .zip(shape.tokens_per_step())
            .map(|(steps, of_step)| real(steps.unsigned_abs()) * of_step),
        is_of_one_attempt: pauses.is_of_one_attempt(),
        goodput: pauses.goodput(tokens_per_second),
    };
    // Of several jobs, each has paid for its own start.
    job.billed_beside_steps().filter(|_| trial.billed_jobs == 1)
}

/// Replaces ids with the stored workloads and profiles. An id of another project finds nothing,
/// which the linter reports; a profile stored for another instance type than it is used on is a
/// finding.
async fn fill(
    store: &Store,
    project: ProjectId,
    mut spec: ExperimentSpec,
) -> Result<(ExperimentSpec, Vec<Finding>), StoreError> {
    if let (None, Some(id)) = (&spec.workload, spec.workload_id) {
        spec.workload = store.workload(project, id).await?.map(|stored| stored.spec);
        if spec.workload.is_some() {
            spec.workload_id = None;
        }
    }
    let wanted: Vec<uuid::Uuid> = spec
        .candidates
        .iter()
        .filter_map(|c| c.profile_id.map(|id| id.0))
        .collect();
    let mut misplaced = Vec::new();
    if wanted.is_empty() {
        return Ok((spec, misplaced));
    }
    let profiles = store.profiles_by_id(project, &wanted).await?;
    for (index, candidate) in spec.candidates.iter_mut().enumerate() {
        let id = candidate.profile_id.filter(|_| candidate.profile.is_none());
        let Some(stored) = profiles.iter().find(|stored| Some(stored.id) == id) else {
            continue;
        };
        if stored.instance_type != candidate.instance_type {
            misplaced.push(of_another_type(index, stored, &candidate.instance_type));
        }
        (candidate.profile, candidate.profile_id) = (Some(stored.spec.clone()), None);
    }
    Ok((spec, misplaced))
}

/// The finding on a candidate whose profile was stored for another instance type than it uses.
fn of_another_type(index: usize, stored: &StoredProfile, used: &str) -> Finding {
    let own = &stored.instance_type;
    found(
        "profile-of-another-type",
        format!("/candidates/{index}/profile_id"),
    )
    .says(format!(
        "the profile `{}` was stored for {own}, and is used on {used}",
        stored.name
    ))
    .fix(format!(
        "use \"instance_type\": \"{own}\", or store a profile for {used} and name that"
    ))
}

/// The least that any trial that starts may cost.
pub fn least_usd(trials: &[(TrialId, TrialPlan)]) -> Usd {
    let starting = trials.iter().filter(|(_, plan)| plan.starts());
    let worst = starting.filter_map(|(_, plan)| Some(plan.worst_case?.total_usd));
    worst.min().unwrap_or_default()
}

impl PreparedExperiment {
    /// The API's answer.
    pub fn view(&self) -> CreatedExperiment {
        let worst = self
            .trials
            .iter()
            .filter(|(_, plan)| plan.starts())
            .filter_map(|(_, plan)| plan.worst_case);
        CreatedExperiment {
            id: self.id,
            name: self.resolved.spec().name.clone(),
            state: ExperimentState::Running,
            findings: self.findings.iter().cloned().map(Into::into).collect(),
            worst_case_usd: worst.map(|worst| worst.total_usd).sum::<Usd>(),
            trials: self
                .trials
                .iter()
                .map(|(id, plan)| PlannedTrial {
                    id: *id,
                    plan: plan.clone().into(),
                })
                .collect(),
        }
    }

    /// The least that any of its trials may cost: with less, none can start.
    pub fn least_usd(&self) -> Usd {
        least_usd(&self.trials)
    }

    /// Its own budget.
    pub fn budget_usd(&self) -> Usd {
        self.resolved.spec().budget_usd
    }

    /// As it is written.
    pub fn new_experiment<'a>(
        &'a self,
        project_id: ProjectId,
        created_by: &'a str,
        fresh_workload_id: uuid::Uuid,
    ) -> NewExperiment<'a> {
        NewExperiment {
            id: self.id,
            project_id,
            created_by,
            fresh_workload_id,
            resolved: &self.resolved,
            findings: &self.findings,
            full_run: self.full_run.as_ref(),
            trials: &self.trials,
        }
    }

    /// Writes the experiment with its idempotency key, and wakes the scheduler. `created_by`: the API key, the CI
    /// template.
    pub async fn start(
        &self,
        app: &App,
        project: ProjectId,
        created_by: &str,
        once: &Once<'_>,
    ) -> Result<(), StoreError> {
        let new = self.new_experiment(project, created_by, ids::fresh());
        app.store
            .create_experiment(&new, once, app.clock.now())
            .await?;
        app.wake_schedulers();
        Ok(())
    }
}

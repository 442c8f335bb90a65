//! Why a trial's jobs failed, and what a running one shows: from what is stored, in a fixed number of
//! queries; only the results of SageMaker's rules, which come late, are asked for.

use bakeoff_domain::diagnosis::live::{Vitals, advise};
use bakeoff_domain::diagnosis::profiler::Triggered;
use bakeoff_domain::ids::TrialId;
use bakeoff_domain::measure::metric;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::links;
use bakeoff_planner::plan::TrialPlan;

use crate::aws::Aws;
use crate::live::rule_results::Evaluated;
use crate::read::figures::{Figures, preferred};
use bakeoff_api::diagnosis::{AttemptDiagnosisView, TrialDiagnosisView};
use bakeoff_store::experiments::trials::{Attempt, ShownTrial};
use bakeoff_store::jobs::post_mortems::Aftermath;
use bakeoff_store::{Store, StoreError};

const CPU: &str = "cpu_utilization_percent";
const HOST_MEMORY: &str = "memory_utilization_percent";
const DISK: &str = "disk_utilization_percent";

/// The diagnosis of a trial of a region; without `aws`, the results of rules are as stored.
pub async fn of_trial(
    store: &Store,
    aws: Option<&Aws>,
    trial: ShownTrial,
    region: &str,
) -> Result<TrialDiagnosisView, StoreError> {
    let ids = [trial.id.0];
    let mut aftermath = store.aftermath(&ids).await?;
    let is_running = trial.attempts.iter().any(|one| !one.phase.is_over());
    let advice = if is_running {
        advise(&vitals(store, trial.id).await?)
    } else {
        Vec::new()
    };
    let request = trial.plan.as_ref().and_then(TrialPlan::training);
    let kind = trial
        .plan
        .as_ref()
        .map_or(JobKind::Training, TrialPlan::kind);
    let output_s3_uri = request.map(|request| request.output_s3_uri.as_str());
    let attempts = trial.attempts.into_iter().map(|attempt| {
        let mut found = aftermath.remove(&attempt.id).unwrap_or_default();
        // While a job runs, the watcher's looks bring its results.
        let aws = aws.filter(|_| attempt.phase.is_over() && !found.rules.is_empty());
        async move {
            let job = Evaluated {
                job_name: &attempt.job_name,
                output_s3_uri,
            };
            let mut reports = Vec::new();
            if let Some(aws) = aws {
                let results = job.results(aws, found.rules).await;
                (found.rules, reports) = (results.rules, results.reports);
            }
            view(attempt, found, reports, ConsolePlace { kind, region })
        }
    });
    let attempts = futures::future::join_all(attempts).await;
    Ok(TrialDiagnosisView {
        attempts,
        advice: advice.into_iter().map(Into::into).collect(),
    })
}

/// What leads to a job in AWS's console.
#[derive(Clone, Copy)]
struct ConsolePlace<'a> {
    kind: JobKind,
    region: &'a str,
}

fn view(
    attempt: Attempt,
    found: Aftermath,
    reports: Vec<Triggered>,
    at: ConsolePlace<'_>,
) -> AttemptDiagnosisView {
    let ConsolePlace { kind, region } = at;
    AttemptDiagnosisView {
        number: attempt.number,
        console_url: links::job(kind, region, &attempt.job_name),
        log_console_url: links::log(kind, region, &attempt.job_name),
        job_name: attempt.job_name,
        failure_reason: attempt.failure_reason,
        diagnosis: found.diagnosis.map(Into::into),
        rules: found.rules.into_iter().map(Into::into).collect(),
        profiler_reports: reports.into_iter().map(Into::into).collect(),
        last_lines: found.lines.into_iter().map(Into::into).collect(),
    }
}

async fn vitals(store: &Store, id: TrialId) -> Result<Vitals, StoreError> {
    let subjects = [id.0];
    let names = [CPU, HOST_MEMORY, DISK].map(str::to_owned);
    let (figures, series) = tokio::try_join!(
        Figures::load(store, &subjects),
        store.series_of(&subjects, Some(&names))
    )?;
    let series = preferred(series);
    let last = |name: &str| {
        let found = series.iter().find(|one| one.metric == name)?;
        found.last_value.filter(|value| value.is_finite())
    };
    Ok(Vitals {
        gpu: figures.mean(id.0, metric::GPU_UTILIZATION),
        gpu_memory: figures.mean(id.0, metric::GPU_MEMORY_UTILIZATION),
        cpu: last(CPU),
        host_memory: last(HOST_MEMORY),
        disk: last(DISK),
    })
}

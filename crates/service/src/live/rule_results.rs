//! Results of the debugger's and profiler's rules. SageMaker evaluates them in jobs of its own, which
//! end minutes after the training job: so what was stored with it may be out of date, and is asked for
//! again when somebody wants to see it; causes of a failure were found before that.

use std::time::Duration;

use bakeoff_domain::diagnosis::profiler::{self, Triggered};
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::RuleEvaluation;

use crate::aws::Aws;
use bakeoff_process::clock::real_sleep;

/// A job whose rules were evaluated.
#[derive(Debug, Clone, Copy)]
pub struct Evaluated<'a> {
    pub job_name: &'a str,
    /// S3OutputPath of its request.
    pub output_s3_uri: Option<&'a str>,
}

/// What is known of a job's rules.
#[derive(Debug)]
pub struct Results {
    pub rules: Vec<RuleEvaluation>,
    pub reports: Vec<Triggered>,
}

/// A person waits for the answer; what is stored is better than a minute of silence.
const PATIENCE: Duration = Duration::from_secs(3);

impl Evaluated<'_> {
    /// The latest results and reports; those that are stored if AWS takes long.
    pub async fn results(self, aws: &Aws, stored: Vec<RuleEvaluation>) -> Results {
        let looking = async {
            let rules = self.latest(aws, stored.clone()).await;
            let reports = self.reports(aws, &rules).await;
            Results { rules, reports }
        };
        tokio::select! {
            results = looking => results,
            () = real_sleep(PATIENCE) => {
                tracing::info!(job = self.job_name, "AWS takes long; the results of rules are shown as stored");
                Results { rules: stored, reports: Vec::new() }
            }
        }
    }

    /// The latest results; as stored where they are final, or SageMaker does not answer.
    async fn latest(self, aws: &Aws, stored: Vec<RuleEvaluation>) -> Vec<RuleEvaluation> {
        if stored.iter().all(RuleEvaluation::is_final) {
            return stored;
        }
        match aws.describe(JobKind::Training, self.job_name).await {
            Ok(job) if !job.rules.is_empty() => job.rules,
            Ok(_) => stored,
            Err(error) => {
                let job = self.job_name;
                tracing::info!(%error, job, "the results of a job's rules could not be read again");
                stored
            }
        }
    }

    /// What the profiler's reports in S3 say: small files, one for each of its rules at most.
    async fn reports(self, aws: &Aws, rules: &[RuleEvaluation]) -> Vec<Triggered> {
        let mut found = Vec::new();
        let folder = self.output_s3_uri.and_then(|output| {
            let mut rules = rules.iter().filter(|rule| rule.has_found_issues());
            rules.find_map(|rule| profiler::reports_uri(output, self.job_name, rule))
        });
        let Some(folder) = folder else {
            return found;
        };
        for name in profiler::report_names() {
            match aws.get_object(&format!("{folder}/{name}.json")).await {
                Ok(report) => {
                    found.extend(report.and_then(|report| profiler::triggered(name, &report)));
                }
                Err(error) => {
                    tracing::info!(%error, folder, "a report of the profiler could not be read");
                    break;
                }
            }
        }
        found
    }
}

//! API views of why jobs failed, and of what a running one shows.

use bakeoff_domain::diagnosis::live::Advice;
use bakeoff_domain::diagnosis::profiler::Triggered;
use bakeoff_domain::diagnosis::{Cause, Clue, Diagnosis, SeenIn, Standing};
use bakeoff_domain::sagemaker::observed::RuleEvaluation;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::findings::OperationView;
use crate::logs::LogLineView;

view! {
    /// Where a finding was seen.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    #[schema(as = Clue)]
    pub struct ClueView of Clue {
        pub seen_in: SeenIn,
        /// The log stream.
        pub stream: Option<String>,
        pub at: Option<DateTime<Utc>>,
        /// The line itself.
        pub text: String,
    }
}

view! {
    /// One cause of a failure.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    #[schema(as = Cause)]
    pub struct CauseView of Cause {
        /// Stable id, such as `accelerator-memory-exhausted`.
        pub signature: String,
        pub cause: String,
        pub advice: String,
        /// Where the signature comes from.
        pub source: String,
        pub clue: ClueView,
        /// A change to the candidate's profile (JSON Patch, RFC 6902) that keeps the global batch; empty
        /// where a person must choose.
        pub patch: Vec<OperationView> as each,
        /// The change in words.
        pub change: Option<String>,
        /// What became of the error: one that was handled or survived is no cause.
        pub standing: Standing,
    }
}

view! {
    /// Why a job failed.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    #[schema(as = Diagnosis)]
    pub struct DiagnosisView of Diagnosis {
        /// The likeliest cause and what to do.
        pub summary: String,
        /// The likeliest first.
        pub causes: Vec<CauseView> as each,
        /// Whether the log was read; without it, this rests on what SageMaker reports.
        pub is_log_read: bool,
    }
}

view! {
    /// The result of a rule of SageMaker's debugger or profiler.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    #[schema(as = RuleEvaluation)]
    pub struct RuleEvaluationView of RuleEvaluation {
        pub name: String,
        /// InProgress, NoIssuesFound, IssuesFound, Error, Stopping or Stopped.
        pub status: String,
        pub details: String,
        pub modified_at: Option<DateTime<Utc>>,
    }
}

view! {
    /// A rule of SageMaker's profiler that triggered, as its report in S3 says.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    #[schema(as = ProfilerReport)]
    pub struct ProfilerReportView of Triggered {
        /// The profiler's name of the rule, such as `LowGPUUtilization`.
        pub rule: String,
        /// How often it triggered.
        pub times: u64,
        /// Points that it looked at.
        pub datapoints: Option<u64>,
        pub finding: String,
        pub advice: String,
    }
}

view! {
    /// A conclusion from a running job's utilisation.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    #[schema(as = RunningAdvice)]
    pub struct RunningAdviceView of Advice {
        /// Stable id, such as `accelerators-wait-for-data`.
        pub signature: String,
        pub finding: String,
        pub advice: String,
    }
}

/// What is known of one attempt's job beside its status.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = AttemptDiagnosis)]
pub struct AttemptDiagnosisView {
    pub number: u32,
    pub job_name: String,
    pub failure_reason: Option<String>,
    /// Empty for a job that has not failed, or whose post-mortem is still due.
    pub diagnosis: Option<DiagnosisView>,
    /// Results of the debugger's and profiler's rules. They come minutes after the job's end.
    pub rules: Vec<RuleEvaluationView>,
    /// What the profiler's reports say, where its rule `ProfilerReport` found issues.
    pub profiler_reports: Vec<ProfilerReportView>,
    /// The last lines of a failed job's log, as they were kept: logs expire.
    pub last_lines: Vec<LogLineView>,
    /// The job in AWS's console.
    pub console_url: String,
    /// Its log in AWS's console.
    pub log_console_url: String,
}

/// Why a trial's jobs failed, and what a running one shows.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = TrialDiagnosis)]
pub struct TrialDiagnosisView {
    pub attempts: Vec<AttemptDiagnosisView>,
    /// While a job runs: what its utilisation says; the most urgent first.
    pub advice: Vec<RunningAdviceView>,
}

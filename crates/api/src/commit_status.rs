//! API views of commit statuses: whom a template's runs are told to.

use bakeoff_domain::ci::commit_status::CodeHost;
use bakeoff_domain::delivery::DeliveryState;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use bakeoff_store::ci::commit_statuses::{CommitStatus, StoredTarget};

/// Whom a template's runs are told to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CommitStatusTarget {
    pub host: CodeHost,
    pub repository: String,
    pub api_url: String,
    pub context: String,
    /// Check runs of a GitHub App; commit statuses otherwise.
    pub is_app: bool,
    pub comments: bool,
    /// Its runs are started by `bakeoff gate` alone.
    pub gate_only: bool,
    /// The credentials themselves are stored encrypted and never shown.
    pub credentials_set_at: DateTime<Utc>,
    pub changed_at: DateTime<Utc>,
}

impl From<StoredTarget> for CommitStatusTarget {
    fn from(stored: StoredTarget) -> Self {
        let target = stored.target;
        Self {
            host: target.host,
            repository: target.repository,
            api_url: target.api_url,
            context: target.context,
            is_app: target.is_app,
            comments: target.comments,
            gate_only: stored.gate_only,
            credentials_set_at: stored.credentials_set_at,
            changed_at: stored.changed_at,
        }
    }
}

/// Whom a template's runs are to be told to.
#[derive(Clone, Deserialize, ToSchema)]
#[expect(missing_debug_implementations, reason = "it holds a token")]
pub struct NewCommitStatusTarget {
    pub host: CodeHost,
    /// `owner/name`; at GitLab also with more groups, or the project's number.
    pub repository: String,
    /// `https://api.github.com` or `https://gitlab.com/api/v4` when absent.
    #[serde(default)]
    pub api_url: Option<String>,
    /// What the status is called; `bakeoff/` and the template's name when absent.
    #[serde(default)]
    pub context: Option<String>,
    /// A token that may write commit statuses: at GitHub a fine-grained one with "Commit statuses: write", at GitLab one
    /// with the scope `api`. Without it and `app`, the credentials that are stored stay.
    #[serde(default)]
    pub token: Option<String>,
    /// A GitHub App with "Checks: write", in place of a token: check runs show the whole report.
    #[serde(default)]
    pub app: Option<NewGithubApp>,
    /// GitLab: whether a merge request gets the report as a comment too, one for each template.
    #[serde(default)]
    pub comments: bool,
    /// Runs of the template are started by `bakeoff gate`, or in our own form, and not by the host's webhooks. It has to
    /// be said of a template that takes in what no webhook says (`${ci.image}`, `${ci.source_s3_uri}`): where only
    /// webhooks came, a required check could never succeed.
    #[serde(default)]
    pub gate_only: bool,
}

/// A GitHub App that is installed in the repository.
#[derive(Clone, Deserialize, ToSchema)]
#[expect(missing_debug_implementations, reason = "it holds a private key")]
pub struct NewGithubApp {
    /// Its client id or its number.
    pub app_id: String,
    pub installation_id: u64,
    /// As GitHub gives it: PEM.
    pub private_key: String,
}

/// What is shown of a run beside its commit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CommitStatusOfRun {
    pub state: DeliveryState,
    /// Attempts to send the current state.
    pub attempts: u32,
    /// When the host took the last one.
    pub told_at: Option<DateTime<Utc>>,
    /// Why it is not shown, and what to do about it.
    pub problem: Option<String>,
}

impl From<CommitStatus> for CommitStatusOfRun {
    fn from(status: CommitStatus) -> Self {
        Self {
            state: status.state,
            attempts: status.attempts,
            told_at: status.told_at,
            problem: status.problem,
        }
    }
}

//! API views of CI runs: what a gate says of a commit, and why.

use bakeoff_domain::ci::commit_status::CiState;
use bakeoff_domain::ci::gate::{Change, Judged, Judgement, Unmeasured, Verdict};
use bakeoff_domain::ci::wording::CiNews;
use bakeoff_domain::ci::{Event, Sender};
use bakeoff_domain::ids::{CiRunId, ExperimentId, TemplateId};
use bakeoff_domain::spec::ci::{Inconclusive, Measure};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::commit_status::CommitStatusOfRun;
use bakeoff_store::ci::runs::CiRun;

/// What CI has started for a commit, and what the template's gate says of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiRunView {
    pub id: CiRunId,
    pub template_id: TemplateId,
    pub template_name: String,
    pub template_version: u32,
    pub sender: Sender,
    pub event: Event,
    pub commit: String,
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    pub branch: Option<String>,
    pub pull_request: Option<u64>,
    /// Digest of the image that all its trials run, once ECR has told it; null while it is not there yet, where it is not in
    /// ECR, where the image was named by its digest, and without the right to ask (`ecr:BatchGetImage`): then the tag is sent.
    #[serde(default)]
    pub image_digest: Option<String>,
    /// Branches that came to the same commit later: it is measured once.
    #[serde(default)]
    pub other_branches: Vec<String>,
    /// The run that measures the same again, and is shown beside the commit in its place.
    #[serde(default)]
    pub repeated_by: Option<CiRunId>,
    /// The run of a newer commit of its branch: this one ended without a figure.
    #[serde(default)]
    pub superseded_by: Option<CiRunId>,
    /// One for each round: an inconclusive commit is measured again.
    pub experiment_ids: Vec<ExperimentId>,
    pub state: CiState,
    /// None until the newest experiment is over.
    pub verdict: Option<Verdict>,
    /// The verdict in one line; without one, what the run waits for.
    pub summary: String,
    pub limits: Vec<CiLimitView>,
    /// Candidates of which a trial has not completed.
    pub unmeasured: Vec<CiUnmeasured>,
    /// Set when later runs are compared with this one.
    pub accepted_at: Option<DateTime<Utc>>,
    /// `rule`, or the API key that it was asked with.
    pub accepted_by: Option<String>,
    /// Later runs are compared with it, and with none before it.
    pub begins_level: bool,
    /// Later runs are compared with it beside their baseline.
    pub is_release: bool,
    /// What is shown of it at GitHub or GitLab; null if its template tells nobody.
    #[serde(default)]
    pub commit_status: Option<CommitStatusOfRun>,
    pub created_at: DateTime<Utc>,
    pub decided_at: Option<DateTime<Utc>>,
}

/// How one figure of one candidate compares with earlier runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiLimitView {
    pub candidate: String,
    pub measure: Measure,
    pub verdict: Verdict,
    /// Geometric mean of the commit's trials; dollars at the newest price.
    pub measured: Option<f64>,
    /// The same of the baseline's, or the number that was set.
    pub baseline: Option<f64>,
    pub change: Option<CiChange>,
    /// The margin.
    pub worse_by_percent: f64,
    pub trials: usize,
    /// None when the baseline is a number.
    pub baseline_trials: Option<usize>,
    /// Standard deviation between trials, percent.
    pub spread_percent: Option<f64>,
    /// Fewer than five trials tell of it.
    pub is_spread_assumed: bool,
    /// Against the pinned release, which has no part in the verdict.
    pub release: Option<CiChange>,
    /// All of this in one sentence.
    pub sentence: String,
}

/// By how much a figure is worse, percent; negative if it is better.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct CiChange {
    pub percent: f64,
    /// One-sided bounds. Over all figures and rounds of a commit, 4 % of equal commits have a lower one above 0.
    pub low_percent: f64,
    pub high_percent: f64,
}

/// A candidate of which a trial has not completed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiUnmeasured {
    pub candidate: String,
    pub why: String,
    pub has_failed: bool,
}

/// What a gate has said of a commit, in an event
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CiNewsView {
    pub run_id: CiRunId,
    pub template: String,
    pub commit: String,
    pub verdict: Verdict,
    /// The verdict in one line.
    pub summary: String,
}

impl From<CiNews> for CiNewsView {
    fn from(news: CiNews) -> Self {
        let CiNews {
            run,
            template,
            commit,
            verdict,
            summary,
        } = news;
        Self {
            run_id: run,
            template,
            commit,
            verdict,
            summary,
        }
    }
}

/// Whether later runs are compared with a run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiAcceptance {
    pub accepted: bool,
    /// Later runs are compared with it, and with none before it; when absent, that is so if it has regressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_level: Option<bool>,
}

/// The release that runs of a template are compared with beside their baseline.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiRelease {
    /// A run of the template; null for none.
    pub run_id: Option<CiRunId>,
}

impl From<Change> for CiChange {
    fn from(change: Change) -> Self {
        Self {
            percent: change.percent,
            low_percent: change.low_percent,
            high_percent: change.high_percent,
        }
    }
}

impl From<&Judged> for CiLimitView {
    fn from(judged: &Judged) -> Self {
        Self {
            candidate: judged.candidate.clone(),
            measure: judged.measure,
            verdict: judged.verdict,
            measured: judged.measured,
            baseline: judged.baseline,
            change: judged.change.map(Into::into),
            worse_by_percent: judged.worse_by_percent,
            trials: judged.trials,
            baseline_trials: judged.baseline_trials,
            spread_percent: judged.spread_percent,
            is_spread_assumed: judged.is_spread_assumed,
            release: judged.release.map(Into::into),
            sentence: judged.sentence(),
        }
    }
}

impl From<&Unmeasured> for CiUnmeasured {
    fn from(one: &Unmeasured) -> Self {
        Self {
            candidate: one.candidate.clone(),
            why: one.why.clone(),
            has_failed: one.has_failed,
        }
    }
}

/// What there is to say of a run without a verdict.
fn pending(run: &CiRun) -> String {
    match (&run.newer_commit, run.waits_for()) {
        (Some(newer), _) => format!("pending: superseded by {newer}; its jobs are being stopped"),
        (None, Some(why)) => format!("pending: {why}"),
        (None, None) => format!("pending: round {} is being measured", run.experiments.len()),
    }
}

impl From<CiRun> for CiRunView {
    fn from(run: CiRun) -> Self {
        let pending = pending(&run);
        let gate = run.settings.gate.as_ref();
        let inconclusive = gate.map_or(Inconclusive::Success, |gate| gate.inconclusive);
        let judgement = run.judgement.as_ref();
        let limits = judgement.map_or(&[][..], |judgement| &judgement.limits);
        let unmeasured = judgement.map_or(&[][..], |judgement| &judgement.unmeasured);
        let acceptance = run.acceptance.as_ref();
        Self {
            id: run.id,
            template_id: run.template_id,
            template_name: run.template_name,
            template_version: run.template_version,
            sender: run.sender,
            event: run.event,
            commit: run.commit,
            reference: run.reference,
            branch: run.branch,
            pull_request: run.pull_request,
            state: CiState::of(run.verdict, inconclusive, acceptance.is_some()),
            verdict: run.verdict,
            summary: judgement.map_or(pending, Judgement::summary),
            other_branches: run.other_branches,
            repeated_by: run.repeated_by,
            superseded_by: run.superseded_by,
            limits: limits.iter().map(Into::into).collect(),
            unmeasured: unmeasured.iter().map(Into::into).collect(),
            accepted_at: acceptance.map(|one| one.at),
            accepted_by: acceptance.map(|one| one.by.clone()),
            begins_level: acceptance.is_some_and(|one| one.begins_level),
            is_release: run.is_release,
            experiment_ids: run.experiments,
            image_digest: run.image_digest,
            commit_status: run.commit_status.map(Into::into),
            created_at: run.created_at,
            decided_at: run.decided_at,
        }
    }
}

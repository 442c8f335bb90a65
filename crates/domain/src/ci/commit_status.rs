//! Commit statuses: what GitHub and GitLab are asked to show beside a commit, and what becomes of it. How a request is
//! sent, and with whose credentials, is the service's matter.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::gate::Verdict;
use super::wording::cut;
use crate::delivery::{self, NextTry, TryOutcome};
use crate::spec::ci::Inconclusive;

/// Characters of a description, and of a title, that GitHub takes.
const GITHUB_LINE_MAX: usize = 140;
/// The same of GitLab's.
const GITLAB_LINE_MAX: usize = 255;
/// Characters of a check run's summary that are sent; GitHub takes 65,535.
const SUMMARY_MAX: usize = 60_000;
/// Characters of what a host says that are kept.
const SAID_MAX: usize = 300;
/// How long a rate limit lasts that does not say so (docs.github.com, Best practices for using the REST API).
const LIMIT_SECONDS: u64 = 60;
/// By which our comment on a merge request is known.
const MARK: &str = "<!-- bakeoff -->";

named! {
    /// Where the code is kept.
    CodeHost {
        Github = "github",
        Gitlab = "gitlab",
    }
}

named! {
    /// How CI takes a verdict: the state of a commit status.
    CiState {
        /// There is no verdict yet.
        Pending = "pending",
        Success = "success",
        Failure = "failure",
        /// Nothing was measured.
        Error = "error",
    }
}

impl CiState {
    pub fn of(verdict: Option<Verdict>, inconclusive: Inconclusive, is_accepted: bool) -> Self {
        match (verdict, inconclusive) {
            (None, _) => Self::Pending,
            (Some(Verdict::Regressed), _) if is_accepted => Self::Success,
            (Some(Verdict::Passed), _) | (Some(Verdict::Inconclusive), Inconclusive::Success) => {
                Self::Success
            }
            (Some(Verdict::Regressed), _)
            | (Some(Verdict::Inconclusive), Inconclusive::Failure) => Self::Failure,
            (Some(Verdict::Error), _) => Self::Error,
        }
    }
}

/// Whom a template's runs are told to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusTarget {
    pub host: CodeHost,
    /// Without a slash at its end: `https://api.github.com`, `https://gitlab.com/api/v4`.
    pub api_url: String,
    /// `owner/name`; GitLab's may have more groups, or be the project's number.
    pub repository: String,
    /// What the status is called.
    pub context: String,
    /// As a GitHub App, which may write check runs; a token writes commit statuses.
    pub is_app: bool,
    /// A merge request gets the report as a comment too.
    pub comments: bool,
}

/// A run as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedRun {
    pub commit: String,
    pub branch: Option<String>,
    pub pull_request: Option<u64>,
    pub state: CiState,
    pub verdict: Option<Verdict>,
    /// One line.
    pub summary: String,
    /// A newer commit has taken its place: nothing is wrong with this one.
    pub is_superseded: bool,
    /// Nothing was measured, as the template wants it.
    pub is_ignored: bool,
    /// Where more is to be read.
    pub url: Option<String>,
    /// Markdown.
    pub report: String,
    pub started_at: DateTime<Utc>,
    pub decided_at: Option<DateTime<Utc>>,
}

named! {
    /// A method of HTTP.
    Method {
        Get = "GET",
        Post = "POST",
        Patch = "PATCH",
        Put = "PUT",
    }
}

/// A request to a code host, below its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRequest {
    pub method: Method,
    pub path: String,
    pub body: Value,
}

/// What a code host has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAnswer {
    pub status: u16,
    pub retry_after_seconds: Option<u64>,
    /// It asks for fewer requests, which GitHub does with a 403 too.
    pub is_rate_limit: bool,
    pub body: String,
}

/// What comes of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Taken,
    Again {
        at: DateTime<Utc>,
        why: String,
    },
    /// It would be refused again.
    Refused {
        why: String,
    },
}

impl StatusTarget {
    fn repository(&self) -> String {
        match self.host {
            CodeHost::Github => format!("/repos/{}", self.repository),
            CodeHost::Gitlab => format!("/projects/{}", self.repository.replace('/', "%2F")),
        }
    }

    /// What a host calls what it shows: the number of GitHub's check run, or of the pipeline that GitLab has put the
    /// status into.
    pub fn number(&self, answer: &HostAnswer) -> Option<u64> {
        let member = match self.host {
            CodeHost::Github if self.is_app => "id",
            CodeHost::Github => return None,
            CodeHost::Gitlab => "pipeline_id",
        };
        let answer: Value = serde_json::from_str(&answer.body).ok()?;
        answer.get(member)?.as_u64()
    }

    /// What shows a run's state beside its commit; `shown`: the number of what shows it already.
    pub fn status(&self, told: &ReportedRun, shown: Option<u64>) -> HostRequest {
        let repository = self.repository();
        let (method, path, body) = match self.host {
            CodeHost::Gitlab => (
                Method::Post,
                format!("{repository}/statuses/{}", told.commit),
                self.gitlab_status(told, shown),
            ),
            CodeHost::Github if !self.is_app => (
                Method::Post,
                format!("{repository}/statuses/{}", told.commit),
                self.github_status(told),
            ),
            CodeHost::Github => {
                let mut body = self.check_run(told);
                if let Some(number) = shown {
                    let path = format!("{repository}/check-runs/{number}");
                    (Method::Patch, path, body)
                } else {
                    set(&mut body, "head_sha", json!(told.commit));
                    (Method::Post, format!("{repository}/check-runs"), body)
                }
            }
        };
        HostRequest { method, path, body }
    }

    fn github_status(&self, told: &ReportedRun) -> Value {
        let description = cut(&told.summary, GITHUB_LINE_MAX);
        let mut body = json!({"state": told.state.as_str(), "context": self.context, "description": description});
        if let Some(url) = &told.url {
            set(&mut body, "target_url", json!(url));
        }
        body
    }

    /// GitLab refuses the way from pending to success: what is being measured is running. Without the pipeline that the
    /// first one came into, the next would go into the newest, and leave the first one running.
    fn gitlab_status(&self, told: &ReportedRun, pipeline: Option<u64>) -> Value {
        let state = match told.state {
            CiState::Pending => "running",
            CiState::Success => "success",
            CiState::Failure | CiState::Error if told.is_superseded => "canceled",
            CiState::Failure | CiState::Error => "failed",
        };
        let description = cut(&told.summary, GITLAB_LINE_MAX);
        let mut body = json!({"state": state, "name": self.context, "description": description});
        if let Some(url) = &told.url {
            set(&mut body, "target_url", json!(url));
        }
        if let Some(branch) = &told.branch {
            set(&mut body, "ref", json!(branch));
        }
        if let Some(pipeline) = pipeline {
            set(&mut body, "pipeline_id", json!(pipeline));
        }
        body
    }

    fn check_run(&self, told: &ReportedRun) -> Value {
        let summary: String = told.report.chars().take(SUMMARY_MAX).collect();
        let mut body = json!({
            "name": self.context,
            "started_at": told.started_at,
            "output": {"title": cut(&told.summary, GITHUB_LINE_MAX), "summary": summary},
        });
        if let Some(url) = &told.url {
            set(&mut body, "details_url", json!(url));
        }
        let conclusion = match (told.state, told.verdict) {
            (CiState::Pending, _) => {
                set(&mut body, "status", json!("in_progress"));
                return body;
            }
            (CiState::Success, Some(Verdict::Inconclusive)) => "neutral",
            (CiState::Success, _) if told.is_ignored => "neutral",
            (CiState::Failure | CiState::Error, _) if told.is_superseded => "cancelled",
            (CiState::Success, _) => "success",
            (CiState::Failure | CiState::Error, _) => "failure",
        };
        set(&mut body, "status", json!("completed"));
        set(&mut body, "conclusion", json!(conclusion));
        set(&mut body, "completed_at", json!(told.decided_at));
        body
    }

    /// Where our comment on a merge request may be found, if a run's report is to be there.
    pub fn comments(&self, told: &ReportedRun) -> Option<HostRequest> {
        let number = told.pull_request?;
        if self.host != CodeHost::Gitlab || !self.comments || told.verdict.is_none() {
            return None;
        }
        let path = format!(
            "{}/merge_requests/{number}/notes?sort=desc&order_by=created_at&per_page=100",
            self.repository()
        );
        Some(HostRequest {
            method: Method::Get,
            path,
            body: Value::Null,
        })
    }

    /// The comment with a run's report: in place of the one that is listed, or else a new one.
    pub fn comment(&self, told: &ReportedRun, listed: &[Value]) -> Option<HostRequest> {
        let number = told.pull_request?;
        let path = format!("{}/merge_requests/{number}/notes", self.repository());
        let mark = format!("{MARK}<!-- {} -->", self.context.replace("--", "- -"));
        let body = json!({"body": format!("{mark}\n{}", told.report)});
        let earlier = listed.iter().find(|note| {
            note["body"]
                .as_str()
                .is_some_and(|body| body.starts_with(&mark))
        });
        Some(match earlier.and_then(|note| note["id"].as_u64()) {
            Some(id) => HostRequest {
                method: Method::Put,
                path: format!("{path}/{id}"),
                body,
            },
            None => HostRequest {
                method: Method::Post,
                path,
                body,
            },
        })
    }

    /// Whether GitLab refuses a status because it shows it already: that a commit is being measured.
    pub fn is_shown(&self, told: &ReportedRun, answer: &HostAnswer) -> bool {
        self.host == CodeHost::Gitlab
            && told.state == CiState::Pending
            && answer.status == 400
            && answer.body.contains("Cannot transition status")
    }

    /// What comes of the answer to the try of that number, from 1. `luck`: see [`delivery::next`].
    pub fn outcome(
        &self,
        answer: &HostAnswer,
        number: u32,
        luck: f64,
        now: DateTime<Utc>,
    ) -> Outcome {
        // Of its secondary limits, GitHub tells in the message alone.
        let is_limit = answer.is_rate_limit
            || answer.retry_after_seconds.is_some()
            || answer.body.to_lowercase().contains("rate limit");
        let is_final = matches!(answer.status, 300..=399 | 400 | 401 | 404 | 410 | 422)
            || answer.status == 403 && !is_limit;
        let why = self.said(answer);
        if is_final {
            return Outcome::Refused { why };
        }
        let least = is_limit.then_some(LIMIT_SECONDS);
        let tried = TryOutcome {
            status: Some(answer.status),
            retry_after_seconds: answer.retry_after_seconds.or(least),
        };
        match delivery::next(tried, number, luck, now) {
            NextTry::Delivered => Outcome::Taken,
            NextTry::Again { at } => Outcome::Again { at, why },
            NextTry::Failed => Outcome::Refused { why },
        }
    }

    /// What a host has said, and what to do about it.
    fn said(&self, answer: &HostAnswer) -> String {
        let host = self.host.as_str();
        let said: Option<Value> = serde_json::from_str(&answer.body).ok();
        let said = said.and_then(|said| {
            let said = said.get("message").or_else(|| said.get("error"))?;
            Some(
                said.as_str()
                    .map_or_else(|| said.to_string(), str::to_owned),
            )
        });
        let said: String = said.unwrap_or_default().chars().take(SAID_MAX).collect();
        let way_out = match (answer.status, self.host, self.is_app) {
            (401, ..) => "set credentials that are valid",
            (403, CodeHost::Github, true) => {
                "give the App the permission Checks: write, and install it in the repository"
            }
            (403, CodeHost::Github, false) => {
                "give the token the permission Commit statuses: write"
            }
            (403, CodeHost::Gitlab, _) => "give the token the scope api and the role Developer",
            (404, ..) => "check the repository's name, and that the credentials may see it",
            (300..=399, ..) => "the repository has moved: set its new name",
            (422, CodeHost::Github, _) => {
                "the commit has to be in the repository, as its whole SHA"
            }
            _ => "",
        };
        let mut text = format!("{host} has answered {}", answer.status);
        for more in [said.as_str(), way_out] {
            if !more.is_empty() {
                text = format!("{text}: {more}");
            }
        }
        text
    }
}

fn set(body: &mut Value, key: &str, value: Value) {
    if let Some(members) = body.as_object_mut() {
        members.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: CodeHost, is_app: bool) -> StatusTarget {
        StatusTarget {
            host,
            api_url: "https://api.example.com".to_owned(),
            repository: "acme/legal".to_owned(),
            context: "bakeoff/nightly".to_owned(),
            is_app,
            comments: true,
        }
    }

    fn told(verdict: Option<Verdict>, state: CiState) -> ReportedRun {
        ReportedRun {
            commit: "4f2a9c1d7e55d3b0a8c6f4e2019b7d5c3a1f8e60".to_owned(),
            branch: Some("main".to_owned()),
            pull_request: Some(7),
            state,
            verdict,
            summary: "x".repeat(300),
            is_superseded: false,
            is_ignored: false,
            url: Some("https://bakeoff.example.com/v1/ci-runs/cir_7/report".to_owned()),
            report: "y".repeat(70_000),
            started_at: now(),
            decided_at: verdict.map(|_| now()),
        }
    }

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap()
    }

    fn answer(status: u16, body: &str) -> HostAnswer {
        HostAnswer {
            status,
            retry_after_seconds: None,
            is_rate_limit: false,
            body: body.to_owned(),
        }
    }

    /// The limits of both hosts: 140 and 255 characters of a description, 65,535 of a summary.
    #[test]
    fn what_is_shown_keeps_to_the_limits() {
        for (host, is_app) in [
            (CodeHost::Github, false),
            (CodeHost::Github, true),
            (CodeHost::Gitlab, false),
        ] {
            let told = told(Some(Verdict::Regressed), CiState::Failure);
            let body = target(host, is_app).status(&told, None).body;
            let line = if is_app {
                &body["output"]["title"]
            } else {
                &body["description"]
            };
            let most = if host == CodeHost::Github { 140 } else { 255 };
            assert_eq!(line.as_str().unwrap().chars().count(), most);
            let address = if is_app { "details_url" } else { "target_url" };
            assert_eq!(body[address], json!(told.url));
            let summary = body["output"]["summary"].as_str().unwrap_or_default();
            assert!(summary.chars().count() <= 65_535);
        }
    }

    #[test]
    fn each_host_is_told_in_its_words() {
        let states = [
            (None, CiState::Pending),
            (Some(Verdict::Passed), CiState::Success),
            (Some(Verdict::Inconclusive), CiState::Success),
            (Some(Verdict::Inconclusive), CiState::Failure),
            (Some(Verdict::Regressed), CiState::Failure),
            (Some(Verdict::Error), CiState::Error),
        ];
        let words = |host, is_app, key: &str| {
            states.map(|(verdict, state)| {
                let body = target(host, is_app)
                    .status(&told(verdict, state), None)
                    .body;
                body[key].as_str().unwrap_or_default().to_owned()
            })
        };
        assert_eq!(
            words(CodeHost::Github, false, "state"),
            [
                "pending", "success", "success", "failure", "failure", "error"
            ]
        );
        assert_eq!(
            words(CodeHost::Gitlab, false, "state"),
            [
                "running", "success", "success", "failed", "failed", "failed"
            ]
        );
        assert_eq!(
            words(CodeHost::Github, true, "conclusion"),
            ["", "success", "neutral", "failure", "failure", "failure"]
        );
    }

    #[test]
    fn a_check_run_is_changed_and_a_status_sent_anew() {
        let told = told(Some(Verdict::Passed), CiState::Success);
        let paths = |host, is_app| {
            let request = target(host, is_app).status(&told, Some(12));
            format!("{} {}", request.method.as_str(), request.path)
        };
        assert_eq!(
            paths(CodeHost::Github, true),
            "PATCH /repos/acme/legal/check-runs/12"
        );
        let sha = &told.commit;
        assert_eq!(
            paths(CodeHost::Github, false),
            format!("POST /repos/acme/legal/statuses/{sha}")
        );
        assert_eq!(
            paths(CodeHost::Gitlab, false),
            format!("POST /projects/acme%2Flegal/statuses/{sha}")
        );
    }

    #[test]
    fn a_refusal_is_final_and_a_limit_is_not() {
        let github = target(CodeHost::Github, false);
        for status in [302, 307, 400, 401, 403, 404, 422] {
            let outcome = github.outcome(&answer(status, r#"{"message":"No"}"#), 1, 0.5, now());
            assert!(
                matches!(&outcome, Outcome::Refused { why } if why.contains(": No")),
                "{outcome:?}"
            );
        }
        let limit = HostAnswer {
            is_rate_limit: true,
            retry_after_seconds: Some(60),
            ..answer(403, "")
        };
        let secondary = answer(
            403,
            r#"{"message":"You have exceeded a secondary rate limit."}"#,
        );
        for later in [
            limit,
            secondary,
            answer(429, ""),
            answer(502, ""),
            answer(409, ""),
        ] {
            let outcome = github.outcome(&later, 1, 0.5, now());
            assert!(matches!(outcome, Outcome::Again { .. }), "{outcome:?}");
        }
        let given_up = github.outcome(&answer(502, ""), 10, 0.5, now());
        assert!(matches!(given_up, Outcome::Refused { .. }), "{given_up:?}");
    }

    /// What GitLab says of a status that is shown already.
    #[test]
    fn gitlab_may_be_told_twice() {
        let said = r#"{"message":"Cannot transition status via :run from :running (Reason(s): Status cannot transition via \"run\")"}"#;
        let is_shown =
            |host, state| target(host, false).is_shown(&told(None, state), &answer(400, said));
        assert!(is_shown(CodeHost::Gitlab, CiState::Pending));
        assert!(!is_shown(CodeHost::Gitlab, CiState::Success));
        assert!(!is_shown(CodeHost::Github, CiState::Pending));
    }

    #[test]
    fn a_merge_request_has_one_comment_for_each_template() {
        let told = told(Some(Verdict::Passed), CiState::Success);
        let gitlab = target(CodeHost::Gitlab, false);
        assert!(gitlab.comments(&told).is_some());
        let new = gitlab.comment(&told, &[]).unwrap();
        assert_eq!(new.method, Method::Post);
        let listed = [
            json!({"id": 3, "body": "LGTM"}),
            json!({"id": 4, "body": new.body["body"]}),
        ];
        let again = gitlab.comment(&told, &listed).unwrap();
        assert_eq!(
            (again.method, again.path.as_str()),
            (
                Method::Put,
                "/projects/acme%2Flegal/merge_requests/7/notes/4"
            )
        );
        let other = StatusTarget {
            context: "other".to_owned(),
            ..gitlab
        };
        assert_eq!(other.comment(&told, &listed).unwrap().method, Method::Post);
        let pending = ReportedRun {
            verdict: None,
            ..told
        };
        assert!(other.comments(&pending).is_none());
    }
}

//! What CI says of the code that is to be tested.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use regex::Regex;

use crate::embedded;
use crate::finding::flaws::Flaw;

/// Digits of a commit where it has to be short.
const SHORT: usize = 12;
/// Members of a map of a trigger.
const ENTRIES_MAX: usize = 50;

static COMMIT: LazyLock<Regex> = LazyLock::new(|| embedded::pattern("[0-9a-f]{7,64}"));
/// Git allows more, and a script may pass it to a shell.
static REF: LazyLock<Regex> =
    LazyLock::new(|| embedded::pattern("[A-Za-z0-9][A-Za-z0-9._/+@-]{0,249}"));

/// What a trigger says. A template takes it in where it says `${ci.commit}`, `${ci.image}`,
/// `${ci.hyperparameters.NAME}`, and so on; what it does not name stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trigger {
    /// The commit's SHA, 7 to 64 digits.
    pub commit: String,
    /// `refs/heads/main`, `refs/tags/v1`.
    pub reference: Option<String>,
    pub branch: Option<String>,
    /// Number of the pull request, or of the merge request.
    pub pull_request: Option<u64>,
    /// The training image built from the commit: by digest, or with a tag that has the commit in it.
    pub image: Option<String>,
    /// The sources of that commit: `s3://bucket/…/sourcedir.tar.gz`.
    pub source_s3_uri: Option<String>,
    pub hyperparameters: BTreeMap<String, String>,
    /// What the branch was before, as the code's host tells it: later pushes are told from earlier ones by it, in whatever
    /// order they arrive. Zeros of a new branch.
    pub previous: Option<String>,
    /// When the commit was made, at the latest, as its host tells it: the order of two pushes, where those between them were
    /// never told.
    pub made_at: Option<DateTime<Utc>>,
    /// Where the code is kept, as its host says.
    pub repository: Option<Repository>,
}

/// A repository of a code host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// It outlives a new name.
    pub id: i64,
    /// `owner/name`.
    pub name: String,
}

named! {
    /// What started a trigger.
    Event {
        Push = "push",
        PullRequest = "pull_request",
        /// Sent by a script, with our own signature.
        Trigger = "trigger",
    }
}

named! {
    /// Who sent a delivery, in its own form.
    Sender {
        Bakeoff = "bakeoff",
        Github = "github",
        Gitlab = "gitlab",
    }
}

/// What a delivery says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryContent {
    Trigger(Event, Trigger),
    /// It is of a commit that is not measured, and why.
    Refused(Event, Trigger, String),
    /// Nothing is to be done, and why.
    Ignored(String),
}

impl Trigger {
    /// The first digits of the commit.
    pub fn short_commit(&self) -> &str {
        self.commit.get(..SHORT).unwrap_or(&self.commit)
    }

    /// Whether its commit is one.
    pub fn has_commit(&self) -> bool {
        COMMIT.is_match(&self.commit)
    }

    /// What is wrong with it by itself; `takes`: whether the template takes a member in.
    pub fn flaws(&self, takes: impl Fn(&str) -> bool) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        if !COMMIT.is_match(&self.commit) {
            flaws.push(Flaw::new(
                "/commit",
                "is not a commit's SHA, 7 to 64 digits of 0-9a-f",
                "send the output of git rev-parse HEAD",
            ));
        }
        for (name, told) in [("ref", &self.reference), ("branch", &self.branch)] {
            let is_wrong = |told: &String| {
                told.chars().any(char::is_control) || takes(name) && !REF.is_match(told)
            };
            if told.as_ref().is_some_and(is_wrong) {
                flaws.push(Flaw::new(
                    format!("/{name}"),
                    "has characters that are not taken from a webhook",
                    "use letters, digits and ._/+@-, at most 250",
                ));
            }
        }
        if let Some(image) = self
            .image
            .as_ref()
            .filter(|image| !self.is_of_commit(image))
        {
            flaws.push(Flaw::new(
                "/image",
                format!("{image} may be of any commit: a tag can be moved"),
                format!("name it by digest (repository@sha256:…), or by a tag with the commit in it, such as repository:{}", self.short_commit()),
            ));
        }
        if self.hyperparameters.len() > ENTRIES_MAX {
            flaws.push(Flaw::new(
                "/hyperparameters",
                format!("has more than {ENTRIES_MAX} entries"),
                "send those that the template opens",
            ));
        }
        flaws
    }

    /// Whether an image cannot be of another commit.
    fn is_of_commit(&self, image: &str) -> bool {
        if image.contains("@sha256:") {
            return true;
        }
        let name = image.rsplit('/').next().unwrap_or(image);
        let least = self.commit.get(..7).unwrap_or("-");
        name.split_once(':')
            .is_some_and(|(_, tag)| tag.contains(least))
    }
}

//! Commit statuses: shows CI runs beside their commits, at GitHub and GitLab, and tries again what they have not taken.
//! What is sent as a run's state is what it is when it is sent. What is asked, and what an answer means, is in
//! [`bakeoff_domain::ci::commit_status`].

use std::time::Duration;

use bakeoff_domain::ci::commit_status::{HostAnswer, Outcome, StatusTarget, Told};
use bakeoff_domain::webhook::{self, Next, Tried};
use chrono::TimeDelta;
use futures::StreamExt;
use serde_json::Value;

use crate::api::ci_runs::CiRunView;
use crate::app::App;
use crate::clock::Stopwatch;
use crate::outgoing::NoAnswer;
use crate::outgoing::code_host::{Credentials, HostClient};
use crate::store::StoreError;
use crate::store::ci::commit_statuses::{ClaimedStatus, StoredTarget};
use crate::store::ci::runs::CiRun;
use crate::{ci_report, crash};

/// Statuses that are sent at the same time.
const AT_ONCE: usize = 8;
/// How long a claim is held: longer than its four requests may take, a quarter of a minute each.
const HOLD: TimeDelta = TimeDelta::minutes(3);
/// A process that was held up for so long, all in all, sends nothing more: another one may have sent something newer.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs one tick; returns how many statuses were tried.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let now = app.clock.now();
    // A copy of the database must not tell what its original tells.
    if !app.fence.may_act(now) {
        return Ok(0);
    }
    let limit = i64::try_from(AT_ONCE).unwrap_or(i64::MAX);
    let claimed = app.store.claim_statuses(now, HOLD, limit).await?;
    let count = claimed.len();
    let each = futures::stream::iter(claimed);
    each.for_each_concurrent(AT_ONCE, |status| async move {
        app.pulse.beat();
        if let Err(error) = show(app, &status).await {
            tracing::warn!(%error, run = %status.run, "a commit status was not recorded; it is sent again later");
        }
    })
    .await;
    Ok(count)
}

async fn show(app: &App, claimed: &ClaimedStatus) -> Result<(), StoreError> {
    let target = app
        .store
        .status_target(claimed.project, claimed.template)
        .await?;
    let run = app.store.ci_run(claimed.project, claimed.run).await?;
    let (outcome, check_run) = if let (Some(target), Some(run)) = (target, run) {
        tried(app, claimed, &target, run).await
    } else {
        let why = "the template tells nobody of its runs any more".to_owned();
        (Outcome::Refused { why }, None)
    };
    if let Outcome::Refused { why } = &outcome {
        tracing::error!(run = %claimed.run, why, "a commit status was refused");
    }
    crash::point("after_commit_status");
    app.store
        .record_status(claimed, &outcome, check_run, app.clock.now())
        .await
}

/// Sends a run's state, and its report; returns what comes of it, and the check run that shows it now.
async fn tried(
    app: &App,
    claimed: &ClaimedStatus,
    stored: &StoredTarget,
    run: CiRun,
) -> (Outcome, Option<u64>) {
    let took = Stopwatch::start();
    let target = &stored.target;
    let sealed = &stored.sealed_credentials;
    let key = &app.settings.secret_key;
    let Some(credentials) = Credentials::open(key, claimed.template, target, sealed) else {
        let why = "the credentials cannot be read: set them again".to_owned();
        return (Outcome::Refused { why }, None);
    };
    let told = told(app, run);
    let client = match HostClient::new(&app.outgoing, target, &credentials).await {
        Ok(client) => client,
        Err(answer) => return (came_of(app, claimed, target, answer), None),
    };
    if took.elapsed() > PATIENCE {
        return (held_up(app), None);
    }
    let asked = target.status(&told, claimed.check_run);
    crash::point("before_commit_status");
    let answer = client.send(&asked).await;
    let number = answer.as_ref().ok().filter(|_| target.has_numbers());
    let number = number.and_then(|answer| {
        let answer: Value = serde_json::from_str(&answer.body).ok()?;
        answer.get("id")?.as_u64()
    });
    let outcome = came_of(app, claimed, target, answer);
    if outcome == Outcome::Taken {
        let commented = comment(app, claimed, &client, target, &told).await;
        return (commented.unwrap_or(outcome), number);
    }
    (outcome, number)
}

/// Writes the report of a merge request's run into its comment; `None` if there is none to be.
async fn comment(
    app: &App,
    claimed: &ClaimedStatus,
    client: &HostClient<'_>,
    target: &StatusTarget,
    told: &Told,
) -> Option<Outcome> {
    let took = Stopwatch::start();
    let asked = target.comments(told)?;
    let listed = match client.send(&asked).await {
        Ok(answer) if answer.status == 200 => answer.body,
        answer => return Some(came_of(app, claimed, target, answer)),
    };
    let asked = target.comment(told, &listed)?;
    if took.elapsed() > PATIENCE / 2 {
        return Some(held_up(app));
    }
    let answer = client.send(&asked).await;
    Some(came_of(app, claimed, target, answer))
}

fn held_up(app: &App) -> Outcome {
    Outcome::Again {
        at: app.clock.now(),
        why: "this process was held up".to_owned(),
    }
}

/// A run as a host is told of it.
fn told(app: &App, run: CiRun) -> Told {
    let view = CiRunView::from(run);
    let url = app.settings.public_url.as_ref();
    Told {
        report: ci_report::markdown(&view),
        url: url.map(|url| format!("{url}/v1/ci-runs/{}/report", view.id)),
        commit: view.commit,
        branch: view.branch,
        pull_request: view.pull_request,
        state: view.state,
        verdict: view.verdict,
        summary: view.summary,
        started_at: view.created_at,
        decided_at: view.decided_at,
    }
}

/// What comes of an answer, or of none.
fn came_of(
    app: &App,
    claimed: &ClaimedStatus,
    target: &StatusTarget,
    answer: Result<HostAnswer, NoAnswer>,
) -> Outcome {
    let now = app.clock.now();
    let luck = webhook::luck(claimed.run.0.as_bytes());
    let why = match answer {
        Ok(answer) => return target.outcome(&answer, claimed.number, luck, now),
        Err(NoAnswer::Forbidden(why)) => {
            let why = format!("the host's address {why}");
            return Outcome::Refused { why };
        }
        Err(NoAnswer::Failed(why)) => why,
    };
    let tried = Tried {
        status: None,
        retry_after_seconds: None,
    };
    match webhook::next(tried, claimed.number, luck, now) {
        Next::Again { at } => Outcome::Again { at, why },
        Next::Delivered | Next::Failed => Outcome::Refused { why },
    }
}

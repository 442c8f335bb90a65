//! Commit statuses: shows CI runs beside their commits, at GitHub and GitLab, and tries again what they have not taken.
//! What is sent as a run's state is what it is when it is sent. What is asked, and what an answer means, is in
//! [`bakeoff_domain::ci::commit_status`].

use std::time::Duration;

use bakeoff_domain::ci::commit_status::{HostAnswer, Method, Outcome, ReportedRun, StatusTarget};
use bakeoff_domain::ci::unmeasured::Unmeasured;
use bakeoff_domain::delivery::{self, NextTry, TryOutcome};
use chrono::TimeDelta;
use futures::StreamExt;
use serde_json::Value;
use uuid::Uuid;

use crate::app::App;
use crate::outgoing::NoAnswer;
use crate::outgoing::code_host::{Credentials, HostClient};
use crate::read::ci_report;
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_process::clock::Stopwatch;
use bakeoff_process::crash;
use bakeoff_store::StoreError;
use bakeoff_store::ci::commit_statuses::{ClaimedStatus, StoredTarget};
use bakeoff_store::ci::runs::CiRun;
use bakeoff_store::ci::unmeasured::ClaimedUnmeasured;

/// Statuses that are sent at the same time.
const AT_ONCE: usize = 8;
/// How long a claim is held: longer than its five requests may take, a quarter of a minute each.
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
    let unmeasured = app.store.claim_unmeasured(now, HOLD, limit).await?;
    let more = unmeasured.len();
    let each = futures::stream::iter(unmeasured);
    each.for_each_concurrent(AT_ONCE, |one| async move {
        app.pulse.beat();
        if let Err(error) = show_unmeasured(app, &one).await {
            tracing::warn!(%error, commit = %one.commit, "a commit status was not recorded; it is sent again later");
        }
    })
    .await;
    Ok(count + more)
}

/// Shows that a commit is not measured, and why.
async fn show_unmeasured(app: &App, claimed: &ClaimedUnmeasured) -> Result<(), StoreError> {
    let stored = app.store.target_of(claimed.template).await?;
    let outcome = match stored {
        _ if claimed.has_run => Err("a run of the commit is shown in its place"),
        None => Err("the template tells nobody of its runs any more"),
        Some(stored) => Ok(unmeasured_sent(app, claimed, &stored).await),
    };
    let refused = |why: &str| Outcome::Refused {
        why: why.to_owned(),
    };
    let outcome = outcome.unwrap_or_else(refused);
    let now = app.clock.now();
    app.store.record_unmeasured(claimed, &outcome, now).await
}

async fn unmeasured_sent(app: &App, claimed: &ClaimedUnmeasured, stored: &StoredTarget) -> Outcome {
    let (target, key) = (&stored.target, &app.settings.secret_key);
    let sealed = &stored.sealed_credentials;
    let Some(credentials) = Credentials::open(key, claimed.template, target, sealed) else {
        let why = "the credentials cannot be read: set them again".to_owned();
        return Outcome::Refused { why };
    };
    let tries = Tries {
        id: claimed.id,
        number: claimed.number,
    };
    let client = match HostClient::new(&app.outgoing, target, &credentials).await {
        Ok(client) => client,
        Err(answer) => return no_token(came_of(app, tries, target, answer)),
    };
    let summary = format!("not measured: {}", claimed.reason);
    let told = ReportedRun {
        commit: claimed.commit.clone(),
        branch: claimed.branch.clone(),
        pull_request: None,
        state: claimed.outcome.state(),
        verdict: None,
        report: summary.clone(),
        summary,
        is_superseded: false,
        is_ignored: claimed.outcome == Unmeasured::Ignored,
        url: address(
            app,
            &format!("/v1/ci-templates/{}/unmeasured", claimed.template),
        ),
        started_at: claimed.received_at,
        decided_at: Some(claimed.received_at),
    };
    let answer = client.send(&target.status(&told, None)).await;
    came_of(app, tries, target, answer)
}

async fn show(app: &App, claimed: &ClaimedStatus) -> Result<(), StoreError> {
    let loaded = tokio::try_join!(
        app.store.target_of(claimed.template),
        app.store.ci_run(claimed.project, claimed.run)
    );
    let (target, run) = match loaded {
        Err(error @ StoreError::Corrupt { .. }) => {
            let why = format!("this version of the service cannot read it: {error}");
            let outcome = Outcome::Refused { why };
            let now = app.clock.now();
            return app.store.record_status(claimed, &outcome, None, now).await;
        }
        loaded => loaded?,
    };
    let (outcome, shown_as) = if let (Some(target), Some(run)) = (target, run) {
        if let Some(newer) = run.repeated_by {
            let why = format!("{newer} measures the same again, and is shown in its place");
            (Outcome::Refused { why }, None)
        } else {
            tried(app, claimed, &target, run).await?
        }
    } else {
        let why = "the template tells nobody of its runs any more".to_owned();
        (Outcome::Refused { why }, None)
    };
    if let Outcome::Refused { why } = &outcome {
        tracing::error!(run = %claimed.run, why, "a commit status was refused");
    }
    crash::point("after_commit_status");
    app.store
        .record_status(claimed, &outcome, shown_as, app.clock.now())
        .await
}

/// Sends a run's state, and its report; returns what comes of it, and the number of what shows it now.
async fn tried(
    app: &App,
    claimed: &ClaimedStatus,
    stored: &StoredTarget,
    run: CiRun,
) -> Result<(Outcome, Option<u64>), StoreError> {
    let took = Stopwatch::start();
    let target = &stored.target;
    let sealed = &stored.sealed_credentials;
    let key = &app.settings.secret_key;
    let Some(credentials) = Credentials::open(key, claimed.template, target, sealed) else {
        let why = "the credentials cannot be read: set them again".to_owned();
        return Ok((Outcome::Refused { why }, None));
    };
    let told = told(app, run, claimed.pull_request);
    let tries = Tries::of(claimed);
    if !app.store.begin_status(claimed).await? {
        return Ok((held_up(app), None));
    }
    let client = match HostClient::new(&app.outgoing, target, &credentials).await {
        Ok(client) => client,
        Err(answer) => return Ok((no_token(came_of(app, tries, target, answer)), None)),
    };
    // After as long as that, or after another process has begun, what is sent may be older than what is shown.
    if took.elapsed() > PATIENCE || !app.store.holds_status(claimed).await? {
        return Ok((held_up(app), None));
    }
    let asked = target.status(&told, claimed.shown_as);
    crash::point("before_commit_status");
    let answer = client.send(&asked).await;
    let heard = answer.as_ref().ok();
    let number = heard.and_then(|answer| target.number(answer));
    let outcome = match heard {
        Some(answer) if target.is_shown(&told, answer) => Outcome::Taken,
        _ => came_of(app, tries, target, answer),
    };
    if outcome == Outcome::Taken {
        let commented = comment(app, tries, &client, target, &told).await;
        return Ok((commented.unwrap_or(outcome), number));
    }
    Ok((outcome, number))
}

/// What is tried, for its luck, and which try it is.
#[derive(Debug, Clone, Copy)]
struct Tries {
    id: Uuid,
    number: u32,
}

impl Tries {
    fn of(claimed: &ClaimedStatus) -> Self {
        Self {
            id: claimed.run.0,
            number: claimed.number,
        }
    }
}

/// Writes the report of a merge request's run into its comment; `None` if there is none to be.
async fn comment(
    app: &App,
    tries: Tries,
    client: &HostClient<'_>,
    target: &StatusTarget,
    told: &ReportedRun,
) -> Option<Outcome> {
    let took = Stopwatch::start();
    let asked = target.comments(told)?;
    let listed: Vec<Value> = match client.send(&asked).await {
        Ok(answer) if answer.status == 200 => match serde_json::from_str(&answer.body) {
            Ok(listed) => listed,
            Err(error) => {
                let why = format!("the comments cannot be read: {error}");
                return Some(came_of(app, tries, target, Err(NoAnswer::Failed(why))));
            }
        },
        answer => return Some(came_of(app, tries, target, answer)),
    };
    let asked = target.comment(told, &listed)?;
    if took.elapsed() > PATIENCE / 2 {
        return Some(held_up(app));
    }
    let mut answer = client.send(&asked).await;
    // Written by somebody else, an earlier token perhaps: it stays, and ours comes beside it.
    let is_others = |answer: &HostAnswer| matches!(answer.status, 403 | 404);
    if asked.method == Method::Put && answer.as_ref().is_ok_and(is_others) {
        let asked = target.comment(told, &[])?;
        answer = client.send(&asked).await;
    }
    Some(came_of(app, tries, target, answer))
}

/// An App's token was refused, not what it was for.
fn no_token(outcome: Outcome) -> Outcome {
    let more = |why| format!("the App gets no token (is it installed, under that number?): {why}");
    match outcome {
        Outcome::Refused { why } => Outcome::Refused { why: more(why) },
        Outcome::Again { at, why } => Outcome::Again { at, why: more(why) },
        Outcome::Taken => Outcome::Taken,
    }
}

fn held_up(app: &App) -> Outcome {
    Outcome::Again {
        at: app.clock.now(),
        why: "this process was held up".to_owned(),
    }
}

/// A run as a host is told of it. `shown_in`: its merge request, if another event has told of it.
fn told(app: &App, run: CiRun, shown_in: Option<u64>) -> ReportedRun {
    let pull_request = run.pull_request.or(shown_in);
    let is_superseded = run.superseded_by.is_some();
    let view = CiRunView::from(run);
    ReportedRun {
        report: ci_report::markdown(&view),
        commit: view.commit,
        branch: view.branch,
        pull_request,
        state: view.state,
        verdict: view.verdict,
        summary: view.summary,
        is_superseded,
        is_ignored: false,
        url: address(app, &format!("/v1/ci-runs/{}/report", view.id)),
        started_at: view.created_at,
        decided_at: view.decided_at,
    }
}

/// Where a path of ours is to be read, if the service knows its own address.
fn address(app: &App, path: &str) -> Option<String> {
    let url = app.settings.public_url.as_ref()?;
    Some(format!("{}{path}", url.trim_end_matches('/')))
}

/// What comes of an answer, or of none.
fn came_of(
    app: &App,
    tries: Tries,
    target: &StatusTarget,
    answer: Result<HostAnswer, NoAnswer>,
) -> Outcome {
    let now = app.clock.now();
    let luck = delivery::luck(tries.id.as_bytes());
    let why = match answer {
        Ok(answer) => return target.outcome(&answer, tries.number, luck, now),
        Err(NoAnswer::Forbidden(why)) => {
            let why = format!("the host's address {why}");
            return Outcome::Refused { why };
        }
        Err(NoAnswer::Failed(why)) => why,
    };
    let unanswered = TryOutcome {
        status: None,
        retry_after_seconds: None,
    };
    match delivery::next(unanswered, tries.number, luck, now) {
        NextTry::Again { at } => Outcome::Again { at, why },
        NextTry::Delivered | NextTry::Failed => Outcome::Refused { why },
    }
}

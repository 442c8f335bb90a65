//! The fence: each replica checks that the object still belongs to its database, and one of them,
//! by lease, renews it. [`bakeoff_domain::lifecycle::fence`] interprets the result, and
//! [`crate::replica::fence`] defines what is allowed meanwhile.

use bakeoff_domain::lifecycle::fence::{
    FenceDecision, FenceFacts, RENEW_EVERY, TRUSTED, WrittenFrom, decide,
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::app::App;
use crate::replica::fence::FenceStanding;
use bakeoff_process::ids;
use bakeoff_store::{StoreError, to_json};

/// Interval between checks: while the fence is ours, and otherwise.
const LOOK_EVERY: TimeDelta = TimeDelta::seconds(30);
const LOOK_AGAIN: TimeDelta = TimeDelta::seconds(5);
/// Object and database are read one after the other, so either may change in between.
const READS: u32 = 3;

/// The content of the object.
#[derive(Debug, Serialize, Deserialize)]
struct Object {
    installation: String,
    token: Uuid,
    /// The database that wrote it; absent in objects of earlier versions.
    database: Option<String>,
    /// Explains the object to anyone who finds it.
    note: String,
}

/// What this process remembers of the fence.
#[derive(Debug, Default)]
pub struct Memory {
    /// The database's token at the first check.
    first: Option<Uuid>,
    stranger: Option<(Uuid, DateTime<Utc>)>,
}

/// Runs one tick; returns how long until the next.
pub async fn tick(app: &App, memory: &mut Memory) -> Result<TimeDelta, StoreError> {
    let Some(uri) = &app.fence.uri else {
        return Ok(LOOK_EVERY);
    };
    let now = app.clock.now();
    let Some(seen) = look(app, uri, memory, now).await? else {
        return Ok(LOOK_AGAIN);
    };
    let standing = match seen.decision {
        FenceDecision::Ours | FenceDecision::Make | FenceDecision::TakeOver => {
            hold(app, uri, &seen, now).await?
        }
        FenceDecision::Unsure => FenceStanding::Unsure,
        FenceDecision::Stranger { token, since } => {
            if memory.stranger.is_some_and(|(before, _)| before != token) {
                app.store.fence_has_rival().await?;
            }
            memory.stranger = Some((token, since));
            tracing::error!(
                fence = uri,
                "another database holds this installation's fence: this one acts on nothing. To run a copy beside its \
                 original, run `bakeoff migrate --new-installation`; a restored backup takes over by itself once the \
                 fence has been silent; if the original of a copy is gone for good, run `bakeoff migrate \
                 --forget-fence`"
            );
            FenceStanding::Stranger
        }
    };
    if standing == FenceStanding::Ours {
        memory.stranger = None;
    }
    app.fence.set(standing, now);
    Ok(if standing == FenceStanding::Ours {
        LOOK_EVERY
    } else {
        LOOK_AGAIN
    })
}

/// Renews a fence that may be ours. A process that cannot write it does not hold it, however often
/// it reads it.
async fn hold(
    app: &App,
    uri: &str,
    seen: &FenceCheck,
    now: DateTime<Utc>,
) -> Result<FenceStanding, StoreError> {
    let age = seen.facts.renewed_at.map(|at| (now - at).abs());
    let is_ours = seen.decision == FenceDecision::Ours;
    let is_due = !is_ours || age.is_none_or(|age| age >= RENEW_EVERY);
    if is_due && app.renewer.term(&app.store).await?.is_some() && renew(app, uri, seen, now).await?
    {
        return Ok(FenceStanding::Ours);
    }
    Ok(if is_ours && age.is_some_and(|age| age <= TRUSTED) {
        FenceStanding::Ours
    } else {
        FenceStanding::Unsure
    })
}

/// The result of a check, and the decision that follows.
struct FenceCheck {
    facts: FenceFacts,
    /// The id of this database.
    database: String,
    found: Option<Uuid>,
    decision: FenceDecision,
}

/// The object cannot be read, or is not this installation's fence; the log says which.
struct Unreadable;

/// Reads the object; `None` if there is none yet.
async fn read_object(app: &App, uri: &str) -> Result<Option<Object>, Unreadable> {
    let body = match app.place.aws.get_object(uri).await {
        Ok(Some(body)) => body,
        Ok(None) => return Ok(None),
        Err(error) => {
            tracing::warn!(%error, fence = uri, "reading the fence failed; its last state counts for two minutes");
            return Err(Unreadable);
        }
    };
    match serde_json::from_slice::<Object>(&body) {
        Ok(object) if object.installation == app.settings.installation => Ok(Some(object)),
        Ok(object) => {
            tracing::error!(
                fence = uri,
                installation = object.installation,
                "the fence belongs to another installation, and each needs its own object. This one acts on nothing \
                 until it has one (`bakeoff migrate --forget-fence`, then `--fence`)"
            );
            Err(Unreadable)
        }
        Err(error) => {
            tracing::error!(%error, fence = uri, "the object is not a Bakeoff fence");
            Err(Unreadable)
        }
    }
}

/// Compares the object with the database; `None` if the object cannot be read.
async fn look(
    app: &App,
    uri: &str,
    memory: &mut Memory,
    now: DateTime<Utc>,
) -> Result<Option<FenceCheck>, StoreError> {
    let mut seen = None;
    for _ in 0..READS {
        let Ok(found) = read_object(app, uri).await else {
            return Ok(None);
        };
        let (mut facts, database) = app.store.fence().await?;
        let written = found.as_ref().and_then(|object| object.database.as_deref());
        facts.written_from = WrittenFrom::of(written, &database);
        let found = found.map(|object| object.token);
        let first = *memory.first.get_or_insert(facts.token.unwrap_or_default());
        facts.has_followed = facts.token.is_some_and(|token| token != first);
        facts.stranger = memory.stranger;
        let decision = decide(&facts, found, now);
        let is_certain = !matches!(decision, FenceDecision::Stranger { .. });
        seen = Some(FenceCheck {
            facts,
            database,
            found,
            decision,
        });
        if is_certain {
            break;
        }
    }
    Ok(seen)
}

/// Writes the next token: first to the living database, then to the object. False if the write is
/// not certain.
async fn renew(
    app: &App,
    uri: &str,
    seen: &FenceCheck,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let is_taken_over = seen.decision == FenceDecision::TakeOver;
    // A token whose write got no answer may still be written, so use the same one again.
    let unanswered = seen
        .facts
        .next
        .filter(|next| seen.found != Some(*next) && !is_taken_over);
    let token = unanswered.unwrap_or_else(ids::fresh);
    let object = Object {
        installation: app.settings.installation.clone(),
        token,
        database: Some(seen.database.clone()),
        note: "Bakeoff renews this every minute to tell its database from a copy. Leave it alone."
            .to_owned(),
    };
    if is_taken_over {
        tracing::warn!(
            fence = uri,
            "the fence holder is gone; this database takes over, and sweeps before it submits"
        );
    }
    app.store
        .fence_will_be(token, seen.found, is_taken_over.then_some(now))
        .await?;
    // A process that slept in between must not overwrite another database's takeover.
    if !app.renewer.is_trusted().await {
        return Ok(false);
    }
    let body = to_json(&object)?.to_string().into_bytes();
    if let Err(error) = app.place.aws.put_object(uri, body).await {
        tracing::warn!(%error, fence = uri, "renewing the fence failed");
        return Ok(false);
    }
    app.store.fence_is(token, app.clock.now()).await
}

//! The fence: each replica looks at the object outside the database whether it is still this database's, and the watcher's holder
//! renews it. What that means is [`bakeoff_domain::fence`]'s business, and what may be done meanwhile [`crate::fence`]'s.

use bakeoff_domain::fence::{FenceDecision, FenceFacts, RENEW_EVERY, decide};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::app::App;
use crate::fence::Standing;
use crate::ids;
use crate::store::StoreError;

/// Between two looks: while it is ours, and else.
const LOOK_EVERY: TimeDelta = TimeDelta::seconds(30);
const LOOK_AGAIN: TimeDelta = TimeDelta::seconds(5);
/// Object and database are read one after the other, and may be changed in between.
const READS: u32 = 3;

/// The object.
#[derive(Debug, Serialize, Deserialize)]
struct Object {
    installation: String,
    token: Uuid,
    /// For whoever finds it.
    note: String,
}

/// What this process has seen of the fence.
#[derive(Debug, Default)]
pub struct Memory {
    /// The database's token at the first look.
    first: Option<Uuid>,
    stranger: Option<(Uuid, DateTime<Utc>)>,
}

/// One tick; returns how long until the next.
pub async fn tick(app: &App, memory: &mut Memory) -> Result<TimeDelta, StoreError> {
    let Some(uri) = &app.fence.uri else { return Ok(LOOK_EVERY) };
    let now = app.clock.now();
    let Some((facts, decision)) = look(app, uri, memory, now).await? else { return Ok(LOOK_AGAIN) };
    memory.stranger = None;
    match decision {
        FenceDecision::Ours | FenceDecision::Make | FenceDecision::TakeOver => {
            let is_ours = decision == FenceDecision::Ours;
            let is_due = facts.renewed_at.is_none_or(|at| (now - at).abs() >= RENEW_EVERY);
            let mut standing = if is_ours { Standing::Ours } else { Standing::Unsure };
            if (is_due || !is_ours) && app.watcher.is_trusted().await {
                standing = renew(app, uri, decision == FenceDecision::TakeOver).await?.unwrap_or(standing);
            }
            app.fence.set(standing, now);
            Ok(if standing == Standing::Ours { LOOK_EVERY } else { LOOK_AGAIN })
        }
        FenceDecision::Unsure => {
            app.fence.set(Standing::Unsure, now);
            Ok(LOOK_AGAIN)
        }
        FenceDecision::Stranger { token, since } => {
            memory.stranger = Some((token, since));
            tracing::error!(
                fence = uri,
                "another database holds this installation's fence: this one is a copy, and acts on nothing. If it is to live \
                 beside the other, run `bakeoff migrate --new-installation`; a restored backup takes over by itself once the \
                 other is gone"
            );
            app.fence.set(Standing::Stranger, now);
            Ok(LOOK_AGAIN)
        }
    }
}

/// What the object says against what the database knows; `None` when it cannot be read.
async fn look(
    app: &App,
    uri: &str,
    memory: &mut Memory,
    now: DateTime<Utc>,
) -> Result<Option<(FenceFacts, FenceDecision)>, StoreError> {
    let mut seen = None;
    for _ in 0..READS {
        let found = match app.aws.get_object(uri).await {
            Ok(None) => None,
            Ok(Some(body)) => match serde_json::from_slice::<Object>(&body) {
                Ok(object) => Some(object.token),
                Err(error) => {
                    tracing::error!(%error, fence = uri, "the fence holds something that is not ours");
                    return Ok(None);
                }
            },
            Err(error) => {
                tracing::warn!(%error, fence = uri, "the fence could not be read; what it said last counts for two minutes");
                return Ok(None);
            }
        };
        let mut facts = app.store.fence().await?;
        let first = *memory.first.get_or_insert(facts.token.unwrap_or_default());
        facts.has_followed = facts.token.is_some_and(|token| token != first);
        facts.stranger = memory.stranger;
        let decision = decide(&facts, found, now);
        let is_certain = !matches!(decision, FenceDecision::Stranger { .. });
        seen = Some((facts, decision));
        if is_certain {
            break;
        }
    }
    Ok(seen)
}

/// Writes the next token: first where the living database keeps it, then for all to see. `None` when it could not be written.
async fn renew(app: &App, uri: &str, is_taken_over: bool) -> Result<Option<Standing>, StoreError> {
    let token = ids::fresh();
    let object = Object {
        installation: app.settings.installation.clone(),
        token,
        note: "Bakeoff renews this every minute; it tells its database from a copy. Leave it alone.".to_owned(),
    };
    if is_taken_over {
        tracing::warn!(
            fence = uri,
            "the fence's holder is gone: this database takes over, and sweeps before it submits"
        );
    }
    app.store.fence_will_be(token, is_taken_over).await?;
    let body = serde_json::to_vec(&object).unwrap_or_default();
    if let Err(error) = app.aws.put_object(uri, body).await {
        tracing::warn!(%error, fence = uri, "the fence could not be renewed");
        return Ok(None);
    }
    app.store.fence_is(token, app.clock.now()).await?;
    Ok(Some(Standing::Ours))
}

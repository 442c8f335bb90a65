//! What is on its way to webhook endpoints, and every attempt. A delivery is written in the transaction of its event, in
//! [`crate::events`].

use bakeoff_domain::delivery::{DeliveryState, NextTry};
use bakeoff_domain::event::{DisabledWebhook, Event};
use bakeoff_domain::ids::{DeliveryId, ProjectId, WebhookEndpointId};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use super::{EndpointRow, WebhookEndpoint, give_up};
use crate::{Store, StoreError, error, events, retried};

/// Characters of an answer, and of a problem, that are kept.
const ANSWER_MAX: usize = 4096;
const PROBLEM_MAX: usize = 2000;
/// Claims in a row after which no try was made, five minutes each: a day of processes that die.
const LOST_CLAIMS_MAX: i32 = 288;

/// A delivery that is to be tried now.
#[derive(Debug, Clone, Copy)]
pub struct ClaimedDelivery {
    pub id: DeliveryId,
    pub endpoint_id: WebhookEndpointId,
    pub event_id: i64,
    /// Of this claim: a process that was held up neither sends nor writes after another one has begun.
    pub claim: i32,
    /// Of this try, from 1.
    pub number: u32,
    /// The same since the delivery was replayed, or else since the first.
    pub number_since_begun: u32,
}

/// What came of a try.
#[derive(Debug, Clone)]
pub struct NewAttempt {
    pub at: DateTime<Utc>,
    pub status: Option<u16>,
    /// Why there is no answer.
    pub problem: Option<String>,
    pub answer: Option<String>,
    pub milliseconds: Option<u64>,
}

/// One try of a delivery.
#[derive(Debug, Clone)]
pub struct DeliveryAttempt {
    pub number: u32,
    pub attempted_at: DateTime<Utc>,
    pub status: Option<i32>,
    pub problem: Option<String>,
    pub answer: Option<String>,
    pub milliseconds: Option<i64>,
}

/// What is on its way to an endpoint, has arrived, or was given up.
#[derive(Debug, Clone)]
pub struct WebhookDelivery {
    pub id: DeliveryId,
    pub endpoint_id: WebhookEndpointId,
    pub event_id: i64,
    pub kind: String,
    pub state: DeliveryState,
    pub attempts: u32,
    pub created_at: DateTime<Utc>,
    pub due_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
}

struct DeliveryRow {
    id: Uuid,
    endpoint_id: Uuid,
    event_id: i64,
    kind: String,
    state: String,
    attempts: i32,
    created_at: DateTime<Utc>,
    due_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
}

impl TryFrom<DeliveryRow> for WebhookDelivery {
    type Error = StoreError;

    fn try_from(row: DeliveryRow) -> Result<Self, StoreError> {
        const TABLE: &str = "webhook_deliveries";
        let state = DeliveryState::parse(&row.state);
        Ok(Self {
            id: DeliveryId(row.id),
            endpoint_id: WebhookEndpointId(row.endpoint_id),
            event_id: row.event_id,
            kind: row.kind,
            state: state.ok_or_else(|| StoreError::corrupt(TABLE, row.id, "state"))?,
            attempts: error::count(row.attempts, TABLE, row.id, "attempts")?,
            created_at: row.created_at,
            due_at: row.due_at,
            ended_at: row.ended_at,
        })
    }
}

/// In the feed, and to whichever other endpoint there is.
async fn tell_disabled(
    tx: Transaction<'_, Postgres>,
    project: ProjectId,
    disabled: DisabledWebhook,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    tracing::error!(endpoint = %disabled.endpoint_id, disabled.reason, "a webhook endpoint is disabled");
    let event = Event::WebhookDisabled(disabled);
    events::commit_to_project(tx, project, &event, now).await
}

impl Store {
    /// Endpoints that something is due for, in no order.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn endpoints_due(
        &self,
        now: DateTime<Utc>,
    ) -> Result<Vec<WebhookEndpointId>, StoreError> {
        let ids = sqlx::query_scalar!(
            r#"SELECT id FROM webhook_endpoints w
               WHERE EXISTS (SELECT FROM webhook_deliveries d WHERE d.endpoint_id = w.id AND d.due_at <= $1)"#,
            now,
        );
        let ids = ids.fetch_all(&self.pool).await?.into_iter();
        Ok(ids.map(WebhookEndpointId).collect())
    }

    /// Takes deliveries of an endpoint that are due, those that wait longest first, and holds them for a while: a
    /// process that dies leaves them to others, and has used up no try. Those that whole days of claims have come to
    /// nothing for are given up.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_deliveries(
        &self,
        endpoint: WebhookEndpointId,
        now: DateTime<Utc>,
        hold: TimeDelta,
        limit: i64,
    ) -> Result<Vec<ClaimedDelivery>, StoreError> {
        sqlx::query!(
            r#"UPDATE webhook_deliveries SET state = 'failed', due_at = NULL, ended_at = $2
               WHERE endpoint_id = $1 AND due_at <= $2 AND lost_claims >= $3"#,
            endpoint.0,
            now,
            LOST_CLAIMS_MAX,
        )
        .execute(&self.pool)
        .await?;
        let rows = sqlx::query!(
            r#"WITH due AS (
                   SELECT id FROM webhook_deliveries WHERE endpoint_id = $4 AND due_at <= $1
                   ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED)
               UPDATE webhook_deliveries d SET due_at = $2, claims = d.claims + 1, lost_claims = d.lost_claims + 1
               FROM due WHERE d.id = due.id
               RETURNING d.id, d.endpoint_id, d.event_id, d.claims, d.attempts, d.attempts_before"#,
            now,
            now + hold,
            limit,
            endpoint.0,
        )
        .fetch_all(&self.pool)
        .await?;
        let claimed = rows.into_iter().map(|row| {
            let count = |number, column| error::count(number, "webhook_deliveries", row.id, column);
            let number = count(row.attempts, "attempts")? + 1;
            let earlier = count(row.attempts_before, "attempts_before")?;
            Ok(ClaimedDelivery {
                id: DeliveryId(row.id),
                endpoint_id: WebhookEndpointId(row.endpoint_id),
                event_id: row.event_id,
                claim: row.claims,
                number,
                number_since_begun: number.saturating_sub(earlier),
            })
        });
        claimed.collect()
    }

    /// Counts a try, which is made now. False if another process has claimed the delivery meanwhile.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn begin_delivery(&self, delivery: &ClaimedDelivery) -> Result<bool, StoreError> {
        let begun = sqlx::query!(
            r#"UPDATE webhook_deliveries SET attempts = attempts + 1, lost_claims = 0
               WHERE id = $1 AND claims = $2 AND state = 'pending'"#,
            delivery.id.0,
            delivery.claim,
        );
        Ok(begun.execute(&self.pool).await?.rows_affected() == 1)
    }

    /// An endpoint as it is just now; `None` if nothing may be sent to it any more.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn endpoint_to_call(
        &self,
        id: WebhookEndpointId,
    ) -> Result<Option<WebhookEndpoint>, StoreError> {
        let row = sqlx::query_as!(
            EndpointRow,
            r#"SELECT id, url, form, kinds, severities, secret_version, previous_secret_until, failing_since, disabled_at,
                      disabled_reason, created_at, changed_at
               FROM webhook_endpoints WHERE id = $1 AND deleted_at IS NULL AND disabled_at IS NULL"#,
            id.0,
        );
        let row = row.fetch_optional(&self.pool).await?;
        row.map(WebhookEndpoint::try_from).transpose()
    }

    /// Gives up a delivery whose endpoint may not be called any more.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn drop_delivery(
        &self,
        delivery: &ClaimedDelivery,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"UPDATE webhook_deliveries SET state = 'failed', due_at = NULL, ended_at = $2
               WHERE id = $1 AND state = 'pending'"#,
            delivery.id.0,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Writes what came of a try, and what comes next; nothing if the delivery was claimed again meanwhile. `think` is
    /// asked why the endpoint is called no more, with since when nothing has arrived there.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_delivery(
        &self,
        delivery: &ClaimedDelivery,
        tried: &NewAttempt,
        next: NextTry,
        think: impl Fn(Option<DateTime<Utc>>) -> Option<String>,
    ) -> Result<(), StoreError> {
        let think = &think;
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            // Endpoints before deliveries, as whoever disables one does.
            let endpoint = sqlx::query!(
                "SELECT project_id, failing_since, disabled_at FROM webhook_endpoints WHERE id = $1 FOR NO KEY UPDATE",
                delivery.endpoint_id.0,
            )
            .fetch_one(&mut *tx)
            .await?;
            let failing_since = endpoint.failing_since;
            if !insert_attempt(&mut tx, delivery, tried, next).await? {
                return Ok(());
            }
            let has_arrived = next == NextTry::Delivered;
            let given_up = (!has_arrived).then(|| think(failing_since)).flatten();
            let is_known = has_arrived == failing_since.is_none();
            if is_known && given_up.is_none() {
                return Ok(tx.commit().await?);
            }
            sqlx::query!(
                r#"UPDATE webhook_endpoints
                   SET failing_since = CASE WHEN $2 THEN NULL ELSE coalesce(failing_since, $3) END,
                       disabled_at = CASE WHEN $4::text IS NULL THEN disabled_at ELSE coalesce(disabled_at, $3) END,
                       disabled_reason = coalesce(disabled_reason, $4)
                   WHERE id = $1"#,
                delivery.endpoint_id.0,
                has_arrived,
                tried.at,
                given_up,
            )
            .execute(&mut *tx)
            .await?;
            let Some(reason) = given_up else {
                return Ok(tx.commit().await?);
            };
            give_up(&mut tx, delivery.endpoint_id, tried.at).await?;
            if endpoint.disabled_at.is_some() {
                return Ok(tx.commit().await?);
            }
            let disabled = DisabledWebhook {
                endpoint_id: delivery.endpoint_id,
                reason,
            };
            tell_disabled(tx, ProjectId(endpoint.project_id), disabled, tried.at).await
        };
        retried(transaction).await
    }

    /// Forgets deliveries that were over before a moment, with their attempts; returns how many.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn forget_deliveries(
        &self,
        before: DateTime<Utc>,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let forgotten = sqlx::query!(
            r#"WITH over AS (
                   SELECT id FROM webhook_deliveries WHERE ended_at < $1 ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED),
               tries AS (DELETE FROM webhook_attempts a USING over WHERE a.delivery_id = over.id)
               DELETE FROM webhook_deliveries d USING over WHERE d.id = over.id"#,
            before,
            limit,
        );
        Ok(forgotten.execute(&self.pool).await?.rows_affected())
    }

    /// An endpoint's deliveries, those of the newest events first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn webhook_deliveries(
        &self,
        endpoint: WebhookEndpointId,
        state: Option<DeliveryState>,
        before_event: Option<i64>,
        limit: i64,
    ) -> Result<Vec<WebhookDelivery>, StoreError> {
        let rows = sqlx::query_as!(
            DeliveryRow,
            r#"SELECT id, endpoint_id, event_id, kind, state, attempts, created_at, due_at, ended_at FROM webhook_deliveries
               WHERE endpoint_id = $1 AND ($2::text IS NULL OR state = $2) AND ($3::bigint IS NULL OR event_id < $3)
               ORDER BY event_id DESC LIMIT $4"#,
            endpoint.0,
            state.map(DeliveryState::as_str),
            before_event,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(WebhookDelivery::try_from).collect()
    }

    /// A delivery of a project, with its attempts.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn webhook_delivery(
        &self,
        project: ProjectId,
        id: DeliveryId,
    ) -> Result<Option<(WebhookDelivery, Vec<DeliveryAttempt>)>, StoreError> {
        let row = sqlx::query_as!(
            DeliveryRow,
            r#"SELECT d.id, d.endpoint_id, d.event_id, d.kind, d.state, d.attempts, d.created_at, d.due_at, d.ended_at
               FROM webhook_deliveries d JOIN webhook_endpoints w ON w.id = d.endpoint_id
               WHERE d.id = $2 AND w.project_id = $1"#,
            project.0,
            id.0,
        );
        let Some(row) = row.fetch_optional(&self.pool).await? else {
            return Ok(None);
        };
        let rows = sqlx::query!(
            r#"SELECT number, attempted_at, status, problem, answer, milliseconds FROM webhook_attempts
               WHERE delivery_id = $1 ORDER BY number"#,
            id.0,
        );
        let attempts = rows.fetch_all(&self.pool).await?.into_iter().map(|row| {
            Ok(DeliveryAttempt {
                number: error::count(row.number, "webhook_attempts", id.0, "number")?,
                attempted_at: row.attempted_at,
                status: row.status,
                problem: row.problem,
                answer: row.answer,
                milliseconds: row.milliseconds,
            })
        });
        Ok(Some((
            row.try_into()?,
            attempts.collect::<Result<_, StoreError>>()?,
        )))
    }

    /// Sends a delivery again, now and for a day, under its old id. False if its endpoint is disabled or deleted.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn replay_delivery(
        &self,
        id: DeliveryId,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let replayed = sqlx::query!(
            r#"UPDATE webhook_deliveries d
               SET state = 'pending', due_at = $2, begun_at = $2, ended_at = NULL, attempts_before = attempts, lost_claims = 0
               FROM webhook_endpoints w
               WHERE d.id = $1 AND w.id = d.endpoint_id AND w.disabled_at IS NULL AND w.deleted_at IS NULL"#,
            id.0,
            now,
        );
        Ok(replayed.execute(&self.pool).await?.rows_affected() == 1)
    }
}

/// Writes a try, and what comes next; false if the delivery was claimed again meanwhile.
async fn insert_attempt(
    tx: &mut PgConnection,
    delivery: &ClaimedDelivery,
    tried: &NewAttempt,
    next: NextTry,
) -> Result<bool, StoreError> {
    let number = i32::try_from(delivery.number).unwrap_or(i32::MAX);
    let (state, due_at) = match next {
        NextTry::Delivered => (DeliveryState::Delivered, None),
        NextTry::Failed => (DeliveryState::Failed, None),
        NextTry::Again { at } => (DeliveryState::Pending, Some(at)),
    };
    let written = sqlx::query!(
        r#"UPDATE webhook_deliveries
           SET state = $3, due_at = $4, ended_at = CASE WHEN $4::timestamptz IS NULL THEN $5::timestamptz END
           WHERE id = $1 AND claims = $2 AND state = 'pending'"#,
        delivery.id.0,
        delivery.claim,
        state.as_str(),
        due_at,
        tried.at,
    );
    if written.execute(&mut *tx).await?.rows_affected() == 0 {
        return Ok(false);
    }
    let cut = |text: &Option<String>, most: usize| {
        text.as_ref()
            .map(|text| text.chars().take(most).collect::<String>())
    };
    sqlx::query!(
        r#"INSERT INTO webhook_attempts (delivery_id, number, attempted_at, status, problem, answer, milliseconds)
           VALUES ($1, $2, $3, $4, $5, $6, $7)"#,
        delivery.id.0,
        number,
        tried.at,
        tried.status.map(i32::from),
        cut(&tried.problem, PROBLEM_MAX),
        cut(&tried.answer, ANSWER_MAX),
        tried
            .milliseconds
            .map(|took| i64::try_from(took).unwrap_or(i64::MAX)),
    )
    .execute(tx)
    .await?;
    Ok(true)
}

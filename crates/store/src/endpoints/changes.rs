//! Changes of endpoints: what the deployer writes of a claimed one, and what people ask for. Lock order: the
//! experiment, its project, the trial, the endpoint.

use bakeoff_domain::endpoint::{EndpointNews, EndpointState};
use bakeoff_domain::event::Event;
use bakeoff_domain::ids::{EndpointId, JobId, ModelPackageId, PriceId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::{EntryKind, EntryResource};
use bakeoff_domain::sagemaker::endpoint::ModelRequest;
use bakeoff_domain::sagemaker::kind::JobKind;
use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Postgres, Transaction};

use super::Endpoint;
use super::own_budget::{self, Extended, ExtendedEndpoint, Extension};
use crate::account::Account;
use crate::events::{self, EventSubject};
use crate::money::budget;
use crate::money::caps::{Ask, NotReserved};
use crate::money::ledger::{self, Entry};
use crate::pipeline_wake::wake_pipeline;
use crate::{Store, StoreError, retried, stored};

/// What is to be stored of a claimed endpoint.
#[derive(Debug, Clone, Default)]
pub struct EndpointNext {
    /// As before when absent.
    pub state: Option<EndpointState>,
    pub reason: Option<String>,
    /// What serves now.
    pub revision: Option<u32>,
    /// What is to serve; an update that did not work is not wanted any more.
    pub wanted_revision: Option<u32>,
    /// What became of the revision that was wanted.
    pub outcome: Option<String>,
    pub update_sent: bool,
    pub update_forgotten: bool,
    pub test_tries: u32,
    /// It serves for the first time.
    pub in_service: bool,
    pub announced: bool,
    /// Have it deleted, for this reason.
    pub delete: Option<String>,
    /// `None` when it is over.
    pub due_at: Option<DateTime<Utc>>,
}

/// Another model for an endpoint that serves.
#[derive(Debug)]
pub struct NewRevision<'a> {
    pub model: &'a ModelRequest,
    pub model_package_id: Option<ModelPackageId>,
}

impl Store {
    /// Writes what became of a claimed endpoint; false if another one has claimed it since.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_endpoint(
        &self,
        endpoint: &Endpoint,
        next: &EndpointNext,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            lock(&mut tx, endpoint).await?;
            record(tx, endpoint, next, now).await
        };
        retried(transaction).await
    }

    /// Asks for another model in an endpoint that serves; false if it does not, or is being changed. Like each change
    /// that is asked for, it counts up the claims: what the deployer has decided before is not written over it.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn want_revision(
        &self,
        endpoint: &Endpoint,
        new: &NewRevision<'_>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let revision = sqlx::query_scalar!(
            r#"UPDATE endpoints
               SET state = 'updating', reason = NULL, due_at = $2, update_sent_at = NULL, test_tries = 0, claims = claims + 1,
                   wanted_revision = 1 + (SELECT max(revision) FROM endpoint_revisions WHERE endpoint_id = $1)
               WHERE id = $1 AND state = 'in_service' RETURNING wanted_revision"#,
            endpoint.id.0,
            now,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(revision) = revision else {
            return Ok(false);
        };
        sqlx::query!(
            r#"INSERT INTO endpoint_revisions (endpoint_id, revision, model_package_id, model, created_at)
               VALUES ($1, $2, $3, $4, $5)"#,
            endpoint.id.0,
            revision,
            new.model_package_id.map(|id| id.0),
            stored::write(new.model)?,
            now,
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Puts an earlier model back into an endpoint that serves; false if it does not, or is being changed.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn roll_back_to(
        &self,
        endpoint: EndpointId,
        revision: u32,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let wanted = sqlx::query!(
            r#"UPDATE endpoints e
               SET state = 'updating', reason = NULL, due_at = $3, update_sent_at = NULL, test_tries = 0, wanted_revision = $2,
                   claims = claims + 1
               WHERE id = $1 AND state = 'in_service' AND revision <> $2
                 AND EXISTS (SELECT FROM endpoint_revisions r WHERE r.endpoint_id = e.id AND r.revision = $2)"#,
            endpoint.0,
            i32::try_from(revision).unwrap_or(i32::MAX),
            now,
        );
        Ok(wanted.execute(&self.pool).await?.rows_affected() == 1)
    }

    /// Has an endpoint deleted, whatever it is doing; false if it is over.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn delete_endpoint(
        &self,
        endpoint: &Endpoint,
        reason: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let next = EndpointNext {
            state: Some(EndpointState::Deleting),
            reason: Some(reason.to_owned()),
            delete: Some(reason.to_owned()),
            due_at: Some(now),
            ..EndpointNext::default()
        };
        let next = &next;
        // Written over what the deployer holds: a claim counts up, and the older one writes nothing.
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            lock(&mut tx, endpoint).await?;
            let claimed = sqlx::query_scalar!(
                "UPDATE endpoints SET claims = claims + 1 WHERE id = $1 AND ended_at IS NULL RETURNING claims",
                endpoint.id.0,
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(claims) = claimed else {
                return Ok(false);
            };
            let endpoint = Endpoint {
                claims,
                ..endpoint.clone()
            };
            record(tx, &endpoint, next, now).await
        };
        retried(transaction).await
    }

    /// Extends the time to live of an endpoint that serves, and reserves what that may cost.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn extend_endpoint(
        &self,
        endpoint: &Endpoint,
        by: Extension,
        now: DateTime<Utc>,
    ) -> Result<Extended, StoreError> {
        let ask = Ask {
            experiment: endpoint.experiment_id,
            project: endpoint.project_id,
            amount: by.usd,
            at: now,
        };
        let transaction = || async move {
            let now = ask.at;
            let mut tx = self.pool.begin().await?;
            let seconds = i64::from(by.hours) * 3600;
            let job = sqlx::query!(
                r#"UPDATE jobs SET reserved_training_usd = reserved_training_usd + $2
                   WHERE trial_id = $1 AND state = 'running' AND settled_at IS NULL RETURNING id, price_id"#,
                endpoint.trial_id.0,
                by.usd.0,
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(job) = job else {
                return Ok(Extended::NotServing);
            };
            let of = ExtendedEndpoint {
                id: endpoint.id,
                experiment: endpoint.experiment_id,
            };
            if let Some(no) = own_budget::prepare(&mut tx, of, by, now).await? {
                return Ok(no);
            }
            let alarms = match budget::reserve(&mut tx, self.caps, ask).await? {
                Ok(alarms) => alarms,
                Err(why) => return Ok(Extended::NotReserved(why)),
            };
            let account = Account {
                project_id: endpoint.project_id,
                experiment_id: endpoint.experiment_id,
                trial_id: endpoint.trial_id,
                job_id: JobId(job.id),
                price_id: PriceId(job.price_id),
            };
            reserve_more(&mut tx, &account, by.usd, now).await?;
            sqlx::query!(
                "UPDATE trials SET billed_seconds_max = billed_seconds_max + $2 WHERE id = $1",
                endpoint.trial_id.0,
                seconds,
            )
            .execute(&mut *tx)
            .await?;
            if !lives_longer(&mut tx, endpoint, seconds, now).await? {
                return Ok(Extended::Changed);
            }
            events::commit(tx, &alarms, now).await?;
            Ok(Extended::Done)
        };
        let extended = retried(transaction).await?;
        if let Extended::NotReserved(NotReserved::Short(short)) = &extended {
            self.tell_used_up(short, ask).await?;
        }
        Ok(extended)
    }
}

/// Writes it all, and commits.
async fn record(
    mut tx: Transaction<'_, Postgres>,
    endpoint: &Endpoint,
    next: &EndpointNext,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    if let Some(reason) = &next.delete {
        stop(&mut tx, endpoint, reason, now).await?;
    }
    if !write(&mut tx, endpoint, next, now).await? {
        return Ok(false);
    }
    if let Some(outcome) = &next.outcome {
        sqlx::query!(
            r#"UPDATE endpoint_revisions SET outcome = left($3, 4000)
               WHERE endpoint_id = $1 AND revision = $2"#,
            endpoint.id.0,
            i32::try_from(endpoint.wanted_revision).unwrap_or(i32::MAX),
            outcome,
        )
        .execute(&mut *tx)
        .await?;
    }
    let is_news = next.state.is_some_and(|state| state != endpoint.state);
    if is_news {
        wake_pipeline(&mut tx, endpoint.experiment_id, now).await?;
    }
    let told = news(endpoint, next, is_news);
    let subject = EventSubject {
        project: endpoint.project_id,
        experiment: endpoint.experiment_id,
        trial: Some(endpoint.trial_id),
    };
    let told: Vec<_> = told.map(|event| subject.told(event)).into_iter().collect();
    bakeoff_process::crash::point("in_endpoint");
    events::commit(tx, &told, now).await?;
    Ok(true)
}

/// Extends the time to live; false if it does not serve, or has been extended meanwhile. What the deployer has
/// decided on the time before is not written: a claim counts up.
async fn lives_longer(
    tx: &mut PgConnection,
    endpoint: &Endpoint,
    seconds: i64,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let extended = sqlx::query!(
        r#"UPDATE endpoints
           SET time_to_live_seconds = time_to_live_seconds + $2, expires_at = expires_at + make_interval(secs => $2::bigint),
               announced_at = NULL, due_at = least(due_at, $3), claims = claims + 1
           WHERE id = $1 AND state IN ('in_service', 'updating', 'rolling_back') AND time_to_live_seconds = $4"#,
        endpoint.id.0,
        seconds,
        now,
        endpoint.time_to_live.num_seconds(),
    );
    Ok(extended.execute(tx).await?.rows_affected() == 1)
}

/// A further reservation for the same job, beside those before.
async fn reserve_more(
    tx: &mut PgConnection,
    account: &Account,
    usd: Usd,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let before = sqlx::query_scalar!(
        r#"SELECT count(*) AS "before!" FROM ledger WHERE job_id = $1 AND kind = 'reserved' AND component = 'hosting'"#,
        account.job_id.0,
    )
    .fetch_one(&mut *tx)
    .await?;
    let resource = EntryResource::Job;
    let component = resource.instances(JobKind::Endpoint);
    let entry = Entry {
        settlement: i32::try_from(before).unwrap_or(i32::MAX),
        ..Entry::worst_case(EntryKind::Reserved, resource, component, usd)
    };
    ledger::write(tx, account, &entry, now).await
}

/// Requests the stop of its trial, which deletes it.
async fn stop(
    tx: &mut PgConnection,
    endpoint: &Endpoint,
    reason: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"UPDATE trials SET stop_requested_at = coalesce(stop_requested_at, $2), due_at = $2,
                  stop_reason = coalesce(stop_reason, left($3, 1000))
           WHERE id = $1 AND state IN ('queued', 'submitting', 'parked', 'running', 'stopping')"#,
        endpoint.trial_id.0,
        now,
        reason,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
        .execute(tx)
        .await?;
    Ok(())
}

/// The usual order, since the pipeline is woken: the experiment first.
async fn lock(tx: &mut PgConnection, endpoint: &Endpoint) -> Result<(), StoreError> {
    sqlx::query!(
        "SELECT id FROM experiments WHERE id = $1 FOR NO KEY UPDATE",
        endpoint.experiment_id.0,
    )
    .fetch_optional(tx)
    .await?;
    Ok(())
}

async fn write(
    tx: &mut PgConnection,
    endpoint: &Endpoint,
    next: &EndpointNext,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let state = next.state.unwrap_or(endpoint.state);
    let number = |revision: Option<u32>| revision.and_then(|revision| i32::try_from(revision).ok());
    let written = sqlx::query!(
        r#"UPDATE endpoints
           SET state = $3, reason = left($4, 4000), revision = coalesce($5, revision),
               wanted_revision = coalesce($6, wanted_revision), test_tries = $7,
               update_sent_at = CASE WHEN $8 THEN $9 WHEN $10 THEN NULL ELSE update_sent_at END,
               in_service_at = CASE WHEN $11 THEN coalesce(in_service_at, $9) ELSE in_service_at END,
               expires_at = CASE WHEN $11 THEN coalesce(expires_at, least($9 + make_interval(secs => time_to_live_seconds), $14)) ELSE expires_at END,
               announced_at = CASE WHEN $12 THEN $9 ELSE announced_at END, due_at = $13,
               ended_at = CASE WHEN $3 IN ('deleted', 'failed') THEN $9 END
           WHERE id = $1 AND claims = $2"#,
        endpoint.id.0,
        endpoint.claims,
        state.as_str(),
        next.reason,
        number(next.revision),
        number(next.wanted_revision),
        i32::try_from(next.test_tries).unwrap_or(i32::MAX),
        next.update_sent,
        now,
        next.update_forgotten,
        next.in_service,
        next.announced,
        if state.is_over() { None } else { next.due_at },
        endpoint.latest_end,
    );
    Ok(written.execute(tx).await?.rows_affected() == 1)
}

/// What is told of a change.
fn news(endpoint: &Endpoint, next: &EndpointNext, is_news: bool) -> Option<Event> {
    if next.announced {
        return Some(Event::EndpointExpiring(EndpointNews {
            name: endpoint.name.clone(),
            job_name: endpoint.job_name.clone().unwrap_or_default(),
            state: endpoint.state,
            reason: endpoint
                .expires_at
                .map_or_else(String::new, |at| at.to_rfc3339()),
        }));
    }
    is_news.then(|| {
        Event::EndpointChanged(EndpointNews {
            name: endpoint.name.clone(),
            job_name: endpoint.job_name.clone().unwrap_or_default(),
            state: next.state.unwrap_or(endpoint.state),
            reason: next.reason.clone().unwrap_or_default(),
        })
    })
}

//! Events: one feed per project, in order. An event is written as the last act of the transaction
//! whose change it reports; what it says is in [`bakeoff_domain::event`].

use bakeoff_domain::event::{Event, EventSeverity, TrialName};
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Postgres, Transaction};

use crate::account::Account;
use crate::{Store, StoreError, stored};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventSubject {
    pub(crate) project: ProjectId,
    pub(crate) experiment: ExperimentId,
    pub(crate) trial: Option<TrialId>,
}

impl EventSubject {
    /// An event about this subject.
    pub(crate) fn told(self, event: Event) -> NewEvent {
        NewEvent {
            subject: self,
            event,
        }
    }
}

impl From<&Account> for EventSubject {
    fn from(account: &Account) -> Self {
        Self {
            project: account.project_id,
            experiment: account.experiment_id,
            trial: Some(account.trial_id),
        }
    }
}

/// An event to be written.
#[derive(Debug, Clone)]
#[must_use = "an event that is not committed is lost"]
pub(crate) struct NewEvent {
    pub(crate) subject: EventSubject,
    pub(crate) event: Event,
}

/// One entry of a project's feed.
#[derive(Debug, Clone)]
pub struct FeedEntry {
    pub id: i64,
    /// None for an event about a job that belongs to no known experiment.
    pub experiment_id: Option<ExperimentId>,
    pub trial_id: Option<TrialId>,
    pub candidate: Option<String>,
    pub purchase_option: Option<String>,
    pub kind: String,
    pub severity: EventSeverity,
    pub message: String,
    /// None for events from before they had data, and for those of a newer version.
    pub event: Option<Event>,
    pub recorded_at: DateTime<Utc>,
}

/// The part of a project's feed to read.
#[derive(Debug, Clone, Copy)]
pub struct FeedPart {
    pub project_id: ProjectId,
    pub experiment_id: Option<ExperimentId>,
    /// A trial of the experiment.
    pub trial_id: Option<TrialId>,
    pub alarms_only: bool,
}

/// Writes the events and commits. In a project, ids are committed in their order (the feed's lock is
/// held until then), so a reader that continues after the last id it saw misses none. As the last
/// act of a transaction, that lock is held for the shortest time and can never be part of a
/// deadlock.
pub(crate) async fn commit(
    mut tx: Transaction<'_, Postgres>,
    events: &[NewEvent],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    write(&mut tx, events, now).await?;
    tx.commit().await?;
    Ok(())
}

async fn write(
    tx: &mut PgConnection,
    events: &[NewEvent],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let rows: Vec<NewRow<'_>> = events.iter().map(NewRow::from).collect();
    insert(tx, &rows, now).await
}

/// An event as it is stored.
struct NewRow<'a> {
    project: ProjectId,
    experiment: Option<ExperimentId>,
    trial: Option<TrialId>,
    event: &'a Event,
}

impl<'a> From<&'a NewEvent> for NewRow<'a> {
    fn from(new: &'a NewEvent) -> Self {
        Self {
            project: new.subject.project,
            experiment: Some(new.subject.experiment),
            trial: new.subject.trial,
            event: &new.event,
        }
    }
}

/// Writes an event that concerns a project, and none of its experiments, and commits.
pub(crate) async fn commit_to_project(
    mut tx: Transaction<'_, Postgres>,
    project: ProjectId,
    event: &Event,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let row = NewRow {
        project,
        experiment: None,
        trial: None,
        event,
    };
    insert(&mut tx, &[row], now).await?;
    tx.commit().await?;
    Ok(())
}

/// Writes an event that concerns no experiment of this database to the feed of every project that has not heard it, and
/// commits.
pub(crate) async fn commit_to_all_projects(
    mut tx: Transaction<'_, Postgres>,
    event: &Event,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let deaf = sqlx::query_scalar!(
        r#"SELECT id FROM projects p WHERE NOT EXISTS (
               SELECT FROM events e WHERE e.project_id = p.id AND e.experiment_id IS NULL AND e.kind = $1 AND e.data = $2)
           ORDER BY id"#,
        event.kind(),
        stored::write(event)?,
    )
    .fetch_all(&mut *tx)
    .await?;
    let rows: Vec<NewRow<'_>> = deaf
        .into_iter()
        .map(|project| NewRow {
            project: ProjectId(project),
            experiment: None,
            trial: None,
            event,
        })
        .collect();
    insert(&mut tx, &rows, now).await?;
    tx.commit().await?;
    Ok(())
}

async fn insert(
    tx: &mut PgConnection,
    rows: &[NewRow<'_>],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let data = rows.iter().map(|new| stored::write(new.event));
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended(id::text, 1)) FROM (SELECT DISTINCT id FROM UNNEST($1::uuid[]) AS e(id) ORDER BY 1) e",
        &rows.iter().map(|new| new.project.0).collect::<Vec<_>>(),
    )
    .fetch_all(&mut *tx)
    .await?;
    // The order of the ids is that of the list.
    sqlx::query!(
        r#"WITH told AS (
               INSERT INTO events (project_id, experiment_id, trial_id, kind, severity, data, recorded_at)
               SELECT project_id, experiment_id, trial_id, kind, severity, data, $7
               FROM UNNEST($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::jsonb[])
                   WITH ORDINALITY AS e(project_id, experiment_id, trial_id, kind, severity, data, ordinal)
               ORDER BY ordinal
               RETURNING id, project_id, kind, severity)
           -- To whoever hears of them, in the same transaction: no event is told that did not happen, and none is lost.
           INSERT INTO webhook_deliveries (id, endpoint_id, event_id, kind, created_at, begun_at, due_at)
           SELECT gen_random_uuid(), w.id, t.id, t.kind, $7, $7, $7
           FROM told t JOIN webhook_endpoints w ON w.project_id = t.project_id
           WHERE w.deleted_at IS NULL AND w.disabled_at IS NULL AND t.severity = ANY(w.severities)
             AND (cardinality(w.kinds) = 0 OR EXISTS (
                     SELECT FROM UNNEST(w.kinds) k WHERE t.kind = k OR (right(k, 1) = '*' AND starts_with(t.kind, left(k, -1)))))"#,
        &rows.iter().map(|new| new.project.0).collect::<Vec<_>>(),
        &rows.iter().map(|new| new.experiment.map(|id| id.0)).collect::<Vec<_>>() as &[Option<uuid::Uuid>],
        &rows.iter().map(|new| new.trial.map(|trial| trial.0)).collect::<Vec<_>>() as &[Option<uuid::Uuid>],
        &rows.iter().map(|new| new.event.kind().to_owned()).collect::<Vec<_>>(),
        &rows.iter().map(|new| new.event.severity().as_str().to_owned()).collect::<Vec<_>>(),
        &data.collect::<Result<Vec<_>, _>>()?,
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}

impl Store {
    /// Writes an event that reports no change of its own.
    pub(crate) async fn tell(&self, event: NewEvent, now: DateTime<Utc>) -> Result<(), StoreError> {
        commit(self.pool.begin().await?, &[event], now).await
    }

    /// Entries of a feed after the given id, oldest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn events_after(
        &self,
        of: FeedPart,
        after: i64,
        limit: i64,
    ) -> Result<Vec<FeedEntry>, StoreError> {
        // Each part has an index of its own, so that no page grows with the rest of the history.
        let rows = sqlx::query_as!(
            EventRow,
            r#"SELECT e.id AS "id!", e.experiment_id, e.trial_id, e.kind AS "kind!",
                      e.severity AS "severity!", e.message, e.data, e.recorded_at AS "recorded_at!",
                      t.candidate AS "candidate?", t.purchase_option AS "purchase_option?"
               FROM ((SELECT * FROM events WHERE trial_id = $4 AND id > $2 AND (severity = 'alarm' OR NOT $5)
                      ORDER BY id LIMIT $6)
                     UNION ALL
                     (SELECT * FROM events WHERE experiment_id = $3 AND $4::uuid IS NULL AND id > $2
                      AND (severity = 'alarm' OR NOT $5) ORDER BY id LIMIT $6)
                     UNION ALL
                     (SELECT * FROM events WHERE project_id = $1 AND $3::uuid IS NULL AND $4::uuid IS NULL AND id > $2
                      AND severity = 'alarm' AND $5 ORDER BY id LIMIT $6)
                     UNION ALL
                     (SELECT * FROM events WHERE project_id = $1 AND $3::uuid IS NULL AND $4::uuid IS NULL AND id > $2
                      AND NOT $5 ORDER BY id LIMIT $6)) e
               LEFT JOIN trials t ON t.id = e.trial_id
               WHERE e.project_id = $1 ORDER BY e.id"#,
            of.project_id.0,
            after,
            of.experiment_id.map(|id| id.0),
            of.trial_id.map(|id| id.0),
            of.alarms_only,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(FeedEntry::from).collect())
    }

    /// Entries of a feed before the given id, newest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn events_before(
        &self,
        of: FeedPart,
        before: i64,
        limit: i64,
    ) -> Result<Vec<FeedEntry>, StoreError> {
        let rows = sqlx::query_as!(
            EventRow,
            r#"SELECT e.id AS "id!", e.experiment_id, e.trial_id, e.kind AS "kind!",
                      e.severity AS "severity!", e.message, e.data, e.recorded_at AS "recorded_at!",
                      t.candidate AS "candidate?", t.purchase_option AS "purchase_option?"
               FROM ((SELECT * FROM events WHERE trial_id = $4 AND id < $2 AND (severity = 'alarm' OR NOT $5)
                      ORDER BY id DESC LIMIT $6)
                     UNION ALL
                     (SELECT * FROM events WHERE experiment_id = $3 AND $4::uuid IS NULL AND id < $2
                      AND (severity = 'alarm' OR NOT $5) ORDER BY id DESC LIMIT $6)
                     UNION ALL
                     (SELECT * FROM events WHERE project_id = $1 AND $3::uuid IS NULL AND $4::uuid IS NULL AND id < $2
                      AND severity = 'alarm' AND $5 ORDER BY id DESC LIMIT $6)
                     UNION ALL
                     (SELECT * FROM events WHERE project_id = $1 AND $3::uuid IS NULL AND $4::uuid IS NULL AND id < $2
                      AND NOT $5 ORDER BY id DESC LIMIT $6)) e
               LEFT JOIN trials t ON t.id = e.trial_id
               WHERE e.project_id = $1 ORDER BY e.id DESC"#,
            of.project_id.0,
            before,
            of.experiment_id.map(|id| id.0),
            of.trial_id.map(|id| id.0),
            of.alarms_only,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(FeedEntry::from).collect())
    }

    /// An event by its id, with the name of its experiment, if it has one.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn event(&self, id: i64) -> Result<(FeedEntry, Option<String>), StoreError> {
        let row = sqlx::query!(
            r#"SELECT e.id, e.experiment_id, e.trial_id, e.kind, e.severity, e.message, e.data, e.recorded_at,
                      t.candidate AS "candidate?", t.purchase_option AS "purchase_option?", x.name AS "name?"
               FROM events e LEFT JOIN experiments x ON x.id = e.experiment_id LEFT JOIN trials t ON t.id = e.trial_id
               WHERE e.id = $1"#,
            id,
        )
        .fetch_one(&self.pool)
        .await?;
        let entry = EventRow {
            id: row.id,
            experiment_id: row.experiment_id,
            trial_id: row.trial_id,
            candidate: row.candidate,
            purchase_option: row.purchase_option,
            kind: row.kind,
            severity: row.severity,
            message: row.message,
            data: row.data,
            recorded_at: row.recorded_at,
        };
        Ok((entry.into(), row.name))
    }

    /// Whether nothing more is to be expected after the given id: the experiment is over, and its
    /// last event has been read. A project's feed is never over.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn feed_is_over(&self, of: FeedPart, after: i64) -> Result<bool, StoreError> {
        let Some(experiment) = of.experiment_id else {
            return Ok(false);
        };
        Ok(sqlx::query_scalar!(
            r#"SELECT (e.ended_at IS NOT NULL AND NOT EXISTS (
                          SELECT FROM events WHERE experiment_id = e.id AND id > $2
                          AND ($3::uuid IS NULL OR trial_id = $3) AND (severity = 'alarm' OR NOT $4))) AS "over!"
               FROM experiments e WHERE e.id = $1"#,
            experiment.0,
            after,
            of.trial_id.map(|id| id.0),
            of.alarms_only,
        )
        .fetch_optional(&self.pool)
        .await?
        .unwrap_or(true))
    }
}

struct EventRow {
    id: i64,
    experiment_id: Option<uuid::Uuid>,
    trial_id: Option<uuid::Uuid>,
    candidate: Option<String>,
    purchase_option: Option<String>,
    kind: String,
    severity: String,
    /// The sentence of an event from before events had data.
    message: Option<String>,
    data: Option<serde_json::Value>,
    recorded_at: DateTime<Utc>,
}

impl From<EventRow> for FeedEntry {
    fn from(row: EventRow) -> Self {
        let event: Option<Event> = row
            .data
            .and_then(|data| stored::read(data, "events", row.id, "data").ok());
        let trial = row
            .candidate
            .as_deref()
            .zip(row.purchase_option.as_deref())
            .map(|(candidate, purchase_option)| TrialName {
                candidate,
                purchase_option,
            });
        let message = match (&event, row.message) {
            (Some(event), _) => event.message(trial),
            (None, Some(message)) => message,
            (None, None) => format!("{}: written by a newer version of Bakeoff", row.kind),
        };
        Self {
            id: row.id,
            experiment_id: row.experiment_id.map(ExperimentId),
            trial_id: row.trial_id.map(TrialId),
            candidate: row.candidate,
            purchase_option: row.purchase_option,
            kind: row.kind,
            // A severity of a newer version is at least worth a look.
            severity: EventSeverity::parse(&row.severity).unwrap_or(EventSeverity::Warning),
            message,
            event,
            recorded_at: row.recorded_at,
        }
    }
}

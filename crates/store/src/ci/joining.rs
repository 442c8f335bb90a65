//! Which run a delivery belongs to. A commit is measured once, whoever tells of it: a run is found by what runs, and a
//! unique index decides between deliveries that come at the same time. A newer commit of a branch ends earlier runs.

use bakeoff_domain::ids::{CiRunId, ExperimentId, ProjectId, TemplateId};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{Delivery, REF_MAX, git_ref, repositories, runs};
use crate::{Store, StoreError, retried};

/// What a delivery has started before, or another one that tells of the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    pub experiment: ExperimentId,
    /// None of a delivery from before there were runs.
    pub run: Option<CiRunId>,
    /// It was of another commit: a delivery id was used twice.
    pub is_of_another_commit: bool,
    /// By another delivery: the same would run.
    pub is_by_another: bool,
    /// A newer commit has taken the run's place, and the branch has come back from it or from a later one.
    pub is_put_back: bool,
}

/// How a delivery relates to the run it joins.
#[derive(Debug, Clone, Copy)]
pub struct Joining {
    /// Its branch is that of the baseline, to which the run counts from now on.
    pub is_of_baseline: bool,
    /// No commit is known to which the branch came after this one.
    pub is_newest: bool,
}

impl Store {
    /// The run of a delivery, if it was seen before, or of another that tells of the same.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn delivered(
        &self,
        delivery: &Delivery<'_>,
    ) -> Result<Option<Delivered>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT d.experiment_id AS "experiment_id!", d.run_id, coalesce(d.commit_sha <> $4, false) AS "is_of_another_commit!",
                      false AS "is_by_another!", false AS "is_put_back!"
               FROM ci_deliveries d WHERE d.template_id = $1 AND d.delivery_id = $2
               UNION ALL
               SELECT r.experiment_id, r.id, false, true,
                      EXISTS (SELECT FROM ci_runs n WHERE n.template_id = $1 AND n.commit_sha = $6 AND r.superseded_by IS NOT NULL
                              AND (n.id = r.superseded_by OR n.branch = $7 AND n.id > r.id))
               FROM ci_runs r
               WHERE r.template_id = $1 AND r.template_version = $3 AND r.what_runs = $5 AND r.takes_deliveries
               ORDER BY 4 LIMIT 1"#,
            delivery.template.0,
            delivery.id,
            i32::try_from(delivery.template_version).unwrap_or(i32::MAX),
            delivery.trigger.commit,
            delivery.what_runs,
            delivery.trigger.previous,
            branch(delivery),
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.map(|row| Delivered {
            experiment: ExperimentId(row.experiment_id),
            run: row.run_id.map(CiRunId),
            is_of_another_commit: row.is_of_another_commit,
            is_by_another: row.is_by_another,
            is_put_back: row.is_put_back,
        }))
    }

    /// The newest commit of a branch that is known to come after a delivery's: its host has told that the branch was at
    /// the delivery's before. `None` also if the branch was put back to it.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn newer_commit(
        &self,
        delivery: &Delivery<'_>,
    ) -> Result<Option<String>, StoreError> {
        let trigger = delivery.trigger;
        let newer = sqlx::query_scalar!(
            r#"SELECT commit_sha FROM ci_runs
               WHERE template_id = $1 AND branch = $2 AND previous_commit = $3 AND commit_sha IS DISTINCT FROM $4
                 -- What the branch was before is newer than this one: it was put back by several commits.
                 AND NOT EXISTS (SELECT FROM ci_runs p WHERE p.template_id = $1 AND p.branch = $2 AND p.commit_sha = $4
                                 AND p.id > ci_runs.id)
               ORDER BY id DESC LIMIT 1"#,
            delivery.template.0,
            trigger.branch,
            trigger.commit,
            trigger.previous,
        );
        Ok(newer.fetch_optional(&self.pool).await?)
    }

    /// Has a delivery join the run that measures the same.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn join_run(
        &self,
        delivery: &Delivery<'_>,
        run: CiRunId,
        joining: Joining,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            join(&mut tx, delivery, run, joining, now).await?;
            Ok(tx.commit().await?)
        };
        retried(transaction).await
    }
}

async fn join(
    tx: &mut PgConnection,
    delivery: &Delivery<'_>,
    run: CiRunId,
    joining: Joining,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let trigger = delivery.trigger;
    let before = sqlx::query!(
        r#"SELECT experiment_id, branch, previous_commit, superseded_by IS NOT NULL AS "is_superseded!"
           FROM ci_runs WHERE id = $1 FOR NO KEY UPDATE"#,
        run.0,
    )
    .fetch_one(&mut *tx)
    .await?;
    let experiment = ExperimentId(before.experiment_id);
    insert_delivery(tx, delivery, run, experiment, now).await?;
    let is_merged =
        trigger.pull_request.is_none() && delivery.event != bakeoff_domain::ci::Event::PullRequest;
    sqlx::query!(
        r#"UPDATE ci_runs
           SET previous_commit = coalesce(previous_commit, $2), made_at = coalesce(made_at, $8),
               accepted_at = CASE WHEN is_news AND $5 AND accepted_at IS NULL AND verdict IN ('passed', 'inconclusive')
                                  THEN $6 ELSE accepted_at END,
               accepted_by = CASE WHEN is_news AND $5 AND accepted_at IS NULL AND verdict IN ('passed', 'inconclusive')
                                  THEN $7 ELSE accepted_by END,
               other_branches = CASE WHEN is_news THEN array_append(other_branches, $3) ELSE other_branches END
           FROM (SELECT $4 AND $3::text IS NOT NULL AND NOT $3 = ANY (r.other_branches) AND cardinality(r.other_branches) < 20
                        AND (r.branch IS DISTINCT FROM $3 OR r.pull_request IS NOT NULL OR r.event = 'pull_request') AS is_news
                 FROM ci_runs r WHERE r.id = $1) news
           WHERE id = $1"#,
        run.0,
        trigger.previous,
        branch(delivery),
        is_merged,
        joining.is_of_baseline,
        now,
        runs::RULE,
        trigger.made_at,
    )
    .execute(&mut *tx)
    .await?;
    // A script may have been faster than the host, which alone knows the order: then this is its first word.
    let unknown = if before.previous_commit.is_none() {
        UnknownOrder::IsEarlier
    } else {
        UnknownOrder::Stays
    };
    // What ends earlier runs must not be ended itself by what another branch does.
    let is_kept = is_merged || before.branch == branch(delivery);
    if joining.is_newest && is_kept && !before.is_superseded {
        supersede(tx, delivery, run, unknown).await?;
    }
    Ok(())
}

fn branch(delivery: &Delivery<'_>) -> Option<String> {
    let branch = delivery.trigger.branch.as_ref()?;
    Some(branch.chars().take(REF_MAX).collect())
}

/// Writes what a delivery started, in the transaction that starts it. A template that was deleted meanwhile starts
/// nothing: `Missing`.
pub(crate) async fn remember_delivery(
    tx: &mut PgConnection,
    delivery: &Delivery<'_>,
    project: ProjectId,
    experiment: ExperimentId,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let version = i32::try_from(delivery.template_version).unwrap_or(i32::MAX);
    if delivery.is_repeat {
        sqlx::query!(
            r#"UPDATE ci_runs SET takes_deliveries = false
               WHERE template_id = $1 AND template_version = $2 AND what_runs = $3 AND takes_deliveries"#,
            delivery.template.0,
            version,
            delivery.what_runs,
        )
        .execute(&mut *tx)
        .await?;
    }
    runs::insert_run(tx, delivery, project, experiment, now).await?;
    // What is shown beside the commit is the newest run's.
    sqlx::query!(
        r#"UPDATE ci_runs SET repeated_by = $4
           WHERE template_id = $1 AND template_version = $2 AND what_runs = $3 AND id <> $4 AND repeated_by IS NULL"#,
        delivery.template.0,
        version,
        delivery.what_runs,
        delivery.run.0,
    )
    .execute(&mut *tx)
    .await?;
    supersede(tx, delivery, delivery.run, UnknownOrder::IsEarlier).await?;
    repositories::bind(tx, delivery, now).await?;
    let written = insert_delivery(tx, delivery, delivery.run, experiment, now).await?;
    if written == 0 {
        return Err(StoreError::Missing {
            table: super::TABLE,
            id: delivery.template.to_string(),
        });
    }
    Ok(())
}

/// Writes a delivery; returns the number of rows. One that is there already is a conflict, unless it joins.
async fn insert_delivery(
    tx: &mut PgConnection,
    delivery: &Delivery<'_>,
    run: CiRunId,
    experiment: ExperimentId,
    now: DateTime<Utc>,
) -> Result<u64, StoreError> {
    let joins = run != delivery.run;
    if joins && is_known(tx, delivery.template, delivery.id).await? {
        return Ok(0);
    }
    let trigger = delivery.trigger;
    let written = sqlx::query!(
        r#"INSERT INTO ci_deliveries (template_id, delivery_id, experiment_id, received_at, template_version, sender, event,
                                      commit_sha, git_ref, pull_request, run_id)
           SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11
           FROM ci_templates WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE"#,
        delivery.template.0,
        delivery.id,
        experiment.0,
        now,
        i32::try_from(delivery.template_version).unwrap_or(i32::MAX),
        delivery.sender.as_str(),
        delivery.event.as_str(),
        trigger.commit,
        git_ref(trigger),
        trigger
            .pull_request
            .map(|number| i64::try_from(number).unwrap_or(i64::MAX)),
        run.0,
    )
    .execute(tx)
    .await?;
    Ok(written.rows_affected())
}

/// Whether a delivery that joins has been written: of two equal ones the second waits for the run's lock.
async fn is_known(
    tx: &mut PgConnection,
    template: TemplateId,
    delivery: &str,
) -> Result<bool, StoreError> {
    let known = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM ci_deliveries WHERE template_id = $1 AND delivery_id = $2) AS "known!""#,
        template.0,
        delivery,
    );
    Ok(known.fetch_one(tx).await?)
}

/// What becomes of a run that its host has told of without a time: whether its commit came earlier is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnknownOrder {
    /// Its webhook came earlier, and so did its commit.
    IsEarlier,
    /// It goes on.
    Stays,
}

/// Marks the runs that a run of a newer commit of its branch takes the place of; a background task ends them.
/// Only a host tells the order of commits: a script's job may have waited for long. What the branch was before is earlier;
/// of others the time of the commit decides, since a webhook may come long after those of later pushes.
async fn supersede(
    tx: &mut PgConnection,
    delivery: &Delivery<'_>,
    run: CiRunId,
    unknown: UnknownOrder,
) -> Result<(), StoreError> {
    if !delivery.supersedes || delivery.trigger.previous.is_none() {
        return Ok(());
    }
    sqlx::query!(
        r#"WITH earlier AS (
               SELECT id FROM ci_runs
               WHERE template_id = $2 AND branch = $3 AND id <> $1 AND commit_sha <> $4 AND verdict IS NULL
                 AND superseded_by IS NULL AND other_branches = '{}'
                 AND (commit_sha = $5
                      OR CASE WHEN made_at IS NOT NULL THEN coalesce(made_at < $6, false)
                              -- What only a script has told may be later.
                              ELSE $7 AND previous_commit IS NOT NULL END)
               ORDER BY id FOR NO KEY UPDATE)
           UPDATE ci_runs r SET superseded_by = $1 FROM earlier WHERE r.id = earlier.id"#,
        run.0,
        delivery.template.0,
        branch(delivery),
        delivery.trigger.commit,
        delivery.trigger.previous,
        delivery.trigger.made_at,
        unknown == UnknownOrder::IsEarlier,
    )
    .execute(tx)
    .await?;
    Ok(())
}

//! How an experiment's race stood, look by look, as stored. Which looks are kept is decided in
//! [`bakeoff_domain::ranking::looks`].

use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::ranking::looks::{self, Arm, Brief, Keep, LastLook};
use bakeoff_domain::ranking::recommendation::Recommendation;
use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor};

use crate::stored;
use crate::{Store, StoreError};

/// Looks of one experiment that are read at once, the newest ones.
const LOOKS_MAX: i64 = 1000;

/// A look that was kept.
#[derive(Debug, Clone)]
pub struct Look {
    pub looked_at: DateTime<Utc>,
    pub spent_usd: Usd,
    /// By rank.
    pub arms: Vec<Arm>,
}

/// An answer that differed from the one before it.
#[derive(Debug, Clone)]
pub struct FormerAnswer {
    pub looked_at: DateTime<Utc>,
    pub spent_usd: Usd,
    pub answer: Recommendation,
}

impl Store {
    /// Keeps a look at an experiment that runs, if it says something new.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn keep_look(
        &self,
        id: ExperimentId,
        answer: &Recommendation,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let last = last_look(&self.pool, id).await?;
        let keep = looks::keep(last.as_ref(), answer);
        if keep == Keep::Nothing {
            return Ok(());
        }
        let mut tx = self.pool.begin().await?;
        // Whoever concludes it meanwhile writes the last one.
        let running = sqlx::query_scalar!(
            "SELECT id FROM experiments WHERE id = $1 AND state = 'running' FOR NO KEY UPDATE",
            id.0
        );
        if running.fetch_optional(&mut *tx).await?.is_some() {
            write(&mut tx, id, answer, keep, now).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// The newest looks at an experiment, oldest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn looks(&self, id: ExperimentId) -> Result<Vec<Look>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT looked_at, spent_usd, arms FROM race_looks WHERE experiment_id = $1 ORDER BY looked_at DESC LIMIT $2"#,
            id.0,
            LOOKS_MAX,
        )
        .fetch_all(&self.pool)
        .await?;
        let look = rows.into_iter().rev().map(|row| {
            Ok(Look {
                looked_at: row.looked_at,
                spent_usd: Usd(row.spent_usd),
                arms: stored::read(row.arms, "race_looks", id, "arms")?,
            })
        });
        look.collect()
    }

    /// The newest answers of an experiment, each another one than that before it, oldest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn former_answers(
        &self,
        id: ExperimentId,
        limit: i64,
    ) -> Result<Vec<FormerAnswer>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT looked_at, spent_usd, answer AS "answer!" FROM race_looks
               WHERE experiment_id = $1 AND answer IS NOT NULL ORDER BY looked_at DESC LIMIT $2"#,
            id.0,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        let answer = rows.into_iter().rev().map(|row| {
            Ok(FormerAnswer {
                looked_at: row.looked_at,
                spent_usd: Usd(row.spent_usd),
                answer: stored::read(row.answer, "race_looks", id, "answer")?,
            })
        });
        answer.collect()
    }
}

async fn last_look(
    executor: impl PgExecutor<'_>,
    id: ExperimentId,
) -> Result<Option<LastLook>, StoreError> {
    let row = sqlx::query!(
        r#"SELECT answer AS "answer!",
                  (SELECT max(spent_usd) FROM race_looks WHERE experiment_id = $1) AS "spent_usd!"
           FROM race_looks WHERE experiment_id = $1 AND answer IS NOT NULL ORDER BY looked_at DESC LIMIT 1"#,
        id.0
    );
    let Some(row) = row.fetch_optional(executor).await? else {
        return Ok(None);
    };
    Ok(Some(LastLook {
        spent_usd: Usd(row.spent_usd),
        answer: stored::read(row.answer, "race_looks", id, "answer")?,
    }))
}

/// Writes an answer that stands from now on. Where it says nothing new, it takes the place of the one before it, whose
/// figures were less exact. Requires the experiment's lock.
pub(crate) async fn write_standing(
    tx: &mut PgConnection,
    id: ExperimentId,
    answer: &Recommendation,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let last = last_look(&mut *tx, id).await?;
    if looks::keep(last.as_ref(), answer) != Keep::Answer {
        sqlx::query!(
            r#"UPDATE race_looks SET answer = NULL
               WHERE experiment_id = $1 AND looked_at = (SELECT max(looked_at) FROM race_looks WHERE experiment_id = $1
                                                         AND answer IS NOT NULL)"#,
            id.0
        )
        .execute(&mut *tx)
        .await?;
    }
    write(tx, id, answer, Keep::Answer, now).await
}

/// Writes what is kept of a look, and the answer in brief. Requires the experiment's lock.
async fn write(
    tx: &mut PgConnection,
    id: ExperimentId,
    answer: &Recommendation,
    keep: Keep,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let arms: Vec<Arm> = answer.ranked.iter().map(Into::into).collect();
    let whole = (keep == Keep::Answer).then(|| stored::write(answer));
    sqlx::query!(
        r#"INSERT INTO race_looks (experiment_id, looked_at, spent_usd, arms, answer) VALUES ($1, $2, $3, $4, $5)
           ON CONFLICT (experiment_id, looked_at) DO UPDATE
           SET spent_usd = excluded.spent_usd, arms = excluded.arms, answer = coalesce(excluded.answer, race_looks.answer)"#,
        id.0,
        now,
        looks::spent(answer).0,
        stored::write(&arms)?,
        whole.transpose()?,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE experiments SET answer_brief = $2 WHERE id = $1",
        id.0,
        stored::write(&Brief::from(answer))?,
    )
    .execute(tx)
    .await?;
    Ok(())
}

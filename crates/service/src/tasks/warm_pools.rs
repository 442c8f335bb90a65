//! Warm pools whose job is over: claim → look → decide → act → apply, as for trials.
//! [`bakeoff_domain::lifecycle::pool`] decides what to do.

use bakeoff_domain::lifecycle::pool::{self, PoolDecision, PoolFacts, PoolSeen};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::Billing;

use crate::app::App;
use bakeoff_store::StoreError;
use bakeoff_store::jobs::warm_pools::ClaimedPool;

const CLAIM_MAX: i64 = 64;

/// Runs one tick; returns how many pools were worked on.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let claimed = app
        .store
        .claim_due_pools(app.holder(), app.clock.now(), CLAIM_MAX)
        .await?;
    let count = claimed.len();
    for pool in claimed {
        app.pulse.beat();
        if let Err(error) = work(app, &pool).await {
            tracing::warn!(%error, job = pool.job_name, "work on a pool failed; its lease will expire");
        }
    }
    Ok(count)
}

async fn look(app: &App, job_name: &str) -> PoolSeen {
    match app.place.aws.describe(JobKind::Training, job_name).await {
        Ok(job) => job.warm_pool.map_or(PoolSeen::NoPool, PoolSeen::Pool),
        Err(AwsError::NotFound(_)) => PoolSeen::Absent,
        Err(_) => PoolSeen::NoAnswer,
    }
}

async fn work(app: &App, pool: &ClaimedPool) -> Result<(), StoreError> {
    let seen = look(app, &pool.job_name).await;
    let facts = PoolFacts {
        keep_alive_seconds: pool.keep_alive_seconds,
        job_ended_at: pool.job_ended_at,
        is_wanted: pool.is_wanted,
        absent: pool.absent,
    };
    let is_absent = matches!(seen, PoolSeen::NoPool | PoolSeen::Absent);
    let now = app.clock.now();
    let policy = &app.settings.policy;
    match pool::decide(&facts, &seen, now, policy) {
        PoolDecision::LookAgain { at } => app.store.postpone_pool(pool, at, is_absent).await,
        PoolDecision::Terminate => {
            // Also late: a pool that has been reused since cannot be ended by the job that left it.
            if app.fence.may_stop(now)
                && let Err(error) = app.place.aws.end_pool(&pool.job_name).await
            {
                tracing::info!(%error, job = pool.job_name, "ending a pool failed; retrying");
            }
            app.store
                .postpone_pool(pool, now + policy.poll / 2, false)
                .await
        }
        // Just after a job's end, its report is incomplete, also about its pool; and a price that
        // changes meanwhile affects what is settled.
        PoolDecision::Settle { .. } if !pool.is_job_settled => {
            app.store
                .postpone_pool(pool, now + policy.poll, false)
                .await
        }
        PoolDecision::Settle {
            retained_seconds,
            estimated,
        } => app
            .store
            .settle_pool(
                pool,
                Billing {
                    seconds: retained_seconds,
                    estimated,
                },
                now,
            )
            .await
            .map(drop),
    }
}

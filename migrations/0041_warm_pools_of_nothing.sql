-- no-transaction
-- Nobody waits while it is built. What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
-- What was settled at nothing may only not have shown yet.
CREATE INDEX CONCURRENTLY IF NOT EXISTS warm_pools_of_nothing ON warm_pools (job_ended_at)
    WHERE state = 'settled' AND retained_seconds = 0;

-- no-transaction
-- Nobody waits while it is built. What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
CREATE INDEX CONCURRENTLY IF NOT EXISTS experiments_race_due ON experiments (race_due_at)
    WHERE state = 'running' AND race_due_at IS NOT NULL;

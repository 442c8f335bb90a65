-- no-transaction
-- One full run at a time: a second would write to the first one's checkpoints, and cost as much again.
-- What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS experiments_full_run_alive ON experiments (full_run_of)
    WHERE full_run_of IS NOT NULL AND state IN ('running', 'cancelling');

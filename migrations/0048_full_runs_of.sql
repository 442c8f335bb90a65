-- no-transaction
-- The full runs of an experiment, also those that have ended: few rows, and found without reading all experiments.
-- What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
CREATE INDEX CONCURRENTLY IF NOT EXISTS experiments_full_runs_of ON experiments (full_run_of) WHERE full_run_of IS NOT NULL;

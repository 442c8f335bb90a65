-- no-transaction
-- Whether every project has heard of a job that nobody knows, which is asked with each listing.
CREATE INDEX CONCURRENTLY IF NOT EXISTS events_of_no_experiment ON events (project_id, kind) WHERE experiment_id IS NULL;

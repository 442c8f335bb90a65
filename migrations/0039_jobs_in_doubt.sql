-- no-transaction
-- Nobody waits while it is built. What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
-- Attempts whose end nobody told us: their jobs are looked for in listings for a while.
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_in_doubt ON jobs (settled_at) WHERE state = 'never_created' OR billing_estimated;

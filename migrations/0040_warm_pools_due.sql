-- no-transaction
-- Nobody waits while it is built. What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
CREATE INDEX CONCURRENTLY IF NOT EXISTS warm_pools_due ON warm_pools (due_at) WHERE due_at IS NOT NULL;

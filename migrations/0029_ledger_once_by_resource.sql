-- no-transaction
-- Nobody waits while it is built. What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS ledger_once_by_resource ON ledger (attempt_id, kind, component, resource, settlement, line);

-- no-transaction
-- Nobody waits while it is built. When that was interrupted, an invalid index is left: drop it, and start again.
CREATE UNIQUE INDEX CONCURRENTLY ledger_once_by_resource ON ledger (attempt_id, kind, component, resource, settlement, line);

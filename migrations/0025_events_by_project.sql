-- no-transaction
-- Nobody waits while it is built. When that was interrupted, an invalid index is left: drop it, and start again.
CREATE INDEX CONCURRENTLY events_by_project ON events (project_id, id);

-- no-transaction
-- Nobody waits while it is built. What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
CREATE INDEX CONCURRENTLY IF NOT EXISTS events_by_project ON events (project_id, id);

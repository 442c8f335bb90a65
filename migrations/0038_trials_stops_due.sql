-- no-transaction
-- Nobody waits while it is built. What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
-- A person's stop goes before every look.
CREATE INDEX CONCURRENTLY IF NOT EXISTS trials_stops_due ON trials (due_at)
    WHERE stop_requested_at IS NOT NULL AND state IN ('queued', 'submitting', 'parked', 'running', 'stopping');

-- no-transaction
-- Nobody waits while it is built. What an interrupted build has left is dropped before (src/store/schema.rs), or is whole.
CREATE INDEX CONCURRENTLY IF NOT EXISTS experiments_labels ON experiments USING gin (labels);

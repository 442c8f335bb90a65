-- no-transaction
-- Each trial is retried once.
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS trials_retried ON trials (retry_of) WHERE retry_of IS NOT NULL;

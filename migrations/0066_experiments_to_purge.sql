-- no-transaction
CREATE INDEX CONCURRENTLY IF NOT EXISTS experiments_to_purge ON experiments (deleted_at)
    WHERE deleted_at IS NOT NULL AND purged_at IS NULL;

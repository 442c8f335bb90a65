-- Who began an experiment, and how it is found again; trials that are added to one.
ALTER TABLE experiments
    -- The API key, the CI template or the pipeline that began it; none of those from before.
    ADD COLUMN created_by text CHECK (length(created_by) <= 100),
    -- `key=value`, also tags of its jobs.
    ADD COLUMN labels text[] NOT NULL DEFAULT '{}' CHECK (cardinality(labels) <= 40),
    -- Left out of lists.
    ADD COLUMN archived_at timestamptz,
    -- Shown to nobody; what was measured is purged some time later, what was spent stays.
    ADD COLUMN deleted_at timestamptz,
    ADD COLUMN purged_at timestamptz,
    ADD CONSTRAINT experiments_put_away CHECK (ended_at IS NOT NULL OR archived_at IS NULL AND deleted_at IS NULL),
    ADD CONSTRAINT experiments_purged CHECK (purged_at IS NULL OR deleted_at IS NOT NULL);
CREATE INDEX experiments_labels ON experiments USING gin (labels);
CREATE INDEX experiments_to_purge ON experiments (deleted_at) WHERE deleted_at IS NOT NULL AND purged_at IS NULL;

-- The trial that this one does once more; each once.
ALTER TABLE trials ADD COLUMN retry_of uuid UNIQUE REFERENCES trials;

-- Deliveries that are over are forgotten after a while.
CREATE INDEX webhook_deliveries_over ON webhook_deliveries (ended_at) WHERE ended_at IS NOT NULL;

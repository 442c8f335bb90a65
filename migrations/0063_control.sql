-- Who began an experiment, how it is found again, and that it is put away; trials that do another one once more.
ALTER TABLE experiments
    -- The API key, the CI template or the pipeline that began it; none of those from before.
    ADD COLUMN created_by text,
    ADD CONSTRAINT experiments_created_by_check CHECK (length(created_by) <= 100) NOT VALID,
    -- `name=value`, also tags of its jobs.
    ADD COLUMN labels text[] NOT NULL DEFAULT '{}',
    ADD CONSTRAINT experiments_labels_check CHECK (cardinality(labels) <= 40) NOT VALID,
    -- Left out of lists.
    ADD COLUMN archived_at timestamptz,
    -- Shown to nobody; what was measured is purged some time later, what was spent stays.
    ADD COLUMN deleted_at timestamptz,
    ADD COLUMN purged_at timestamptz,
    ADD CONSTRAINT experiments_put_away CHECK (ended_at IS NOT NULL OR archived_at IS NULL AND deleted_at IS NULL) NOT VALID,
    ADD CONSTRAINT experiments_purged CHECK (purged_at IS NULL OR deleted_at IS NOT NULL) NOT VALID;
ALTER TABLE trials
    ADD COLUMN retry_of uuid,
    ADD CONSTRAINT trials_retry_of_fkey FOREIGN KEY (retry_of) REFERENCES trials NOT VALID;

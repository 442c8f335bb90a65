-- The end of an endpoint at AWS: a schedule, with the name of its job, that deletes it without us.
ALTER TABLE endpoints
    -- When, as AWS has confirmed it.
    ADD COLUMN scheduled_end_at timestamptz,
    -- Of which job: each attempt has a schedule of its own.
    ADD COLUMN scheduled_job text,
    -- A change was sent, and its answer is not known.
    ADD COLUMN schedule_in_doubt boolean NOT NULL DEFAULT false,
    -- When AWS was last asked to change it, or asked about it.
    ADD COLUMN schedule_tried_at timestamptz,
    -- Why it is not as it should be.
    ADD COLUMN schedule_trouble text,
    -- Since when AWS refuses it; it is told once.
    ADD COLUMN schedule_refused_at timestamptz,
    ADD CONSTRAINT endpoints_scheduled CHECK ((scheduled_end_at IS NULL) = (scheduled_job IS NULL));

-- A stop that AWS does not accept is an alarm: until it is accepted, the job goes on being billed.
ALTER TABLE jobs
    ADD COLUMN stop_refused_at timestamptz,
    ADD COLUMN stop_refusal_told_at timestamptz;

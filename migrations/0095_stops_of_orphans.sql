-- A stop of an orphaned job that AWS does not accept is an alarm, as that of any other job.
ALTER TABLE orphaned_jobs
    ADD COLUMN stop_refused_at timestamptz,
    ADD COLUMN stop_refusal_told_at timestamptz;

-- Finished steps per second of wall time, once a series is settled: what a run loses to evaluations, checkpoints and
-- stalls. NULL where a series says nothing of steps, and in rows that were settled before.

ALTER TABLE series ADD COLUMN pace jsonb;

-- A pool that was settled, or had no row, and shows again: it is ended and billed, keeps what was booked for it, and nobody may use it.
ALTER TABLE warm_pools
    DROP CONSTRAINT warm_pools_state_check,
    DROP CONSTRAINT warm_pools_check,
    DROP CONSTRAINT warm_pools_check1,
    ADD CONSTRAINT warm_pools_state_check CHECK (state IN ('with_job', 'retained', 'found', 'settled')),
    ADD CONSTRAINT warm_pools_due_check CHECK ((state IN ('retained', 'found')) = (due_at IS NOT NULL)),
    ADD CONSTRAINT warm_pools_settled_check CHECK (state <> 'settled' OR retained_seconds IS NOT NULL);
DROP INDEX warm_pools_due;
CREATE INDEX warm_pools_due ON warm_pools (due_at) WHERE due_at IS NOT NULL;
-- What was settled at nothing may only not have shown yet.
CREATE INDEX warm_pools_of_nothing ON warm_pools (job_ended_at) WHERE state = 'settled' AND retained_seconds = 0;

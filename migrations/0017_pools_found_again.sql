-- A pool that was settled, or had no row, and shows again: it is ended and billed, keeps what was booked for it, and nobody may use it.
LOCK TABLE warm_pools IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE warm_pools
    DROP CONSTRAINT warm_pools_state_check,
    DROP CONSTRAINT warm_pools_check,
    DROP CONSTRAINT warm_pools_check1,
    ADD CONSTRAINT warm_pools_state_check CHECK (state IN ('with_job', 'retained', 'found', 'settled')) NOT VALID,
    ADD CONSTRAINT warm_pools_due_check CHECK ((state IN ('retained', 'found')) = (due_at IS NOT NULL)) NOT VALID,
    ADD CONSTRAINT warm_pools_settled_check CHECK (state <> 'settled' OR retained_seconds IS NOT NULL) NOT VALID;
DROP INDEX warm_pools_due;

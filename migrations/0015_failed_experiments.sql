-- An experiment all of whose trials failed or were refused is failed, not completed.

ALTER TABLE experiments
    DROP CONSTRAINT experiments_state_check,
    DROP CONSTRAINT experiments_check,
    ADD CONSTRAINT experiments_state_check
        CHECK (state IN ('running', 'cancelling', 'completed', 'failed', 'cancelled')),
    ADD CONSTRAINT experiments_check CHECK ((ended_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled')));

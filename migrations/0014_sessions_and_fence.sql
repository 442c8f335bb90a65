-- Holding on when databases fall silent, sweeps are lost, capacity is short, or the database is copied.
LOCK TABLE installation, trials, attempts, warm_pools IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE installation
    -- The account that its jobs are in: the first that was seen.
    ADD COLUMN account text CHECK (account ~ '^[0-9]{12}$'),
    -- An object outside the database that only the living one can follow: the token written last, and the one about to be.
    ADD COLUMN fence_uri text,
    ADD COLUMN fence_token uuid,
    ADD COLUMN fence_next uuid,
    ADD COLUMN fence_renewed_at timestamptz,
    -- Another database was seen to renew the fence: this one is a copy of it, and never takes over by itself.
    ADD COLUMN fence_has_rival boolean NOT NULL DEFAULT false,
    -- Set when the fence was taken over: nothing is submitted before all jobs have been listed, in a sweep that began after this.
    ADD COLUMN sweep_due_since timestamptz;

ALTER TABLE trials
    -- Jobs that found no capacity, and until when that is waited for; empty in rows from before there was a deadline.
    ADD COLUMN no_capacity integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT trials_no_capacity_check CHECK (no_capacity >= 0) NOT VALID,
    ADD COLUMN give_up_at timestamptz;

ALTER TABLE attempts
    -- What SageMaker said of the script's metrics at the end, until the last read has written it as points.
    ADD COLUMN final_metrics jsonb,
    -- A job of our name and marker that no row stood for: this row was made when it was found.
    ADD COLUMN is_recovered boolean NOT NULL DEFAULT false;

ALTER TABLE warm_pools
    ADD COLUMN absent integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT warm_pools_absent_check CHECK (absent >= 0) NOT VALID;

-- An experiment that a change of price could not be applied to: tried again.
CREATE TABLE repricing_failures (
    experiment_id uuid NOT NULL REFERENCES experiments,
    price_id      uuid NOT NULL REFERENCES prices,
    retry_at      timestamptz NOT NULL,
    PRIMARY KEY (experiment_id, price_id)
);

-- Makes the partition of a month, once. One that is there costs no lock but the one that writing to it takes anyway, taken here so
-- that it is not dropped in between.
CREATE OR REPLACE FUNCTION make_samples_partition(month date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    first timestamptz := date_trunc('month', month)::timestamp AT TIME ZONE 'UTC';
    next  timestamptz := (date_trunc('month', month) + interval '1 month')::timestamp AT TIME ZONE 'UTC';
    part  text := 'samples_' || to_char(month, 'YYYY_MM');
BEGIN
    IF to_regclass(part) IS NOT NULL THEN
        BEGIN
            EXECUTE format('LOCK TABLE %I IN ROW EXCLUSIVE MODE', part);
            RETURN;
        EXCEPTION WHEN undefined_table THEN
            NULL;
        END;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('make_samples_partition'));
    IF to_regclass(part) IS NULL THEN
        EXECUTE format('CREATE TABLE %I (LIKE samples INCLUDING ALL)', part);
        EXECUTE format('ALTER TABLE samples ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, first, next);
    END IF;
END $$;

-- Drops months that hold no points any more; one that somebody writes to at this moment is left for another time, and so are all
-- while somebody makes one.
CREATE OR REPLACE FUNCTION drop_empty_samples_partitions(before date) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '200ms' AS $$
DECLARE
    part     regclass;
    is_empty boolean;
    dropped  integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('make_samples_partition')) THEN
        RETURN 0;
    END IF;
    FOR part IN SELECT inhrelid::regclass FROM pg_inherits
                WHERE inhparent = 'samples'::regclass AND inhrelid::regclass::text < 'samples_' || to_char(before, 'YYYY_MM')
    LOOP
        BEGIN
            -- Locked before it is looked at: a point that is being written would be lost.
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', part);
            EXECUTE format('SELECT NOT EXISTS (SELECT FROM %s)', part) INTO is_empty;
            IF is_empty THEN
                EXECUTE format('DROP TABLE %s', part);
                dropped := dropped + 1;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    RETURN dropped;
END $$;

-- Whoever waited for another to make a month's partition still saw none: the catalog cache had been asked before the wait.

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
    BEGIN
        EXECUTE format('CREATE TABLE %I (LIKE samples INCLUDING ALL)', part);
        EXECUTE format('ALTER TABLE samples ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, first, next);
    EXCEPTION WHEN duplicate_table THEN
        -- It has been made meanwhile. Nobody drops it while we have the lock above.
        NULL;
    END;
END $$;

-- What belongs to a region says so: nothing assumes that there is only one. These tables are small, or get a constant default.

DO $$
DECLARE
    -- Where everything was until now.
    own text := coalesce((SELECT region FROM experiments ORDER BY id DESC LIMIT 1), '');
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['leases', 'quotas', 'warm_pools', 'orphaned_jobs', 'aws_calls'] LOOP
        EXECUTE format('ALTER TABLE %I ADD COLUMN region text NOT NULL DEFAULT %L', name, own);
        EXECUTE format('ALTER TABLE %I ALTER COLUMN region DROP DEFAULT', name);
    END LOOP;
END $$;

ALTER TABLE leases
    DROP CONSTRAINT leases_pkey,
    ADD PRIMARY KEY (name, region),
    -- When the last complete sweep began, on the domain clock: all jobs there were listed, and each is accounted for.
    ADD COLUMN swept_at timestamptz;
ALTER TABLE quotas
    DROP CONSTRAINT quotas_pkey,
    ADD PRIMARY KEY (region, instance_type, usage);
ALTER TABLE aws_calls
    DROP CONSTRAINT aws_calls_pkey,
    ADD PRIMARY KEY (hour_at, region, operation);

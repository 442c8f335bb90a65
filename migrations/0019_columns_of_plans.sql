-- What SQL reads of a specification or a plan is a column of its own: nobody checks a JSON path, and a field that was
-- renamed would bill volumes as nothing.
ALTER TABLE experiments ADD COLUMN region text;
UPDATE experiments SET region = coalesce(spec->>'region', '');
ALTER TABLE experiments ALTER COLUMN region SET NOT NULL;

ALTER TABLE trials
    ADD COLUMN region text,
    ADD COLUMN is_price_estimated boolean NOT NULL DEFAULT false,
    -- What its job asks for; nothing of a trial that cannot be run.
    ADD COLUMN volume_gb integer CHECK (volume_gb >= 0),
    ADD COLUMN keep_alive_seconds integer CHECK (keep_alive_seconds > 0),
    ADD COLUMN checkpoint_s3_uri text,
    ADD COLUMN checkpoint_local_path text,
    ADD COLUMN checkpoint_interval_seconds integer CHECK (checkpoint_interval_seconds >= 0),
    ADD COLUMN metrics jsonb NOT NULL DEFAULT '[]',
    -- The longest that one instance of its job is billed; NULL where no worst case says so.
    ADD COLUMN billed_seconds_max bigint CHECK (billed_seconds_max > 0);

UPDATE trials t
SET region = e.region,
    is_price_estimated = coalesce(t.plan->'price'->>'status' = 'estimated', false),
    volume_gb = least(coalesce((t.plan #>> '{request,volume_size_gb}')::bigint, 0), 2147483647),
    keep_alive_seconds = nullif((t.plan #>> '{request,keep_alive_seconds}')::integer, 0),
    checkpoint_s3_uri = t.plan #>> '{request,checkpoint,s3_uri}',
    -- Plans from before these were written mean the usual ones.
    checkpoint_local_path = CASE WHEN t.plan #>> '{request,checkpoint,s3_uri}' IS NOT NULL
        THEN coalesce(t.plan #>> '{request,checkpoint,local_path}', '/opt/ml/checkpoints') END,
    checkpoint_interval_seconds = CASE WHEN t.plan #>> '{request,checkpoint,s3_uri}' IS NOT NULL
        THEN least(coalesce((t.plan #>> '{request,checkpoint,interval_seconds}')::bigint, 1800), 2147483647) END,
    metrics = coalesce(nullif(t.plan #> '{request,metrics}', 'null'), '[]'),
    billed_seconds_max = nullif((t.plan #>> '{worst_case,billed_seconds}')::bigint, 0)
FROM experiments e
WHERE e.id = t.experiment_id;

ALTER TABLE trials
    ALTER COLUMN region SET NOT NULL,
    ALTER COLUMN volume_gb SET NOT NULL,
    ADD CHECK (num_nulls(checkpoint_s3_uri, checkpoint_local_path, checkpoint_interval_seconds) IN (0, 3));

CREATE OR REPLACE FUNCTION awaits_prices(experiment experiments, moment timestamptz) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM prices p
        WHERE p.applied_at IS NULL AND p.effective_from <= moment
          AND (p.project_id IS NULL OR p.project_id = experiment.project_id)
          AND p.region IN (experiment.region, '*')
          AND (p.instance_type IS NULL
               OR EXISTS (SELECT FROM trials t WHERE t.experiment_id = experiment.id AND t.instance_type = p.instance_type)))
$$;

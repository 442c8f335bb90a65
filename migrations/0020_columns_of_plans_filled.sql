-- no-transaction
-- In batches, so that no row is held for long.
DO $$
DECLARE
    last uuid := '00000000-0000-0000-0000-000000000000';
    upto uuid;
BEGIN
    UPDATE experiments SET region = coalesce(spec->>'region', '') WHERE region <> coalesce(spec->>'region', '');
    COMMIT;
    LOOP
        upto := (SELECT id FROM (SELECT id FROM trials WHERE id > last ORDER BY id LIMIT 5000) batch ORDER BY id DESC LIMIT 1);
        EXIT WHEN upto IS NULL;
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
        WHERE e.id = t.experiment_id AND t.id > last AND t.id <= upto;
        COMMIT;
        last := upto;
    END LOOP;
END $$;

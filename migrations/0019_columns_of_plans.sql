-- What SQL reads of a specification or a plan is a column of its own: nobody checks a JSON path, and a field that was
-- renamed would bill volumes as nothing. Constant defaults only, so that no row is rewritten here. Replicas of
-- earlier versions cannot work on this schema, and may not notice it: stop them first.
LOCK TABLE experiments, trials IN SHARE UPDATE EXCLUSIVE MODE;
DO $$
DECLARE
    -- The region that nearly all of them run in; the others are filled in after this.
    usual text := coalesce((SELECT spec->>'region' FROM experiments GROUP BY 1 ORDER BY count(*) DESC LIMIT 1), '');
BEGIN
    EXECUTE format('ALTER TABLE experiments ADD COLUMN region text NOT NULL DEFAULT %L', usual);
    EXECUTE format('ALTER TABLE trials ADD COLUMN region text NOT NULL DEFAULT %L', usual);
END $$;

ALTER TABLE trials
    ADD COLUMN is_price_estimated boolean NOT NULL DEFAULT false,
    -- What its job asks for; nothing of a trial that cannot be run.
    ADD COLUMN volume_gb integer NOT NULL DEFAULT 0,
    ADD COLUMN keep_alive_seconds integer,
    ADD COLUMN checkpoint_s3_uri text,
    ADD COLUMN checkpoint_local_path text,
    ADD COLUMN checkpoint_interval_seconds integer,
    ADD COLUMN metrics jsonb NOT NULL DEFAULT '[]',
    -- The longest that one instance of its job is billed; NULL where no worst case says so.
    ADD COLUMN billed_seconds_max bigint;

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

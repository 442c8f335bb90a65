-- Whether an experiment depends on a price that takes effect and is being applied: what is concluded now might rest on the old one.
CREATE FUNCTION awaits_prices(experiment experiments, moment timestamptz) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM prices p
        WHERE p.applied_at IS NULL AND p.effective_from <= moment
          AND (p.project_id IS NULL OR p.project_id = experiment.project_id)
          AND p.region IN (experiment.spec->>'region', '*')
          AND (p.instance_type IS NULL
               OR EXISTS (SELECT FROM trials t WHERE t.experiment_id = experiment.id AND t.instance_type = p.instance_type)))
$$;

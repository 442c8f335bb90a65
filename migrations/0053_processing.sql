-- Jobs of another kind than training go through the same queue, the same watcher and the same ledger: a processing job is the only
-- trial of an experiment that compares nothing, which holds its budget.
LOCK TABLE experiments, trials, jobs, ledger, orphaned_jobs, quotas, prices IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE experiments
    ADD COLUMN kind text NOT NULL DEFAULT 'comparison',
    ALTER COLUMN workload_id DROP NOT NULL,
    ALTER COLUMN spec DROP NOT NULL,
    ADD CONSTRAINT experiments_kind_check CHECK (kind IN ('comparison', 'step')) NOT VALID,
    -- What compares has a spec; a step's is in its pipeline.
    ADD CONSTRAINT experiments_compare CHECK ((kind = 'comparison') = (spec IS NOT NULL) AND (spec IS NULL) = (workload_id IS NULL)) NOT VALID;
ALTER TABLE trials
    ADD COLUMN job_kind text NOT NULL DEFAULT 'training',
    ADD CONSTRAINT trials_job_kind_check CHECK (job_kind IN ('training', 'processing')) NOT VALID,
    -- Spot and warm pools are training's.
    ADD CONSTRAINT trials_options_of_kind CHECK (job_kind = 'training' OR purchase_option = 'on_demand' AND pool_key IS NULL) NOT VALID;
ALTER TABLE jobs
    DROP CONSTRAINT jobs_trial_trains,
    ADD CONSTRAINT jobs_trial_kind CHECK (trial_id IS NULL OR kind IN ('training', 'processing')) NOT VALID,
    -- What the container of a processing job left behind for people and pipelines.
    ADD COLUMN exit_message text,
    ADD CONSTRAINT jobs_exit_message_check CHECK (length(exit_message) <= 4096) NOT VALID;
ALTER TABLE orphaned_jobs
    ADD COLUMN kind text NOT NULL DEFAULT 'training',
    ADD CONSTRAINT orphaned_jobs_kind_check CHECK (kind IN ('training', 'processing')) NOT VALID;
ALTER TABLE ledger
    DROP CONSTRAINT ledger_component_check,
    DROP CONSTRAINT ledger_component_of_resource,
    ADD CONSTRAINT ledger_component_check CHECK (component IN ('training', 'processing', 'cloudwatch', 'warm_pool', 'storage', 'orphaned_job')) NOT VALID,
    ADD CONSTRAINT ledger_component_of_resource CHECK (CASE WHEN component = 'storage' THEN true
        WHEN component IN ('training', 'processing', 'cloudwatch') THEN resource = 'job' ELSE resource = component END) NOT VALID;
ALTER TABLE quotas
    DROP CONSTRAINT quotas_usage_check,
    ADD CONSTRAINT quotas_usage_check CHECK (usage IN ('on_demand', 'spot', 'warm_pool', 'processing'));
-- What a job counts against, in the words of `quotas.usage`.
CREATE FUNCTION usage_of(job_kind text, purchase_option text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE job_kind WHEN 'training' THEN purchase_option ELSE job_kind END
$$;
ALTER TABLE prices
    DROP CONSTRAINT prices_component_check,
    DROP CONSTRAINT prices_of_a_type,
    ADD CONSTRAINT prices_component_check CHECK (component IN ('training', 'processing', 'storage', 'cloudwatch')),
    ADD CONSTRAINT prices_of_a_type CHECK ((component IN ('training', 'processing')) = (instance_type IS NOT NULL));

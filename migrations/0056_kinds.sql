-- Tuning jobs, batch transform jobs and endpoints go the way of processing jobs: the only trials of an experiment that compares
-- nothing. An endpoint has a row of its own besides, for what can be changed while it runs.
LOCK TABLE trials, jobs, ledger, orphaned_jobs, quotas, prices, pipeline_steps IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE trials
    DROP CONSTRAINT trials_job_kind_check,
    DROP CONSTRAINT trials_options_of_kind,
    ADD CONSTRAINT trials_job_kind_check CHECK (job_kind IN ('training', 'processing', 'tuning', 'transform', 'endpoint')) NOT VALID,
    ADD CONSTRAINT trials_options_of_kind CHECK ((job_kind IN ('training', 'tuning') OR purchase_option = 'on_demand')
        AND (job_kind = 'training' OR pool_key IS NULL)) NOT VALID,
    -- What counts against a quota at once, where it is not `instance_count`: the trials of a tuning job that run together.
    ADD COLUMN quota_instances integer,
    ADD CONSTRAINT trials_quota_instances_check CHECK (quota_instances > 0) NOT VALID;
ALTER TABLE jobs
    DROP CONSTRAINT jobs_trial_kind,
    ADD CONSTRAINT jobs_trial_kind CHECK (trial_id IS NULL OR kind IN ('training', 'processing', 'tuning', 'transform', 'endpoint')) NOT VALID,
    -- The trials of a tuning job as last seen.
    ADD COLUMN tuned jsonb,
    -- When the deletion of an endpoint was last asked for: nobody tells afterwards when it was deleted.
    ADD COLUMN delete_asked_at timestamptz;
ALTER TABLE orphaned_jobs
    DROP CONSTRAINT orphaned_jobs_kind_check,
    ADD CONSTRAINT orphaned_jobs_kind_check CHECK (kind IN ('training', 'processing', 'tuning', 'transform', 'endpoint')) NOT VALID;
ALTER TABLE ledger
    DROP CONSTRAINT ledger_component_check,
    DROP CONSTRAINT ledger_component_of_resource,
    ADD CONSTRAINT ledger_component_check CHECK (component IN ('training', 'processing', 'tuning', 'transform', 'hosting',
        'cloudwatch', 'warm_pool', 'storage', 'orphaned_job')) NOT VALID,
    ADD CONSTRAINT ledger_component_of_resource CHECK (CASE WHEN component = 'storage' THEN true
        WHEN component IN ('training', 'processing', 'tuning', 'transform', 'hosting', 'cloudwatch') THEN resource = 'job'
        ELSE resource = component END) NOT VALID;
ALTER TABLE quotas
    DROP CONSTRAINT quotas_usage_check,
    ADD CONSTRAINT quotas_usage_check CHECK (usage IN ('on_demand', 'spot', 'warm_pool', 'processing', 'transform', 'endpoint'));
CREATE OR REPLACE FUNCTION usage_of(job_kind text, purchase_option text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN job_kind IN ('training', 'tuning') THEN purchase_option ELSE job_kind END
$$;
ALTER TABLE prices
    DROP CONSTRAINT prices_component_check,
    DROP CONSTRAINT prices_of_a_type,
    ADD CONSTRAINT prices_component_check CHECK (component IN ('training', 'processing', 'transform', 'hosting', 'storage', 'cloudwatch')),
    ADD CONSTRAINT prices_of_a_type CHECK ((component IN ('training', 'processing', 'transform', 'hosting')) = (instance_type IS NOT NULL));
ALTER TABLE pipeline_steps
    DROP CONSTRAINT pipeline_steps_kind_check,
    ADD CONSTRAINT pipeline_steps_kind_check CHECK (kind IN ('processing', 'experiment', 'full_run', 'tuning', 'model', 'transform',
        'endpoint')) NOT VALID;

CREATE TABLE endpoints (
    id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    experiment_id uuid NOT NULL UNIQUE REFERENCES experiments ON DELETE CASCADE,
    trial_id uuid NOT NULL UNIQUE REFERENCES trials ON DELETE CASCADE,
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    -- Who asked for it: the name of a key.
    owner text NOT NULL CHECK (length(owner) BETWEEN 1 AND 200),
    region text NOT NULL,
    spec jsonb NOT NULL,
    state text NOT NULL CHECK (state IN ('creating', 'in_service', 'updating', 'rolling_back', 'deleting', 'deleted', 'failed')),
    -- Why it is in this state, or what it waits for.
    reason text CHECK (length(reason) <= 4000),
    -- What serves, and what is to serve.
    revision integer NOT NULL DEFAULT 0 CHECK (revision BETWEEN 0 AND 999),
    wanted_revision integer NOT NULL DEFAULT 0 CHECK (wanted_revision BETWEEN 0 AND 999),
    update_sent_at timestamptz,
    test_tries integer NOT NULL DEFAULT 0 CHECK (test_tries >= 0),
    time_to_live_seconds bigint NOT NULL CHECK (time_to_live_seconds > 0),
    in_service_at timestamptz,
    expires_at timestamptz,
    announced_at timestamptz,
    -- NULL when it is over.
    due_at timestamptz,
    -- Grows with every claim; a writer whose number is out of date changes nothing.
    claims bigint NOT NULL DEFAULT 0 CHECK (claims >= 0),
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    CHECK ((ended_at IS NOT NULL) = (state IN ('deleted', 'failed'))),
    CHECK ((due_at IS NULL) = (ended_at IS NOT NULL)),
    CHECK ((in_service_at IS NULL) = (expires_at IS NULL)),
    CHECK (state NOT IN ('in_service', 'updating', 'rolling_back') OR in_service_at IS NOT NULL)
);
CREATE INDEX endpoints_due ON endpoints (region, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX endpoints_of_project ON endpoints (project_id, id);

CREATE TABLE endpoint_revisions (
    endpoint_id uuid NOT NULL REFERENCES endpoints ON DELETE CASCADE,
    revision integer NOT NULL CHECK (revision BETWEEN 0 AND 999),
    model_package_id uuid REFERENCES model_packages,
    model jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    -- What became of it, once that is known.
    outcome text CHECK (length(outcome) <= 4000),
    PRIMARY KEY (endpoint_id, revision)
);
CREATE INDEX endpoint_revisions_of_package ON endpoint_revisions (model_package_id) WHERE model_package_id IS NOT NULL;

-- Scheduling at scale: parked trials, the queue, leases with terms, quotas, warm pools, stray jobs, our own AWS calls.

ALTER TABLE trials
    DROP CONSTRAINT trials_state_check,
    ADD CONSTRAINT trials_state_check CHECK (state IN
        ('refused', 'queued', 'submitting', 'parked', 'running', 'stopping', 'completed', 'failed', 'stopped')),
    ADD COLUMN priority integer NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
    -- Attempts that came to nothing, and creates that a quota turned down: what bounds retries.
    ADD COLUMN failures integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    ADD COLUMN over_quota integer NOT NULL DEFAULT 0 CHECK (over_quota >= 0),
    -- What a warm pool must match; empty when the trial takes and leaves none.
    ADD COLUMN pool_key text;

-- A claim takes what has an attempt, or is to be stopped; what is queued waits to be admitted.
DROP INDEX trials_due;
CREATE INDEX trials_due ON trials (due_at)
    WHERE state IN ('submitting', 'running', 'stopping') OR (state IN ('queued', 'parked') AND stop_requested_at IS NOT NULL);
CREATE INDEX trials_waiting ON trials (project_id, instance_type, purchase_option, priority DESC, created_at, ordinal)
    WHERE state = 'queued' AND stop_requested_at IS NULL;
CREATE INDEX trials_alive ON trials (instance_type, purchase_option, project_id) INCLUDE (instance_count)
    WHERE state IN ('submitting', 'running', 'stopping');
CREATE INDEX trials_leased ON trials (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX trials_wanting_pool ON trials (pool_key) WHERE state = 'queued' AND pool_key IS NOT NULL;

-- A trial that is over stays over.
CREATE FUNCTION refuse_to_revive() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% cannot become %: it is over', OLD.state, NEW.state USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER trials_stay_over BEFORE UPDATE OF state ON trials FOR EACH ROW
    WHEN (OLD.state IN ('refused', 'completed', 'failed', 'stopped') AND NEW.state <> OLD.state)
    EXECUTE FUNCTION refuse_to_revive();
CREATE TRIGGER attempts_stay_over BEFORE UPDATE OF state ON attempts FOR EACH ROW
    WHEN (OLD.state IN ('completed', 'failed', 'stopped', 'never_created') AND NEW.state <> OLD.state)
    EXECUTE FUNCTION refuse_to_revive();

ALTER TABLE attempts
    -- When we recorded that the job exists, and SageMaker's LastModifiedTime as last seen.
    ADD COLUMN running_at timestamptz,
    ADD COLUMN modified_at timestamptz,
    -- What it asked for has been compared with what it got.
    ADD COLUMN is_compared boolean NOT NULL DEFAULT false,
    -- Checkpoints: the newest object below the prefix, and when to look for a newer one.
    ADD COLUMN checkpoint_at timestamptz,
    ADD COLUMN checkpoint_due_at timestamptz,
    ADD COLUMN checkpoint_alarmed boolean NOT NULL DEFAULT false;
CREATE INDEX attempts_running ON attempts (planned_at) WHERE state = 'running';
CREATE INDEX attempts_checkpoint_due ON attempts (checkpoint_due_at) WHERE checkpoint_due_at IS NOT NULL;
CREATE INDEX attempts_recent ON attempts (settled_at);
UPDATE attempts SET running_at = planned_at WHERE state = 'running';

ALTER TABLE projects ADD COLUMN concurrent_trials_max integer CHECK (concurrent_trials_max > 0);

ALTER TABLE ledger
    DROP CONSTRAINT ledger_component_check,
    ADD CONSTRAINT ledger_component_check CHECK (component IN ('training', 'cloudwatch', 'warm_pool', 'stray'));

-- Work that one replica does for all. The term grows with every new holder and fences late writers.
CREATE TABLE leases (
    name       text PRIMARY KEY,
    owner      text NOT NULL,
    term       bigint NOT NULL CHECK (term > 0),
    -- Real time, the database's clock.
    expires_at timestamptz NOT NULL
);

-- The account's quotas on training instances, and what refusals have taught.
CREATE TABLE quotas (
    instance_type text NOT NULL,
    usage         text NOT NULL CHECK (usage IN ('on_demand', 'spot', 'warm_pool')),
    -- Empty: Service Quotas has not told.
    instances     integer CHECK (instances >= 0),
    read_at       timestamptz,
    -- Set by ResourceLimitExceeded, cleared by the next create that is accepted.
    refused_at    timestamptz,
    held_until    timestamptz,
    PRIMARY KEY (instance_type, usage)
);

-- Instances that a job leaves behind. Reserved with the attempt, settled when SageMaker says how long they were kept.
CREATE TABLE warm_pools (
    attempt_id         uuid PRIMARY KEY REFERENCES attempts,
    project_id         uuid NOT NULL REFERENCES projects,
    experiment_id      uuid NOT NULL REFERENCES experiments,
    trial_id           uuid NOT NULL REFERENCES trials,
    job_name           text NOT NULL,
    instance_type      text NOT NULL,
    instance_count     integer NOT NULL CHECK (instance_count > 0),
    pool_key           text NOT NULL,
    keep_alive_seconds integer NOT NULL CHECK (keep_alive_seconds > 0),
    price_id           uuid NOT NULL REFERENCES prices,
    usd_per_hour       numeric(18, 7) NOT NULL CHECK (usd_per_hour > 0),
    reserved_usd       numeric(18, 6) NOT NULL CHECK (reserved_usd >= 0),
    state              text NOT NULL CHECK (state IN ('with_job', 'retained', 'settled')),
    job_ended_at       timestamptz,
    due_at             timestamptz,
    retained_seconds   bigint CHECK (retained_seconds >= 0),
    -- As of a trial: real time, the database's clock, and a token that fences.
    lease_owner        text,
    lease_expires_at   timestamptz,
    lease_token        bigint NOT NULL DEFAULT 0,
    CHECK ((state = 'retained') = (due_at IS NOT NULL)),
    CHECK ((state = 'settled') = (retained_seconds IS NOT NULL))
);
CREATE INDEX warm_pools_due ON warm_pools (due_at) WHERE state = 'retained';
CREATE INDEX warm_pools_idle ON warm_pools (pool_key) WHERE state = 'retained';
CREATE INDEX warm_pools_by_experiment ON warm_pools (experiment_id) WHERE state <> 'settled';

-- Jobs with our marker that no living attempt stood for: stopped, billed, and reported.
CREATE TABLE stray_jobs (
    job_name   text PRIMARY KEY,
    -- Empty when no row of ours has that name (a restored backup): then there is no budget to bill.
    attempt_id uuid REFERENCES attempts,
    found_at   timestamptz NOT NULL,
    -- Looked at again until its cost is known.
    due_at     timestamptz,
    settled_at timestamptz,
    CHECK ((settled_at IS NULL) = (due_at IS NOT NULL))
);
CREATE INDEX stray_jobs_due ON stray_jobs (due_at) WHERE settled_at IS NULL;

-- Our own calls to AWS, by hour of the domain clock.
CREATE TABLE aws_calls (
    hour_at   timestamptz NOT NULL,
    operation text NOT NULL,
    calls     bigint NOT NULL CHECK (calls >= 0),
    throttled bigint NOT NULL CHECK (throttled >= 0),
    failed    bigint NOT NULL CHECK (failed >= 0),
    -- GetMetricData: metrics requested, which is what it is billed by.
    metrics   bigint NOT NULL CHECK (metrics >= 0),
    PRIMARY KEY (hour_at, operation)
);

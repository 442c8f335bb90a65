-- Experiments, their trials, the trials' attempts. The CHECKs mirror the states in crates/domain/src/attempt.rs.

CREATE TABLE experiments (
    id                  uuid PRIMARY KEY,
    project_id          uuid NOT NULL REFERENCES projects,
    name                text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    workload_id         uuid NOT NULL REFERENCES workloads,
    spec                jsonb NOT NULL,
    findings            jsonb NOT NULL DEFAULT '[]',
    state               text NOT NULL CHECK (state IN ('running', 'cancelling', 'completed', 'cancelled')),
    budget_usd          numeric(18, 6) NOT NULL CHECK (budget_usd > 0),
    reserved_usd        numeric(18, 6) NOT NULL DEFAULT 0 CHECK (reserved_usd >= 0),
    settled_usd         numeric(18, 6) NOT NULL DEFAULT 0 CHECK (settled_usd >= 0),
    -- Set when a settlement exceeded its reservation: nothing new is started.
    paused_reason       text,
    recommendation      jsonb,
    created_at          timestamptz NOT NULL,
    cancel_requested_at timestamptz,
    ended_at            timestamptz,
    CHECK ((ended_at IS NOT NULL) = (state IN ('completed', 'cancelled')))
);
CREATE INDEX experiments_alive ON experiments (id) WHERE state IN ('running', 'cancelling');
CREATE INDEX experiments_by_project ON experiments (project_id, created_at DESC, id DESC);

CREATE TABLE trials (
    id                uuid PRIMARY KEY,
    project_id        uuid NOT NULL REFERENCES projects,
    experiment_id     uuid NOT NULL REFERENCES experiments,
    ordinal           integer NOT NULL CHECK (ordinal >= 0),
    candidate         text NOT NULL,
    instance_type     text NOT NULL,
    instance_count    integer NOT NULL CHECK (instance_count > 0),
    purchase_option   text NOT NULL CHECK (purchase_option IN ('on_demand', 'spot')),
    plan              jsonb NOT NULL,
    -- Of the plan: what each attempt reserves.
    worst_case_training_usd numeric(18, 6) CHECK (worst_case_training_usd > 0),
    worst_case_metrics_usd  numeric(18, 6) CHECK (worst_case_metrics_usd >= 0),
    price_id          uuid REFERENCES prices,
    state             text NOT NULL CHECK (state IN
                          ('refused', 'queued', 'submitting', 'running', 'stopping', 'completed', 'failed', 'stopped')),
    reason            text,
    stop_requested_at timestamptz,
    attempts_made     integer NOT NULL DEFAULT 0 CHECK (attempts_made >= 0),
    -- On the domain clock.
    due_at            timestamptz NOT NULL,
    created_at        timestamptz NOT NULL,
    ended_at          timestamptz,
    -- The lease: real time, the database's clock. The token grows with every claim and fences late writers.
    lease_owner       text,
    lease_expires_at  timestamptz,
    lease_token       bigint NOT NULL DEFAULT 0,
    CONSTRAINT trials_ordinal_key UNIQUE (experiment_id, ordinal),
    CHECK ((lease_owner IS NULL) = (lease_expires_at IS NULL)),
    CHECK ((ended_at IS NOT NULL) = (state IN ('refused', 'completed', 'failed', 'stopped'))),
    CHECK (state = 'refused' OR
           (worst_case_training_usd IS NOT NULL AND worst_case_metrics_usd IS NOT NULL AND price_id IS NOT NULL))
);
-- Only what is still alive: claiming does not grow with history.
CREATE INDEX trials_due ON trials (due_at) WHERE state IN ('queued', 'submitting', 'running', 'stopping');

CREATE TABLE attempts (
    id                uuid PRIMARY KEY,
    project_id        uuid NOT NULL REFERENCES projects,
    experiment_id     uuid NOT NULL REFERENCES experiments,
    trial_id          uuid NOT NULL REFERENCES trials,
    number            integer NOT NULL CHECK (number > 0),
    job_name          text NOT NULL CONSTRAINT attempts_job_name_key UNIQUE CHECK (length(job_name) <= 63),
    state             text NOT NULL CHECK (state IN
                          ('planned', 'running', 'quarantined', 'completed', 'failed', 'stopped', 'never_created')),
    price_id          uuid NOT NULL REFERENCES prices,
    usd_per_hour      numeric(18, 7) NOT NULL CHECK (usd_per_hour > 0),
    -- Held from the transaction that commits the attempt: the job's part until it is settled, the metrics' until the last read.
    reserved_training_usd numeric(18, 6) NOT NULL CHECK (reserved_training_usd > 0),
    reserved_metrics_usd  numeric(18, 6) NOT NULL CHECK (reserved_metrics_usd >= 0),
    quarantine_until  timestamptz,
    absent            integer NOT NULL DEFAULT 0 CHECK (absent >= 0),
    postponed         integer NOT NULL DEFAULT 0 CHECK (postponed >= 0),
    job_status        text,
    secondary_status  text,
    failure_reason    text,
    transitions       jsonb NOT NULL DEFAULT '[]',
    training_seconds  bigint CHECK (training_seconds >= 0),
    billable_seconds  bigint CHECK (billable_seconds >= 0),
    -- True when AWS did not say and the seconds are our own estimate.
    billing_estimated boolean NOT NULL DEFAULT false,
    metrics_requested bigint NOT NULL DEFAULT 0 CHECK (metrics_requested >= 0),
    planned_at        timestamptz NOT NULL,
    started_at        timestamptz,
    ended_at          timestamptz,
    settled_at        timestamptz,
    -- Reading metrics: everything before the cursor has been read once; done when the window after the end has been, too.
    metrics_cursor    timestamptz,
    metrics_due_at    timestamptz,
    CONSTRAINT attempts_number_key UNIQUE (trial_id, number),
    CHECK ((state = 'quarantined') = (quarantine_until IS NOT NULL)),
    CHECK ((settled_at IS NOT NULL) = (state IN ('completed', 'failed', 'stopped', 'never_created')))
);
-- Invariant 1: at most one living attempt of a trial.
CREATE UNIQUE INDEX attempts_one_alive ON attempts (trial_id) WHERE settled_at IS NULL;
CREATE INDEX attempts_metrics_due ON attempts (metrics_due_at) WHERE metrics_due_at IS NOT NULL;
CREATE INDEX attempts_by_experiment ON attempts (experiment_id);

-- Pipelines and their steps. The work of a step is an experiment of its own, with its budget, or a model package; every try has
-- a row in `pipeline_works`, so that what a pipeline has cost is the sum over them.
CREATE TABLE pipelines (
    id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    region text NOT NULL,
    spec jsonb NOT NULL,
    state text NOT NULL CHECK (state IN ('running', 'cancelling', 'completed', 'failed', 'cancelled')),
    budget_usd numeric(18, 6) NOT NULL CHECK (budget_usd > 0),
    -- When the conductor looks at it next; NULL when it is over.
    due_at timestamptz,
    -- Grows with every claim; a conductor whose number is out of date changes nothing.
    claims bigint NOT NULL DEFAULT 0 CHECK (claims >= 0),
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    CHECK ((ended_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled'))),
    CHECK ((due_at IS NULL) = (ended_at IS NOT NULL))
);
CREATE INDEX pipelines_due ON pipelines (region, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX pipelines_of_project ON pipelines (project_id, id);

CREATE TABLE pipeline_steps (
    pipeline_id uuid NOT NULL REFERENCES pipelines ON DELETE CASCADE,
    -- From 0, in the order of the spec.
    place integer NOT NULL CHECK (place >= 0),
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 40),
    kind text NOT NULL CHECK (kind IN ('processing', 'experiment', 'full_run', 'model')),
    state text NOT NULL CHECK (state IN ('waiting', 'running', 'completed', 'failed', 'skipped', 'cancelled')),
    -- Why it ended as it did, or what it waits for.
    reason text CHECK (length(reason) <= 4000),
    -- How often its work was started since the pipeline was last resumed.
    tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    experiment_id uuid REFERENCES experiments,
    model_package_id uuid REFERENCES model_packages,
    -- What later steps may refer to.
    outputs jsonb,
    -- What its result depends on; a later step with the same uses its outputs.
    fingerprint bytea CHECK (length(fingerprint) = 32),
    reused_from uuid REFERENCES pipelines,
    started_at timestamptz,
    ended_at timestamptz,
    PRIMARY KEY (pipeline_id, place),
    UNIQUE (pipeline_id, name),
    CHECK ((state = 'completed') = (outputs IS NOT NULL)),
    CHECK ((ended_at IS NOT NULL) = (state IN ('completed', 'failed', 'skipped', 'cancelled'))),
    CHECK (state <> 'running' OR num_nonnulls(experiment_id, model_package_id) = 1)
);
CREATE INDEX pipeline_steps_alike ON pipeline_steps (fingerprint) WHERE state = 'completed' AND fingerprint IS NOT NULL;
CREATE INDEX pipeline_steps_of_package ON pipeline_steps (model_package_id) WHERE model_package_id IS NOT NULL;

CREATE TABLE pipeline_works (
    experiment_id uuid PRIMARY KEY REFERENCES experiments,
    pipeline_id uuid NOT NULL,
    place integer NOT NULL,
    FOREIGN KEY (pipeline_id, place) REFERENCES pipeline_steps ON DELETE CASCADE
);
CREATE INDEX pipeline_works_of_pipeline ON pipeline_works (pipeline_id, place);

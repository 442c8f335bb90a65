-- Models of trials as versions in SageMaker's Model Registry. The row comes first, then the package: its id is the package's
-- client token and marker, so that a crash or a lost answer leaves one version and not two.

CREATE TABLE model_packages (
    id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    experiment_id uuid NOT NULL REFERENCES experiments ON DELETE CASCADE,
    trial_id uuid NOT NULL REFERENCES trials ON DELETE CASCADE,
    job_id uuid NOT NULL REFERENCES jobs ON DELETE CASCADE,
    region text NOT NULL,
    group_name text NOT NULL CHECK (length(group_name) BETWEEN 1 AND 63),
    request jsonb NOT NULL,
    state text NOT NULL CHECK (state IN ('registering', 'registered', 'failed')),
    -- Why it failed, or what the next try waits for.
    reason text CHECK (length(reason) <= 4000),
    arn text CHECK (arn LIKE 'arn:%'),
    version integer CHECK (version > 0),
    -- As SageMaker last had it, and as somebody wants it.
    approval text NOT NULL CHECK (approval IN ('pending', 'approved', 'rejected')),
    wanted_approval text NOT NULL CHECK (wanted_approval IN ('pending', 'approved', 'rejected')),
    approval_note text CHECK (length(approval_note) <= 1024),
    -- When SageMaker accepted the wanted approval; it is looked at once more, since an earlier call may come later.
    set_at timestamptz,
    -- NULL while there is nothing to do.
    due_at timestamptz,
    -- Grows with every claim; a writer whose number is out of date changes nothing.
    tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    CHECK ((state = 'registered') = (arn IS NOT NULL)),
    CHECK (state <> 'registering' OR due_at IS NOT NULL),
    CHECK (state <> 'failed' OR due_at IS NULL),
    CHECK (state <> 'failed' OR reason IS NOT NULL)
);
-- A job's model is one version of a group, until somebody rejects it. One that failed keeps its row, and with it the client
-- token: what nobody saw created is not created again.
CREATE UNIQUE INDEX model_packages_once ON model_packages (job_id, group_name) WHERE wanted_approval <> 'rejected';
CREATE INDEX model_packages_due ON model_packages (region, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX model_packages_of_project ON model_packages (project_id, id);
CREATE INDEX model_packages_of_experiment ON model_packages (experiment_id);
CREATE INDEX model_packages_of_trial ON model_packages (trial_id);

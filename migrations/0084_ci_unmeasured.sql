-- Deliveries that start nothing although they are of a commit, and what is shown of that beside it.
CREATE TABLE ci_unmeasured (
    id uuid PRIMARY KEY,
    template_id uuid NOT NULL REFERENCES ci_templates,
    -- A delivery that comes again is judged again.
    delivery_id text NOT NULL CHECK (length(delivery_id) BETWEEN 1 AND 255),
    sender text NOT NULL CHECK (sender IN ('bakeoff', 'github', 'gitlab')),
    event text NOT NULL CHECK (event IN ('push', 'pull_request', 'trigger')),
    commit_sha text NOT NULL CHECK (length(commit_sha) BETWEEN 1 AND 64),
    git_ref text CHECK (length(git_ref) <= 250),
    branch text CHECK (length(branch) <= 250),
    pull_request bigint CHECK (pull_request > 0),
    -- A success where the template says so itself, an error where somebody has to do something.
    outcome text NOT NULL CHECK (outcome IN ('ignored', 'refused')),
    reason text NOT NULL CHECK (length(reason) BETWEEN 1 AND 2000),
    received_at timestamptz NOT NULL,
    -- None where nothing is to be shown.
    status text CHECK (status IN ('pending', 'delivered', 'failed')),
    attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    due_at timestamptz,
    claims integer NOT NULL DEFAULT 0 CHECK (claims >= 0),
    held_until timestamptz,
    told_at timestamptz,
    problem text CHECK (length(problem) <= 2000),
    UNIQUE (template_id, delivery_id),
    CHECK ((due_at IS NOT NULL) = (status IS NOT NULL AND status = 'pending'))
);
CREATE INDEX ci_unmeasured_due ON ci_unmeasured (template_id, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX ci_unmeasured_of_template ON ci_unmeasured (template_id, id);
CREATE INDEX ci_unmeasured_received ON ci_unmeasured (received_at);

-- The repository whose webhooks a template takes: that of the first one, at each host.
CREATE TABLE ci_repositories (
    template_id uuid NOT NULL REFERENCES ci_templates,
    host text NOT NULL CHECK (host IN ('github', 'gitlab')),
    -- The host's number, which outlives a new name.
    repository_id bigint NOT NULL,
    name text NOT NULL CHECK (length(name) <= 300),
    bound_at timestamptz NOT NULL,
    PRIMARY KEY (template_id, host)
);

ALTER TABLE ci_status_targets ADD COLUMN gate_only boolean NOT NULL DEFAULT false;

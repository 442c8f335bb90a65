-- Whom a template's runs are told to. Credentials are encrypted with a key that is derived from the installation's.
CREATE TABLE ci_status_targets (
    template_id uuid PRIMARY KEY REFERENCES ci_templates,
    host text NOT NULL CHECK (host IN ('github', 'gitlab')),
    api_url text NOT NULL CHECK (length(api_url) BETWEEN 1 AND 2000),
    repository text NOT NULL CHECK (length(repository) BETWEEN 1 AND 300),
    context text NOT NULL CHECK (length(context) BETWEEN 1 AND 255),
    is_app boolean NOT NULL,
    comments boolean NOT NULL,
    sealed_credentials bytea NOT NULL CHECK (length(sealed_credentials) <= 100000),
    credentials_set_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL
);

-- What is shown of a run beside its commit. A row is written in the transaction of what is to be shown.
CREATE TABLE ci_statuses (
    run_id uuid PRIMARY KEY REFERENCES ci_runs,
    -- Grows with each change of the run that is to be shown.
    revision integer NOT NULL DEFAULT 1 CHECK (revision >= 1),
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'failed')),
    -- Of this revision.
    attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    due_at timestamptz,
    -- Claims, of all revisions: a sender that was held up writes nothing after another has begun.
    claims integer NOT NULL DEFAULT 0 CHECK (claims >= 0),
    held_until timestamptz,
    -- The number of GitHub's check run, or of GitLab's pipeline.
    shown_as bigint,
    -- The merge request that another event has told of.
    pull_request bigint CHECK (pull_request > 0),
    told_at timestamptz,
    problem text CHECK (length(problem) <= 2000),
    CHECK ((state = 'pending') = (due_at IS NOT NULL))
);
CREATE INDEX ci_statuses_due ON ci_statuses (due_at) WHERE due_at IS NOT NULL;

-- Projects, API keys, and the installation's own name (part of every SageMaker job name).

CREATE TABLE installation (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    id        text NOT NULL CHECK (id ~ '^[0-9a-f]{8}$')
);
INSERT INTO installation (id) VALUES (substr(replace(gen_random_uuid()::text, '-', ''), 1, 8));

CREATE TABLE projects (
    id           uuid PRIMARY KEY,
    name         text NOT NULL CONSTRAINT projects_name_key UNIQUE CHECK (length(name) BETWEEN 1 AND 100),
    -- A hard cap over all experiments; none when empty.
    budget_usd   numeric(18, 6) CHECK (budget_usd > 0),
    -- Running totals, kept in the transactions that reserve and settle: no sum over history.
    reserved_usd numeric(18, 6) NOT NULL DEFAULT 0 CHECK (reserved_usd >= 0),
    settled_usd  numeric(18, 6) NOT NULL DEFAULT 0 CHECK (settled_usd >= 0),
    created_at   timestamptz NOT NULL
);

CREATE TABLE api_keys (
    id            uuid PRIMARY KEY,
    project_id    uuid NOT NULL REFERENCES projects,
    name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    role          text NOT NULL CHECK (role IN ('viewer', 'editor', 'admin')),
    -- Only a hash: the secret is shown once, when the key is made.
    secret_sha256 bytea NOT NULL CHECK (length(secret_sha256) = 32),
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz,
    revoked_at    timestamptz
);

-- Versioned workloads and instance profiles, and effective-dated prices. Nothing here is ever overwritten.

CREATE TABLE workloads (
    id         uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    version    integer NOT NULL CHECK (version > 0),
    spec       jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT workloads_version_key UNIQUE (project_id, name, version)
);

CREATE TABLE instance_profiles (
    id            uuid PRIMARY KEY,
    project_id    uuid NOT NULL REFERENCES projects,
    name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    version       integer NOT NULL CHECK (version > 0),
    instance_type text NOT NULL,
    spec          jsonb NOT NULL,
    created_at    timestamptz NOT NULL,
    CONSTRAINT instance_profiles_version_key UNIQUE (project_id, name, version)
);

CREATE TABLE prices (
    id               uuid PRIMARY KEY,
    -- Empty: a price of the shipped catalog, seen by every project.
    project_id       uuid REFERENCES projects,
    component        text NOT NULL CHECK (component IN ('training')),
    region           text NOT NULL,
    instance_type    text NOT NULL,
    usd_per_hour     numeric(18, 7) NOT NULL CHECK (usd_per_hour > 0),
    usd_per_hour_max numeric(18, 7) CHECK (usd_per_hour_max >= usd_per_hour),
    effective_from   timestamptz NOT NULL,
    source           text NOT NULL CHECK (length(source) BETWEEN 1 AND 200),
    status           text NOT NULL CHECK (status IN ('listed', 'negotiated', 'assumed_same_as', 'unverified', 'estimated')),
    note             text NOT NULL DEFAULT '',
    created_at       timestamptz NOT NULL,
    CHECK (status = 'estimated' OR usd_per_hour_max IS NULL),
    CHECK (status <> 'negotiated' OR project_id IS NOT NULL)
);
CREATE UNIQUE INDEX prices_natural_key ON prices
    (coalesce(project_id, '00000000-0000-0000-0000-000000000000'), component, region, instance_type, effective_from, source);
CREATE INDEX prices_lookup ON prices (instance_type, region, effective_from);

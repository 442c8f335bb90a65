-- Requests that must count once: idempotency keys, CI templates and their deliveries.

CREATE TABLE idempotency_keys (
    project_id  uuid NOT NULL REFERENCES projects,
    key         text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    -- SHA-256 over method, path and body.
    fingerprint bytea NOT NULL CHECK (length(fingerprint) = 32),
    status      smallint NOT NULL,
    body        jsonb NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, key)
);

CREATE TABLE ci_templates (
    id         uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    spec       jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT ci_templates_name_key UNIQUE (project_id, name)
);

CREATE TABLE ci_deliveries (
    template_id   uuid NOT NULL REFERENCES ci_templates,
    delivery_id   text NOT NULL CHECK (length(delivery_id) BETWEEN 1 AND 255),
    experiment_id uuid NOT NULL REFERENCES experiments,
    received_at   timestamptz NOT NULL,
    PRIMARY KEY (template_id, delivery_id)
);

-- Webhooks that go out: who hears of which events, what is on its way, and every attempt to bring it there.
CREATE TABLE webhook_endpoints (
    id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    url text NOT NULL CHECK (length(url) BETWEEN 1 AND 2000),
    form text NOT NULL CHECK (form IN ('standard', 'slack')),
    -- Kinds of events, or `trial.*`; all when empty.
    kinds text[] NOT NULL CHECK (cardinality(kinds) <= 50),
    -- Severities that are told.
    severities text[] NOT NULL CHECK (severities <@ ARRAY['info', 'warning', 'alarm']),
    secret_version integer NOT NULL DEFAULT 1 CHECK (secret_version >= 1),
    previous_secret_until timestamptz,
    -- Since when nothing has arrived.
    failing_since timestamptz,
    disabled_at timestamptz,
    disabled_reason text CHECK (length(disabled_reason) <= 500),
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    deleted_at timestamptz,
    CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL))
);
CREATE INDEX webhook_endpoints_of_project ON webhook_endpoints (project_id) WHERE deleted_at IS NULL;

-- Written in the transaction of the event: neither is there without the other.
CREATE TABLE webhook_deliveries (
    id uuid PRIMARY KEY,
    endpoint_id uuid NOT NULL REFERENCES webhook_endpoints,
    event_id bigint NOT NULL REFERENCES events,
    kind text NOT NULL,
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'failed')),
    attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    created_at timestamptz NOT NULL,
    -- Retries are counted from then: its creation, or when it was replayed.
    begun_at timestamptz NOT NULL,
    due_at timestamptz,
    ended_at timestamptz,
    CHECK ((state = 'pending') = (due_at IS NOT NULL) AND (state = 'pending') = (ended_at IS NULL))
);
CREATE UNIQUE INDEX webhook_deliveries_once ON webhook_deliveries (endpoint_id, event_id);
-- What is due, endpoint by endpoint: one that answers slowly must not hold up the others.
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhook_deliveries_in_state ON webhook_deliveries (endpoint_id, state, event_id);

CREATE TABLE webhook_attempts (
    delivery_id uuid NOT NULL REFERENCES webhook_deliveries,
    number integer NOT NULL CHECK (number >= 1),
    attempted_at timestamptz NOT NULL,
    -- Of the answer; without one, `problem` says why.
    status integer,
    problem text CHECK (length(problem) <= 2000),
    answer text CHECK (length(answer) <= 4096),
    milliseconds bigint,
    PRIMARY KEY (delivery_id, number),
    CHECK ((status IS NULL) = (problem IS NOT NULL))
);

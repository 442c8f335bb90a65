-- A person's login in a browser: a key exchanged for a cookie, of which only a hash is kept. Real time, as keys' expiry is.
CREATE TABLE sessions (
    token_sha256 bytea PRIMARY KEY CHECK (length(token_sha256) = 32),
    key_id       uuid NOT NULL REFERENCES api_keys,
    created_at   timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    ends_at      timestamptz NOT NULL,
    CHECK (created_at <= last_seen_at AND created_at < ends_at)
);

CREATE INDEX sessions_by_key ON sessions (key_id, created_at);
CREATE INDEX sessions_by_end ON sessions (ends_at);

-- A link that logs a person in once: `bakeoff` prints one where it has just made a key. Only a hash of its token is kept.
CREATE TABLE login_links (
    token_sha256 bytea PRIMARY KEY CHECK (length(token_sha256) = 32),
    key_id       uuid NOT NULL REFERENCES api_keys,
    ends_at      timestamptz NOT NULL
);

CREATE INDEX login_links_by_end ON login_links (ends_at);

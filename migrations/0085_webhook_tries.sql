-- A try counts when it is made. A claim has a number of its own: a process that dies between the two uses up none.
ALTER TABLE webhook_deliveries
    ADD COLUMN claims integer NOT NULL DEFAULT 0,
    -- Claims in a row that came to no try.
    ADD COLUMN lost_claims integer NOT NULL DEFAULT 0,
    -- Tries before it was replayed.
    ADD COLUMN attempts_before integer NOT NULL DEFAULT 0;
UPDATE webhook_deliveries d
SET attempts_before = (SELECT count(*) FROM webhook_attempts a WHERE a.delivery_id = d.id AND a.attempted_at < d.begun_at)
WHERE due_at IS NOT NULL AND begun_at > created_at;
ALTER TABLE ci_statuses
    -- The same of a commit status.
    ADD COLUMN lost_claims integer NOT NULL DEFAULT 0;

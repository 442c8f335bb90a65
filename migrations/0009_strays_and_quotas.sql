-- What is known of a stray job when nobody will say what it cost; quotas that somebody says have changed.

ALTER TABLE stray_jobs
    -- When SageMaker last described it: an estimate bills up to here.
    ADD COLUMN last_seen_at   timestamptz,
    -- Booked already, by its attempt or by an earlier settlement: only what goes beyond is booked again.
    ADD COLUMN billed_seconds bigint NOT NULL DEFAULT 0 CHECK (billed_seconds >= 0);
UPDATE stray_jobs s SET last_seen_at = found_at,
    billed_seconds = coalesce((SELECT billable_seconds FROM attempts a WHERE a.id = s.attempt_id), 0);
ALTER TABLE stray_jobs ALTER COLUMN last_seen_at SET NOT NULL;

-- A stray that was thought to be over and runs after all is settled again, for what came on top.
ALTER TABLE stray_jobs ADD COLUMN settlements integer NOT NULL DEFAULT 0 CHECK (settlements >= 0);
ALTER TABLE ledger
    ADD COLUMN part integer NOT NULL DEFAULT 0 CHECK (part = 0 OR component = 'stray'),
    DROP CONSTRAINT ledger_once,
    ADD CONSTRAINT ledger_once UNIQUE (attempt_id, kind, component, part);

-- Somebody resumed an experiment: a quota may have been raised since it was read. Cleared when it is read again.
ALTER TABLE quotas ADD COLUMN is_doubted boolean NOT NULL DEFAULT false;

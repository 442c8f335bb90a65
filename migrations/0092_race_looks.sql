-- How the race of an experiment stood, look by look, with what had been spent by then; and the answer of an experiment in
-- brief, for lists. Experiments that are compared in full are looked at, too.
CREATE TABLE race_looks (
    experiment_id uuid NOT NULL REFERENCES experiments,
    looked_at     timestamptz NOT NULL,
    spent_usd     numeric NOT NULL CHECK (spent_usd >= 0),
    arms          jsonb NOT NULL,
    -- The whole answer, where it is another one than that of the look before.
    answer        jsonb,
    PRIMARY KEY (experiment_id, looked_at)
);

CREATE INDEX race_looks_with_answer ON race_looks (experiment_id, looked_at) WHERE answer IS NOT NULL;

ALTER TABLE experiments ADD COLUMN answer_brief jsonb;

UPDATE experiments SET race_due_at = created_at
WHERE state = 'running' AND kind = 'comparison' AND race_due_at IS NULL;

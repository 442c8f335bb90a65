-- Money: what is reserved, accrued, released and settled for each attempt. Decimal USD; every row names its price.

CREATE TABLE ledger (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id    uuid NOT NULL REFERENCES projects,
    experiment_id uuid NOT NULL REFERENCES experiments,
    trial_id      uuid NOT NULL REFERENCES trials,
    attempt_id    uuid NOT NULL REFERENCES attempts,
    -- reserved and released bound the budget; accrued is an estimate of a running job, replaced as it grows; settled is final.
    kind          text NOT NULL CHECK (kind IN ('reserved', 'released', 'accrued', 'settled')),
    component     text NOT NULL CHECK (component IN ('training', 'cloudwatch')),
    usd           numeric(18, 6) NOT NULL CHECK (usd >= 0),
    quantity      bigint NOT NULL CHECK (quantity >= 0),
    unit          text NOT NULL CHECK (unit IN ('instance_seconds', 'metrics_requested', 'worst_case')),
    price_id      uuid REFERENCES prices,
    estimated     boolean NOT NULL,
    recorded_at   timestamptz NOT NULL,
    -- Each happens once for an attempt: a repeated settlement changes nothing.
    CONSTRAINT ledger_once UNIQUE (attempt_id, kind, component)
);
CREATE INDEX ledger_by_experiment ON ledger (experiment_id, id);

-- Shares of caps that were reached: each told once per cap, amount and period.
CREATE TABLE budget_alarms (
    -- The project, the template, or the nil id for the installation.
    owner_id uuid NOT NULL,
    level text NOT NULL CHECK (length(level) <= 40),
    -- The first day of its month or day; 1970-01-01 of a total.
    period date NOT NULL,
    limit_usd numeric(18, 6) NOT NULL CHECK (limit_usd >= 0),
    percent integer NOT NULL CHECK (percent IN (50, 80, 100)),
    used_usd numeric(18, 6) NOT NULL,
    recorded_at timestamptz NOT NULL,
    PRIMARY KEY (owner_id, level, period, limit_usd, percent)
);

-- What a CI template may spend and have under way, whoever holds its secret. Templates from before get the caps of one
-- that states none: ten runs at once, ten times its experiment's budget a day, and a hundred times a month.
ALTER TABLE ci_templates
    ADD COLUMN runs_at_once integer NOT NULL DEFAULT 10 CHECK (runs_at_once > 0),
    ADD COLUMN usd_per_day numeric(18, 6) NOT NULL DEFAULT 0 CHECK (usd_per_day >= 0),
    ADD COLUMN usd_per_month numeric(18, 6) NOT NULL DEFAULT 0 CHECK (usd_per_month >= 0),
    -- Running totals of the rounds that count: those begun since.
    ADD COLUMN reserved_usd numeric(18, 6) NOT NULL DEFAULT 0 CHECK (reserved_usd >= 0),
    ADD COLUMN day date,
    ADD COLUMN day_settled_usd numeric(18, 6) NOT NULL DEFAULT 0 CHECK (day_settled_usd >= 0),
    ADD COLUMN month date CHECK (extract(day FROM month) = 1),
    ADD COLUMN month_settled_usd numeric(18, 6) NOT NULL DEFAULT 0 CHECK (month_settled_usd >= 0);
UPDATE ci_templates t
SET usd_per_day = least((v.spec->>'budget_usd')::numeric * 10, 1000000000),
    usd_per_month = least((v.spec->>'budget_usd')::numeric * 100, 1000000000)
FROM ci_template_versions v WHERE v.template_id = t.id AND v.version = t.version;
ALTER TABLE ci_rounds
    -- Whether its money counts towards its template: rounds from before were never counted.
    ADD COLUMN is_counted boolean NOT NULL DEFAULT false,
    -- Of its first reservation.
    ADD COLUMN began_at timestamptz;
CREATE INDEX ci_runs_of_template_open ON ci_runs (template_id) WHERE verdict IS NULL;

-- Prices of more than instance-hours, what AWS lists with the day it was last seen, and what a change of price did to whom.

ALTER TABLE prices RENAME COLUMN usd_per_hour TO usd;
ALTER TABLE prices RENAME COLUMN usd_per_hour_max TO usd_max;
ALTER TABLE prices
    DROP CONSTRAINT prices_component_check,
    -- Of training per instance-hour, of storage per GB-month, of CloudWatch per 1,000 metrics requested.
    ADD CONSTRAINT prices_component_check CHECK (component IN ('training', 'storage', 'cloudwatch')),
    ALTER COLUMN instance_type DROP NOT NULL,
    ADD CONSTRAINT prices_of_a_type CHECK ((component = 'training') = (instance_type IS NOT NULL)),
    -- When the source was last seen to say so.
    ADD COLUMN confirmed_at timestamptz,
    -- When what depends on it had been worked out anew; empty until its day has come.
    ADD COLUMN applied_at timestamptz;
UPDATE prices SET confirmed_at = CASE status WHEN 'negotiated' THEN created_at ELSE effective_from END, 
    applied_at = CASE WHEN effective_from <= now() THEN created_at END;
ALTER TABLE prices ALTER COLUMN confirmed_at SET NOT NULL;
DROP INDEX prices_natural_key;
-- AWS may correct itself for the same day: that is another row. A project's own price for a day is one.
CREATE UNIQUE INDEX prices_listed_key ON prices (component, region, coalesce(instance_type, ''), effective_from, source, usd)
    WHERE project_id IS NULL;
CREATE UNIQUE INDEX prices_natural_key ON prices (project_id, component, region, coalesce(instance_type, ''), effective_from, source)
    WHERE project_id IS NOT NULL;
CREATE INDEX prices_to_apply ON prices (effective_from) WHERE applied_at IS NULL;
CREATE INDEX prices_of_components ON prices (component, region) WHERE instance_type IS NULL;
CREATE INDEX trials_by_type ON trials (instance_type, experiment_id);

CREATE TABLE repricings (
    experiment_id uuid NOT NULL REFERENCES experiments,
    recorded_at   timestamptz NOT NULL,
    price_ids     uuid[] NOT NULL,
    reason        text NOT NULL,
    -- By how much what was settled changed.
    usd           numeric(18, 6) NOT NULL,
    -- What was recommended until then, when that changed.
    recommendation_before jsonb,
    PRIMARY KEY (experiment_id, recorded_at)
);

-- What SageMaker's own series are asked for by.
ALTER TABLE attempts ADD COLUMN job_arn text;

-- Of an early version; nothing reads them.
DELETE FROM ledger WHERE kind = 'accrued';
ALTER TABLE ledger
    DROP CONSTRAINT ledger_usd_check,
    DROP CONSTRAINT ledger_kind_check,
    DROP CONSTRAINT ledger_component_check,
    DROP CONSTRAINT ledger_unit_check,
    DROP CONSTRAINT ledger_check,
    -- adjusted: what a settlement changed by when a price became known later; it may be less than nothing.
    ADD CONSTRAINT ledger_kind_check CHECK (kind IN ('reserved', 'released', 'settled', 'adjusted')),
    ADD CONSTRAINT ledger_usd_check CHECK (usd >= 0 OR kind = 'adjusted'),
    ADD CONSTRAINT ledger_component_check
        CHECK (component IN ('training', 'cloudwatch', 'warm_pool', 'stray', 'storage')),
    ADD CONSTRAINT ledger_unit_check CHECK (unit IN ('instance_seconds', 'metrics_requested', 'gb_seconds', 'worst_case')),
    ADD CONSTRAINT ledger_part_check CHECK (part >= 0),
    -- When what is settled was used: a day's cost is what was used on it.
    ADD COLUMN used_from timestamptz,
    ADD COLUMN used_until timestamptz,
    ADD CONSTRAINT ledger_used_check CHECK ((used_from IS NULL) = (used_until IS NULL) AND used_from <= used_until);
UPDATE ledger l SET used_from = coalesce(a.started_at, a.planned_at),
                    used_until = greatest(coalesce(a.ended_at, l.recorded_at), coalesce(a.started_at, a.planned_at))
FROM attempts a WHERE a.id = l.attempt_id AND l.kind = 'settled';
CREATE INDEX ledger_by_use ON ledger (project_id, used_until) WHERE kind IN ('settled', 'adjusted');
-- What spot saved, by when it ended.
CREATE INDEX attempts_ended ON attempts (project_id, ended_at) WHERE settled_at IS NOT NULL;
-- When the last complete listing of jobs began, on the domain clock: what was running then has certainly cost until then.
ALTER TABLE leases ADD COLUMN listed_at timestamptz;

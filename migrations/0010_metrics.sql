-- Series of trials and of external runs: from every source, at any rate. Live points in monthly partitions, closed series in
-- chunks; five-minute rollups and the latest value are what tables read.

CREATE TABLE runs (
    id         uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    spec       jsonb NOT NULL,
    state      text NOT NULL CHECK (state IN ('running', 'completed', 'failed')),
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at   timestamptz,
    CHECK ((ended_at IS NOT NULL) = (state <> 'running'))
);
CREATE INDEX runs_by_project ON runs (project_id, id DESC);

CREATE TABLE series (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    trial_id     uuid REFERENCES trials,
    run_id       uuid REFERENCES runs,
    subject_id   uuid NOT NULL GENERATED ALWAYS AS (coalesce(trial_id, run_id)) STORED,
    source       text NOT NULL CHECK (source IN ('pushed', 'imported', 'sagemaker_metrics', 'cloudwatch', 'final')),
    -- As reported, and what it is called here: the standard name, or its own.
    name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 255),
    metric       text NOT NULL CHECK (length(metric) BETWEEN 1 AND 255),
    unit         text,
    points       bigint NOT NULL DEFAULT 0 CHECK (points >= 0),
    -- NaN and the infinities are kept, and are in no aggregate.
    non_finite   bigint NOT NULL DEFAULT 0 CHECK (non_finite BETWEEN 0 AND points),
    first_at     timestamptz,
    last_at      timestamptz,
    last_step    integer,
    last_value   double precision,
    -- When this row was last written to, and whether the steady figure is of everything in it.
    written_at   timestamptz,
    is_settled   boolean NOT NULL DEFAULT false,
    steady       jsonb,
    -- Its points are in chunks. A write must bring them back first: the check below refuses it.
    compacted_at timestamptz,
    CONSTRAINT series_compacted_are_settled CHECK (compacted_at IS NULL OR is_settled),
    CHECK (num_nonnulls(trial_id, run_id) = 1),
    CONSTRAINT series_name_key UNIQUE (subject_id, source, name),
    CONSTRAINT series_metric_key UNIQUE (subject_id, source, metric)
) WITH (fillfactor = 70);
CREATE INDEX series_unsettled ON series (id) WHERE NOT is_settled;
CREATE INDEX series_uncompacted ON series (id) WHERE compacted_at IS NULL;

ALTER TABLE samples RENAME TO old_samples;
ALTER TABLE rollups RENAME TO old_rollups;
ALTER INDEX samples_pkey RENAME TO old_samples_pkey;
ALTER INDEX rollups_pkey RENAME TO old_rollups_pkey;

-- One point. No foreign key: it would cost more than the row, and series are never deleted.
-- The step is part of the key: a fast script reports several in one tick of its clock.
CREATE TABLE samples (
    series_id  integer NOT NULL,
    -- -1: the source knows no steps.
    step       integer NOT NULL DEFAULT -1 CHECK (step >= -1),
    sampled_at timestamptz NOT NULL,
    value      double precision NOT NULL,
    PRIMARY KEY (series_id, sampled_at, step)
) PARTITION BY RANGE (sampled_at);

-- Makes the partition of a month, once. The service calls it before it writes to a month that it has not written to; it runs as
-- its owner, so that the service needs no right to change tables.
CREATE FUNCTION make_samples_partition(month date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    first timestamptz := date_trunc('month', month)::timestamp AT TIME ZONE 'UTC';
    next  timestamptz := (date_trunc('month', month) + interval '1 month')::timestamp AT TIME ZONE 'UTC';
    part  text := 'samples_' || to_char(month, 'YYYY_MM');
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('make_samples_partition'));
    IF to_regclass(part) IS NULL THEN
        EXECUTE format('CREATE TABLE %I (LIKE samples INCLUDING ALL)', part);
        EXECUTE format('ALTER TABLE samples ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, first, next);
    END IF;
END $$;

-- Drops months that hold no points any more; one that somebody writes to at this moment is left for another time.
CREATE FUNCTION drop_empty_samples_partitions(before date) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '200ms' AS $$
DECLARE
    part     regclass;
    is_empty boolean;
    dropped  integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('make_samples_partition'));
    FOR part IN SELECT inhrelid::regclass FROM pg_inherits
                WHERE inhparent = 'samples'::regclass AND inhrelid::regclass::text < 'samples_' || to_char(before, 'YYYY_MM')
    LOOP
        BEGIN
            -- Locked before it is looked at: a point that is being written would be lost.
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', part);
            EXECUTE format('SELECT NOT EXISTS (SELECT FROM %s)', part) INTO is_empty;
            IF is_empty THEN
                EXECUTE format('DROP TABLE %s', part);
                dropped := dropped + 1;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    RETURN dropped;
END $$;

CREATE TABLE rollups (
    series_id integer NOT NULL,
    start_at  timestamptz NOT NULL,
    points    integer NOT NULL CHECK (points > 0),
    sum       double precision NOT NULL,
    min       double precision NOT NULL,
    max       double precision NOT NULL,
    last_at   timestamptz NOT NULL,
    last_step integer NOT NULL,
    last      double precision NOT NULL,
    PRIMARY KEY (series_id, start_at)
);

-- Points of a closed series, a thousand to a row, in order.
CREATE TABLE sample_chunks (
    series_id  integer NOT NULL REFERENCES series,
    number     integer NOT NULL CHECK (number >= 0),
    first_at   timestamptz NOT NULL,
    last_at    timestamptz NOT NULL,
    sampled_at timestamptz[] NOT NULL,
    -- Empty when the source knows no steps.
    step       integer[],
    value      double precision[] NOT NULL,
    PRIMARY KEY (series_id, number),
    CHECK (cardinality(sampled_at) = cardinality(value) AND (step IS NULL OR cardinality(step) = cardinality(value)))
);

INSERT INTO series (trial_id, source, name, metric, unit, points, first_at, last_at, last_value)
SELECT o.trial_id, 'cloudwatch', o.metric,
       CASE o.metric WHEN 'GPUUtilization' THEN 'gpu_utilization_percent'
                     WHEN 'GPUMemoryUtilization' THEN 'gpu_memory_utilization_percent'
                     WHEN 'CPUUtilization' THEN 'cpu_utilization_percent'
                     WHEN 'MemoryUtilization' THEN 'memory_utilization_percent'
                     WHEN 'DiskUtilization' THEN 'disk_utilization_percent'
                     ELSE CASE WHEN o.rank = 1 THEN coalesce(o.meaning, o.metric) ELSE o.metric END END,
       CASE WHEN o.metric LIKE '%Utilization' THEN '%' END,
       o.points, o.first_at, o.last_at, o.last_value
FROM (SELECT s.trial_id, s.metric, m.meaning, count(*) AS points, min(s.sampled_at) AS first_at,
             max(s.sampled_at) AS last_at, (array_agg(s.value ORDER BY s.sampled_at DESC))[1] AS last_value,
             row_number() OVER (PARTITION BY s.trial_id, m.meaning ORDER BY s.metric) AS rank
      FROM old_samples s JOIN trials t ON t.id = s.trial_id
      LEFT JOIN LATERAL (SELECT nullif(d->>'meaning', 'other') AS meaning
                         FROM jsonb_array_elements(coalesce(t.plan->'request'->'metrics', '[]')) d
                         WHERE d->>'name' = s.metric LIMIT 1) m ON true
      GROUP BY s.trial_id, s.metric, m.meaning) o;
SELECT make_samples_partition(month::date)
FROM (SELECT DISTINCT date_trunc('month', sampled_at AT TIME ZONE 'UTC') AS month FROM old_samples) months;
INSERT INTO samples (series_id, sampled_at, value)
SELECT s.id, o.sampled_at, o.value FROM old_samples o JOIN series s ON s.trial_id = o.trial_id AND s.name = o.metric;
INSERT INTO rollups (series_id, start_at, points, sum, min, max, last_at, last_step, last)
SELECT s.id, o.start_at, o.points, o.mean * o.points, o.min, o.max, o.start_at, -1, o.last
FROM old_rollups o JOIN series s ON s.trial_id = o.trial_id AND s.name = o.metric;
DROP TABLE old_samples;
DROP TABLE old_rollups;

-- Samples (one-minute points) and their five-minute rollups. Reading pages and rankings use rollups only.

CREATE TABLE samples (
    trial_id   uuid NOT NULL REFERENCES trials,
    metric     text NOT NULL,
    sampled_at timestamptz NOT NULL,
    value      double precision NOT NULL,
    PRIMARY KEY (trial_id, metric, sampled_at)
);

CREATE TABLE rollups (
    trial_id uuid NOT NULL REFERENCES trials,
    metric   text NOT NULL,
    start_at timestamptz NOT NULL,
    points   integer NOT NULL CHECK (points > 0),
    mean     double precision NOT NULL,
    min      double precision NOT NULL,
    max      double precision NOT NULL,
    last     double precision NOT NULL,
    PRIMARY KEY (trial_id, metric, start_at)
);

-- Why a job failed: read once from the end of its log, some seconds after its end, and kept with the last lines, because
-- logs expire. An experiment is concluded once none of its post-mortems is due.

CREATE TABLE post_mortems (
    job_id uuid PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    project_id uuid NOT NULL REFERENCES projects,
    experiment_id uuid NOT NULL REFERENCES experiments ON DELETE CASCADE,
    trial_id uuid NOT NULL REFERENCES trials ON DELETE CASCADE,
    region text NOT NULL,
    -- NULL once it is done.
    due_at timestamptz,
    tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    -- The likeliest cause and what to do, in words.
    summary text CHECK (length(summary) <= 4000),
    diagnosis jsonb,
    -- The last lines of the log.
    lines jsonb,
    CHECK ((due_at IS NULL) = (diagnosis IS NOT NULL)),
    CHECK ((summary IS NULL) = (diagnosis IS NULL))
);
CREATE INDEX post_mortems_due ON post_mortems (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX post_mortems_of_experiment ON post_mortems (experiment_id);
CREATE INDEX post_mortems_of_trial ON post_mortems (trial_id);

-- What DescribeTrainingJob says beside the status: where the model is, and what the debugger's and profiler's rules found.
ALTER TABLE jobs ADD COLUMN model_s3_uri text, ADD COLUMN rules jsonb;

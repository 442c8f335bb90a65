-- What steps of pipelines ask of a person before they buy, of which answer, and what was decided. Each question is asked, and told of, once.
CREATE TABLE pipeline_purchases (
    pipeline_id uuid NOT NULL,
    -- The step that asks.
    place integer NOT NULL,
    -- Whose answer it is about.
    experiment_id uuid NOT NULL REFERENCES experiments ON DELETE CASCADE,
    state text NOT NULL CHECK (state IN ('asked', 'approved', 'refused')),
    asked_at timestamptz NOT NULL,
    -- The ranked row that a person has chosen.
    candidate text,
    purchase_option text CHECK (purchase_option IN ('on_demand', 'spot')),
    reason text CHECK (length(reason) <= 1000),
    decided_by text,
    decided_at timestamptz,
    PRIMARY KEY (pipeline_id, place, experiment_id),
    FOREIGN KEY (pipeline_id, place) REFERENCES pipeline_steps ON DELETE CASCADE,
    CHECK ((state = 'asked') = (decided_at IS NULL)),
    CHECK ((state = 'asked') = (decided_by IS NULL)),
    CHECK ((state = 'approved') = (candidate IS NOT NULL)),
    CHECK ((candidate IS NULL) = (purchase_option IS NULL))
);
CREATE INDEX pipeline_purchases_of_experiment ON pipeline_purchases (experiment_id);

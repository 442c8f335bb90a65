-- What was found wrong with a trial while it ran: each kind once.
CREATE TABLE trial_troubles (
    trial_id uuid NOT NULL REFERENCES trials ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('no_readings', 'loss_not_finite', 'unit_doubtful', 'accelerators_idle')),
    told_at timestamptz NOT NULL,
    PRIMARY KEY (trial_id, kind)
);

LOCK TABLE jobs IN SHARE UPDATE EXCLUSIVE MODE;
-- When a training job is looked at next for what it teaches; NULL before the first look.
ALTER TABLE jobs ADD COLUMN readings_due_at timestamptz;

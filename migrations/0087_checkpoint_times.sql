-- When the checkpoints were written that an interrupted job went on from: what an interruption lost is the training since.
ALTER TABLE jobs ADD COLUMN checkpoint_times timestamptz[] NOT NULL DEFAULT '{}';

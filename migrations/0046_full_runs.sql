-- A full run is an experiment of its own, started from another one's answer: what was projected of it, and of which it is.
-- Its trial may go on in the checkpoint folder of the trial it follows. No foreign keys: checking them would lock both tables.

LOCK TABLE experiments, trials IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE experiments ADD COLUMN full_run jsonb, ADD COLUMN full_run_of uuid;
ALTER TABLE trials ADD COLUMN checkpoint_trial_id uuid;
